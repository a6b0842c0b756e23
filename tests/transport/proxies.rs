//! Tests requests through real proxies.

use http::Version;
use tokio::{io::copy_bidirectional, net::TcpListener};
use tower_outbound::{ApiKey, transport::Proxy};

use super::{
    proxy_program::ProxyProgram,
    server::Wire,
    support::{
        certificate::{certificate, trusting, wire},
        key_search::Search,
    },
    *,
};

/// A host that reaches this machine over the loopback interface. Unlike 127.0.0.1, it is not exempt from proxies.
pub(crate) const HOST: &str = "0.0.0.0";

const API_KEY: &str = "k3y-of-the-api-in-tests";
pub(crate) const USER: &str = "ann";
const PASSWORD: &str = "pr0xy-s3cret-in-tests";
pub(crate) const LOGIN: Option<(&str, &str)> = Some((USER, PASSWORD));

/// A proxy behind a forwarder that records what the proxy receives.
pub(crate) struct Recorded {
    pub(crate) path: Forwarder,
    _program: ProxyProgram,
}

impl Recorded {
    /// Starts an HTTP proxy for the scheme `http`, and a SOCKS proxy for any other scheme.
    pub(crate) async fn start(scheme: &str, login: Option<(&str, &str)>) -> Self {
        let program = match scheme {
            "http" => ProxyProgram::tinyproxy(login),
            _ => ProxyProgram::microsocks(login),
        };
        Self { path: Forwarder::start(program.address()).await, _program: program }
    }

    pub(crate) fn proxy(&self, scheme: &str, login: Option<(&str, &str)>) -> Proxy {
        let login = login.map_or(String::new(), |(user, password)| format!("{user}:{password}@"));
        Proxy::new(&format!("{scheme}://{login}{}", self.path.address())).unwrap()
    }

    pub(crate) fn seen(&self) -> String {
        String::from_utf8_lossy(&self.path.sent()).into_owned()
    }
}

pub(crate) fn through(stack: StackBuilder, transport: TransportConfig, proxy: Proxy) -> Client {
    stack.client_with_transport(transport.with_proxy(proxy)).unwrap()
}

fn with_key(url: &str) -> StackBuilder {
    builder(url).with_api_key(ApiKey::new(API_KEY).unwrap())
}

/// A TLS server that [`HOST`] reaches, and a transport that trusts it.
pub(crate) async fn https_server(protocols: &[&str]) -> (Server, TransportConfig) {
    let certificate = rcgen::generate_simple_self_signed([HOST.to_owned()]).unwrap();
    let server = Server::quick(wire(&certificate, protocols)).await;
    (server, trusting(&certificate))
}

#[tokio::test]
async fn https_requests_go_through_a_tunnel() {
    for (protocol, version) in [("h2", Version::HTTP_2), ("http/1.1", Version::HTTP_11)] {
        let (server, transport) = https_server(&[protocol]).await;
        let proxy = Recorded::start("http", LOGIN).await;
        let url = server.url_of(HOST);
        // With one connection, the second request waits until the connection is idle again.
        let transport = transport.with_max_connections(1);
        let client = through(with_key(&url), transport, proxy.proxy("http", LOGIN));
        for _ in 0..2 {
            let response = within(client.post("/v1").body("{}")).await.unwrap();
            assert_eq!((response.version(), attempts(&response)), (version, 1));
            assert_eq!(within(response.bytes()).await.unwrap(), "ok");
        }
        assert_eq!((server.requests(), server.connections(), proxy.path.opened()), (2, 1, 1));
        let head = &server.heads()[0];
        assert_eq!(head.headers["authorization"], format!("Bearer {API_KEY}"));
        assert!(!head.headers.contains_key("proxy-authorization"));
        let seen = proxy.seen();
        let authority = url.strip_prefix("https://").unwrap();
        assert!(seen.starts_with(&format!("CONNECT {authority} HTTP/1.1\r\n")), "{seen}");
        assert_eq!(Search::new(API_KEY).find(&seen), None, "the proxy never sees the key of the API");
    }
}

#[tokio::test]
async fn plain_requests_go_to_the_proxy_with_an_absolute_uri() {
    let server = Server::quick(Settings::default()).await;
    let proxy = Recorded::start("http", LOGIN).await;
    let url = server.url_of(HOST);
    // tinyproxy closes each connection after the response, even while the next request is on its way.
    let transport = TransportConfig::new().with_idle_timeout(Duration::from_nanos(1));
    let client = through(builder(&url), transport, proxy.proxy("http", LOGIN));
    for _ in 0..2 {
        let response = within(client.get("/v1?q=1")).await.unwrap();
        assert_eq!((response.status().as_u16(), attempts(&response)), (200, 1));
        assert_eq!(within(response.bytes()).await.unwrap(), "ok");
    }
    let seen = proxy.seen();
    assert!(seen.starts_with(&format!("GET {url}/v1?q=1 HTTP/1.1\r\n")), "{seen}");
    assert!(seen.contains("proxy-authorization: Basic "), "{seen}");
    let head = &server.heads()[0];
    assert_eq!(head.uri, "/v1?q=1");
    assert!(!head.headers.contains_key("proxy-authorization"), "{:?}", head.headers);
}

/// The proxy could read the key.
#[tokio::test]
async fn key_of_a_plain_request_reaches_the_proxy_only_with_plaintext() {
    let server = Server::quick(Settings::default()).await;
    let proxy = Recorded::start("http", None).await;
    let stack = with_key(&server.url_of(HOST));
    let transport = TransportConfig::new().with_proxy(proxy.proxy("http", None));
    let error = stack.client_with_transport(transport.clone()).unwrap_err();
    assert_eq!(error.field(), "origin", "{error}");
    assert_eq!(Search::new(API_KEY).find(&error.to_string()), None);
    assert_eq!((proxy.path.opened(), server.connections()), (0, 0));
    // `with_plaintext` allows every host on the network path to read the key, the proxy among them.
    let client = stack.with_plaintext().client_with_transport(transport).unwrap();
    assert_eq!(within(text(client.get("/"))).await, "ok");
    assert!(Search::new(API_KEY).find(&proxy.seen()).is_some());
}

#[tokio::test]
async fn requests_go_through_a_socks_proxy() {
    let (https, trusting) = https_server(&["h2"]).await;
    let http = Server::quick(Settings::default()).await;
    for login in [None, LOGIN] {
        let recorded = Recorded::start("socks5", login).await;
        for scheme in ["socks5", "socks5h"] {
            let stack = with_key(&https.url_of(HOST));
            let client = through(stack, trusting.clone(), recorded.proxy(scheme, login));
            let response = within(client.post("/").body("{}")).await.unwrap();
            assert_eq!((response.version(), attempts(&response)), (Version::HTTP_2, 1));

            let transport = TransportConfig::new();
            let client = through(builder(&http.url_of(HOST)), transport, recorded.proxy(scheme, login));
            assert_eq!(within(text(client.get("/v1"))).await, "ok");
        }
        assert_eq!(Search::new(API_KEY).find(&recorded.seen()), None);
        assert_eq!(recorded.path.opened(), 4);
    }
    assert_eq!(http.heads()[0].uri, "/v1", "a SOCKS proxy needs no absolute uri");
}

#[tokio::test]
async fn no_proxy_hosts_and_loopback_hosts_are_reached_directly() {
    let server = Server::quick(Settings::default()).await;
    let recorded = Recorded::start("http", None).await;
    for (host, exceptions) in
        [(HOST, HOST), (HOST, "example.com, 0.0.0.0/8"), (HOST, "*"), ("127.0.0.1", ""), ("localhost", "")]
    {
        let proxy = recorded.proxy("http", None).with_no_proxy(exceptions);
        let client = through(builder(&server.url_of(host)), TransportConfig::new(), proxy);
        assert_eq!(within(text(client.get("/"))).await, "ok", "{host} {exceptions}");
    }
    assert_eq!((recorded.path.opened(), server.requests()), (0, 5));
}

/// This test runs itself again in child processes with the variables of a proxy in their environments.
#[tokio::test]
async fn proxies_of_the_environment_are_used() {
    const URL: &str = "PROXIED_URL";
    const ROOT: &str = "PROXIED_ROOT";
    if let Ok(url) = std::env::var(URL) {
        let transports = [
            TransportConfig::new().with_proxy(Proxy::from_env().unwrap()),
            #[cfg(feature = "serde")]
            toml::from_str("proxy = 'environment'").unwrap(),
        ];
        for transport in transports {
            let transport = transport.with_root_certificates(std::env::var(ROOT).unwrap().as_bytes());
            let client = builder(&url).client_with_transport(transport).unwrap();
            assert_eq!(within(text(client.get("/v1"))).await, "ok");
        }
        return;
    }
    // Each child makes a call with the proxy of the setter, and one with that of a file.
    const CALLS: usize = if cfg!(feature = "serde") { 2 } else { 1 };
    let certificate = rcgen::generate_simple_self_signed([HOST.to_owned()]).unwrap();
    let http = Server::quick(Settings::default()).await;
    let https = Server::quick(wire(&certificate, &["h2"])).await;
    let recorded = Recorded::start("http", LOGIN).await;
    let proxy = format!("http://{USER}:{PASSWORD}@{}", recorded.path.address());
    for (server, variables, opened) in [
        (&http, vec![("HTTP_PROXY", proxy.as_str())], 1),
        (&http, vec![("all_proxy", &proxy)], 2),
        (&http, vec![("HTTPS_PROXY", &proxy)], 2),
        (&http, vec![("HTTP_PROXY", &proxy), ("NO_PROXY", HOST)], 2),
        (&https, vec![("HTTPS_PROXY", &proxy)], 3),
        (&https, vec![("HTTP_PROXY", &proxy)], 3),
    ] {
        let mut child = tokio::process::Command::new(std::env::current_exe().unwrap());
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"] {
            child.env_remove(name).env_remove(name.to_lowercase());
        }
        child.args(["proxies::proxies_of_the_environment_are_used", "--exact"]);
        child.env(URL, server.url_of(HOST)).env(ROOT, certificate.cert.pem()).envs(variables.clone());
        let output = child.output().await.unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.contains("1 passed"), "{output}");
        assert_eq!(recorded.path.opened(), opened * CALLS, "{} {variables:?}", server.url());
    }
    assert_eq!((http.requests(), https.requests()), (4 * CALLS, 2 * CALLS));
    assert_eq!(recorded.seen().matches("CONNECT ").count(), CALLS);
}

/// Speaks TLS with the client, and forwards to the proxy.
#[tokio::test]
async fn https_proxy_is_reached_over_tls() {
    let (server, transport) = https_server(&["h2"]).await;
    let program = ProxyProgram::tinyproxy(LOGIN);
    let (certificate, address) = (certificate(), program.address());
    let Wire::Tls(acceptor) = wire(&certificate, &["h2", "http/1.1"]) else { panic!("`wire` uses TLS") };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{USER}:{PASSWORD}@{}", listener.local_addr().unwrap());
    let forwarding = tokio::spawn(async move {
        let (client, _) = listener.accept().await.unwrap();
        let mut client = acceptor.accept(client).await.unwrap();
        let mut proxy = tokio::net::TcpStream::connect(address).await.unwrap();
        let _ = copy_bidirectional(&mut client, &mut proxy).await;
    });
    let transport = transport.with_root_certificates(certificate.cert.pem().as_bytes());
    let client = through(with_key(&server.url_of(HOST)), transport, Proxy::new(&url).unwrap());
    assert_eq!(within(text(client.post("/").body("{}"))).await, "ok");
    assert_eq!(server.requests(), 1);
    forwarding.abort();
}

#[cfg(feature = "serde")]
#[tokio::test]
async fn proxy_of_a_configuration_file_is_used_and_never_serialised() {
    let (server, _) = https_server(&["h2"]).await;
    let recorded = Recorded::start("http", LOGIN).await;
    let proxy = format!("http://{USER}:{PASSWORD}@{}", recorded.path.address());
    let file = format!("proxy = \"{proxy}\"\nno_proxy = \"example.com\"\n");
    let transport: TransportConfig = toml::from_str(&file).unwrap();
    let shown = format!("{transport:?} {}", toml::to_string(&transport).unwrap());
    assert_eq!(Search::new(PASSWORD).find(&shown), None);
    let client = builder(&server.url_of(HOST)).client_with_transport(transport).unwrap();
    // The certificate of the server is not trusted, so the tunnel opens and the handshake fails.
    let error = within(client.get("/")).await.unwrap_err();
    assert_not_sent(&error, ErrorKind::Tls, 1);
    assert!(recorded.seen().starts_with("CONNECT "));
}
