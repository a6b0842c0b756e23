//! Tests that the sockets get the interval of the TCP keep-alive. Linux lists the timer of each socket.

use super::*;

const ESTABLISHED: &str = "01";

/// Returns the time until the next probe of the client's connection to the server, or `None` if it sends no probes.
async fn next_probe(server: &Server) -> Option<Duration> {
    let remote = format!("0100007F:{:04X}", server.address().port());
    let timer = || {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        // The third field is the remote address. The fourth is the state: a closed connection to an earlier server with
        // this port stays in the table for 60 s. The sixth is the kind of the timer and its remaining hundredths of a
        // second.
        let mut sockets = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let fields = sockets.find(|it| it[2] == remote && it[3] == ESTABLISHED);
        let (kind, left) = fields.expect("the connection is open")[5].split_once(':').unwrap();
        (kind.to_owned(), millis(10 * u64::from_str_radix(left, 16).unwrap()))
    };
    loop {
        match timer() {
            (none, _) if none == "00" => return None,
            (keep_alive, left) if keep_alive == "02" => return Some(left),
            // The server has not yet acknowledged the request.
            _ => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test]
async fn idle_connections_are_probed_after_the_interval() {
    let tcp_keep_alive = |seconds| TransportConfig::new().with_tcp_keep_alive(Duration::from_secs(seconds));
    for (transport, seconds) in [
        (TransportConfig::new(), Some(15)),
        (tcp_keep_alive(300), Some(300)),
        (tcp_keep_alive(32_767), Some(32_767)),
        (TransportConfig::new().without_tcp_keep_alive(), None),
    ] {
        let server = Server::quick(Settings::default()).await;
        let client = client(&server.url(), transport);
        within(text(client.get("/"))).await;
        let (left, interval) = (within(next_probe(&server)).await, seconds.map(Duration::from_secs));
        assert_eq!(left.is_some(), interval.is_some(), "{left:?}");
        // A busy machine may read the table seconds later.
        assert!(left <= interval && left >= interval.map(|interval| interval / 2), "{left:?}");
    }
}
