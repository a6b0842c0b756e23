//! Tests that the client closes idle connections before the server does.

use std::collections::BTreeSet;

use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use super::*;

/// How long the server waits for a request. The client's idle timeout is far below, so that a slow machine cannot fail
/// the test.
const SERVER_IDLE: Duration = Duration::from_secs(1);
const CLIENT_IDLE: Duration = Duration::from_millis(50);

/// Receives a request with the body `{}`.
async fn receive(stream: &mut TcpStream, request: &mut Vec<u8>) -> io::Result<()> {
    while !request.ends_with(b"\r\n\r\n{}") {
        if stream.read_buf(request).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Responds to each request. After an idle time, the server closes the connection, but the client learns this only from
/// its next request, which is lost.
async fn serve(mut stream: TcpStream, paths: Arc<Mutex<Vec<String>>>) -> io::Result<()> {
    loop {
        let mut request = Vec::new();
        match timeout(SERVER_IDLE, receive(&mut stream, &mut request)).await {
            Ok(received) => received?,
            Err(_) => return receive(&mut stream, &mut request).await,
        }
        let path = String::from_utf8_lossy(&request).split(' ').nth(1).unwrap().to_owned();
        paths.lock().unwrap().push(path);
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
    }
}

/// Sends three bursts of 20 POSTs from each client. Returns how many fail, and the paths that the server received.
async fn post(clients: u64, idle_timeout: Duration) -> (usize, Vec<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let paths = Arc::<Mutex<Vec<String>>>::default();
    let received = Arc::clone(&paths);
    let _accepting = JoinSet::from_iter([async move {
        let mut connections = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(serve(stream, Arc::clone(&received)));
        }
    }]);
    let clients = (0..clients).map(|number| {
        let client = client(&url, TransportConfig::new().with_idle_timeout(idle_timeout));
        async move {
            let mut failed = 0;
            for burst in 0..3 {
                // The pauses below 150 ms are above and below the client's idle timeout.
                let pause = (number * 3 + burst) * 53 % 150;
                sleep(millis(if burst == 1 { 1_100 + pause } else { pause })).await;
                let posts =
                    (0..20).map(|post| client.post(format!("/{number}/{burst}/{post}")).body("{}").send());
                failed += join_all(posts).await.iter().filter(|result| result.is_err()).count();
            }
            failed
        }
    });
    let failed = within(join_all(clients)).await.into_iter().sum();
    let paths = paths.lock().unwrap().clone();
    (failed, paths)
}

/// A client with a longer idle timeout loses requests.
#[tokio::test]
async fn no_post_fails_if_the_idle_timeout_is_below_that_of_the_server() {
    let ((failed, paths), (lost, _)) = tokio::join!(post(10, CLIENT_IDLE), post(1, LONG));
    let distinct: BTreeSet<_> = paths.iter().collect();
    assert_eq!((failed, paths.len(), distinct.len()), (0, 600, 600));
    assert!(lost > 0);
}

#[tokio::test]
async fn idle_timeout_closes_connections_of_both_versions() {
    for (settings, transport) in super::versions() {
        let server = Server::quick(settings).await;
        let path = Forwarder::start(server.address()).await;
        let client = client(&path.url(), transport.with_idle_timeout(millis(50)));
        assert_eq!(within(text(client.get("/"))).await, "ok");
        within(path.closed(1)).await;
        assert_eq!(within(text(client.get("/"))).await, "ok");
        assert_eq!(path.opened(), 2);
    }
}

/// The clock is paused and advanced, so that the test does not wait. With one connection, a request waits until the
/// connection is idle again.
#[tokio::test]
async fn keep_alive_header_shortens_the_use_of_a_connection_to_three_quarters() {
    for (header, pause, opened) in [
        (Some("timeout=100"), 70, 1),
        (Some("timeout=100"), 80, 2),
        (Some("max=100"), 80, 1),
        (None, 80, 1),
        (None, 200, 2),
    ] {
        let server = Server::raw(Settings::default(), move |_, _| async move {
            let mut reply = reply(200, "ok");
            if let Some(header) = header {
                reply.headers_mut().insert("keep-alive", header.parse().unwrap());
            }
            reply
        })
        .await;
        let transport =
            TransportConfig::new().with_idle_timeout(Duration::from_secs(150)).with_max_connections(1);
        let client = client(&server.url(), transport);
        assert_eq!(within(text(client.get("/"))).await, "ok");
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(pause)).await;
        tokio::time::resume();
        assert_eq!(within(text(client.post("/").body("{}"))).await, "ok");
        assert_eq!(server.connections(), opened, "{header:?} after {pause} s");
    }
}
