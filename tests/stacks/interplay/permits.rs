//! A probe that takes a permit to get ready, and gives it back when its call is over or dropped.

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
    waiting: Vec<Waker>,
}

struct Permit(Arc<Mutex<Pool>>);

impl Drop for Permit {
    fn drop(&mut self) {
        let mut pool = self.0.lock().unwrap();
        pool.free += 1;
        pool.waiting.drain(..).for_each(Waker::wake);
    }
}

pub(crate) struct Gated {
    pool: Arc<Mutex<Pool>>,
    permit: Option<Permit>,
    pub(crate) probe: ScriptedService,
}

impl Gated {
    pub(crate) fn new(permits: usize, script: impl IntoIterator<Item = Scripted>) -> Self {
        let pool = Arc::new(Mutex::new(Pool { free: permits, waiting: Vec::new() }));
        Self { pool, permit: None, probe: ScriptedService::new(script) }
    }

    pub(crate) fn free(&self) -> usize {
        self.pool.lock().unwrap().free
    }
}

impl Clone for Gated {
    fn clone(&self) -> Self {
        Self { pool: Arc::clone(&self.pool), permit: None, probe: self.probe.clone() }
    }
}

impl<B> Service<Request<B>> for Gated
where
    ScriptedService: Service<Request<B>, Error = BoxError, Future: Send + 'static>,
{
    type Response = <ScriptedService as Service<Request<B>>>::Response;
    type Error = BoxError;
    type Future = futures_util::future::BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        if self.permit.is_none() {
            let mut pool = self.pool.lock().unwrap();
            let Some(left) = pool.free.checked_sub(1) else {
                pool.waiting.push(cx.waker().clone());
                return Poll::Pending;
            };
            pool.free = left;
            self.permit = Some(Permit(Arc::clone(&self.pool)));
        }
        self.probe.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let permit = self.permit.take().expect("called without a permit");
        let answer = self.probe.call(request);
        Box::pin(async move {
            let answer = answer.await;
            drop(permit);
            answer
        })
    }
}
