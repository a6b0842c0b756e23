use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{net::TcpListener, task::JoinSet};
use tower::ServiceExt;

use super::ScriptedService;

/// A [`ScriptedService`] behind a real server: HTTP/1.1 and HTTP/2 without TLS, on a free port of loopback.
///
/// An answer that is an error ends its connection in HTTP/1.1 and its stream in HTTP/2. So does a panic of the script's.
/// The answers are timed by tokio's clock, and the wire by none: under paused time a timer may fire while bytes are
/// on their way, so that a test over real connections is better off in real time.
///
/// # Cancellation
///
/// The server and its connections end when it is dropped; the service, a clone of which keeps the record, does not.
///
/// ```
/// use http_body_util::Empty;
/// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
/// use tower_outbound::test_util::{Answer, ScriptedServer, ScriptedService};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let script = ScriptedService::new([Answer::status(404).with_body("nothing there")]);
/// let server = ScriptedServer::start(script.clone()).await?;
///
/// let client = Client::builder(TokioExecutor::new()).build_http::<Empty<bytes::Bytes>>();
/// let response = client.get(server.url().parse()?).await?;
/// assert_eq!(response.status(), 404);
/// assert_eq!((script.calls(), server.connections()), (1, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ScriptedServer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    /// Aborts its task when it is dropped.
    _accepting: JoinSet<()>,
}

impl ScriptedServer {
    /// Answers as the service does.
    ///
    /// # Errors
    ///
    /// When loopback has no port to listen on.
    ///
    /// # Panics
    ///
    /// Outside of tokio's runtime.
    pub async fn start(service: ScriptedService) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (address, connections) = (listener.local_addr()?, Arc::default());
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, service, Arc::clone(&connections)));
        Ok(Self { address, connections, _accepting: accepting })
    }

    /// Such as `http://127.0.0.1:34567`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many connections were made to it.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn accept(listener: TcpListener, service: ScriptedService, count: Arc<AtomicUsize>) {
    // Dropped with this task, and every connection with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        count.fetch_add(1, Ordering::Relaxed);
        while connections.try_join_next().is_some() {}
        let service = service.clone();
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| service.clone().oneshot(request));
            let builder = auto::Builder::new(TokioExecutor::new());
            // How a connection ends is the client's to tell.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
