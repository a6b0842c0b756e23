//! The limiters of the comparison.

use std::{iter, num::NonZeroU32, time::Duration};

use governor::{
    RateLimiter,
    clock::{Clock, FakeRelativeClock},
    middleware::NoOpMiddleware,
    nanos::Nanos,
    state::{InMemoryState, NotKeyed},
};
use tower_outbound::{
    BoxError, Quota,
    limit::{Amounts, Priority, Unit},
    test_util::limiter::{
        Acceptance, Ask, Block, Core, CoreSettings, End, Feedback, Grant, Latest, Rule, Status, Submitted,
        Taken,
    },
};

use crate::arguments::Arguments;

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
        rule: Some(Rule::TokenBucket),
    },
    Strategy {
        name: "window",
        description: "paced window: the burst at once, then the whole limit at an even rate",
        color: (0, 158, 115),
        width: 7,
        rule: Some(Rule::PacedWindow),
    },
    Strategy {
        name: "sliding",
        description: "sliding window: the limit per window in any pattern",
        color: (230, 159, 0),
        width: 3,
        rule: Some(Rule::SlidingWindow),
    },
    Strategy {
        name: "adaptive",
        description: "adaptive: a learned rate with the quota as its ceiling",
        color: (204, 121, 167),
        width: 3,
        rule: Some(Rule::Learned),
    },
];

/// A bucket of the crate governor, with the limit as its burst. It is full at the start and refills evenly, by the
/// limit in each window. A window can therefore contain the burst and the refill. It ignores the responses of the
/// server.
type Bucket = RateLimiter<NotKeyed, InMemoryState, FakeRelativeClock, NoOpMiddleware<Nanos>>;

/// Buckets of the crate governor, which share a clock. governor has no queue: the simulation serves the callers first
/// in, first out, like the limiters of tower-outbound.
#[derive(Debug)]
pub(crate) struct Governor {
    clock: FakeRelativeClock,
    requests: Bucket,
    /// The bucket of tokens, and what a request takes of it.
    tokens: Option<(Bucket, NonZeroU32)>,
    /// Whether the first queued request has its permit, and waits for its tokens.
    has_permit: bool,
    /// When the first queued request can go on.
    wake: Option<u64>,
}

impl Governor {
    fn new(arguments: &Arguments) -> Result<Self, BoxError> {
        let clock = FakeRelativeClock::default();
        let bucket = |quota: Quota| {
            let limit = NonZeroU32::new(quota.limit()).ok_or("the limit is 0")?;
            let bucket =
                governor::Quota::with_period(quota.window() / quota.limit()).ok_or("the window is 0")?;
            Ok::<_, BoxError>(Bucket::direct_with_clock(bucket.allow_burst(limit), clock.clone()))
        };
        let tokens =
            arguments.tokens.map(|tokens| Ok::<_, BoxError>((bucket(tokens.quota)?, tokens.estimate)));
        let (requests, tokens) = (bucket(arguments.quota)?, tokens.transpose()?);
        Ok(Self { clock, requests, tokens, has_permit: false, wake: None })
    }

    /// Takes a permit and then the tokens. Returns whether the first queued request has both.
    fn grant(&mut self, now: u64) -> bool {
        self.clock.advance(Duration::from_nanos(now - self.clock.now().as_u64()));
        let mut checked = if self.has_permit { Ok(()) } else { self.requests.check() };
        self.has_permit = checked.is_ok();
        if let Some((bucket, tokens)) = self.tokens.as_ref().filter(|_| checked.is_ok()) {
            // The bucket holds the tokens of a request, which are at most its limit.
            checked = bucket.check_n(*tokens).unwrap_or(Ok(()));
        }
        self.wake = checked.err().map(|not_until| not_until.earliest_possible().as_u64());
        self.has_permit &= self.wake.is_some();
        self.wake.is_none()
    }
}

/// A limiter without a runtime. Each request costs one permit, and the estimate of its tokens.
#[derive(Debug)]
pub(crate) enum Limiter {
    Governor(Box<Governor>),
    Core {
        core: Box<Core>,
        /// The open block, whose permits are granted without the core.
        block: Option<Block>,
        estimate: Amounts,
        /// Whether the limiter has no quota of tokens and no limit of requests in flight.
        is_plain: bool,
    },
}

impl Limiter {
    pub(crate) fn new(rule: Option<Rule>, arguments: &Arguments) -> Result<Self, BoxError> {
        let Some(rule) = rule else { return Ok(Self::Governor(Box::new(Governor::new(arguments)?))) };
        let (max_in_flight, of_tokens) = (arguments.max_in_flight, arguments.tokens);
        let settings = CoreSettings { max_in_flight, ..CoreSettings::new(rule) };
        let quotas: Vec<_> =
            iter::once(arguments.quota).chain(of_tokens.map(|tokens| tokens.quota)).collect();
        Ok(Self::Core {
            core: Box::new(Core::new(&quotas, settings)),
            block: None,
            estimate: of_tokens.map_or(Amounts::NONE, |it| Amounts::of(Unit::Tokens, it.estimate.get())),
            is_plain: of_tokens.is_none() && max_in_flight.is_none(),
        })
    }

    /// Grants a new request its permit now, or queues the request. Returns whether the permit was granted.
    pub(crate) fn request(&mut self, now: u64) -> bool {
        let Self::Core { core, block, estimate: amounts, .. } = self else { return false };
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
            is_renewed: false,
            is_in_flight: false,
            amounts,
        };
        // No request is refused, because it may wait forever.
        let is_granted = matches!(core.submit(ask, now), Ok(Submitted::Granted(_)));
        *block = core.open_block(now);
        is_granted
    }

    /// Returns whether the first queued request has its permit.
    pub(crate) fn grant(&mut self, now: u64) -> bool {
        match self {
            Self::Governor(governor) => governor.grant(now),
            Self::Core { core, block, .. } => {
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
            Self::Governor(governor) => governor.wake,
            Self::Core { core, .. } => core.next_wake(now),
        }
    }

    pub(crate) fn advance(&mut self, now: u64) {
        if let Self::Core { core, block, .. } = self {
            close(core, block, now);
            core.advance(now);
        }
    }

    /// Receives the response to a request, which used `actual` tokens. Returns whether the next wake-up may have
    /// changed.
    pub(crate) fn respond(&mut self, sent_at: u64, actual: u32, feedback: &Feedback, now: u64) -> bool {
        let Self::Core { core, block, estimate, is_plain } = self else { return false };
        let is_accepted = feedback.acceptance == Acceptance::Accepted && feedback.pause.is_none();
        let has_limits = !feedback.remaining.is_empty() && core.reads_remaining();
        let counts_tokens = !*is_plain && core.learns();
        let is_ordinary = is_accepted && !has_limits && !counts_tokens && !core.reads_all(now);
        let accepted = Some(feedback.acceptance == Acceptance::Accepted);
        let mut taken = Taken::of(*estimate);
        taken.is_accepted = accepted;
        if is_ordinary {
            core.released(1);
        } else {
            close(core, block, now);
            let grant = Grant::new(sent_at, NonZeroU32::MIN);
            core.finished(grant, End::Response(feedback, sent_at), &taken, now);
        }
        if !*is_plain {
            core.settle(sent_at, &taken, &Amounts::of(Unit::Tokens, actual), now);
            core.end_in_flight(false, now);
        }
        !is_ordinary || !*is_plain
    }
}

fn close(core: &mut Core, block: &mut Option<Block>, now: u64) {
    if let Some(block) = block.take() {
        core.close_block(block.permits, now);
    }
}
