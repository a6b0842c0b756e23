//! Records what callers, clients and servers observe, in the order in which it happens.

use std::{
    fmt,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use http::Method;
use tower_outbound::{Report, limit::Priority};

/// The position of an event in the run. Events of one instant have different positions.
pub(crate) type Position = u64;

/// A client and the server that it calls. Each such pair has its own key, limiter and connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Link {
    pub(crate) client: usize,
    pub(crate) server: usize,
}

/// The times of a call are those of the simulation, which all hosts share.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) link: Link,
    pub(crate) method: Method,
    pub(crate) is_idempotent: bool,
    /// The length of the request body.
    pub(crate) body: usize,
    pub(crate) priority: Priority,
    pub(crate) started: (Position, Duration),
    pub(crate) limit: Duration,
    pub(crate) end: Option<End>,
}

#[derive(Debug)]
pub(crate) struct End {
    pub(crate) at: (Position, Duration),
    pub(crate) result: CallResult,
}

#[derive(Debug)]
pub(crate) enum CallResult {
    /// The caller dropped the call.
    Cancelled,
    Response {
        status: u16,
        report: Option<Report>,
    },
    Failed {
        text: String,
        report: Option<Report>,
    },
    /// The body of the response was read with retries. `Err` is the text of the error.
    Read {
        body: Result<usize, String>,
        report: Option<Report>,
    },
}

/// The limiter granted a permit to an attempt of this call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Permit {
    pub(crate) link: Link,
    pub(crate) call: usize,
    pub(crate) at: (Position, Duration),
}

/// The head of a request arrived at its server.
#[derive(Debug, Clone)]
pub(crate) struct Arrival {
    pub(crate) link: Link,
    pub(crate) call: usize,
    pub(crate) attempt: u32,
    pub(crate) request_id: String,
    pub(crate) permitted_at: Duration,
    pub(crate) at: Duration,
    /// `false` after a 401, a 429 or a refused stream, which prove that the server did not process the request.
    pub(crate) may_be_processed: bool,
    /// The server has read the whole body of the request.
    pub(crate) is_read: bool,
    /// The status that the server has sent, and the length of the body.
    pub(crate) status: Option<u16>,
    pub(crate) length: usize,
}

/// A response with `Retry-After` that arrived at its client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pause {
    pub(crate) link: Link,
    pub(crate) at: (Position, Duration),
    pub(crate) length: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) calls: Vec<Call>,
    pub(crate) permits: Vec<Permit>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) pauses: Vec<Pause>,
    /// When the keys of a link were refreshed, from the start to the end of the refresh.
    pub(crate) refreshes: Vec<(Link, Duration, Duration)>,
    /// When the network released the packets that it had held.
    pub(crate) releases: Vec<Duration>,
    pub(crate) violations: Vec<String>,
    pub(crate) log: Vec<String>,
}

/// The history of one run. All hosts run on one thread, so the lock only satisfies the compiler.
#[derive(Default)]
pub(crate) struct History {
    records: Mutex<Records>,
    position: AtomicU64,
    /// The time of the latest step, in nanoseconds.
    step: AtomicU64,
}

impl History {
    pub(crate) fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap()
    }

    /// Returns the time of the simulation.
    pub(crate) fn now(&self) -> Duration {
        // Between two steps, and while a host crashes, no host has a clock.
        turmoil::sim_elapsed().unwrap_or(Duration::from_nanos(self.step.load(Relaxed)))
    }

    pub(crate) fn begin_step(&self, at: Duration) {
        self.step.store(u64::try_from(at.as_nanos()).unwrap(), Relaxed);
    }

    pub(crate) fn next(&self) -> (Position, Duration) {
        (self.position.fetch_add(1, Relaxed), self.now())
    }

    pub(crate) fn log(&self, event: impl fmt::Display) {
        let line = format!("{:>9.3?} {event}", self.now());
        self.records().log.push(line);
    }

    /// Records a violation that is known before the end of the run.
    pub(crate) fn violate(&self, text: impl fmt::Display) {
        self.log(format_args!("VIOLATION: {text}"));
        self.records().violations.push(text.to_string());
    }

    pub(crate) fn start(&self, call: Call) -> usize {
        let mut records = self.records();
        records.calls.push(call);
        records.calls.len() - 1
    }

    pub(crate) fn end(&self, call: usize, result: CallResult) {
        let at = self.next();
        self.log(format_args!("call {call} ended: {result}"));
        self.records().calls[call].end = Some(End { at, result });
    }
}

impl CallResult {
    pub(crate) fn report(&self) -> Option<&Report> {
        match self {
            Self::Cancelled => None,
            Self::Response { report, .. } | Self::Failed { report, .. } | Self::Read { report, .. } => {
                report.as_ref()
            }
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client-{} → server-{}", self.client, self.server)
    }
}

impl fmt::Display for CallResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = match self {
            Self::Cancelled => return f.write_str("cancelled"),
            Self::Response { status, report } => {
                write!(f, "{status}")?;
                report
            }
            Self::Failed { text, report } => {
                write!(f, "{text}")?;
                report
            }
            Self::Read { body: Ok(length), report } => {
                write!(f, "read {length} bytes")?;
                report
            }
            Self::Read { body: Err(text), report } => {
                write!(f, "body failed: {text}")?;
                report
            }
        };
        match report {
            Some(report) => write!(f, " ({report})"),
            None => f.write_str(" (no report)"),
        }
    }
}
