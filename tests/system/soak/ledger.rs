//! What callers, servers and operators write down while it runs. Nothing of it counts as memory of the client.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, LazyLock, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::time::Instant;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Nanoseconds since the start: one clock for callers and servers, who are one process.
pub(crate) fn now() -> u64 {
    u64::try_from(START.elapsed().as_nanos()).unwrap()
}

pub(crate) fn instant(at: u64) -> Instant {
    *START + Duration::from_nanos(at)
}

/// A request at its server.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) site: usize,
    pub(crate) call: u64,
    pub(crate) method: http::Method,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) cost: u32,
    /// When it had its permit.
    pub(crate) left: u64,
    pub(crate) at: u64,
    /// False for those that were told by the protocol that they were not: 401, and REFUSED_STREAM.
    pub(crate) may_be_processed: bool,
}

/// A server's word that nothing may come for a while.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) site: usize,
    pub(crate) at: u64,
    pub(crate) length: Duration,
    /// The field that says so.
    pub(crate) by: &'static str,
    /// When the client had heard it. Never, of an answer that did not reach it.
    pub(crate) heard: Option<u64>,
}

/// A call that came to an end with a report.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub(crate) call: u64,
    /// Attempts with an answer, and those that may have come to the server.
    pub(crate) answers: usize,
    pub(crate) maybe_sent: usize,
}

/// What an operator did to a limiter.
#[derive(Debug, Clone)]
pub(crate) enum Deed {
    Resumed { site: usize, at: u64 },
    Quota { site: usize, at: u64, limit: u32 },
}

#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) started: AtomicU64,
    /// How calls ended, by kind; `cancelled` is one.
    pub(crate) ends: Mutex<BTreeMap<String, u64>>,
    /// How the bodies of answers ended.
    pub(crate) bodies: Mutex<BTreeMap<&'static str, u64>>,
    /// What servers did.
    pub(crate) faults: Mutex<BTreeMap<String, u64>>,
    pub(crate) arrivals: Mutex<Vec<Arrival>>,
    pub(crate) asked: Mutex<Vec<Asked>>,
    pub(crate) ended: Mutex<Vec<Ended>>,
    pub(crate) deeds: Mutex<Vec<Deed>>,
    /// What must never happen, as it happens.
    pub(crate) wrongs: Mutex<Vec<String>>,
    pub(crate) calm: AtomicBool,
    pub(crate) over: AtomicBool,
}

impl Ledger {
    pub(crate) fn new() -> Arc<Self> {
        LazyLock::force(&START);
        Arc::new(Self::default())
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.calm.load(Relaxed)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Relaxed)
    }

    pub(crate) fn wrong(&self, what: String) {
        write(|| self.wrongs.lock().unwrap().push(what));
    }

    pub(crate) fn end(&self, how: &str) {
        write(|| *self.ends.lock().unwrap().entry(how.to_owned()).or_default() += 1);
    }

    pub(crate) fn fault(&self, what: &str) {
        *self.faults.lock().unwrap().entry(what.to_owned()).or_default() += 1;
    }
}

/// What is written here is not the client's memory.
pub(crate) fn write<T>(work: impl FnOnce() -> T) -> T {
    let mut done = None;
    allocation_counter::opt_out(|| done = Some(work()));
    done.unwrap()
}
