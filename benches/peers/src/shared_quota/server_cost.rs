//! Measures the load that the shared limiter puts on the Redis server, from the server's own statistics.

use std::time::Duration;

use tower_outbound::Quota;

use super::{
    Algorithm, LEASE, Server,
    load::{Load, Op},
};
use crate::{BoxError, Column, Table, progress};

/// The number of concurrent limiters in one row. Each limiter has its own connection.
const LIMITERS: usize = 32;

/// Measures the permits per query, and the server's time per query.
pub fn redis_cost(server: &Server, length: Duration) -> Result<Table, BoxError> {
    let columns = [
        Column::new("permits per query", "", 2),
        Column::new("queries", "per second", 0),
        Column::new("script", "µs per query", 1).plotted(),
        Column::new("server CPU", "µs per query", 1).plotted(),
        Column::new("server busy", "%", 0),
        Column::new("queries per core", "per second", 0).plotted(),
        Column::new("permits per core", "per second", 0).plotted(),
    ];
    let mut table = Table::new("redis-cost", "Load of a shared quota on the Redis server", columns);
    let mut row = |name: &str, command: &str, load: Load| -> Result<(), BoxError> {
        progress(format_args!("load of the Redis server: {name}"));
        load.sample(Duration::ZERO, length / 4)?;
        let before = server.info()?;
        let sample = load.sample(Duration::ZERO, length)?;
        let after = server.info()?;
        let spent = |name: &str| after.get(name).unwrap_or(&0.0) - before.get(name).unwrap_or(&0.0);
        let queries = spent(&format!("{command}.calls"));
        let script = spent(&format!("{command}.usec")) / queries;
        let cpu = spent("used_cpu_user") + spent("used_cpu_sys");
        let (seconds, per_core) = (sample.took.as_secs_f64(), queries / cpu);
        let permits = sample.calls / queries;
        table.row(
            name,
            [
                permits,
                queries / seconds,
                script,
                1e6 / per_core,
                100.0 * cpu / seconds,
                per_core,
                per_core * permits,
            ]
            .map(Some)
            .to_vec(),
        );
        Ok(())
    };

    let shared = |limiter, tasks| {
        let workers = if tasks == 1 { 1 } else { 2 };
        let load = Load::new(workers, tasks, |runtime| server.op(runtime, limiter, tasks))?;
        load.fill(
            limiter.map_or(0, |(algorithm, lease): (Algorithm, u32)| algorithm.log_size(tasks, lease)),
        )?;
        Ok::<_, BoxError>(load)
    };
    row("bare INCR, 1 task", "incr", shared(None, 1)?)?;
    row("bare INCR, 64 tasks", "incr", shared(None, 64)?)?;
    for (algorithm, name) in [(Algorithm::Bucket, "bucket"), (Algorithm::Window, "window")] {
        let name = |setup: &str| format!("tower-outbound {name}, {setup}");
        row(&name("1 task"), "evalsha", shared(Some((algorithm, 1)), 1)?)?;
        row(&name("64 tasks"), "evalsha", shared(Some((algorithm, 1)), 64)?)?;
        row(&name("lease of 100, 1 task"), "evalsha", shared(Some((algorithm, LEASE)), 1)?)?;
        let ops = (0..LIMITERS).map(|_| Ok(Op::Acquire(algorithm.with_ample_quota(server, 1, 1)?)));
        let load = Load::separate(ops.collect::<Result<_, BoxError>>()?)?;
        load.fill(algorithm.log_size(1, 1))?;
        row(&name("32 limiters, 1 task each"), "evalsha", load)?;
    }
    Ok(table)
}

/// Measures the memory that one shared quota needs in the Redis server.
pub fn redis_memory(server: &Server, quick: bool) -> Result<Table, BoxError> {
    let columns = [
        Column::new("state", "bytes", 0),
        Column::new("log", "bytes", 0).plotted(),
        Column::new("log", "bytes per permit", 2),
    ];
    let mut table = Table::new("redis-memory", "Memory of a shared quota in the Redis server", columns);
    let mut row = |name: String, algorithm: Algorithm, permits: u32, lease: u32| -> Result<(), BoxError> {
        progress(format_args!("memory of the Redis server: {name}"));
        // A sliding window's log stores every permit of the quota.
        let quota = Quota::new(permits, Duration::from_secs(1))?.without_margin();
        let op = Op::Acquire(algorithm.limiter(server, quota, lease)?);
        Load::new(1, 1, |_| Ok(op))?.calls(permits)?;
        let sizes = server.key_sizes()?;
        let log = sizes.get(1).copied();
        table.row(name, vec![sizes.first().copied(), log, log.map(|log| log / f64::from(permits))]);
        Ok(())
    };
    row("tower-outbound bucket".to_owned(), Algorithm::Bucket, 10, 1)?;
    for permits in [100, 10_000, 100_000].into_iter().filter(|permits| !quick || *permits < 1_000) {
        row(format!("tower-outbound window of {permits}"), Algorithm::Window, permits, 1)?;
    }
    row(format!("tower-outbound window of 100000, lease of {LEASE}"), Algorithm::Window, 100_000, LEASE)?;
    Ok(table)
}
