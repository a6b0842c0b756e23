use std::{
    fmt,
    future::Future,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use super::{inner::Inner, permits::Permits};
use crate::{
    clock::{self, Instant},
    error::Refusal,
    limit::{
        Permit, PermitIssuer, PermitRequest, ResponseInfo,
        queue::external::{Acquire, nanos},
    },
};

pin_project! {
    /// The future of [`RedisLimiter`](super::RedisLimiter): waits for the permit of one request. Dropping it while it is
    /// queued spends nothing.
    pub struct RedisAcquire {
        #[pin]
        acquire: Acquire<Permits>,
        inner: Arc<Inner>,
    }
}

impl RedisAcquire {
    pub(super) fn new(inner: Arc<Inner>, request: PermitRequest) -> Self {
        Self { acquire: Acquire::new(Arc::clone(&inner.queue), request), inner }
    }
}

impl Future for RedisAcquire {
    type Output = Result<Permit<'static>, Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let outcome = this.acquire.poll(cx);
        this.inner.start();
        let inner = || Arc::clone(this.inner) as Arc<dyn PermitIssuer>;
        outcome.map_ok(|permit| permit.with_issuer(inner()))
    }
}

impl fmt::Debug for RedisAcquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisAcquire").field("acquire", &self.acquire).finish_non_exhaustive()
    }
}

/// What this process learns, it also reports to the store: a pause at once, the rest with the next query.
impl PermitIssuer for Inner {
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        self.queue.is_expired(permit)
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) {
        self.queue.completed(permit, response);
        if !response.has_limits() {
            return;
        }
        let uncounted = self.queue.uncounted();
        self.queue.inspect(|permits, _, now| {
            for remaining in response.remaining() {
                permits.session.remember(*remaining, uncounted, now);
            }
            if let Some(pause) = response.requested_pause() {
                permits.session.pause(now.saturating_add(nanos(pause)));
            }
        });
        if response.requested_pause().is_some() {
            self.report();
        }
    }

    fn dropped(&self, permit: &Permit<'_>) {
        self.queue.dropped(permit);
    }
}

impl Inner {
    pub(super) fn pause_until(&self, until: Instant) {
        self.queue.pause_until(until);
        let wait = nanos(until.saturating_duration_since(clock::now()));
        self.queue.inspect(|permits, _, now| permits.session.pause(now.saturating_add(wait)));
        self.report();
    }

    pub(super) fn resume(&self) {
        self.queue.resume();
        self.queue.inspect(|permits, _, _| permits.session.resume());
        self.report();
    }

    /// Reports to the store without waiting for the next request.
    fn report(&self) {
        self.bell.ring(NonZeroU32::MAX);
        self.bell.news.notify_one();
        self.start();
    }
}
