//! The servers of all APIs, on one thread. Each connection uses HTTP/2 or HTTP/1.1, as negotiated by ALPN. Some
//! connections are reset or delayed, or the server sends garbage instead of a TLS handshake.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::AtomicBool, mpsc},
    thread,
    time::Duration,
};

use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use tower_outbound::transport::TransportConfig;

use super::{
    api::APIS,
    behaviour,
    faulty_stream::{Acceptors, CorruptibleStream, ResettableStream, Trust},
    history::History,
    key_store::KeyStore,
    rng::Rng,
};

/// The running servers of all APIs. Dropping this value stops the servers.
pub(crate) struct Server {
    addresses: Vec<SocketAddr>,
    key_stores: Vec<Arc<KeyStore>>,
    trust: Trust,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Faults that the handler of a request injects into its connection.
#[derive(Clone, Default)]
pub(crate) struct ConnectionFaults {
    pub(crate) reset: Arc<AtomicBool>,
    pub(crate) corrupt: Arc<AtomicBool>,
}

/// The server of one API. All its connections share this data.
#[derive(Clone)]
pub(crate) struct ApiServer {
    pub(crate) api: usize,
    pub(crate) seed: u64,
    pub(crate) keys: Arc<KeyStore>,
    pub(crate) history: Arc<History>,
}

impl Server {
    pub(crate) fn start(seed: u64, history: &Arc<History>) -> Self {
        // API 1 reads its keys from a file. The other APIs refresh their keys through a provider.
        let key_stores: Vec<_> = (0..APIS).map(|api| KeyStore::new(api, seed, api == 1)).collect();
        let (acceptors, trust) = Acceptors::new();
        let (stop, stopped) = oneshot::channel();
        let (address_sender, address_receiver) = mpsc::channel();
        let (server_keys, history) = (key_stores.clone(), Arc::clone(history));
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let mut addresses = vec![];
                for (api, keys) in server_keys.into_iter().enumerate() {
                    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                    addresses.push(listener.local_addr().unwrap());
                    let server = ApiServer { api, seed, keys, history: Arc::clone(&history) };
                    tokio::spawn(accept(listener, acceptors.clone(), server));
                }
                address_sender.send(addresses).unwrap();
                let _ = stopped.await;
            });
        });
        let addresses = address_receiver.recv().unwrap();
        Self { addresses, key_stores, trust, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn key_store(&self, api: usize) -> &Arc<KeyStore> {
        &self.key_stores[api]
    }

    pub(crate) fn url(&self, api: usize) -> String {
        format!("https://{}", self.addresses[api])
    }

    /// Returns a transport that closes idle connections soon, so that clients often open new ones.
    pub(crate) fn transport(&self) -> TransportConfig {
        self.trust.transport().with_idle_timeout(Duration::from_millis(700))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

async fn accept(listener: TcpListener, acceptors: Acceptors, server: ApiServer) {
    for number in 0.. {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let rng = Rng::new(server.seed, "connection", number << 8 | server.api as u64);
        tokio::spawn(serve(stream, rng, acceptors.clone(), server.clone()));
    }
}

async fn serve(mut stream: TcpStream, mut rng: Rng, acceptors: Acceptors, server: ApiServer) {
    stream.set_nodelay(true).unwrap();
    let inject_fault = !server.history.is_recovering();
    match rng.below(100) {
        0..3 if inject_fault => {
            server.history.count_server_action("connection reset");
            return stream.set_zero_linger().unwrap();
        }
        3..5 if inject_fault => {
            server.history.count_server_action("garbage instead of a handshake");
            let _ = stream.write_all(&[0xff; 512]).await;
            return;
        }
        5..12 if inject_fault => {
            server.history.count_server_action("slow handshake");
            tokio::time::sleep(rng.millis(20, 250)).await;
        }
        _ => {}
    }
    let faults = ConnectionFaults::default();
    let stream = ResettableStream { stream, reset: Arc::clone(&faults.reset) };
    let Ok((stream, protocol)) = acceptors.accept(stream, &mut rng).await else { return };
    server.history.count_server_action(&format!("connection of {protocol}"));
    let stream = CorruptibleStream { stream, corrupt: Arc::clone(&faults.corrupt) };
    let builder = auto::Builder::new(TokioExecutor::new());
    let service = service_fn(move |request| behaviour::respond(request, server.clone(), faults.clone()));
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // The result is ignored, because the checks cover only what the client observes.
        _ = connection.as_mut() => return,
        () = tokio::time::sleep(rng.millis(200, 1_500)) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(Duration::from_secs(2), connection).await;
}
