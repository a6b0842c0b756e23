//! What the shared limiter costs the server, by the server's own account.

use std::time::Duration;

use tower_outbound::Quota;

use super::{
    Kind, LEASE, Server,
    lane::{Lane, Op},
};
use crate::{BoxError, Column, Table};

/// Limiters that ask at the same time, each over its own connection.
const CROWD: usize = 32;

/// How many questions a permit takes, and how long the server is at each.
pub fn redis_cost(server: &Server, length: Duration) -> Result<Table, BoxError> {
    let columns = [
        Column::new("permits a question", "", 2),
        Column::new("questions", "a second", 0),
        Column::new("script", "µs a question", 1).plotted(),
        Column::new("server's processor", "µs a question", 1).plotted(),
        Column::new("server busy", "%", 0),
        Column::new("questions one core serves", "a second", 0).plotted(),
        Column::new("permits one core serves", "a second", 0).plotted(),
    ];
    let mut table = Table::new("redis-cost", "What a shared quota costs the server", columns);
    let mut row = |name: &str, command: &str, lane: Lane| -> Result<(), BoxError> {
        lane.turn(Duration::ZERO, length / 4)?;
        let before = server.info()?;
        let turn = lane.turn(Duration::ZERO, length)?;
        let after = server.info()?;
        let spent = |name: &str| after.get(name).unwrap_or(&0.0) - before.get(name).unwrap_or(&0.0);
        let questions = spent(&format!("{command}.calls"));
        let script = spent(&format!("{command}.usec")) / questions;
        let cpu = spent("used_cpu_user") + spent("used_cpu_sys");
        let (seconds, most) = (turn.took.as_secs_f64(), questions / cpu);
        let permits = turn.calls / questions;
        table.row(
            name,
            [permits, questions / seconds, script, 1e6 / most, 100.0 * cpu / seconds, most, most * permits]
                .map(Some)
                .to_vec(),
        );
        Ok(())
    };

    let shared = |what, tasks| {
        let lane =
            Lane::new(if tasks == 1 { 1 } else { 2 }, tasks, |runtime| server.op(runtime, what, tasks))?;
        lane.fill(what.map_or(0, |(kind, lease): (Kind, u32)| kind.log(tasks, lease)))?;
        Ok::<_, BoxError>(lane)
    };
    row("bare INCR, 1 task", "incr", shared(None, 1)?)?;
    row("bare INCR, 64 tasks", "incr", shared(None, 64)?)?;
    for (kind, name) in [(Kind::Bucket, "bucket"), (Kind::Window, "window")] {
        let name = |rest: &str| format!("tower-outbound {name}, {rest}");
        row(&name("1 task"), "evalsha", shared(Some((kind, 1)), 1)?)?;
        row(&name("64 tasks"), "evalsha", shared(Some((kind, 1)), 64)?)?;
        row(&name("lease of 100, 1 task"), "evalsha", shared(Some((kind, LEASE)), 1)?)?;
        let ops = (0..CROWD).map(|_| Ok(Op::Acquire(kind.plenty(server, 1, 1)?)));
        let crowd = Lane::apart(ops.collect::<Result<_, BoxError>>()?)?;
        crowd.fill(kind.log(1, 1))?;
        row(&name("32 limiters, 1 task each"), "evalsha", crowd)?;
    }
    Ok(table)
}

/// What is kept under one name.
pub fn redis_memory(server: &Server, quick: bool) -> Result<Table, BoxError> {
    let columns = [
        Column::new("state", "bytes", 0),
        Column::new("log", "bytes", 0).plotted(),
        Column::new("log", "bytes a permit", 2),
    ];
    let mut table = Table::new("redis-memory", "What a shared quota keeps in the server", columns);
    let mut row = |name: String, kind: Kind, permits: u32, lease: u32| -> Result<(), BoxError> {
        // A log keeps as many permits as its quota has.
        let quota = Quota::new(permits, Duration::from_secs(1))?.without_margin();
        let op = Op::Acquire(kind.limiter(server, quota, lease)?);
        Lane::new(1, 1, |_| Ok(op))?.calls(permits)?;
        let weights = server.weights()?;
        let log = weights.get(1).copied();
        table.row(name, vec![weights.first().copied(), log, log.map(|log| log / f64::from(permits))]);
        Ok(())
    };
    row("tower-outbound bucket".to_owned(), Kind::Bucket, 10, 1)?;
    for permits in [100, 10_000, 100_000].into_iter().filter(|permits| !quick || *permits < 1_000) {
        row(format!("tower-outbound window of {permits}"), Kind::Window, permits, 1)?;
    }
    row(format!("tower-outbound window of 100000, lease of {LEASE}"), Kind::Window, 100_000, LEASE)?;
    Ok(table)
}
