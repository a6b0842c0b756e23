//! The servers, one for each site, on a thread of their own. Each connection is another one: HTTP/2 or HTTP/1.1, as TLS
//! negotiates it; some are cut, some late, some speak no TLS at all.

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
use tower_outbound::client::Transport;

use super::{
    dice::Dice,
    faults,
    keys::Vault,
    ledger::Ledger,
    site::SITES,
    wire::{Acceptors, Cuttable, Garbled, Trust},
};

pub(crate) struct Server {
    addresses: Vec<SocketAddr>,
    vaults: Vec<Arc<Vault>>,
    trust: Trust,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What a connection is told by the requests on it: to be reset, and to write something else than it should.
#[derive(Clone, Default)]
pub(crate) struct Orders {
    pub(crate) cut: Arc<AtomicBool>,
    pub(crate) garble: Arc<AtomicBool>,
}

/// What all connections of a site know.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) site: usize,
    pub(crate) seed: u64,
    pub(crate) vault: Arc<Vault>,
    pub(crate) ledger: Arc<Ledger>,
}

impl Server {
    pub(crate) fn start(seed: u64, ledger: &Arc<Ledger>) -> Self {
        let vaults: Vec<_> = (0..SITES).map(|site| Vault::new(site, seed, site == 1)).collect();
        let (acceptors, trust) = Acceptors::new();
        let (stop, stopped) = oneshot::channel();
        let (tell, told) = mpsc::channel();
        let (known, ledger) = (vaults.clone(), Arc::clone(ledger));
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let mut addresses = vec![];
                for (site, vault) in known.into_iter().enumerate() {
                    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                    addresses.push(listener.local_addr().unwrap());
                    let host = Host { site, seed, vault, ledger: Arc::clone(&ledger) };
                    tokio::spawn(accept(listener, acceptors.clone(), host));
                }
                tell.send(addresses).unwrap();
                let _ = stopped.await;
            });
        });
        let addresses = told.recv().unwrap();
        Self { addresses, vaults, trust, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn vault(&self, site: usize) -> &Arc<Vault> {
        &self.vaults[site]
    }

    pub(crate) fn url(&self, site: usize) -> String {
        let scheme = if cfg!(feature = "rustls") { "https" } else { "http" };
        format!("{scheme}://{}", self.addresses[site])
    }

    /// Its client's idle connections go soon, so that there are always new ones.
    pub(crate) fn transport(&self) -> Transport {
        self.trust.transport().with_idle_timeout(Duration::from_millis(700))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

async fn accept(listener: TcpListener, acceptors: Acceptors, host: Host) {
    for number in 0.. {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let dice = Dice::about(host.seed, "connection", number << 8 | host.site as u64);
        tokio::spawn(connection(stream, dice, acceptors.clone(), host.clone()));
    }
}

async fn connection(mut stream: TcpStream, mut dice: Dice, acceptors: Acceptors, host: Host) {
    stream.set_nodelay(true).unwrap();
    let calm = host.ledger.is_calm();
    match dice.below(100) {
        0..3 if !calm => {
            host.ledger.fault("connection reset");
            return stream.set_zero_linger().unwrap();
        }
        3..5 if !calm => {
            host.ledger.fault("connection that speaks garbage");
            let _ = stream.write_all(&[0xff; 512]).await;
            return;
        }
        5..12 if !calm => {
            host.ledger.fault("late handshake");
            tokio::time::sleep(dice.millis(20, 250)).await;
        }
        _ => {}
    }
    let orders = Orders::default();
    let stream = Cuttable { stream, cut: Arc::clone(&orders.cut) };
    let Ok((stream, protocol)) = acceptors.accept(stream, &mut dice).await else { return };
    host.ledger.fault(&format!("connection of {protocol}"));
    let stream = Garbled { stream, garble: Arc::clone(&orders.garble) };
    let builder = auto::Builder::new(TokioExecutor::new());
    let service = service_fn(move |request| faults::answer(request, host.clone(), orders.clone()));
    let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        // How a connection ends is the client's to tell.
        _ = serving.as_mut() => return,
        () = tokio::time::sleep(dice.millis(200, 1_500)) => {}
    }
    serving.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(Duration::from_secs(2), serving).await;
}
