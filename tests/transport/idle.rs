//! Tests that the client closes idle connections before the server does.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};
use tower_outbound::transport::TransportConfig;

use super::{
    LONG, attempts, client, millis,
    server::{Server, Settings, reply},
    support::server::{settle, within},
    text,
};

/// An HTTP/1.1 server that closes connections which were idle for a while.
struct ClosingServer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    paths: Arc<Mutex<Vec<String>>>,
    closed: watch::Receiver<usize>,
    accepting: JoinHandle<()>,
}

impl ClosingServer {
    async fn start(idle_timeout: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, paths): (Arc<AtomicUsize>, Arc<Mutex<Vec<String>>>) = Default::default();
        let (count, log) = (Arc::clone(&connections), Arc::clone(&paths));
        let (closing, closed) = watch::channel(0);
        let accepting = tokio::spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, SeqCst);
                let (log, closing) = (Arc::clone(&log), closing.clone());
                open.spawn(async move {
                    respond(stream, idle_timeout, log).await;
                    closing.send_modify(|closed| *closed += 1);
                });
            }
        });
        Self { address, connections, paths, closed, accepting }
    }
}

impl Drop for ClosingServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn respond(mut stream: TcpStream, idle_timeout: Duration, paths: Arc<Mutex<Vec<String>>>) {
    let mut received = Vec::new();
    // The time until the first request does not count.
    let mut limit = LONG;
    loop {
        let mut buffer = [0; 4_096];
        match tokio::time::timeout(limit, stream.read(&mut buffer)).await {
            Ok(Ok(count @ 1..)) => received.extend_from_slice(&buffer[..count]),
            _ => return,
        }
        if !received.ends_with(b"\r\n\r\n{}") {
            continue;
        }
        let head = String::from_utf8_lossy(&received).into_owned();
        paths.lock().unwrap().push(head.split(' ').nth(1).unwrap().to_owned());
        received.clear();
        limit = idle_timeout;
        if stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.is_err() {
            return;
        }
    }
}

/// The pauses between the calls are around the idle timeout of the client, so some calls reuse their connection.
#[tokio::test]
async fn no_post_meets_a_closing_connection_if_the_idle_timeout_is_below_that_of_the_server() {
    const CLIENTS: usize = 30;
    const CALLS: usize = 20;
    let server = ClosingServer::start(millis(400)).await;
    let url = format!("http://{}", server.address);
    let calls = (0..CLIENTS).map(|number| {
        let transport = TransportConfig::new().with_idle_timeout(millis(50));
        let client = client(&url, transport);
        async move {
            for call in 0..CALLS {
                assert_eq!(text(client.post(format!("/{number}/{call}")).body("{}")).await, "ok");
                tokio::time::sleep(millis(40 + 20 * (call as u64 % 2))).await;
            }
        }
    });
    within(join_all(calls)).await;
    let mut paths = server.paths.lock().unwrap().clone();
    assert_eq!(paths.len(), CLIENTS * CALLS);
    paths.sort();
    paths.dedup();
    assert_eq!(paths.len(), CLIENTS * CALLS, "no call is sent twice");
    let opened = server.connections.load(SeqCst);
    assert!(opened > CLIENTS, "the client closes idle connections: {opened}");
}

/// The client notices that the server has closed the connection.
#[tokio::test]
async fn post_leaves_a_closed_connection_without_a_failed_attempt() {
    let mut server = ClosingServer::start(millis(1)).await;
    let client = client(&format!("http://{}", server.address), TransportConfig::new());
    for call in 1..=5 {
        let response = within(client.post("/").body("{}")).await.unwrap();
        assert_eq!(attempts(&response), 1);
        assert_eq!(within(response.bytes()).await.unwrap(), "ok");
        within(server.closed.wait_for(|closed| *closed == call)).await.unwrap();
        tokio::time::sleep(millis(10)).await;
        assert_eq!(server.connections.load(SeqCst), call);
    }
}

#[tokio::test]
async fn idle_timeout_closes_connections_of_both_versions() {
    for (settings, transport) in
        [(Settings::default(), TransportConfig::new()), (Settings::http2(), super::http2())]
    {
        let server = Server::quick(settings).await;
        let path = super::forwarder::Forwarder::start(server.address()).await;
        let client = client(&path.url(), transport.with_idle_timeout(millis(50)));
        assert_eq!(within(text(client.get("/"))).await, "ok");
        within(path.closed(1)).await;
        assert_eq!(within(text(client.get("/"))).await, "ok");
        assert_eq!(path.opened(), 2);
    }
}

/// The clock is paused and advanced, so that the test does not wait.
#[tokio::test]
async fn keep_alive_header_shortens_the_use_of_a_connection_to_three_quarters() {
    for (header, pause, opened) in [
        (Some("timeout=100"), 70, 1),
        (Some("timeout=100"), 80, 2),
        (Some("max=100"), 80, 1),
        (None, 80, 1),
        (None, 200, 2),
    ] {
        let server = Server::start(Settings::default(), move |_, _| async move {
            let mut reply = reply(200, "ok");
            if let Some(header) = header {
                reply.headers_mut().insert("keep-alive", header.parse().unwrap());
            }
            reply
        })
        .await;
        let transport = TransportConfig::new().with_idle_timeout(Duration::from_secs(150));
        let client = client(&server.url(), transport);
        assert_eq!(within(text(client.get("/"))).await, "ok");
        settle().await;
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(pause)).await;
        tokio::time::resume();
        assert_eq!(within(text(client.post("/").body("{}"))).await, "ok");
        assert_eq!(server.connections(), opened, "{header:?} after {pause} s");
    }
}
