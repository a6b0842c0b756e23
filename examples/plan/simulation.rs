//! Simulates callers that always have a request to send. Requests pass a limiter and a network, and reach a server that
//! enforces the quota. The simulation jumps from one event to the next. Times are nanoseconds since the start of a run.

use std::{collections::VecDeque, time::Duration};

use tower_outbound::{BoxError, Quota, limit::ResponseInfo, test_util::limiter::Feedback};

use crate::{
    arguments::{Arguments, per_second},
    figures::Run,
    strategies::{Limiter, Strategy},
};

/// The time that a request takes to the server.
const HOP: u64 = 20_000_000;
/// The time until a response without processing has arrived.
pub(crate) const ROUND_TRIP: Duration = Duration::from_nanos(2 * HOP);
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
    /// The tokens that the request uses if the server accepts it.
    pub(crate) tokens: u32,
    /// The number of requests in flight, including this one.
    pub(crate) in_flight: usize,
}

/// Returns the time before the first request.
pub(crate) fn idle(quota: Quota) -> Duration {
    quota.window() / 4
}

/// Returns the number of callers, which is at least 10. They can send four times as many requests as the quota allows,
/// and at least twice as many as may be in flight.
pub(crate) fn callers(arguments: &Arguments) -> usize {
    let busy = 4.0 * per_second(arguments.quota) * arguments.response_time.as_secs_f64();
    let max_in_flight = arguments.max_in_flight.map_or(0.0, |max| 2.0 * f64::from(max.get()));
    busy.ceil().max(max_in_flight).max(10.0) as usize
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
    let mut limiter = Limiter::new(strategy.rule, arguments)?;
    let server = (arguments.server)(quota).with_headers(arguments.headers);
    let mut run = Run::new(strategy, arguments, columns);
    let (mut now, end) = (nanos(idle(quota)), nanos(arguments.length()));
    let response_time = nanos(arguments.response_time);
    // The limiter serves the callers first in, first out, and the network delays all requests equally. The events of
    // each kind therefore happen in the order in which they were added.
    let mut waiting: VecDeque<u64> = VecDeque::new();
    let mut requests: VecDeque<Sent> = VecDeque::new();
    let mut responses: VecDeque<(u64, u32, Feedback)> = VecDeque::new();
    let (mut timer, mut is_changed, mut ready) = (None, true, callers(arguments));
    let mut random = 0;
    let mut send = |wait, requests: &mut VecDeque<Sent>, responses: usize, now| {
        let tokens = arguments.tokens.map_or(0, |tokens| tokens.actual(&mut random));
        requests.push_back(Sent { at: now, wait, tokens, in_flight: requests.len() + responses + 1 });
    };
    loop {
        for _ in 0..std::mem::take(&mut ready) {
            match limiter.request(now) {
                true => send(0, &mut requests, responses.len(), now),
                false => waiting.push_back(now),
            }
            is_changed |= waiting.len() == 1;
        }
        while let Some(called_at) = waiting.front().filter(|_| limiter.grant(now)) {
            send(now - called_at, &mut requests, responses.len(), now);
            waiting.pop_front();
        }
        if std::mem::take(&mut is_changed) {
            // There is no wake-up while the first request waits for the end of another one.
            let wake = waiting.front().and_then(|_| limiter.next_wake(now));
            timer = wake.and_then(|at| at.checked_next_multiple_of(TICK));
        }
        let arrival = requests.front().map(|sent| sent.at + HOP);
        let response = responses.front().map(|(sent_at, ..)| sent_at + response_time);
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
            let is_accepted = response.status().is_success();
            run.record(sent, is_accepted);
            let feedback = Feedback::from(&ResponseInfo::new(response.status(), response.headers()));
            responses.push_back((sent.at, if is_accepted { sent.tokens } else { 0 }, feedback));
        }
        if response == Some(now) {
            if let Some((sent_at, tokens, feedback)) = responses.pop_front() {
                is_changed |= limiter.respond(sent_at, tokens, &feedback, now);
                ready = 1;
            }
        }
    }
}
