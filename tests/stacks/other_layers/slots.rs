//! A client that takes a slot when it becomes ready. The client returns the slot when its call has ended or is dropped.

use std::{
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use http::Request;
use tower::{BoxError, Service};

use super::support::{Scripted, ScriptedService};

#[derive(Default)]
struct Pool {
    free: usize,
    waiters: Vec<Waker>,
}

struct Slot(Arc<Mutex<Pool>>);

impl Drop for Slot {
    fn drop(&mut self) {
        let mut pool = self.0.lock().unwrap();
        pool.free += 1;
        pool.waiters.drain(..).for_each(Waker::wake);
    }
}

pub(crate) struct Slots {
    pool: Arc<Mutex<Pool>>,
    slot: Option<Slot>,
    pub(crate) client: ScriptedService,
}

impl Slots {
    pub(crate) fn new(count: usize, script: impl IntoIterator<Item = Scripted>) -> Self {
        let pool = Arc::new(Mutex::new(Pool { free: count, waiters: Vec::new() }));
        Self { pool, slot: None, client: ScriptedService::new(script) }
    }

    pub(crate) fn free(&self) -> usize {
        self.pool.lock().unwrap().free
    }
}

impl Clone for Slots {
    fn clone(&self) -> Self {
        Self { pool: Arc::clone(&self.pool), slot: None, client: self.client.clone() }
    }
}

impl<B> Service<Request<B>> for Slots
where
    ScriptedService: Service<Request<B>, Error = BoxError, Future: Send + 'static>,
{
    type Response = <ScriptedService as Service<Request<B>>>::Response;
    type Error = BoxError;
    type Future = futures_util::future::BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.slot.is_none() {
            let mut pool = self.pool.lock().unwrap();
            let Some(left) = pool.free.checked_sub(1) else {
                pool.waiters.push(cx.waker().clone());
                return Poll::Pending;
            };
            pool.free = left;
            self.slot = Some(Slot(Arc::clone(&self.pool)));
        }
        self.client.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let slot = self.slot.take().expect("the client was called before it was ready");
        let response = self.client.call(request);
        Box::pin(async move {
            let response = response.await;
            drop(slot);
            response
        })
    }
}
