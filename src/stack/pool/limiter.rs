use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{Either, select},
};

use super::Pool;
use crate::{
    call::{CallContext, Member, RequestHead},
    clock,
    error::{Reason, Refusal},
    limit::{Acquire, Limiter, LocalLimiter, Permit, PermitRequest, SelectLimiter},
};

/// How long a waiter stays in the queue of a member without a forecast before it chooses again.
const WITHOUT_FORECAST: Duration = Duration::from_millis(100);
/// The shortest time between two choices of a waiter.
const SHORTEST: Duration = Duration::from_millis(10);

/// Takes the permits of each request from the member that is expected to grant them first, and records the member in the
/// call.
#[derive(Debug, Clone)]
pub(in crate::stack) struct PoolLimiter {
    pool: Pool,
    /// The member after the last chosen one. Equal members are chosen in turn.
    next: Arc<AtomicUsize>,
}

/// The members among which one request chooses.
#[derive(Debug)]
struct Choice {
    pool: Pool,
    /// The indices of the members that have not refused the request. The preferred one of equal members is the first.
    open: Vec<usize>,
    request: PermitRequest,
}

impl PoolLimiter {
    pub(in crate::stack) fn new(pool: Pool) -> Self {
        Self { pool, next: Arc::default() }
    }

    pub(in crate::stack) fn is_of(&self, pool: &Pool) -> bool {
        Arc::ptr_eq(&self.pool.members, &pool.members)
    }

    /// Returns the members that may serve a request, in the order of preference.
    fn candidates(&self, call: Option<&CallContext>) -> impl Iterator<Item = usize> + use<> {
        let all = self.pool.members.len();
        let (first, len) = match call.and_then(CallContext::member) {
            Some(member) if member.is_fixed => (member.index, 1),
            // Another member than that of the last attempt goes first.
            Some(member) => (member.index + 1, all),
            None => (self.next.load(Relaxed), all),
        };
        (0..len).map(move |next| first.wrapping_add(next) % all)
    }

    /// Records that the request has its permit from this member.
    fn choose(&self, call: Option<&CallContext>, index: usize) {
        self.next.store(index + 1, Relaxed);
        call.inspect(|call| call.set_member(Member { index, is_fixed: true, is_throttled: false }));
    }
}

impl SelectLimiter for PoolLimiter {
    fn acquire_for(&self, head: RequestHead<'_>, request: &PermitRequest) -> Acquire {
        let call = head.extensions.get::<CallContext>().cloned();
        let open = self.candidates(call.as_ref()).collect();
        let (pool, choice) = (self.clone(), Choice { pool: self.pool.clone(), open, request: *request });
        Acquire::new(async move {
            let (permit, index) = choice.acquire().await?;
            pool.choose(call.as_ref(), index);
            Ok(permit)
        })
    }

    fn try_acquire_for(
        &self,
        head: RequestHead<'_>,
        request: &PermitRequest,
    ) -> Option<Result<Permit<'static>, Refusal>> {
        let call = head.extensions.get();
        for index in self.candidates(call) {
            if let Some(Ok(permit)) = self.pool.members[index].limiter.try_acquire_with(request) {
                self.choose(call, index);
                return Some(Ok(permit));
            }
        }
        None
    }
}

impl Choice {
    fn limiter(&self, index: usize) -> &LocalLimiter {
        &self.pool.members[index].limiter
    }

    /// Returns the member with the shortest expected wait, and this wait. A wait of `None` is unknown.
    fn earliest(&self, request: &PermitRequest) -> Option<(usize, Option<Duration>)> {
        let wait = |index: usize| Some(self.limiter(index).expected_wait(request)?[0]);
        let waits = self.open.iter().map(|index| (*index, wait(*index)));
        waits.min_by_key(|(_, wait)| wait.unwrap_or(Duration::MAX))
    }

    /// Waits for the permits. Returns them with the index of their member.
    async fn acquire(mut self) -> Result<(Permit<'static>, usize), Refusal> {
        let began = clock::now();
        let mut refusal: Option<Refusal> = None;
        let mut request = self.request;
        while let Some((index, wait)) = self.earliest(&request) {
            match self.wait_at(index, wait, request).await {
                Some(Ok(permit)) => return Ok((permit, index)),
                Some(Err(refused)) => {
                    self.open.retain(|open| *open != index);
                    let wait = |it: &Refusal| it.wait().unwrap_or(Duration::MAX);
                    if refusal.as_ref().is_none_or(|earlier| wait(&refused) < wait(earlier)) {
                        refusal = Some(refused);
                    }
                }
                None => {}
            }
            request = self.request.after(began.elapsed());
        }
        Err(refusal.unwrap_or_else(|| Refusal::new(Reason::Unavailable, None)))
    }

    /// Waits in the queue of one member. Returns `None` if another member can now grant the permits earlier.
    async fn wait_at(
        &self,
        index: usize,
        mut wait: Option<Duration>,
        request: PermitRequest,
    ) -> Option<Result<Permit<'static>, Refusal>> {
        let mut acquire = self.limiter(index).acquire_with(&request);
        if self.open.len() == 1 {
            return Some(acquire.await);
        }
        loop {
            let lasts = wait.unwrap_or(WITHOUT_FORECAST).max(SHORTEST);
            let timer = pin!(tokio::time::sleep_until(clock::after(clock::now(), lasts)));
            if let Either::Left((granted, _)) = select(&mut acquire, timer).await {
                return Some(granted);
            }
            // Those ahead have chosen again before, so this request is among the first.
            wait = self.limiter(index).expected_wait(&request).map(|[_, alone]| alone);
            // The forecast may have granted the permits.
            if let Some(granted) = (&mut acquire).now_or_never() {
                return Some(granted);
            }
            let (other, earliest) = self.earliest(&request)?;
            if other != index && earliest.is_some_and(|earliest| wait.is_none_or(|wait| earliest < wait)) {
                return None;
            }
        }
    }
}
