//! The limiter that a fleet shares, on a redis-server of its own: what a decision costs beside a bare round trip
//! through the same client, and what it costs the server.

mod cost;
mod lane;
#[path = "../../../../examples/support/redis_server.rs"]
mod redis_server;
mod server;

pub use self::cost::{redis_cost, redis_memory};
pub use self::server::Server;

use std::time::Duration;

use tower_outbound::{Quota, adapter::RedisLimiter};

use self::lane::Lane;
use crate::{BoxError, Column, Settings, Table, median};

/// The permits of a lease.
const LEASE: u32 = 100;

/// Short, so that a log of what it granted is soon as long as it gets.
const WINDOW: Duration = Duration::from_millis(50);

/// Who asks: one task on the thread that is all there is, one beside another worker, many.
const WAYS: [(usize, usize); 3] = [(1, 1), (2, 1), (2, 64)];

/// What is shared, and how it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bucket,
    Window,
}

impl Kind {
    /// A limiter on which nobody ever waits for the quota.
    fn plenty(self, server: &Server, tasks: usize, lease: u32) -> Result<RedisLimiter, BoxError> {
        let quota = match self {
            Self::Bucket => Quota::new(4_000_000, WINDOW)?.with_burst(2_000_000)?.without_margin(),
            Self::Window => Quota::new(self.log(tasks, lease), WINDOW)?.without_margin(),
        };
        self.limiter(server, quota, lease)
    }

    /// The permits that it remembers when it has granted as many: more than anybody gets within a window. It is measured
    /// from then on.
    fn log(self, tasks: usize, lease: u32) -> u32 {
        match self {
            Self::Bucket => 0,
            Self::Window if tasks > 1 => 80_000,
            Self::Window if lease > 1 => 150_000,
            Self::Window => 5_000,
        }
    }

    /// Under a namespace of its own.
    fn limiter(self, server: &Server, quota: Quota, lease: u32) -> Result<RedisLimiter, BoxError> {
        let (url, name) = (server.url(), "bench");
        let limiter = match self {
            Self::Bucket => RedisLimiter::token_bucket(&url, name, [quota])?,
            Self::Window => RedisLimiter::sliding_window(&url, name, [quota])?,
        };
        // As long as it may be, for nothing is to be lost when the machine is busy with something else for a moment.
        let hold = quota.window().min(Duration::from_millis(100));
        let limiter = limiter.with_namespace(&server.new_name())?.with_timeout(Duration::from_secs(5))?;
        Ok(limiter.with_lease(lease, hold)?)
    }
}

/// What is measured by each row: nothing is the bare round trip.
const ROWS: [(&str, Option<(Kind, u32)>); 5] = [
    ("bare INCR, same client", None),
    ("tower-outbound RedisLimiter, bucket", Some((Kind::Bucket, 1))),
    ("tower-outbound RedisLimiter, bucket, lease of 100", Some((Kind::Bucket, LEASE))),
    ("tower-outbound RedisLimiter, window", Some((Kind::Window, 1))),
    ("tower-outbound RedisLimiter, window, lease of 100", Some((Kind::Window, LEASE))),
];

/// What a decision costs who asks for it. The rows take turns, one way after the other.
pub fn redis(server: &Server, settings: Settings) -> Result<Table, BoxError> {
    let mut lanes = Vec::new();
    for (name, what) in ROWS {
        let lane = |(workers, tasks)| {
            let lane = Lane::new(workers, tasks, |runtime| server.op(runtime, what, tasks))?;
            let log = what.map_or(0, |(kind, lease)| kind.log(tasks, lease));
            lane.fill(log).map_err(|error| format!("{name}: {error}"))?;
            Ok(lane)
        };
        lanes.push(WAYS.into_iter().map(lane).collect::<Result<Vec<_>, BoxError>>()?);
    }
    let mut samples = vec![[const { Vec::new() }; WAYS.len()]; ROWS.len()];
    for _ in 0..settings.rounds {
        for (way, _) in WAYS.iter().enumerate() {
            for ((name, _), (lanes, samples)) in ROWS.iter().zip(lanes.iter().zip(&mut samples)) {
                let turn = lanes[way].turn(settings.turn / 4, settings.turn);
                samples[way].push(turn.map_err(|error| format!("{name}: {error}"))?);
            }
        }
    }

    let columns = [
        Column::new("1 task, median", "ns", 0).plotted(),
        Column::new("1 task", "a second", 0).plotted(),
        Column::new("× INCR's time", "", 4),
        Column::new("1 task beside a worker, median", "ns", 0),
        Column::new("1 task beside a worker", "a second", 0),
        Column::new("× INCR's time", "", 4),
        Column::new("64 tasks on 2 workers", "a second", 0).plotted(),
        Column::new("× INCR's time", "", 4),
        Column::new("allocations", "", 2),
    ];
    let mut table = Table::new("redis", "A permit of a quota that a fleet shares, over loopback", columns);
    // Of a row to another, in one way: the median of the rounds' ratios.
    let ratio = |row: usize, base: usize, way: usize| {
        let rounds = samples[row][way].iter().zip(&samples[base][way]);
        median(rounds.map(|(own, base)| own.nanos() / base.nanos()).collect())
    };
    for (row, (name, _)) in ROWS.iter().enumerate() {
        let of = |way: usize, figure: fn(&lane::Turn) -> f64| {
            Some(median(samples[row][way].iter().map(figure).collect()))
        };
        let mut values = Vec::new();
        for (way, (_, tasks)) in WAYS.into_iter().enumerate() {
            if tasks == 1 {
                values.push(of(way, |turn| turn.median));
            }
            values.extend([of(way, |turn| 1e9 / turn.nanos()), Some(ratio(row, 0, way))]);
        }
        values.push(Some(lanes[row][0].allocations()?));
        table.row(*name, values);
    }
    // What else the machine does only ever makes a round slower.
    let fastest = |row: usize| samples[row][0].iter().map(lane::Turn::nanos).fold(f64::INFINITY, f64::min);
    for (kind, single, leased) in [("bucket", 1, 2), ("window", 3, 4)] {
        let times = |base| 1.0 / ratio(leased, base, 0);
        let best = |base| fastest(base) / fastest(leased);
        table.note(format!(
            "One task, a lease of 100 of the {kind}: a grant is {:.0} times cheaper than a bare round trip each and {:.0} \
             times cheaper than a decision each; {:.0} and {:.0} times in the fastest round of each row ({:.0} ns a grant).",
            times(0),
            times(single),
            best(0),
            best(single),
            fastest(leased),
        ));
    }
    Ok(table)
}
