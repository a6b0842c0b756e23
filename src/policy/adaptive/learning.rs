//! Changes the rate after a response or a complete run, and spaces requests at the rate, with a small burst.

use super::{
    Acceptance, BACK, BLOCK_RUN, BLOCK_STEP, CUT, DOUBLED_WAIT, FIRST_WAIT, GROWTH, LARGEST_STEP,
    LONGEST_OUTAGE_WAIT, LONGEST_WAIT, LONGEST_WINDOW, LOWEST_PRICE, LearnedFrom, Learner, MIXED_CUT,
    MIXED_RUN, Observation, PRICES_PER_RUN, Probe, Progress, RUN, Run, SHORTEST_WINDOW, START_STEP, STEP,
    SURE_STEP, USED,
    observation::{OUTAGE, SECOND, START_RUN},
    server_quotas::{MARGIN, Pace, Usage},
};
use crate::policy::Unit;

impl Learner {
    /// Raises the rate if the run is complete. Called before each grant, with the cost of the next request.
    pub(crate) fn advance(&mut self, progress: Progress, cost: u32, now: u64) {
        if self.quotas.has_expired(now) && self.quotas.retain(&[], now) {
            self.adopt(progress, now);
        }
        let Some(rate) = self.rate.filter(|_| self.paused_at.is_none()) else { return };
        let duration = now.saturating_sub(self.run.from);
        let accepted = progress.accepted.saturating_sub(self.run.accepted);
        let slowest = self.quotas.slowest();
        let window = slowest.map_or(self.span.clamp(SHORTEST_WINDOW, LONGEST_WINDOW), |pace| pace.window);
        if duration >= window {
            let used = accepted.saturating_add(progress.in_flight).saturating_add(cost.into()) as f64;
            let used = used * SECOND as f64 / duration as f64;
            if used < USED * rate {
                if let Some(clean) = self.clean_rate.filter(|clean| used < clean / 2.0) {
                    self.set(clean.min(rate), self.source);
                    self.step = STEP;
                }
                return self.begin_run(progress, now);
            }
        }
        let is_block = self.span > LONGEST_WINDOW;
        // A run of the slow start is short if the window is an estimate, because the first rate may then be far too
        // low.
        let is_complete = if self.is_starting && slowest.is_none_or(|pace| !pace.is_exact) {
            let is_long = duration >= window || slowest.is_none() && is_block && accepted > self.block_run;
            let requests = START_RUN.saturating_mul(progress.each);
            is_long && accepted >= requests.saturating_add(progress.in_flight)
        } else {
            let prices = self.price.saturating_mul(PRICES_PER_RUN);
            // Without a window, a run with few requests in flight would be too short.
            let least = if slowest.is_none() { progress.each } else { 0 };
            let permits = progress.in_flight.max(least).saturating_add(progress.each);
            let run = if self.is_mixed { MIXED_RUN } else { RUN };
            duration >= window.max(prices) && accepted >= run.saturating_mul(permits)
        };
        if !is_complete {
            return;
        }
        if self.outage.is_ignored(now) {
            // The ignored 503s may come from the rate.
            return self.begin_run(progress, now);
        }
        self.outage.end_series();
        self.clean_rate = Some(rate);
        if self.step > SURE_STEP {
            self.price = 0;
        }
        let paced = slowest.map(Pace::rate);
        let reaches = |paced: f64| rate >= 0.9999 * paced;
        if self.is_starting && (paced.is_none() || !self.run.usage.is_half) {
            let step = if is_block { BLOCK_STEP } else { START_STEP };
            self.set(rate * (1.0 + step), LearnedFrom::Success);
        } else if paced.is_some_and(reaches) && self.run.usage.is_used_up && self.unit == Unit::Requests {
            self.step = STEP;
            return self.begin_run(progress, now);
        } else {
            // The amounts of requests are known only after their responses, so the limiter keeps away from the end of a
            // quota of tokens. Without this limit, up to 1 % of the requests are throttled instead of 0.5 %.
            let is_low = self.unit != Unit::Requests && self.run.usage.is_half;
            let most = match paced {
                Some(paced) if !reaches(paced) => paced,
                Some(paced) if is_low => MARGIN * paced,
                _ => f64::INFINITY,
            };
            let raised = (rate * (1.0 + self.step)).min(most);
            self.step = if raised > rate { (self.step * GROWTH).min(LARGEST_STEP) } else { STEP };
            self.set(raised, LearnedFrom::Success);
        }
        self.is_raised = true;
        self.begin_run(progress, now);
    }

    /// As [`observe`](Self::observe), and returns whether the rate has changed, or whether a probe is due or has ended.
    pub(crate) fn learn(
        &mut self,
        response: &Observation<'_>,
        progress: Progress,
        now: u64,
    ) -> (bool, Option<u64>) {
        let before = (self.interval(), self.is_probing());
        let pause = self.observe(response, progress, now);
        (before != (self.interval(), self.is_probing()), pause)
    }

    /// Learns from a response. Returns the end of a new pause.
    pub(super) fn observe(
        &mut self,
        response: &Observation<'_>,
        progress: Progress,
        now: u64,
    ) -> Option<u64> {
        let is_outage = response.acceptance == Acceptance::Unavailable;
        let is_throttled = match response.acceptance {
            Acceptance::Accepted => false,
            Acceptance::Throttled => true,
            // Assumes an outage until the server has accepted a request.
            Acceptance::Unavailable => progress.accepted > 0 && !self.outage.is_ignored(now),
        };
        if is_throttled {
            self.throttled_at = Some(now);
        }
        if self.reads_headers() && self.quotas.read(response.remaining, self.unit, &mut self.run.usage, now) {
            self.adopt(progress, now);
        }
        // A probe without a response may have been replaced by another one, so each request since the cut counts.
        let after_cut = self.cut_at.saturating_add(1);
        let is_probe = matches!(self.probe, Probe::Sent(at) if response.granted_at >= at.min(after_cut));
        if !is_throttled {
            if is_probe && is_outage {
                self.probe = Probe::Due;
                return Some(now.saturating_add(response.requested_pause.unwrap_or(0).max(self.wait)));
            }
            if is_probe {
                self.reopen(progress, now);
            }
            return None;
        }
        let is_first = self.paused_at.is_none();
        // The last cut already covers a throttled response to a request that left before it.
        let is_late = is_first && response.granted_at <= self.cut_at && self.cut_at > 0;
        let requested = response.requested_pause.map(|pause| now.saturating_add(pause));
        let stated = requested.max(self.quotas.reset_at(response.remaining, now));
        if is_late || !(is_first || is_probe) {
            return stated;
        }
        if !is_outage {
            self.outage.end_series();
        } else if self.is_outage(is_first, now) {
            return None;
        }
        if is_first {
            self.cut(is_outage, progress, now);
            (self.paused_at, self.is_outage_pause) = (Some(now), is_outage);
            let interval = self.pacer.interval.saturating_mul(progress.each);
            let shortest = if self.rate.is_some() { interval } else { FIRST_WAIT };
            self.wait = now.saturating_sub(response.sent_at).max(shortest).min(DOUBLED_WAIT);
        } else {
            let longest = if is_outage { LONGEST_OUTAGE_WAIT.max(self.pacer.interval) } else { LONGEST_WAIT };
            let doubled = self.wait.saturating_mul(2).min(DOUBLED_WAIT);
            self.wait = doubled.max(self.wait / 4 * 5).min(longest);
        }
        if !is_outage {
            self.wait = self.wait.max(response.least_pause);
        }
        self.probe = Probe::Due;
        self.cut_at = now;
        Some(stated.unwrap_or_else(|| now.saturating_add(self.wait)))
    }

    /// Counts a 503 that begins a pause, or that responds to a probe. Returns whether such 503s do not depend on the
    /// rate. In this case, restores the rate and ends the pause.
    fn is_outage(&mut self, is_first: bool, now: u64) -> bool {
        match is_first {
            true => self.outage.begin_pause(self.rate),
            false => self.outage.fail_probe(),
        }
        let Some(rate) = self.outage.detect(self.rate, now) else { return false };
        self.put(rate.map(|rate| rate.min(self.ceiling)), LearnedFrom::Success);
        self.lift_pause();
        true
    }

    fn cut(&mut self, is_outage: bool, progress: Progress, now: u64) {
        let Some(rate) = self.rate else { return };
        let clean = self.clean_rate.take();
        let accepted = progress.accepted.saturating_sub(self.run.accepted) as f64;
        let at_clean_rate = clean.map_or(0, |clean| (accepted / clean * SECOND as f64) as u64);
        // The rest of a window in which the quota was used up early is no loss.
        self.lead = at_clean_rate.saturating_sub(now.saturating_sub(self.run.from));
        let clean = clean.map_or(0.0, |clean| BACK * clean);
        // A rate above a reported quota falls at most to that quota. The window of the quota is an estimate, so the
        // rate may have been raised above the quota. Without this limit, the limiter uses 86 % instead of 100 % of
        // OpenAI's spaced quota.
        let estimate = self.quotas.slowest().filter(|pace| !pace.is_exact).map(Pace::rate);
        let paced = estimate.filter(|paced| rate > 1.0001 * paced).unwrap_or(0.0);
        let cut = if self.is_mixed { MIXED_CUT } else { CUT };
        self.set(rate.min(clean.max(cut * rate).max(paced)), LearnedFrom::Throttling);
        (self.step, self.pacer.burst) = (STEP, 1);
        // Keeps the slow start after a 503 without headers: if it was an outage, the rate must recover fast.
        if self.is_raised || (self.quotas.slowest().is_none() && !is_outage) {
            self.is_starting = false;
        }
    }

    /// Ends a pause after an accepted probe.
    fn reopen(&mut self, progress: Progress, now: u64) {
        self.probe = Probe::Open;
        let Some(paused_at) = self.paused_at.take() else { return };
        let pause = now.saturating_sub(paused_at);
        self.span = self.span.max(pause);
        let price = pause.saturating_sub(self.lead).max(pause.min(LOWEST_PRICE));
        self.price = if self.is_raised { price } else { 0 };
        self.is_raised = false;
        if self.rate.is_none() {
            let rate = self.recent.rate(progress, paused_at, pause.min(LONGEST_WINDOW));
            // A single 503 within a minute does not show that the server limits the rate.
            let is_repeated = self.reopened_at > 0 && paused_at.saturating_sub(self.reopened_at) <= OUTAGE;
            match rate.filter(|_| is_repeated || !self.is_outage_pause) {
                Some(rate) => {
                    self.set(rate, LearnedFrom::Throttling);
                    // The requests that the server accepted before the pause, unless they took longer than a window.
                    self.block_run = (BLOCK_RUN * rate * (LONGEST_WINDOW / SECOND) as f64) as u64;
                    if self.is_outage_pause {
                        self.outage.begin_rate();
                    }
                }
                // Too few requests were accepted for an estimate. Another user of the key may have caused the pause.
                None => (self.reopened_at, self.slow_from) = (now, now),
            }
        }
        self.pacer.arrival = now.saturating_add(self.pacer.interval.saturating_mul(progress.each));
        self.begin_run(progress, now);
    }

    /// Adopts the rate of the slowest quota in the headers. Without such a quota, forgets a rate that came from one.
    fn adopt(&mut self, progress: Progress, now: u64) {
        let Some(pace) = self.quotas.slowest() else {
            if self.source == LearnedFrom::Headers {
                self.end_rate(now);
            }
            return;
        };
        self.pacer.burst = if self.throttled_at.is_some() { 1 } else { pace.burst() };
        // After a change of the limit, the first reset may be much shorter than the window.
        let most = self.rate.filter(|_| !pace.is_exact).map_or(f64::INFINITY, |rate| 2.0 * rate);
        self.set(pace.rate().min(most), LearnedFrom::Headers);
        self.capped = self.capped.map(|rate| rate.min(pace.rate()));
        self.outage.end_series();
        (self.clean_rate, self.step) = (self.rate, STEP);
        (self.is_starting, self.is_raised) = (true, false);
        self.begin_run(progress, now);
    }

    fn begin_run(&mut self, progress: Progress, now: u64) {
        self.run = Run { from: now, accepted: progress.accepted, usage: Usage::default() };
    }
}

/// The tolerated delay of a timer in nanoseconds, which is the resolution of tokio's timers.
const TICK: u64 = 1_000_000;

/// A bucket of `burst` permits.
#[derive(Debug, Clone, Default)]
pub(super) struct Pacer {
    /// The time between two requests, or 0 without a rate.
    pub(super) interval: u64,
    pub(super) burst: u64,
    /// The bucket is full if this time lies in the past.
    pub(super) arrival: u64,
}

impl Pacer {
    /// Returns when the last of `total` permits is available, if none is taken before `start`.
    pub(super) fn due(&self, start: u64, total: u64, costliest: u32) -> u64 {
        // A request that costs more than the burst waits until the permits would have been refilled.
        let is_first = total <= u64::from(costliest);
        let from = if is_first { self.arrival } else { self.arrival.max(start) };
        let refilled = from.saturating_add(self.interval.saturating_mul(total));
        refilled.saturating_sub(self.interval.saturating_mul(self.burst)).max(start)
    }

    pub(super) fn available(&self, now: u64) -> u64 {
        match self.interval {
            0 => u64::MAX,
            interval => self.burst.saturating_sub(self.arrival.saturating_sub(now).div_ceil(interval)),
        }
    }

    /// Adds taken permits back.
    pub(super) fn give_back(&mut self, permits: u32) {
        self.arrival = self.arrival.saturating_sub(self.interval.saturating_mul(permits.into()));
    }

    pub(super) fn grant(&mut self, cost: u32, now: u64) {
        // A late timer does not lower the rate.
        let from = if now <= self.arrival.saturating_add(TICK) { self.arrival } else { now };
        self.arrival = from.saturating_add(self.interval.saturating_mul(cost.into()));
    }
}
