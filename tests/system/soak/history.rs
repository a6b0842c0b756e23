//! Records the events at callers, servers and operators. The memory of this record is not counted as memory of the
//! clients.

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

/// Returns the nanoseconds since the start. Callers and servers share this clock, because they run in one process.
pub(crate) fn now() -> u64 {
    u64::try_from(START.elapsed().as_nanos()).unwrap()
}

/// Converts a time of [`now`] to an instant.
pub(crate) fn instant(at: u64) -> Instant {
    *START + Duration::from_nanos(at)
}

/// A request that arrived at its server.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) api: usize,
    pub(crate) call: u64,
    pub(crate) method: http::Method,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) cost: u32,
    /// The time when the limiter granted the request's permit.
    pub(crate) permitted_at: u64,
    pub(crate) arrived_at: u64,
    /// `false` if the server responded with 401 or `REFUSED_STREAM`. Both prove that the server did not process the
    /// request.
    pub(crate) may_be_processed: bool,
}

/// A response that requests a pause of all requests.
#[derive(Debug, Clone)]
pub(crate) struct RequestedPause {
    pub(crate) api: usize,
    pub(crate) sent_at: u64,
    pub(crate) length: Duration,
    /// The response header that requests the pause.
    pub(crate) header: &'static str,
    /// The time when the client's limiter received the pause, or `None` if the response was lost.
    pub(crate) received_at: Option<u64>,
}

/// The attempts of one call, from its report.
#[derive(Debug, Clone)]
pub(crate) struct ReportedAttempts {
    pub(crate) call: u64,
    /// The number of attempts with a response.
    pub(crate) responses: usize,
    /// The number of attempts that may have reached the server, including those with a response.
    pub(crate) maybe_sent: usize,
}

/// A change that an operator made to a limiter.
#[derive(Debug, Clone)]
pub(crate) enum LimiterChange {
    Resume { api: usize, at: u64 },
    Quota { api: usize, at: u64, limit: u32 },
}

#[derive(Default)]
pub(crate) struct History {
    pub(crate) calls_started: AtomicU64,
    /// The number of calls by outcome, including `cancelled`.
    pub(crate) call_outcomes: Mutex<BTreeMap<String, u64>>,
    /// The number of response bodies by outcome.
    pub(crate) body_outcomes: Mutex<BTreeMap<&'static str, u64>>,
    /// The number of server actions by kind.
    pub(crate) server_actions: Mutex<BTreeMap<String, u64>>,
    pub(crate) arrivals: Mutex<Vec<Arrival>>,
    pub(crate) pauses: Mutex<Vec<RequestedPause>>,
    pub(crate) reports: Mutex<Vec<ReportedAttempts>>,
    pub(crate) limiter_changes: Mutex<Vec<LimiterChange>>,
    /// Violations that were detected during the run.
    pub(crate) violations: Mutex<Vec<String>>,
    /// `true` after the end of the load phase.
    pub(crate) load_ended: AtomicBool,
    /// `true` after the start of the recovery phase, in which the servers respond without faults.
    pub(crate) recovering: AtomicBool,
}

impl History {
    pub(crate) fn new() -> Arc<Self> {
        LazyLock::force(&START);
        Arc::new(Self::default())
    }

    pub(crate) fn has_load_ended(&self) -> bool {
        self.load_ended.load(Relaxed)
    }

    pub(crate) fn is_recovering(&self) -> bool {
        self.recovering.load(Relaxed)
    }

    pub(crate) fn add_violation(&self, text: String) {
        uncounted(|| self.violations.lock().unwrap().push(text));
    }

    pub(crate) fn count_call(&self, outcome: &str) {
        uncounted(|| *self.call_outcomes.lock().unwrap().entry(outcome.to_owned()).or_default() += 1);
    }

    pub(crate) fn count_server_action(&self, action: &str) {
        *self.server_actions.lock().unwrap().entry(action.to_owned()).or_default() += 1;
    }
}

/// Runs `work` without counting its allocations as the client's memory.
pub(crate) fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let mut output = None;
    allocation_counter::opt_out(|| output = Some(work()));
    output.unwrap()
}
