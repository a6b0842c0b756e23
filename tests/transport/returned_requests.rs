//! Tests requests that hyper returns unsent. The server lowers its limit of HTTP/2 streams. hyper does not report this,
//! so requests wait inside hyper.

use tokio::net::{
    TcpListener, TcpStream,
    tcp::{OwnedReadHalf, OwnedWriteHalf},
};
use tower_outbound::{
    Quota,
    limit::{Amounts, Unit},
};

use super::*;

/// The limit of tokens, and the tokens of a request.
const TOKENS: u32 = 1_000;
const AMOUNT: u32 = 100;

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;

/// Ends the headers, and the stream.
const END: u8 = 5;
const ACK: u8 = 1;

/// A connection of a client.
struct Peer {
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    /// The stream ids of the requests that have arrived.
    arrived: Vec<u8>,
}

impl Peer {
    /// Accepts a connection, and allows `streams` streams.
    async fn accept(listener: &TcpListener, streams: u8) -> Self {
        let (stream, _): (TcpStream, _) = listener.accept().await.unwrap();
        let (from, to) = stream.into_split();
        let mut peer = Self { from, to, arrived: Vec::new() };
        // The preface of the client has 24 bytes.
        peer.from.read_exact(&mut [0; 24]).await.unwrap();
        peer.send_limit(streams).await;
        peer
    }

    async fn send(&mut self, kind: u8, flags: u8, id: u8, payload: &[u8]) {
        let head = [0, 0, u8::try_from(payload.len()).unwrap(), kind, flags, 0, 0, 0, id];
        self.to.write_all(&[&head, payload].concat()).await.unwrap();
    }

    /// Sends `SETTINGS_MAX_CONCURRENT_STREAMS`, and waits until the client has applied it.
    async fn send_limit(&mut self, streams: u8) {
        self.send(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, streams]).await;
        while self.receive().await != (SETTINGS, ACK) {}
    }

    /// Returns the kind and the flags of the next frame.
    async fn receive(&mut self) -> (u8, u8) {
        let mut head = [0; 9];
        self.from.read_exact(&mut head).await.unwrap();
        let length = usize::from(head[1]) << 8 | usize::from(head[2]);
        self.from.read_exact(&mut vec![0; length]).await.unwrap();
        match (head[3], head[4]) {
            (SETTINGS, 0) => self.send(SETTINGS, ACK, 0, &[]).await,
            (HEADERS, _) => self.arrived.push(head[8]),
            _ => {}
        }
        (head[3], head[4])
    }

    async fn receive_requests(&mut self, count: usize) {
        while self.arrived.len() < count {
            self.receive().await;
        }
    }

    /// Responds to the requests that have arrived with the status 200 and no body.
    async fn respond(&mut self) {
        for id in std::mem::take(&mut self.arrived) {
            self.send(HEADERS, END, id, &[0x88]).await;
        }
    }
}

/// A permit of 1,000 per minute is valid for 250 ms. The request is sent over a connection that is already open. Its
/// other permit takes its tokens again.
#[tokio::test]
async fn returned_request_is_sent_with_another_permit_if_its_permit_has_expired() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let limiter = LocalLimiter::token_bucket([
        Quota::per_minute(1_000).unwrap().with_burst(100).unwrap(),
        Quota::bucket(TOKENS, 10, Duration::from_secs(86_400)).unwrap().with_unit(Unit::Tokens).unwrap(),
    ]);
    let builder = builder(&format!("http://{}", listener.local_addr().unwrap()));
    let client = builder.with_limiter(limiter.clone()).with_max_attempts(1);
    let client = client.client_with_transport(http2().with_max_connections(2)).unwrap();
    let post = |count| {
        join_all((0..count).map(|_| client.post("/").extension(Amounts::of(Unit::Tokens, AMOUNT)).send()))
    };

    let server = async {
        let mut first = Peer::accept(&listener, 3).await;
        first.receive_requests(3).await;
        let mut second = Peer::accept(&listener, 3).await;
        second.receive_requests(1).await;
        first.respond().await;
        second.respond().await;
        first.send_limit(1).await;
        (first, second)
    };
    let (calls, (mut first, mut second)) = within(async { tokio::join!(post(4), server) }).await;
    assert!(calls.iter().all(Result::is_ok), "{calls:?}");
    assert_eq!(limiter.snapshot().granted, 4);

    // One request is sent, hyper holds one that waits for its stream, and the third one waits in front of it.
    let server = async {
        first.receive_requests(1).await;
        tokio::time::pause();
        tokio::time::advance(millis(300)).await;
        tokio::time::resume();
        drop(first);
        second.receive_requests(1).await;
        second.respond().await;
    };
    let (calls, ()) = within(async { tokio::join!(post(3), server) }).await;
    let succeeded: Vec<_> = calls.iter().map(Result::is_ok).collect();
    assert_eq!(succeeded, [false, false, true], "{calls:?}");
    let snapshot = limiter.snapshot();
    assert_eq!(snapshot.granted, 4 + 3 + 1);
    // The expired permit has returned its tokens.
    assert_eq!((TOKENS - snapshot.units[0].available) / AMOUNT, 4 + 3);
}
