//! Tests the times of the phases in the events at DEBUG. Each phase has another length.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    runtime::Builder,
    time::{advance, sleep},
};
use tower_outbound::{
    ApiKey, BoxError,
    auth::{FreshKey, RefreshingKey},
    transport::Proxy,
};
use tracing::level_filters::LevelFilter;

use super::{
    phases::times,
    proxies::HOST,
    support::{
        capture::{Capture, Line},
        certificate::{trusting, wire},
    },
    uploads::manual_clock,
    *,
};

const KEY: Duration = Duration::from_millis(100);
const RESOLVE: Duration = Duration::from_millis(200);
const CONNECT: Duration = Duration::from_millis(400);
const TLS: Duration = Duration::from_millis(800);
const RESPONSE: Duration = Duration::from_millis(1_600);

/// Starts a proxy for one connection, which needs these times to open the tunnel and to forward the TLS handshake. If
/// `is_broken`, it then closes the connection. Reports the beginning of both phases.
async fn slow_proxy(server: SocketAddr, is_broken: bool, begun: mpsc::UnboundedSender<()>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        drop(listener);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(client.read_u8().await.unwrap());
        }
        begun.send(()).unwrap();
        sleep(CONNECT).await;
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        client.peek(&mut [0]).await.unwrap();
        begun.send(()).unwrap();
        sleep(TLS).await;
        if !is_broken {
            let mut server = TcpStream::connect(server).await.unwrap();
            let _ = copy_bidirectional(&mut client, &mut server).await;
        }
    });
    port
}

/// Makes a call, and returns its first event with this target. `status` is that of the first response.
async fn first_event(status: u16, is_broken: bool, target: &str) -> Line {
    let (capture, _guard) = Capture::at(LevelFilter::DEBUG);
    let (begin, mut begun) = mpsc::unbounded_channel();
    let certificate = rcgen::generate_simple_self_signed([HOST.to_owned()]).unwrap();
    let begins = begin.clone();
    let server = Server::raw(wire(&certificate, &["http/1.1"]), move |_, _| {
        begins.send(()).unwrap();
        async move {
            sleep(RESPONSE).await;
            reply(status, "ok")
        }
    })
    .await;
    let proxy = format!("http://localhost:{}", slow_proxy(server.address(), is_broken, begin).await);
    let keys = RefreshingKey::new(|| async {
        sleep(KEY).await;
        ApiKey::new("k3y").map(FreshKey::new).map_err(BoxError::from)
    });
    let transport = trusting(&certificate).with_connect_timeout(LONG).with_proxy(Proxy::new(&proxy).unwrap());
    let stack = builder(&server.url_of(HOST)).with_keys(keys);
    let client = stack.client_with_transport(transport).unwrap();
    // The resolver waits for the only thread of blocking tasks.
    let resolving = manual_clock();
    let _call = tokio::spawn(client.get("/").send());
    settle().await;
    advance(KEY).await;
    settle().await;
    let _clock = manual_clock();
    advance(RESOLVE).await;
    drop(resolving);
    for phase in [CONNECT, TLS, RESPONSE].into_iter().take(if is_broken { 2 } else { 3 }) {
        within(begun.recv()).await.unwrap();
        advance(phase).await;
    }
    within(async {
        loop {
            match capture.of(target).into_iter().next() {
                Some(event) => return event,
                None => tokio::task::yield_now().await,
            }
        }
    })
    .await
}

#[test]
fn event_at_debug_shows_each_phase_that_ended() {
    let all = [
        ("key_ms", "100.0"),
        ("resolve_ms", "200.0"),
        ("connect_ms", "400.0"),
        ("tls_ms", "800.0"),
        ("connection_wait_ms", "1400.0"),
        ("response_ms", "1600.0"),
    ];
    let broken = [all[0], all[1], all[2], all[4]];
    // Without a retry, the event of the call shows the attempt.
    for (status, is_broken, target, expected) in [
        (200, false, "tower_outbound::call", &all[..]),
        (503, false, "tower_outbound::attempt_span", &all),
        (200, true, "tower_outbound::attempt_span", &broken),
    ] {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).max_blocking_threads(1).build().unwrap();
        let event = runtime.block_on(first_event(status, is_broken, target));
        assert_eq!(times(&event), expected, "{status} {is_broken}: {event:?}");
    }
}
