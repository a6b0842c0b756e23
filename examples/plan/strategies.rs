//! The limiters of the comparison.

use std::{num::NonZeroU32, sync::Arc};

use governor::{
    RateLimiter,
    clock::Clock,
    middleware::NoOpMiddleware,
    state::{InMemoryState, NotKeyed},
};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};
use tower_outbound::{
    BoxError, Quota,
    limit::{Acquire, AnyLimiter, Limiter, LocalLimiter, Permit, PermitRequest},
};

#[derive(Debug)]
pub(crate) struct Strategy {
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    /// The colour in the plot. Colour-blind people can distinguish these colours (Okabe and Ito).
    pub(crate) color: (u8, u8, u8),
    /// The stroke width. The strokes of `window` and `adaptive` often coincide, so that of `window` is wider.
    pub(crate) width: u32,
    pub(crate) limiter: fn(Quota) -> Result<AnyLimiter, BoxError>,
}

/// All strategies. The first one is always part of the comparison.
pub(crate) static STRATEGIES: [Strategy; 5] = [
    Strategy {
        name: "governor",
        description: "governor's plain bucket: the limit at once, then the limit per window",
        color: (213, 94, 0),
        width: 3,
        limiter: |quota| Ok(AnyLimiter::new(Governor::new(quota)?)),
    },
    Strategy {
        name: "bucket",
        description: "token bucket: the burst at once, then the rest of the limit per window",
        color: (0, 114, 178),
        width: 3,
        limiter: |quota| Ok(AnyLimiter::new(LocalLimiter::token_bucket(quota))),
    },
    Strategy {
        name: "window",
        description: "paced window: the burst at once, then the whole limit at an even rate",
        color: (0, 158, 115),
        width: 7,
        limiter: |quota| Ok(AnyLimiter::new(LocalLimiter::paced_window(quota))),
    },
    Strategy {
        name: "sliding",
        description: "sliding window: the limit per window in any pattern",
        color: (230, 159, 0),
        width: 3,
        limiter: |quota| Ok(AnyLimiter::new(LocalLimiter::sliding_window(quota))),
    },
    Strategy {
        name: "adaptive",
        description: "adaptive: a learned rate with the quota as its ceiling",
        color: (204, 121, 167),
        width: 3,
        limiter: |quota| Ok(AnyLimiter::new(LocalLimiter::adaptive(quota))),
    },
];

/// A bucket of the crate governor, with the limit as its burst. It is full at the start and refills evenly, by the limit in
/// each window. A window can therefore contain the burst and the refill. It ignores the responses of the server.
#[derive(Debug, Clone)]
struct Governor {
    bucket: Arc<RateLimiter<NotKeyed, InMemoryState, TokioClock, NoOpMiddleware<std::time::Instant>>>,
    /// Serves the callers first in, first out, like tower-outbound's limiters. governor has no queue.
    queue: Arc<Mutex<()>>,
}

impl Governor {
    fn new(quota: Quota) -> Result<Self, BoxError> {
        let limit = NonZeroU32::new(quota.limit()).ok_or("the limit is 0")?;
        let bucket = governor::Quota::with_period(quota.window() / quota.limit()).ok_or("the window is 0")?;
        let bucket = RateLimiter::direct_with_clock(bucket.allow_burst(limit), TokioClock);
        Ok(Self { bucket: Arc::new(bucket), queue: Arc::default() })
    }
}

impl Limiter for Governor {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        let (Self { bucket, queue }, cost) = (self.clone(), request.cost());
        Acquire::new(async move {
            let _first = queue.lock().await;
            while let Err(not_until) = bucket.check() {
                sleep(not_until.wait_time_from(TokioClock.now())).await;
            }
            Ok(Permit::new(cost))
        })
    }
}

/// Lets governor read tokio's clock, which is paused.
#[derive(Debug, Clone, Copy)]
struct TokioClock;

impl Clock for TokioClock {
    type Instant = std::time::Instant;

    fn now(&self) -> Self::Instant {
        Instant::now().into_std()
    }
}
