use std::{
    borrow::Cow,
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
    call::{CallContext, Member, Needs, RequestHead, delay_of},
    clock::{self, Instant},
    error::{Reason, Refusal},
    limit::{Acquire, Amounts, Limiter, Permit, PermitRequest, SelectLimiter},
};

/// The longest time until a waiter checks the other members again.
const LONGEST: Duration = Duration::from_secs(1);
/// The shortest time until a waiter checks the other members again.
const SHORTEST: Duration = Duration::from_millis(10);

/// Takes the permits of each request from the member that is expected to grant them first, and records the member in
/// the call.
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
    /// Whether the request was resent after a 401. It is no probe, because it is not resent again.
    is_resent: bool,
    /// The indices of the members, in the order of preference.
    members: Vec<usize>,
    /// The members that have not refused the request since it began to wait.
    open: Vec<usize>,
    /// The times before which the request must not go to a member.
    delays: Vec<(usize, Instant)>,
}

impl PoolLimiter {
    pub(in crate::stack) fn new(pool: Pool) -> Self {
        Self { pool, next: Arc::default() }
    }

    pub(in crate::stack) fn is_of(&self, pool: &Pool) -> bool {
        self.pool.id() == pool.id()
    }

    /// Returns the choice of a request.
    fn choice(&self, head: RequestHead<'_>) -> Choice {
        let all = self.pool.members.len();
        let call = head.extensions.get::<CallContext>();
        let last = call.and_then(|call| call.member(self.pool.id()));
        let is_resent = last.is_some() && call.is_some_and(CallContext::is_key_replaced);
        let (first, len) = match &last {
            Some(member) if member.is_fixed && !self.resends_elsewhere(member) => (member.index, 1),
            // Another member than that of the last attempt goes first.
            Some(member) => (member.index + 1, all),
            None => (self.next.load(Relaxed), all),
        };
        let members = (0..len).map(|next| first.wrapping_add(next) % all).collect();
        let delays = last.map_or_else(Vec::new, |last| last.delays);
        Choice { pool: self.pool.clone(), is_resent, members, open: Vec::new(), delays }
    }

    /// Returns whether the request goes to another member after a 401, because this one has no other key.
    fn resends_elsewhere(&self, last: &Member) -> bool {
        !last.is_bound && self.pool.must_leave(last.index)
    }

    /// Records that the request has its permit from this member.
    fn choose(&self, call: Option<&CallContext>, index: usize, request: &PermitRequest) {
        self.next.store(index + 1, Relaxed);
        self.pool.members[index].keys.choose();
        let Some(call) = call else { return };
        let pool = self.pool.id();
        let (delays, is_bound, routed) =
            call.member(pool).map_or_else(Default::default, |it| (it.delays, it.is_bound, it.routed));
        let needs = Needs {
            cost: request.cost(),
            amounts: *request.amounts(),
            priority: request.priority(),
            max_wait: request.max_wait(),
            max_queue: request.max_queue(),
        };
        let (is_fixed, alternative) = (true, None);
        call.set_member(Member { pool, index, needs, is_fixed, is_bound, alternative, delays, routed });
    }
}

impl SelectLimiter for PoolLimiter {
    fn acquire_for(&self, head: RequestHead<'_>, request: &PermitRequest) -> Acquire {
        let (pool, choice, request) = (self.clone(), self.choice(head), *request);
        let call = head.extensions.get::<CallContext>().cloned();
        let chosen = move |(permit, index)| {
            pool.choose(call.as_ref(), index, &request);
            permit
        };
        match choice.grant_now(&request) {
            Some(granted) => Acquire::ready(Ok(chosen(granted))),
            None => Acquire::new(async move { choice.acquire(request).await.map(chosen) }),
        }
    }
}

impl Choice {
    /// Returns the members that may get the request, in the order of preference: those that have a key, and of these,
    /// those whose limits fit its amounts. If there are none, the condition does not apply.
    fn eligible(&self, request: &PermitRequest) -> Cow<'_, [usize]> {
        self.pool.eligible(&self.members, self.is_resent, request.amounts())
    }

    /// Returns whether the request must leave the member, because the key source of the member has failed and another
    /// member is expected to grant the permits in time.
    fn must_leave(&self, index: usize, request: &PermitRequest) -> bool {
        let is_in_time = |wait| {
            request.deadline().is_none_or(|ends| clock::after(clock::now(), wait) < ends)
                && request.max_wait().is_none_or(|most| wait <= most)
        };
        self.members.len() > 1
            && self.pool.must_leave(index)
            && self.earliest(request).is_some_and(|(_, wait)| is_in_time(wait))
    }

    /// Returns how long the member may not get the request.
    fn delay(&self, index: usize) -> Duration {
        delay_of(&self.delays, index)
    }

    /// Returns the expected wait at a member, and the wait if no other request waited there.
    fn expected(&self, index: usize, request: &PermitRequest) -> Option<[Duration; 2]> {
        let delay = self.delay(index);
        Some(self.pool.members[index].limiter.expected_wait(request)?.map(|wait| wait.max(delay)))
    }

    /// Returns the open member with the shortest expected wait, and this wait.
    fn earliest(&self, request: &PermitRequest) -> Option<(usize, Duration)> {
        let wait = |index: usize| self.expected(index, request).map_or(Duration::MAX, |[wait, _]| wait);
        let eligible = self.eligible(request);
        let open = eligible.iter().filter(|index| self.open.contains(index));
        open.map(|index| (*index, wait(*index))).min_by_key(|(_, wait)| *wait)
    }

    /// Takes the permits of the first member that can grant them now. Returns them with the index of their member.
    fn grant_now(&self, request: &PermitRequest) -> Option<(Permit<'static>, usize)> {
        self.eligible(request)
            .iter()
            .filter(|index| self.delay(**index).is_zero())
            .find_map(|index| Some((self.pool.members[*index].limiter.grant_now(request)?, *index)))
    }

    /// Waits for the permits. Returns them with the index of their member.
    async fn acquire(mut self, request: PermitRequest) -> Result<(Permit<'static>, usize), Refusal> {
        let began = clock::now();
        self.open.clone_from(&self.members);
        let mut refusal: Option<Refusal> = None;
        loop {
            let (now, rest) = (clock::now(), request.after(began.elapsed()));
            let Some((index, wait)) = self.earliest(&rest) else { break };
            let outcome = self.wait_at(index, wait, rest).await;
            if clock::now().saturating_duration_since(now) >= SHORTEST {
                // The members may have changed since they refused the request.
                self.open.clone_from(&self.members);
                refusal = None;
            }
            match outcome {
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
        }
        Err(refusal.unwrap_or_else(|| Refusal::new(Reason::Unavailable, None)))
    }

    /// Waits in the queue of one member. Returns `None` if another member can grant the permits immediately, in less
    /// than half of the remaining forecast time, or, after the forecast time, earlier than this one. Also returns
    /// `None` if the request must leave this member, because its key source has failed.
    async fn wait_at(
        &self,
        index: usize,
        wait: Duration,
        request: PermitRequest,
    ) -> Option<Result<Permit<'static>, Refusal>> {
        let delay = self.delay(index);
        let is_late = |ends: Instant| !delay.is_zero() && clock::after(clock::now(), wait) > ends;
        if request.deadline().is_some_and(is_late) {
            return Some(Err(Refusal::new(Reason::Deadline, wait)));
        }
        let limiter = &self.pool.members[index].limiter;
        let mut acquire = pin!(async {
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            limiter.acquire_with(&request).await
        });
        let began = clock::now();
        let due = clock::after(began, wait);
        let must_leave = || self.must_leave(index, &request.after(began.elapsed()));
        // Counts no other waiters against the request, which is one of them.
        let queued = request.admitted();
        let mut shortest = SHORTEST;
        loop {
            let rest = due.saturating_duration_since(clock::now());
            if rest.is_zero() {
                shortest = (shortest * 2).min(LONGEST);
            }
            let timer = pin!(tokio::time::sleep(rest.clamp(shortest, LONGEST)));
            if let Either::Left((granted, _)) = select(acquire.as_mut(), timer).await {
                return (!must_leave()).then_some(granted);
            }
            // The requests ahead have checked the other members earlier. After the forecast time, this request
            // therefore compares as if no other request waited.
            let alone = self.expected(index, &queued).map_or(Duration::MAX, |[_, alone]| alone);
            // Computing the forecast may have granted the permits.
            if let Some(granted) = acquire.as_mut().now_or_never() {
                return (!must_leave()).then_some(granted);
            }
            let Some((other, earliest)) = self.earliest(&request) else { continue };
            let rest = due.saturating_duration_since(clock::now());
            let is_earlier = earliest.is_zero() || earliest < rest / 2 || rest.is_zero() && earliest < alone;
            if other != index && (is_earlier || must_leave()) {
                return None;
            }
        }
    }
}

impl Pool {
    /// Returns those of the members that may get a request, in the same order. `is_resent` excludes probes.
    pub(super) fn eligible<'a>(
        &self,
        of: &'a [usize],
        is_resent: bool,
        amounts: &Amounts,
    ) -> Cow<'a, [usize]> {
        let members = &self.members;
        let mut with_key = preferred(Cow::Borrowed(of), |index| !members[index].keys.has_failed());
        if is_resent {
            with_key = preferred(with_key, |index| !members[index].keys.needs_probe());
        }
        if amounts.is_empty() {
            return with_key;
        }
        preferred(with_key, |index| members[index].limiter.fits(amounts))
    }
}

/// Returns the members that meet the condition, or all members if none meets it.
fn preferred(members: Cow<'_, [usize]>, meets: impl Fn(usize) -> bool) -> Cow<'_, [usize]> {
    if members.iter().all(|index| meets(*index)) {
        return members;
    }
    let preferred: Vec<_> = members.iter().copied().filter(|index| meets(*index)).collect();
    if preferred.is_empty() { members } else { preferred.into() }
}

#[cfg(test)]
mod tests;
