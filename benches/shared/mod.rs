//! What a bench needs whatever it measures: its arguments, its report, calls to a service, and the layers of tower and
//! tower-http as they are configured. A folder of its own, for `benches/overhead`, which is built without the peers,
//! has it, too.

mod args;
mod calls;
mod report;
mod towers;

use std::{error::Error, time::Instant};

pub use self::args::Arguments;
pub use self::calls::{Answers, Call, Calls, Ratio, compare_calls, get};
pub use self::report::{Column, Report, Table};
pub use self::towers::{Attempts, TheirLog, at_info, their_key, their_log, tower_retry};

/// Whatever went wrong.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// The machine's clock.
#[inline]
#[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// The middle one, and 0 of none.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
