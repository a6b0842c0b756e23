//! Tests names with several addresses. All addresses belong to this machine, and have the port of a server on
//! `127.0.0.1`.
#![cfg(target_os = "linux")]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::timeout,
};

use super::*;
use crate::{
    call::{AttemptReport, Outcome},
    client::{Response, service::Client},
    error::{Error, ErrorKind},
    policy::backoff::ExponentialBackoff,
    retry::RetryLayer,
    stack::StackBuilder,
    transport::TransportConfig,
};

const TIMEOUT: Duration = Duration::from_millis(900);
const LONG: Duration = Duration::from_secs(50);

/// The addresses of each name. Connections to `SILENT` stay without a response, and `REFUSING` refuses them.
fn addresses(name: Name) -> BoxFuture<io::Result<Addresses>> {
    static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
    const LIVING: &str = "127.0.0.1";
    let [silent, refusing] = [SILENT, REFUSING];
    let addresses = match name.as_str() {
        "silent-and-living.test" => vec![silent[0], silent[1], LIVING],
        "refusing-and-living.test" => vec![refusing[0], refusing[1], LIVING],
        "two-families.test" => vec!["::1", LIVING],
        "silent.test" => silent.to_vec(),
        "refusing.test" => refusing.to_vec(),
        "stalled.test" => return Box::pin(std::future::pending()),
        // The text of glibc.
        "unknown.test" => {
            let text = "failed to lookup address information: Name or service not known";
            return Box::pin(std::future::ready(Err(io::Error::other(text))));
        }
        "refusing-first.test" if LOOKUPS.fetch_add(1, Relaxed) == 0 => refusing.to_vec(),
        _ => vec![LIVING],
    };
    let addresses = addresses.into_iter().map(|address| SocketAddr::new(address.parse().unwrap(), 0));
    Box::pin(std::future::ready(Ok(addresses.collect::<Vec<_>>().into_iter())))
}

const SILENT: [&str; 2] = ["127.0.0.2", "127.0.0.3"];
const REFUSING: [&str; 2] = ["127.0.0.4", "127.0.0.5"];

/// A server, and listeners with a full queue of connections. Linux drops further attempts to connect to these.
struct Network {
    port: u16,
    requests: Arc<AtomicUsize>,
    _silent: Vec<(TcpListener, Vec<TcpStream>)>,
}

impl Network {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, requests) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let mut silent = Vec::new();
        for address in SILENT {
            silent.push(full_listener(SocketAddr::new(address.parse().unwrap(), port)).await.unwrap());
        }
        // A machine without IPv6 rejects the address immediately.
        silent.extend(full_listener(SocketAddr::new("::1".parse().unwrap(), port)).await.ok());
        let count = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                // The request arrives in one piece, because it is short.
                assert!(stream.read(&mut [0; 1024]).await.unwrap() > 0);
                count.fetch_add(1, Relaxed);
                stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await.unwrap();
            }
        });
        Self { port, requests, _silent: silent }
    }

    async fn post(&self, host: &str) -> Result<Response, Error> {
        let config = TransportConfig::new().with_connect_timeout(TIMEOUT);
        let dialer = Dialer::Tcp { timeout: TIMEOUT, keep_alive: None, resolve: addresses };
        let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(5)).unwrap();
        let client: Client = StackBuilder::new(format!("http://{host}:{}", self.port))
            .unwrap()
            .with_plaintext()
            .without_credential()
            .with_retry(RetryLayer::new().with_backoff(backoff))
            .with_attempt_timeout(LONG)
            .with_total_timeout(LONG)
            .client_with_service(config.with_dialer(dialer).unwrap())
            .unwrap();
        client.post("/").body("{}").await
    }
}

async fn full_listener(address: SocketAddr) -> io::Result<(TcpListener, Vec<TcpStream>)> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind(address)?;
    let (listener, mut queued) = (socket.listen(1)?, Vec::new());
    while let Ok(stream) = timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
        queued.push(stream?);
    }
    Ok((listener, queued))
}

fn outcomes(attempts: &[AttemptReport]) -> Vec<Option<Outcome>> {
    attempts.iter().map(|attempt| attempt.outcome).collect()
}

#[tokio::test]
async fn uses_the_address_that_accepts_within_one_connect_timeout() {
    let network = Network::start().await;
    // The least time: two thirds of the timeout for two of three addresses, or hyper-util's 300 ms before it also tries
    // the other family.
    for (host, least) in [
        ("silent-and-living.test", TIMEOUT * 2 / 3),
        ("refusing-and-living.test", Duration::ZERO),
        ("two-families.test", Duration::ZERO),
    ] {
        let response = network.post(host).await.unwrap();
        let attempts = response.report().unwrap().attempts();
        assert_eq!(attempts.len(), 1, "{host}: {attempts:?}");
        let connect = attempts[0].connect.unwrap().connect.unwrap();
        assert!(connect >= least && connect < TIMEOUT, "{host}: {connect:?}");
    }
    assert_eq!(network.requests.load(Relaxed), 3);
}

#[tokio::test]
async fn post_is_not_sent_if_no_address_accepts() {
    let network = Network::start().await;
    for (host, kind, [first, second]) in [
        ("silent.test", ErrorKind::ConnectTimeout, SILENT),
        ("refusing.test", ErrorKind::ConnectRefused, REFUSING),
    ] {
        let error = network.post(host).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_processed()), (kind, false), "{error:?}");
        let text = format!("no connection to the server could be opened (addresses: {first}, {second})");
        assert!(format!("{error:#}").contains(&text), "{error:#}");
        let attempts = error.report().unwrap().attempts();
        assert_eq!(outcomes(&attempts), [Some(Outcome::NotSent); 3], "every attempt may follow");
        for attempt in attempts {
            // Both addresses share the time.
            assert!(attempt.connection_wait < TIMEOUT * 3 / 2, "{host}: {attempt:?}");
            let times = attempt.connect.unwrap();
            assert!(times.resolve.is_some(), "{host}: {times:?}");
            assert_eq!((times.connect, times.tls), (None, None), "{host}");
        }
    }
    assert_eq!(network.requests.load(Relaxed), 0);
}

#[tokio::test]
async fn retries_post_after_a_stalled_resolver_but_not_after_an_unknown_name() {
    let network = Network::start().await;
    for (host, kind, count) in
        [("stalled.test", ErrorKind::ConnectTimeout, 3), ("unknown.test", ErrorKind::Dns, 1)]
    {
        let error = network.post(host).await.unwrap_err();
        assert_eq!((error.kind(), error.may_have_been_processed()), (kind, false), "{error:?}");
        assert!(format!("{error:#}").contains("the host name could not be resolved"), "{error:#}");
        let attempts = error.report().unwrap().attempts();
        assert_eq!(outcomes(&attempts), vec![Some(Outcome::NotSent); count], "{host}");
        let no_phase_ended = Some(ConnectTimes::default());
        assert!(attempts.iter().all(|attempt| attempt.connect == no_phase_ended), "{attempts:?}");
    }
    assert_eq!(network.requests.load(Relaxed), 0);
}

#[tokio::test]
async fn retries_post_after_no_address_accepted() {
    let network = Network::start().await;
    let response = network.post("refusing-first.test").await.unwrap();
    let status = Outcome::Response(http::StatusCode::NO_CONTENT);
    assert_eq!(outcomes(&response.report().unwrap().attempts()), [Some(Outcome::NotSent), Some(status)]);
    assert_eq!(network.requests.load(Relaxed), 1);
}
