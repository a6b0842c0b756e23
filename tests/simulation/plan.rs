//! Everything that a seed decides before the run: the servers, the settings of the clients, and the faults.

use std::time::Duration;

use tower_outbound::Quota;

use super::{history::Link, rng::Rng};

pub(crate) const CLIENTS: usize = 2;
pub(crate) const SERVERS: usize = 2;
/// The faults end after this time.
pub(crate) const HEALED: Duration = Duration::from_secs(14);
/// The callers make no further calls after this time.
pub(crate) const LOAD_ENDS: Duration = Duration::from_secs(15);
pub(crate) const MAX_ATTEMPTS: u32 = 4;
pub(crate) const MAX_QUEUE: usize = 12;
/// The most parts of an account that have a limiter at one time. The part 0 always has one. Callers also use the parts
/// from 1 to `PARTS`.
pub(crate) const MAX_PARTS: usize = 4;
pub(crate) const PARTS: u64 = 24;
pub(crate) const TOTAL_TIMEOUT: Duration = Duration::from_secs(6);
pub(crate) const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(1_500);
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest delay that a server requests.
pub(crate) const LONGEST_PAUSE: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    /// HTTP/2 with prior knowledge.
    Http2,
    /// TLS that negotiates HTTP/1.1.
    TlsHttp1,
    /// TLS that negotiates HTTP/2.
    TlsHttp2,
}

impl Protocol {
    pub(crate) fn is_http2(self) -> bool {
        matches!(self, Self::Http2 | Self::TlsHttp2)
    }

    pub(crate) fn is_tls(self) -> bool {
        matches!(self, Self::TlsHttp1 | Self::TlsHttp2)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) protocols: [Protocol; SERVERS],
    pub(crate) latency: (Duration, Duration),
    pub(crate) quotas: [Quota; SERVERS],
    pub(crate) has_sliding_window: bool,
    /// Whether requests also need a permit of their part of the account.
    pub(crate) has_parts: bool,
    pub(crate) max_connections: usize,
    /// The HTTP/2 streams that a server allows on a connection.
    pub(crate) max_streams: u32,
    /// A server closes a connection that has been idle for this long.
    pub(crate) server_idle_timeout: Duration,
    pub(crate) has_pings: bool,
    /// The capacity of the retry budget of a link.
    pub(crate) budget: u32,
    /// A longer body of a request is not recorded.
    pub(crate) replay_limit: usize,
    /// The probability that a link which has lost a packet delivers the next one.
    pub(crate) repair_rate: f64,
    pub(crate) callers: usize,
    /// The longest time between two calls of a caller.
    pub(crate) gap: u64,
    pub(crate) faults: Vec<(Duration, Fault)>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// Packets between client and server wait until `Release`.
    Hold(Link),
    Release(Link),
    /// Packets between client and server are lost until `Repair`. A connection that has lost a packet stays silent.
    Partition(Link),
    /// A packet is lost with this probability, in tenths of a percent. The packets on their way are lost with it.
    Lose(Link, u32),
    /// Only packets to the client are lost.
    PartitionResponses(Link),
    Repair(Link),
    /// The process of the server ends. Its connections are closed, and its port refuses new ones.
    Crash(usize),
    Restart(usize),
    RevokeKeys(Link),
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed, "plan", 0);
        let protocols = [(); SERVERS].map(|()| {
            rng.choose_weighted(&[
                (3, Protocol::Http1),
                (4, Protocol::Http2),
                (1, Protocol::TlsHttp1),
                (2, Protocol::TlsHttp2),
            ])
        });
        let quotas = [(); SERVERS].map(|()| {
            let quota = Quota::new(rng.choose(&[8, 16, 60]), Duration::from_secs(2)).unwrap();
            quota.with_margin(Duration::from_millis(400)).unwrap()
        });
        let mut plan = Self {
            seed,
            protocols,
            latency: (Duration::from_millis(1), rng.millis(2, 60)),
            quotas,
            has_sliding_window: rng.chance(500),
            has_parts: Rng::new(seed, "parts", 0).chance(300),
            max_connections: rng.choose(&[1, 2, 3, 8]),
            max_streams: rng.choose(&[1, 2, 5, 100]),
            server_idle_timeout: Duration::from_millis(rng.choose(&[300, 1_000, 2_500, 60_000])),
            has_pings: rng.chance(500),
            budget: Rng::new(seed, "budget", 0).choose(&[14, 50, 5_000]),
            replay_limit: Rng::new(seed, "replay", 0).choose(&[2_000, 1 << 20]),
            repair_rate: 1.0,
            callers: rng.choose(&[1, 3, 6]),
            gap: rng.choose(&[100, 500, 3_000]),
            faults: Vec::new(),
        };
        for _ in 0..rng.choose(&[0, 2, 5, 10]) {
            plan.add_fault(&mut rng);
        }
        plan.add_losses(&mut Rng::new(seed, "losses", 0));
        plan.faults.sort_by_key(|(at, _)| *at);
        plan
    }

    /// Adds times in which links lose single packets, or several in a row.
    fn add_losses(&mut self, rng: &mut Rng) {
        self.repair_rate = rng.choose(&[1.0, 0.3]);
        for _ in 0..rng.choose(&[0, 1, 3]) {
            let link = random_link(rng);
            // A repair by turmoil would also release the packets that a fault holds.
            if self.faults.iter().any(|(_, fault)| matches!(fault, Fault::Hold(held) if *held == link)) {
                continue;
            }
            let from = rng.millis(0, 12_000);
            let to = (from + rng.millis(100, 5_000)).min(HEALED);
            self.faults.push((from, Fault::Lose(link, rng.choose(&[2, 10, 50]))));
            self.faults.push((to, Fault::Repair(link)));
        }
    }

    /// Adds a fault and its repair.
    fn add_fault(&mut self, rng: &mut Rng) {
        let link = random_link(rng);
        let server = link.server;
        let from = rng.millis(500, 12_000);
        let to = (from + rng.millis(20, 3_000)).min(HEALED);
        let (fault, repair) = rng.choose_weighted(&[
            (3, (Fault::Hold(link), Some(Fault::Release(link)))),
            (2, (Fault::Partition(link), Some(Fault::Repair(link)))),
            (1, (Fault::PartitionResponses(link), Some(Fault::Repair(link)))),
            (2, (Fault::Crash(server), Some(Fault::Restart(server)))),
            (2, (Fault::RevokeKeys(link), None)),
        ]);
        self.faults.push((from, fault));
        self.faults.extend(repair.map(|repair| (to, repair)));
    }
}

fn random_link(rng: &mut Rng) -> Link {
    let server = rng.below(SERVERS as u64) as usize;
    Link { client: rng.below(CLIENTS as u64) as usize, server }
}
