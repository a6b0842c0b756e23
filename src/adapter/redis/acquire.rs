use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use pin_project_lite::pin_project;

use super::{pool::Pool, shared::Shared};
use crate::limit::{self, PermitRequest, Refusal};

pin_project! {
    /// The wait of one request for its permits from a [`RedisLimiter`](super::RedisLimiter).
    ///
    /// Dropping it while it waits spends nothing and lets the next in line go.
    pub struct RedisAcquire {
        #[pin]
        acquire: limit::Acquire<Pool>,
        shared: Arc<Shared>,
    }
}

impl RedisAcquire {
    pub(super) fn new(shared: Arc<Shared>, ask: PermitRequest) -> Self {
        Self { acquire: limit::Acquire::new(Arc::clone(&shared.queue), ask), shared }
    }
}

impl Future for RedisAcquire {
    type Output = Result<(), Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let outcome = this.acquire.poll(cx);
        this.shared.call();
        outcome
    }
}

impl fmt::Debug for RedisAcquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisAcquire").field("acquire", &self.acquire).finish_non_exhaustive()
    }
}
