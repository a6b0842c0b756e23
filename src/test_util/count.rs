//! How a simulated server counts requests.

use std::{collections::VecDeque, time::Duration};

use http::{Response, StatusCode};

use super::limit_headers::LimitHeaders;
use crate::clock::{self, Instant};

/// The requests that a server has counted against its limit, and its settings. Times are seconds since the origin.
#[derive(Debug)]
pub(super) struct Count {
    kind: Kind,
    /// The limit of one window.
    pub(super) limit: u32,
    pub(super) window: f64,
    pub(super) headers: LimitHeaders,
    pub(super) rejection: StatusCode,
    /// The time for which the server rejects all requests after its limit was exceeded, and whether each rejected
    /// request restarts this time.
    pub(super) block: Option<(f64, bool)>,
    blocked_until: f64,
    origin: Instant,
    pub(super) accepted: u64,
    pub(super) rejected: u64,
}

/// The algorithm, with its state.
#[derive(Debug)]
pub(super) enum Kind {
    /// A bucket of `capacity` tokens, or of `limit` tokens if `capacity` is `None`.
    TokenBucket { capacity: Option<u32>, tokens: f64, at: f64 },
    /// A counter that is reset at `end`, the end of the current window. The windows are aligned to `phase`. If `phase`
    /// is `None`, each window starts with the first request after the previous window.
    FixedWindow { phase: Option<f64>, end: f64, used: u32 },
    /// The times of the accepted requests of the last window.
    SlidingWindow { log: VecDeque<f64> },
    /// The counts of all requests, including rejected ones, in the current and in the previous window.
    Estimate { phase: f64, number: f64, current: u32, previous: u32 },
}

impl Count {
    pub(super) fn new(kind: Kind, limit: u32, window: Duration) -> Self {
        Self {
            kind,
            limit,
            window: window.as_secs_f64(),
            headers: LimitHeaders::None,
            rejection: StatusCode::TOO_MANY_REQUESTS,
            block: None,
            blocked_until: 0.0,
            origin: clock::now(),
            accepted: 0,
            rejected: 0,
        }
    }

    pub(super) fn now(&self) -> f64 {
        clock::now().duration_since(self.origin).as_secs_f64()
    }

    /// Counts a request and responds to it.
    pub(super) fn respond(&mut self, now: f64) -> Response<()> {
        let is_blocked = self.blocked(now) > 0.0;
        let is_accepted = !is_blocked && self.accepts(now);
        match self.block {
            Some((duration, is_extended)) if !is_accepted && (!is_blocked || is_extended) => {
                self.blocked_until = now + duration;
            }
            _ => {}
        }
        self.accepted += u64::from(is_accepted);
        self.rejected += u64::from(!is_accepted);
        let mut response = Response::new(());
        *response.status_mut() = if is_accepted { StatusCode::OK } else { self.rejection };
        self.headers.add_to(response.headers_mut(), self, is_accepted, now);
        response
    }

    /// Returns the seconds until the block ends.
    pub(super) fn blocked(&self, now: f64) -> f64 {
        (self.blocked_until - now).max(0.0)
    }

    /// Returns how many requests may be sent at once.
    pub(super) fn capacity(&self) -> u32 {
        match self.kind {
            Kind::TokenBucket { capacity: Some(capacity), .. } => capacity,
            _ => self.limit,
        }
    }

    pub(super) fn set_limit(&mut self, limit: u32, now: f64) {
        self.refill(now);
        self.limit = limit;
    }

    /// Adds the tokens of the elapsed time to a bucket.
    fn refill(&mut self, now: f64) {
        if let Kind::TokenBucket { capacity, tokens, at } = &mut self.kind {
            let rate = f64::from(self.limit) / self.window;
            *tokens = (*tokens + (now - *at) * rate).min(capacity.unwrap_or(self.limit).into());
            *at = now;
        }
    }

    /// Counts a request. Returns whether it is within the limit.
    fn accepts(&mut self, now: f64) -> bool {
        self.refill(now);
        let (limit, window) = (self.limit, self.window);
        match &mut self.kind {
            Kind::TokenBucket { tokens, .. } => {
                let accepted = *tokens >= 1.0 - 1e-9;
                if accepted {
                    *tokens -= 1.0;
                }
                accepted
            }
            Kind::FixedWindow { phase, end, used } => {
                if now >= *end {
                    *used = 0;
                    *end = match *phase {
                        None => now + window,
                        Some(phase) => (((now - phase) / window).floor() + 1.0) * window + phase,
                    };
                }
                let accepted = *used < limit;
                *used += u32::from(accepted);
                accepted
            }
            Kind::SlidingWindow { log } => {
                while log.front().is_some_and(|at| *at <= now - window) {
                    log.pop_front();
                }
                let accepted = log.len() < limit as usize;
                if accepted {
                    log.push_back(now);
                }
                accepted
            }
            Kind::Estimate { phase, number, current, previous } => {
                let this = ((now - *phase) / window).floor();
                if this > *number {
                    *previous = if this - *number < 1.5 { *current } else { 0 };
                    (*current, *number) = (0, this);
                }
                *current += 1;
                self.estimate(now) <= limit.into()
            }
        }
    }

    /// Returns the estimated number of requests in the last window.
    fn estimate(&self, now: f64) -> f64 {
        match self.kind {
            Kind::Estimate { phase, number, current, previous } => {
                let rest = 1.0 - ((now - phase) / self.window - number);
                f64::from(current) + f64::from(previous) * rest
            }
            _ => 0.0,
        }
    }

    /// Returns how many more requests would be accepted now.
    pub(super) fn remaining(&self, now: f64) -> u64 {
        let limit = f64::from(self.limit);
        let remaining = match &self.kind {
            Kind::TokenBucket { tokens, .. } => *tokens + 1e-9,
            Kind::FixedWindow { used, .. } => limit - f64::from(*used),
            Kind::SlidingWindow { log } => limit - log.len() as f64,
            Kind::Estimate { .. } => limit - self.estimate(now),
        };
        remaining.max(0.0) as u64
    }

    /// Returns the seconds until the whole limit is available, or until the oldest request leaves a sliding window.
    pub(super) fn reset(&self, now: f64) -> f64 {
        match &self.kind {
            Kind::TokenBucket { capacity, tokens, .. } => {
                (f64::from(capacity.unwrap_or(self.limit)) - tokens) * self.window / f64::from(self.limit)
            }
            Kind::FixedWindow { end, .. } => end - now,
            Kind::SlidingWindow { log } => log.front().map_or(0.0, |oldest| oldest + self.window - now),
            Kind::Estimate { phase, number, .. } => (number + 1.0) * self.window + phase - now,
        }
    }

    /// Returns the seconds until one more request would be accepted.
    pub(super) fn next(&self, now: f64) -> f64 {
        match &self.kind {
            Kind::TokenBucket { tokens, .. } => (1.0 - tokens).max(0.0) * self.window / f64::from(self.limit),
            Kind::Estimate { current, previous, .. } => {
                let (current, previous) = (f64::from(*current), f64::from(*previous));
                let above = (self.estimate(now) + 1.0 - f64::from(self.limit)).max(0.0);
                // The share of the previous window in the estimate falls linearly to zero at the end of the current
                // window.
                let in_this_window = above * self.window / previous.max(f64::MIN_POSITIVE);
                if above <= 0.0 || in_this_window <= self.reset(now) {
                    return in_this_window;
                }
                let surplus = (current + 1.0 - f64::from(self.limit)).max(0.0);
                self.reset(now) + surplus / current.max(1.0) * self.window
            }
            _ if self.remaining(now) > 0 => 0.0,
            _ => self.reset(now),
        }
    }
}
