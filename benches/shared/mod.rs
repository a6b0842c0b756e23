//! Contains the code that all benches share: arguments, report, measured calls, and the configured layers of tower and
//! tower-http.
//!
//! The bench `overhead` includes this folder directly, because that bench is built without the package of the peers.

mod arguments;
mod calls;
#[allow(dead_code, reason = "the example `pictures` uses all of the colors")]
mod picture;
mod progress;
mod report;
mod tower_layers;

use std::{error::Error, time::Instant};

pub use self::arguments::Arguments;
pub use self::calls::{CallSettings, OkService, Ratio, ServiceRow, compare_calls, get};
pub use self::progress::progress;
pub use self::report::{Column, Report, Table};
pub use self::tower_layers::{
    RetryPolicy, TowerHttpLog, at_info, at_level, tower_http_auth, tower_http_log, tower_retry,
};

/// The error type of the benches.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// Reads the operating system's monotonic clock.
#[inline]
#[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the median of the values, or 0 if the list is empty.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
