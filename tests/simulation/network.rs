//! The simulated network: the hosts, the faults between them, and the connector of the clients.

use std::{
    collections::BTreeMap,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use http::Uri;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};
use turmoil::{Sim, net::TcpStream};

use super::{
    history::{History, Link},
    keys::Keys,
    plan::{Fault, Plan, SERVERS},
};

/// The resolution of the network. A packet needs at least one step.
pub(crate) const STEP: Duration = Duration::from_millis(1);
/// A run that takes longer has a call that does not end.
const LONGEST_RUN: Duration = Duration::from_secs(60);

pub(crate) fn client_name(client: usize) -> String {
    format!("client-{client}")
}

pub(crate) fn server_name(server: usize) -> String {
    format!("server-{server}")
}

pub(crate) fn simulation(plan: &Plan) -> Sim<'static> {
    turmoil::Builder::new()
        .rng_seed(plan.seed)
        .tick_duration(STEP)
        .min_message_latency(plan.latency.0)
        .max_message_latency(plan.latency.1)
        .repair_rate(plan.repair_rate)
        .simulation_duration(LONGEST_RUN)
        // turmoil panics if a listener has more new connections than this.
        .tcp_capacity(256)
        .build()
}

/// Runs the simulation until all clients have ended.
pub(crate) fn run(
    sim: &mut Sim<'static>,
    plan: &Plan,
    stops: &[Arc<Notify>],
    keys: &Keys,
    history: &History,
) {
    let mut faults = plan.faults.iter().peekable();
    let mut crashing = Vec::new();
    loop {
        history.begin_step(sim.elapsed());
        for server in crashing.drain(..) {
            sim.crash(server_name(server));
        }
        while let Some((_, fault)) = faults.next_if(|(at, _)| *at <= sim.elapsed()) {
            history.log(format_args!("{fault:?}"));
            if let Fault::Crash(server) = fault {
                stops[*server].notify_one();
                crashing.push(*server);
            }
            apply(sim, *fault, keys, history);
        }
        match sim.step() {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => return history.violate(format_args!("the run does not end: {error}")),
        }
    }
}

fn apply(sim: &mut Sim<'static>, fault: Fault, keys: &Keys, history: &History) {
    let names = |link: Link| (client_name(link.client), server_name(link.server));
    match fault {
        Fault::Hold(link) => {
            let (client, server) = names(link);
            sim.hold(client, server);
        }
        Fault::Release(link) => {
            let (client, server) = names(link);
            sim.release(client, server);
            history.records().releases.push(sim.elapsed());
        }
        Fault::Partition(link) => {
            let (client, server) = names(link);
            sim.partition(client, server);
        }
        Fault::Lose(link, rate) => {
            let (client, server) = names(link);
            sim.set_link_fail_rate(client, server, f64::from(rate) / 1e3);
        }
        Fault::PartitionResponses(link) => {
            let (client, server) = names(link);
            sim.partition_oneway(server, client);
        }
        Fault::Repair(link) => {
            let (client, server) = names(link);
            sim.set_link_fail_rate(client.as_str(), server.as_str(), 0.0);
            sim.repair(client, server);
        }
        // The host crashes in the next step, after the server has closed its connections.
        Fault::Crash(_) => {}
        Fault::Restart(server) => sim.bounce(server_name(server)),
        Fault::RevokeKeys(link) => keys.revoke(link),
    }
}

/// The open connections of all clients, by link.
#[derive(Debug, Default)]
pub(crate) struct OpenConnections(Mutex<BTreeMap<Link, Open>>);

#[derive(Debug, Default)]
struct Open {
    count: usize,
    /// The time since which there are too many.
    excess: Option<Duration>,
}

impl OpenConnections {
    pub(crate) fn count(&self, link: Link) -> usize {
        self.0.lock().unwrap().get(&link).map_or(0, |open| open.count)
    }

    fn change(&self, link: Link, change: isize, most: usize, history: &History) {
        let mut all = self.0.lock().unwrap();
        let (open, now) = (all.entry(link).or_default(), history.now());
        open.count = open.count.checked_add_signed(change).unwrap();
        let count = open.count;
        history.log(format_args!("{link}: {count} connections"));
        // A new connection may begin to open while a task closes another one, in the same instant.
        if count > most {
            open.excess.get_or_insert(now);
        } else if let Some(since) = open.excess.take().filter(|since| *since < now) {
            let excess = now - since;
            history.violate(format_args!("bounded: {link}: more than {most} connections for {excess:?}"));
        }
    }
}

/// Connects a client to the server that the URI names.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) client: usize,
    pub(crate) max_connections: usize,
    pub(crate) open: Arc<OpenConnections>,
    pub(crate) history: Arc<History>,
}

impl Connector {
    pub(crate) async fn connect(self, uri: Uri) -> io::Result<Connection> {
        let name = uri.host().unwrap().to_owned();
        let server = (0..SERVERS).find(|server| server_name(*server) == name).unwrap();
        let link = Link { client: self.client, server };
        let place = Place { link, connector: self };
        place.change(1);
        let stream = TcpStream::connect((name, 443)).await?;
        Ok(Connection { stream, _place: place })
    }
}

/// The place of a connection among the open ones.
struct Place {
    link: Link,
    connector: Connector,
}

impl Place {
    fn change(&self, change: isize) {
        let Connector { max_connections, open, history, .. } = &self.connector;
        open.change(self.link, change, *max_connections, history);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.change(-1);
    }
}

/// A client's end of a connection.
pub(crate) struct Connection {
    stream: TcpStream,
    _place: Place,
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
