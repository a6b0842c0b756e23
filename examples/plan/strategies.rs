//! The limiters of the comparison.

use std::{num::NonZeroU32, time::Duration};

use governor::{
    RateLimiter,
    clock::{Clock, FakeRelativeClock},
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed},
};
use tower_outbound::{
    BoxError, Quota,
    limit::{Amounts, Priority},
    test_util::limiter::{
        Acceptance, Ask, Block, Core, CoreSettings, End, Feedback, Grant, Latest, Rule, Spread, Status,
        Submitted,
    },
};

#[derive(Debug)]
pub(crate) struct Strategy {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    /// The colour in the plot. Colour-blind people can distinguish these colours (Okabe and Ito).
    pub(crate) color: (u8, u8, u8),
    /// The stroke width. The strokes of `window` and `adaptive` often coincide, so that of `window` is wider.
    pub(crate) width: u32,
    /// The rule of tower-outbound's limiter. `None` for governor.
    pub(crate) rule: Option<Rule>,
}

/// All strategies. The first one is always part of the comparison.
pub(crate) static STRATEGIES: [Strategy; 5] = [
    Strategy {
        name: "governor",
        description: "governor's plain bucket: the limit at once, then the limit per window",
        color: (213, 94, 0),
        width: 3,
        rule: None,
    },
    Strategy {
        name: "bucket",
        description: "token bucket: the burst at once, then the rest of the limit per window",
        color: (0, 114, 178),
        width: 3,
        rule: Some(Rule::Quotas(Spread::TokenBucket)),
    },
    Strategy {
        name: "window",
        description: "paced window: the burst at once, then the whole limit at an even rate",
        color: (0, 158, 115),
        width: 7,
        rule: Some(Rule::Quotas(Spread::PacedWindow)),
    },
    Strategy {
        name: "sliding",
        description: "sliding window: the limit per window in any pattern",
        color: (230, 159, 0),
        width: 3,
        rule: Some(Rule::Quotas(Spread::SlidingWindow)),
    },
    Strategy {
        name: "adaptive",
        description: "adaptive: a learned rate with the quota as its ceiling",
        color: (204, 121, 167),
        width: 3,
        rule: Some(Rule::Learned),
    },
];

/// A bucket of the crate governor, with the limit as its burst. It is full at the start and refills evenly, by the limit in
/// each window. A window can therefore contain the burst and the refill. It ignores the responses of the server.
type Bucket = RateLimiter<NotKeyed, InMemoryState, FakeRelativeClock, NoOpMiddleware<Nanos>>;

/// A limiter without a runtime. Each request costs one permit.
#[derive(Debug)]
pub(crate) enum Limiter {
    /// The bucket, and when it has a permit again. governor has no queue: the simulation serves the callers first in,
    /// first out, like the limiters of tower-outbound.
    Governor(Box<Bucket>, Option<u64>),
    /// The core, and the open block, whose permits are granted without the core.
    Core(Box<Core>, Option<Block>),
}

impl Limiter {
    pub(crate) fn new(rule: Option<Rule>, quota: Quota) -> Result<Self, BoxError> {
        if let Some(rule) = rule {
            let settings = CoreSettings::new(rule);
            return Ok(Self::Core(Box::new(Core::new(&[quota], settings)), None));
        }
        let limit = NonZeroU32::new(quota.limit()).ok_or("the limit is 0")?;
        let bucket = governor::Quota::with_period(quota.window() / quota.limit()).ok_or("the window is 0")?;
        let bucket = Bucket::direct_with_clock(bucket.allow_burst(limit), FakeRelativeClock::default());
        Ok(Self::Governor(Box::new(bucket), None))
    }

    /// Grants a new request its permit now, or queues the request. Returns whether the permit was granted.
    pub(crate) fn request(&mut self, now: u64) -> bool {
        let Self::Core(core, block) = self else { return false };
        if let Some(block) = block.as_mut().filter(|block| block.permits > 0 && now < block.end) {
            block.permits -= 1;
            return true;
        }
        close(core, block, now);
        let latest = Latest { max_wait: u64::MAX, deadline: u64::MAX };
        let ask = Ask {
            cost: NonZeroU32::MIN,
            priority: Priority::Normal,
            latest,
            max_queue: usize::MAX,
            is_in_flight: false,
            amounts: &Amounts::NONE,
        };
        // No request is refused, because it may wait forever.
        let is_granted = matches!(core.submit(ask, now), Ok(Submitted::Granted(_)));
        *block = core.open_block(now);
        is_granted
    }

    /// Returns whether the first queued request has its permit.
    pub(crate) fn grant(&mut self, now: u64) -> bool {
        match self {
            Self::Governor(bucket, wake) => {
                let clock = bucket.clock();
                clock.advance(Duration::from_nanos(now - clock.now().as_u64()));
                *wake = bucket.check().err().map(|not_until| not_until.earliest_possible().as_u64());
                wake.is_none()
            }
            Self::Core(core, block) => {
                let Some(ticket) = core.pop_woken() else { return false };
                let is_granted = matches!(core.status(ticket, now), Status::Granted(_));
                *block = core.open_block(now);
                is_granted
            }
        }
    }

    /// Returns when [`advance`](Self::advance) must be called next.
    pub(crate) fn next_wake(&self, now: u64) -> Option<u64> {
        match self {
            Self::Governor(_, wake) => *wake,
            Self::Core(core, _) => core.next_wake(now),
        }
    }

    pub(crate) fn advance(&mut self, now: u64) {
        if let Self::Core(core, block) = self {
            close(core, block, now);
            core.advance(now);
        }
    }

    /// Receives the response to a request. Returns whether the next wake-up may have changed.
    pub(crate) fn respond(&mut self, sent_at: u64, feedback: &Feedback, now: u64) -> bool {
        let Self::Core(core, block) = self else { return false };
        let is_accepted = feedback.acceptance == Acceptance::Accepted && feedback.pause.is_none();
        let has_limits = !feedback.remaining.is_empty() && core.reads_remaining();
        if is_accepted && !has_limits && !core.reads_all(now) {
            core.released(1);
            return false;
        }
        close(core, block, now);
        let grant = Grant::new(sent_at, NonZeroU32::MIN);
        core.finished(grant, End::Response(feedback, sent_at), now);
        true
    }
}

fn close(core: &mut Core, block: &mut Option<Block>, now: u64) {
    if let Some(block) = block.take() {
        core.close_block(block.permits, now);
    }
}
