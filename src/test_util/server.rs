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

/// Serves a [`ScriptedService`] over HTTP/1.1 and HTTP/2 without TLS, on a free loopback port.
///
/// If the scripted result is an error, or the script panics, the server closes the connection in HTTP/1.1 and resets
/// the stream in HTTP/2.
///
/// # Notes
///
/// Use real time in tests with this server. Under paused time, a timer may fire before data on the connection arrives.
///
/// # Cancellation
///
/// Dropping the server closes its connections. All clones of the `ScriptedService` keep the recorded requests.
///
/// ```
/// use http_body_util::Empty;
/// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
/// use tower_outbound::test_util::{ScriptedResponse, ScriptedServer, ScriptedService};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let script = ScriptedService::new([ScriptedResponse::status(404).with_body("nothing there")]);
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
    /// Aborts the accepting task when it is dropped.
    _accepting: JoinSet<()>,
}

impl ScriptedServer {
    /// Starts a server that responds to each request as `service` does.
    ///
    /// # Errors
    ///
    /// Returns an error if the server cannot listen on loopback.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside a tokio runtime.
    pub async fn start(service: ScriptedService) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (address, connections) = (listener.local_addr()?, Arc::default());
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, service, Arc::clone(&connections)));
        Ok(Self { address, connections, _accepting: accepting })
    }

    /// Returns the URL of the server, such as `http://127.0.0.1:34567`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the number of connections that the server accepted.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn accept(listener: TcpListener, service: ScriptedService, count: Arc<AtomicUsize>) {
    // Dropping the accepting task drops this set, which closes all connections.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        count.fetch_add(1, Ordering::Relaxed);
        while connections.try_join_next().is_some() {}
        let service = service.clone();
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| service.clone().oneshot(request));
            let builder = auto::Builder::new(TokioExecutor::new());
            // Ignores the error, because the client reports how its connection ended.
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
