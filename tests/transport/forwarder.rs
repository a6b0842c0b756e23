//! A TCP forwarder on loopback that can drop or hold the bytes of its connections.

use tokio::{
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
};

use super::*;

/// Forwards bytes between clients and a server. Dropping this value closes the connections.
pub(crate) struct Forwarder {
    address: SocketAddr,
    path: Arc<Path>,
    _accepting: JoinSet<()>,
}

#[derive(Default)]
struct Path {
    state: watch::Sender<State>,
    /// The bytes of the clients, of all connections.
    sent: Mutex<Vec<u8>>,
}

#[derive(Default)]
struct State {
    opened: usize,
    /// The connections that their clients have closed.
    closed: usize,
    /// The first connections, whose bytes are dropped. Their sockets stay open.
    silent: usize,
    /// Whether the bytes of the server wait.
    is_held: bool,
}

impl Forwarder {
    pub(crate) async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let path = Arc::new(Path::default());
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(listener, server, Arc::clone(&path)));
        Self { address, path, _accepting: accepting }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Drops all further bytes of the connections that are open now. New connections work.
    pub(crate) fn silence(&self) {
        self.path.state.send_modify(|state| state.silent = state.opened);
    }

    /// Holds the bytes of the server until [`release`](Self::release).
    pub(crate) fn hold(&self) {
        self.path.state.send_modify(|state| state.is_held = true);
    }

    pub(crate) fn release(&self) {
        self.path.state.send_modify(|state| state.is_held = false);
    }

    pub(crate) fn opened(&self) -> usize {
        self.path.state.borrow().opened
    }

    /// Waits until clients have closed `count` connections.
    pub(crate) async fn closed(&self, count: usize) {
        self.path.state.subscribe().wait_for(|state| state.closed >= count).await.unwrap();
    }

    /// Returns the bytes that the clients have sent.
    pub(crate) fn sent(&self) -> Vec<u8> {
        self.path.sent.lock().unwrap().clone()
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, path: Arc<Path>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let mut number = 0;
        path.state.send_modify(|state| {
            number = state.opened;
            state.opened += 1;
        });
        let path = Arc::clone(&path);
        connections.spawn(async move {
            let Ok(server) = TcpStream::connect(server).await else { return };
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            tokio::join!(
                forward_requests(from_client, to_server, number, &path),
                forward_responses(from_server, to_client, number, &path),
            );
        });
    }
}

async fn forward_requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, number: usize, path: &Path) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        path.sent.lock().unwrap().extend_from_slice(&buffer[..count]);
        let is_silent = number < path.state.borrow().silent;
        if !is_silent && to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    path.state.send_modify(|state| state.closed += 1);
    silence(number, path).await;
}

async fn forward_responses(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, number: usize, path: &Path) {
    let (mut buffer, mut state) = (vec![0; 16 * 1024], path.state.subscribe());
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let is_silent = state.wait_for(|state| !state.is_held).await.unwrap().silent > number;
        if !is_silent && to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    silence(number, path).await;
}

/// Keeps the sockets of a silent connection open.
async fn silence(number: usize, path: &Path) {
    if number < path.state.borrow().silent {
        std::future::pending::<()>().await;
    }
}
