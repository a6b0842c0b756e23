//! Simulates callers that always have a request to send. Requests pass a limiter and a network, and reach a server that
//! enforces the quota. The simulation jumps from one event to the next. Times are nanoseconds since the start of a run.

use std::{collections::VecDeque, time::Duration};

use tower_outbound::{BoxError, Quota, limit::ResponseInfo, test_util::limiter::Feedback};

use crate::{
    arguments::Arguments,
    figures::Run,
    strategies::{Limiter, Strategy},
};

/// The time that a request takes to the server, and that a response takes back.
const HOP: u64 = 20_000_000;
/// The timers fire at whole milliseconds, like tokio's.
const TICK: u64 = 1_000_000;

/// A request that left the limiter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    /// The time at which the request left the limiter. The network delays all requests equally, so the server counts
    /// the same windows.
    pub(crate) at: u64,
    /// How long the request waited in the limiter.
    pub(crate) wait: u64,
}

/// Returns the time before the first request.
pub(crate) fn idle(quota: Quota) -> Duration {
    quota.window() / 4
}

/// Returns the number of callers, which is at least 10. They can send four times as many requests as the quota allows.
pub(crate) fn callers(quota: Quota) -> usize {
    let per_second = f64::from(quota.limit()) / quota.window().as_secs_f64();
    let busy = per_second * 2.0 * Duration::from_nanos(HOP).as_secs_f64();
    (4.0 * busy).ceil().max(10.0) as usize
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Divides the run into `columns` parts.
pub(crate) fn run(
    strategy: &'static Strategy,
    arguments: &Arguments,
    columns: usize,
) -> Result<Run, BoxError> {
    let quota = arguments.quota;
    let mut limiter = Limiter::new(strategy.rule, quota)?;
    let server = (arguments.server)(quota).with_headers(arguments.headers);
    let mut run = Run::new(strategy, arguments, columns);
    let (mut now, end) = (nanos(idle(quota)), nanos(arguments.length()));
    // The limiter serves the callers first in, first out, and the network delays all requests equally. The events of
    // each kind therefore happen in the order in which they were added.
    let mut waiting: VecDeque<u64> = VecDeque::new();
    let mut requests: VecDeque<Sent> = VecDeque::new();
    let mut responses: VecDeque<(u64, Feedback)> = VecDeque::new();
    let (mut timer, mut is_changed, mut ready) = (None, true, callers(quota));
    loop {
        for _ in 0..std::mem::take(&mut ready) {
            match limiter.request(now) {
                true => requests.push_back(Sent { at: now, wait: 0 }),
                false => waiting.push_back(now),
            }
            is_changed |= waiting.len() == 1;
        }
        while let Some(called_at) = waiting.front().filter(|_| limiter.grant(now)) {
            requests.push_back(Sent { at: now, wait: now - called_at });
            waiting.pop_front();
        }
        if std::mem::take(&mut is_changed) {
            timer = waiting.front().and_then(|_| limiter.next_wake(now)).map(|at| at.next_multiple_of(TICK));
        }
        let arrival = requests.front().map(|sent| sent.at + HOP);
        let response = responses.front().map(|(sent_at, _)| sent_at + HOP * 2);
        let next = [arrival, response, timer].into_iter().flatten().min();
        // A request that leaves before the end reaches the server before this time.
        let Some(next) = next.filter(|next| *next < end + HOP) else { return Ok(run.finish()) };
        now = next;
        if timer == Some(now) {
            limiter.advance(now);
            is_changed = true;
        }
        if let Some(sent) = requests.front().copied().filter(|_| arrival == Some(now)) {
            requests.pop_front();
            let response = server.respond_at(Duration::from_nanos(now));
            run.record(sent, response.status().is_success());
            let feedback = Feedback::from(&ResponseInfo::new(response.status(), response.headers()));
            responses.push_back((sent.at, feedback));
        }
        if response == Some(now) {
            if let Some((sent_at, feedback)) = responses.pop_front() {
                is_changed |= limiter.respond(sent_at, &feedback, now);
                ready = 1;
            }
        }
    }
}
