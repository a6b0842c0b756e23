//! Tests which failures of a proxy are retried, and that its credentials appear in no error and no log.

use tokio::net::TcpListener;
use tower_outbound::transport::Proxy;

use super::{
    proxies::{HOST, LOGIN, Recorded, USER, https_server, through},
    support::{capture::Capture, key_search::Search},
    *,
};

/// Collects all texts in which the credentials of a proxy might appear.
fn texts(error: &Error, client: &Client, proxy: &Proxy, log: &Capture) -> String {
    let mut texts = format!("{error} {error:?} {error:#?} {client:?} {proxy:?} {}", log.text());
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        texts += &format!(" {error} {error:?}");
        source = error.source();
    }
    texts
}

#[tokio::test]
async fn wrong_password_of_a_proxy_causes_one_login_and_appears_in_no_error_or_log() {
    const WRONG: Option<(&str, &str)> = Some((USER, "wr0ng-s3cret-in-tests"));
    const REJECTED: &str = "the proxy requires a valid user and password";
    const NO_METHOD: &str =
        "the proxy accepts none of the offered methods: it requires a user and a password, or accepts none";
    let (https, trusting) = https_server(&["h2", "http/1.1"]).await;
    let http = Server::quick(Settings::default()).await;
    for (required, given, scheme, expected) in [
        (LOGIN, None, "http", REJECTED),
        (LOGIN, None, "socks5", NO_METHOD),
        (LOGIN, WRONG, "http", REJECTED),
        (LOGIN, WRONG, "socks5", REJECTED),
        // The client offers no other method than its login.
        (None, WRONG, "socks5", NO_METHOD),
    ] {
        let (log, _guard) = Capture::all();
        let recorded = Recorded::start(scheme, required).await;
        let proxy = recorded.proxy(scheme, given);
        let client = through(builder(&https.url_of(HOST)), trusting.clone(), proxy.clone());
        let error = within(client.post("/").body("{}")).await.unwrap_err();
        assert_not_sent(&error, ErrorKind::Proxy, 1);
        assert_eq!(error.report().unwrap().stop_reason(), Some(StopReason::NotRetryable));
        assert!(format!("{error:#}").ends_with(expected), "{error:#}");
        assert_eq!(recorded.path.opened(), 1, "several logins could lock an account");
        if let Some((_, password)) = given {
            assert_eq!(Search::new(password).find(&texts(&error, &client, &proxy, &log)), None);
        }
    }
    assert_eq!(https.connections(), 0);

    // The response of the proxy to a plain request is an ordinary response.
    let recorded = Recorded::start("http", LOGIN).await;
    let client = through(builder(&http.url_of(HOST)), TransportConfig::new(), recorded.proxy("http", None));
    let response = within(client.get("/")).await.unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (407, 1));
    assert_eq!((recorded.path.opened(), http.connections()), (1, 0));
}

#[tokio::test]
async fn retries_post_if_the_proxy_cannot_reach_the_server() {
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{HOST}:{}", unused.local_addr().unwrap().port());
    drop(unused);
    for scheme in ["http", "socks5"] {
        let recorded = Recorded::start(scheme, None).await;
        let client = through(builder(&url), TransportConfig::new(), recorded.proxy(scheme, None));
        let error = within(client.post("/").body("{}")).await.unwrap_err();
        assert_eq!(error.report().unwrap().attempt_count(), 3, "{scheme}: {error:?}");
        assert_not_sent(&error, ErrorKind::Proxy, 3);
        assert_eq!(recorded.path.opened(), 3);
    }
}

#[tokio::test]
async fn retries_post_unless_the_proxy_rejects_the_password() {
    for (reply, count) in [
        ("HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n", 1),
        ("HTTP/1.0 401 Unauthorized\r\n\r\n", 1),
        ("HTTP/1.1 503 Service Unavailable\r\n\r\n", 3),
        ("HTTP/1.1 200", 3),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", 3),
        ("", 3),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let serving = tokio::spawn(async move {
            for _ in 0..count {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut request = [0; 1_024];
                let read = client.read(&mut request).await.unwrap();
                assert!(
                    request[..read].starts_with(b"CONNECT api.test:443 HTTP/1.1\r\nhost: api.test:443\r\n")
                );
                client.write_all(reply.as_bytes()).await.unwrap();
            }
        });
        let client = through(builder("https://api.test"), TransportConfig::new(), proxy);
        let error = within(client.post("/").body("{}")).await.unwrap_err();
        assert_not_sent(&error, ErrorKind::Proxy, count);
        within(serving).await.unwrap();
    }
}

#[tokio::test]
async fn log_and_error_name_a_proxy_that_refuses_the_connection() {
    let (log, _guard) = Capture::at(tracing::level_filters::LevelFilter::INFO);
    // A bound socket that does not listen refuses connections.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let proxy = Proxy::new(&format!("http://{}", socket.local_addr().unwrap())).unwrap();
    let client = through(builder("https://api.test"), TransportConfig::new(), proxy);
    let error = within(client.post("/").body("{}")).await.unwrap_err();
    assert_not_sent(&error, ErrorKind::Proxy, 3);
    assert!(error.to_string().starts_with("no connection through the proxy after 3 attempts"), "{error}");
    assert!(format!("{error:#}").contains("no connection to the proxy could be opened"), "{error:#}");
    let [call] = &log.of("tower_outbound::call")[..] else { panic!("{}", log.text()) };
    assert_eq!(call.fields["error.type"], "proxy");
    assert!(call.fields["attempt_log"].starts_with("proxy(not_sent)@"), "{call:?}");
}
