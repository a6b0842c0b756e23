//! Measures the limiter that several processes share through Redis.
//!
//! The module compares a grant with a bare round trip through the same client, and measures the load on the server.

mod load;
#[path = "../../../../examples/support/redis_server.rs"]
mod redis_server;
mod server;
mod server_cost;

pub use self::server::Server;
pub use self::server_cost::{redis_cost, redis_memory};

use std::time::Duration;

use tower_outbound::{Quota, adapter::RedisLimiter};

use self::load::{Load, Sample};
use crate::{BoxError, Column, Settings, Table, median, progress};

/// The number of permits that a limiter with a lease fetches with one query.
const LEASE: u32 = 100;

/// The window of the shared quotas. The window is short, so that the log of a sliding window is soon full.
const WINDOW: Duration = Duration::from_millis(50);

/// The workers and tasks of each setup: one task on one thread, one task on two workers, 64 tasks on two workers.
const SETUPS: [(usize, usize); 3] = [(1, 1), (2, 1), (2, 64)];

/// The algorithm of the shared quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Bucket,
    Window,
}

impl Algorithm {
    /// Creates a limiter with a quota so large that no call waits.
    fn with_ample_quota(self, server: &Server, tasks: usize, lease: u32) -> Result<RedisLimiter, BoxError> {
        let quota = match self {
            Self::Bucket => Quota::new(4_000_000, WINDOW)?.with_burst(2_000_000)?.without_margin(),
            Self::Window => Quota::new(self.log_size(tasks, lease), WINDOW)?.without_margin(),
        };
        self.limiter(server, quota, lease)
    }

    /// Returns the number of permits in the full log of a sliding window. The load acquires fewer permits within a
    /// window, so no call waits.
    ///
    /// Each measurement starts with a full log.
    fn log_size(self, tasks: usize, lease: u32) -> u32 {
        match self {
            Self::Bucket => 0,
            Self::Window if tasks > 1 => 80_000,
            Self::Window if lease > 1 => 150_000,
            Self::Window => 5_000,
        }
    }

    /// Creates a limiter with its own namespace in Redis.
    fn limiter(self, server: &Server, quota: Quota, lease: u32) -> Result<RedisLimiter, BoxError> {
        let (url, name) = (server.url(), "bench");
        let limiter = match self {
            Self::Bucket => RedisLimiter::token_bucket(&url, name, [quota])?,
            Self::Window => RedisLimiter::sliding_window(&url, name, [quota])?,
        };
        // An unused permit expires after the hold time. The hold time is as long as allowed, so that no permit expires
        // while the machine is busy.
        let hold = quota.window().min(Duration::from_millis(100));
        let limiter =
            limiter.with_namespace(&server.new_namespace())?.with_timeout(Duration::from_secs(5))?;
        Ok(limiter.with_lease(lease, hold)?)
    }
}

/// The name, the algorithm and the lease of each row. `None` is the bare round trip.
const ROWS: [(&str, Option<(Algorithm, u32)>); 5] = [
    ("bare INCR through the same client", None),
    ("tower-outbound RedisLimiter, bucket", Some((Algorithm::Bucket, 1))),
    ("tower-outbound RedisLimiter, bucket, lease of 100", Some((Algorithm::Bucket, LEASE))),
    ("tower-outbound RedisLimiter, window", Some((Algorithm::Window, 1))),
    ("tower-outbound RedisLimiter, window, lease of 100", Some((Algorithm::Window, LEASE))),
];

/// Measures what each permit costs the client, in each setup and with interleaved rows.
pub fn redis(server: &Server, settings: Settings) -> Result<Table, BoxError> {
    let mut loads = Vec::new();
    for (name, limiter) in ROWS {
        let load = |(workers, tasks)| {
            let load = Load::new(workers, tasks, |runtime| server.op(runtime, limiter, tasks))?;
            let log_size = limiter.map_or(0, |(algorithm, lease)| algorithm.log_size(tasks, lease));
            load.fill(log_size).map_err(|error| format!("{name}: {error}"))?;
            Ok(load)
        };
        loads.push(SETUPS.into_iter().map(load).collect::<Result<Vec<_>, BoxError>>()?);
    }
    let mut samples = vec![[const { Vec::new() }; SETUPS.len()]; ROWS.len()];
    for round in 1..=settings.rounds {
        progress(format_args!("one quota through Redis: round {round} of {}", settings.rounds));
        for (setup, _) in SETUPS.iter().enumerate() {
            for ((name, _), (loads, samples)) in ROWS.iter().zip(loads.iter().zip(&mut samples)) {
                let sample = loads[setup].sample(settings.sample / 4, settings.sample);
                samples[setup].push(sample.map_err(|error| format!("{name}: {error}"))?);
            }
        }
    }

    let columns = [
        Column::new("1 task, median", "ns", 0).plotted(),
        Column::new("1 task", "per second", 0).plotted(),
        Column::new("× INCR's time", "", 4),
        Column::new("1 task on 2 workers, median", "ns", 0),
        Column::new("1 task on 2 workers", "per second", 0),
        Column::new("× INCR's time", "", 4),
        Column::new("64 tasks on 2 workers", "per second", 0).plotted(),
        Column::new("× INCR's time", "", 4),
        Column::new("allocations", "", 2),
    ];
    let mut table = Table::new("redis", "A permit of a quota shared through Redis, over loopback", columns);
    // `ratio` returns the median ratio of two rows in one setup.
    let ratio = |row: usize, base: usize, setup: usize| {
        let rounds = samples[row][setup].iter().zip(&samples[base][setup]);
        median(rounds.map(|(own, base)| own.nanos() / base.nanos()).collect())
    };
    for (row, (name, _)) in ROWS.iter().enumerate() {
        let of = |setup: usize, figure: fn(&Sample) -> f64| {
            Some(median(samples[row][setup].iter().map(figure).collect()))
        };
        let mut values = Vec::new();
        for (setup, (_, tasks)) in SETUPS.into_iter().enumerate() {
            if tasks == 1 {
                values.push(of(setup, |sample| sample.median));
            }
            values.extend([of(setup, |sample| 1e9 / sample.nanos()), Some(ratio(row, 0, setup))]);
        }
        values.push(Some(loads[row][0].allocations()?));
        table.row(*name, values);
    }
    // Other load on the machine only makes a round slower, so the fastest round is the least disturbed.
    let fastest = |row: usize| samples[row][0].iter().map(Sample::nanos).fold(f64::INFINITY, f64::min);
    for (algorithm, single, leased) in [("bucket", 1, 2), ("window", 3, 4)] {
        let times = |base| 1.0 / ratio(leased, base, 0);
        let best = |base| fastest(base) / fastest(leased);
        table.note(format!(
            "One task, {algorithm}, lease of 100: a grant is {:.0} times faster than a bare round trip and {:.0} times faster \
             than a grant without a lease. In the fastest round of each row it is {:.0} and {:.0} times faster ({:.0} ns per \
             grant).",
            times(0),
            times(single),
            best(0),
            best(single),
            fastest(leased),
        ));
    }
    Ok(table)
}
