use std::{fmt, future::poll_fn, hash::Hash, sync::Arc, task::Poll, time::Duration};

use tokio::time::interval;

use super::{
    feedback::ResponseInfo,
    keyed::Keyed,
    limiter::{Limiter, PermitIssuer, PermitRequest, SelectLimiter},
    local_limiter::LocalLimiter,
    permit::Permit,
    shell::{
        acquire::Acquire,
        joint::{Outcome, Place},
    },
    snapshot::Effect,
};
use crate::{
    call::RequestHead,
    clock::{self, Instant},
    error::Refusal,
    policy::{Amounts, Taken, dialect::Scope},
};

/// The limiter of an account together with the limiters of its parts, such as endpoints or tenants. A request takes its
/// permits from both at once, or from neither.
///
/// ```
/// use tower_outbound::{Quota, limit::{Joint, Keyed, LocalLimiter, RateLimitLayer}};
///
/// // 5,000 requests per hour for all of the API, and 30 searches per minute.
/// let account = LocalLimiter::paced_window(Quota::per_hour(5_000)?);
/// let search = Quota::per_minute(30)?;
/// let endpoints = Keyed::new(
///     |head| head.uri.path().starts_with("/search"),
///     move |is_search| if *is_search { LocalLimiter::paced_window(search) } else { LocalLimiter::without_quota() },
/// );
/// let layer = RateLimitLayer::new(Joint::new(account.clone(), endpoints));
/// assert_eq!(account.snapshot().granted, 0);
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// [`StackBuilder::with_endpoint_limits`](crate::stack::StackBuilder::with_endpoint_limits) adds such limiters to a
/// client.
///
/// # Order
///
/// A request first waits in the queue of its part. The first request of each part then waits in the queue of the
/// account. It holds no permit while it waits. A part that may not send therefore delays no other part, and parts with
/// many requests take turns with those with few. Two limiters in two layers, or composed in a custom
/// [`Limiter`](super::Limiter), cannot do this: the permit of one expires, or is used late, while the request waits for
/// the other.
///
/// # Turns
///
/// Each turn grants one request, whatever its cost and its amounts. While the requests of two parts wait only for the
/// account, with the same priority, the granted requests of the parts differ by at most two. This is the bound of the
/// virtual token counter (OSDI 2024) with a cost of one for each request.
///
/// The parts get equal turns, not equal amounts. If the requests of one part take ten times the tokens of another, the
/// part gets ten times the tokens. A quota of tokens in the limiter of each part limits its share.
///
/// # Responses
///
/// | the response | applies to |
/// |---|---|
/// | concerns the part: `X-RateLimit-Scope: user`, a bucket, `Stripe-Rate-Limited-Reason: endpoint-rate` | the part |
/// | concerns the account: `X-RateLimit-Scope: global`, `Stripe-Rate-Limited-Reason: global-rate` | the account |
/// | states no scope, or an unknown one | both |
///
/// A [`ServerSignal`](super::ServerSignal) states the scope of other responses. [`Scope::Endpoint`](super::Scope) means
/// the part. A quota [of a resource](super::Remaining::is_of_resource) applies to the part only. The
/// [guide](crate::guide::services) lists the headers.
///
/// # Cancellation
///
/// Dropping a queued call spends no permit of either limiter. A queued future that nobody polls delays its part by up
/// to a second.
///
/// # Bounds
///
/// Each limiter forecasts only its own wait. A request that must wait in both queues may therefore be refused later
/// than on arrival, but never waits beyond its bounds.
///
/// [`with_max_queue`](super::RateLimitLayer::with_max_queue) bounds the queue of each part, so that many requests of one
/// part fill only its own queue. It also bounds the number of parts that wait in the queue of the account.
///
/// # Stores
///
/// A limiter may take its permits from a [store](LocalLimiter::from_source). A store that has the permits of a request,
/// but not its amounts, is called again every 100 ms, and when it reports a change. The other limiter grants nothing
/// meanwhile. If both limiters have a store, each of these calls to that of the part wastes a permit of the account.
#[derive(Clone)]
pub struct Joint<K> {
    account: LocalLimiter,
    parts: Keyed<K>,
}

impl<K> Joint<K> {
    /// Combines the limiter of an account with those of its parts.
    pub fn new(account: LocalLimiter, parts: Keyed<K>) -> Self {
        Self { account, parts }
    }

    /// Returns the limiter of the account.
    pub fn account(&self) -> &LocalLimiter {
        &self.account
    }

    /// Returns the limiters of the parts.
    pub fn parts(&self) -> &Keyed<K> {
        &self.parts
    }
}

impl<K: Hash + Eq + Clone> SelectLimiter for Joint<K> {
    fn acquire_for(&self, head: RequestHead<'_>, request: &PermitRequest) -> Acquire {
        let pair = match self.parts.limiter_of(head) {
            Ok(part) => Pair { account: self.account.clone(), part },
            Err(refusal) => return Acquire::ready(Err(refusal)),
        };
        // The function of the `Keyed` may return the account's limiter. One permit is then enough.
        if Arc::ptr_eq(&pair.account.shared, &pair.part.shared) {
            return pair.account.acquire_with(request);
        }
        pair.start(request)
    }
}

/// How often a request that waits for the account checks its turn in its part. An unpolled request loses its turn after
/// a second.
const TURN_CHECK: Duration = Duration::from_millis(500);

/// The two limiters of a request.
struct Pair {
    account: LocalLimiter,
    part: LocalLimiter,
}

impl Pair {
    fn start(self, request: &PermitRequest) -> Acquire {
        match self.account.shared.grant_both(&self.part.shared, request) {
            Some(granted) => Acquire::ready(Ok(self.permit(request, granted))),
            None => Acquire::new(self.acquire(*request)),
        }
    }

    async fn acquire(self, request: PermitRequest) -> Result<Permit<'static>, Refusal> {
        let Self { account, part } = &self;
        let arrived_at = clock::now();
        account.shared.foresee(&request)?;
        let turn = Place::join(&part.shared, &request, true)?;
        loop {
            poll_fn(|cx| turn.poll_due(cx)).await?;
            let place = Place::join(&account.shared, &request.after(arrived_at.elapsed()), false)?;
            // The request is the only one of its part in the account's queue, and keeps its turn in the part meanwhile.
            let mut check = interval(TURN_CHECK);
            let taken = loop {
                poll_fn(|cx| {
                    while check.poll_tick(cx).is_ready() {
                        if let Poll::Ready(Err(refusal)) = turn.poll_due(cx) {
                            return Poll::Ready(Err(refusal));
                        }
                    }
                    place.poll_due(cx)
                })
                .await?;
                let taken = place.take_both(&turn);
                if !matches!(taken, Outcome::Withheld) {
                    break taken;
                }
            };
            // If the part has begun a pause meanwhile, the request waits for its end outside the account's queue.
            if let Outcome::Decided(granted) = taken {
                return granted.map(|granted| self.permit(&request, granted));
            }
        }
    }

    fn permit(self, request: &PermitRequest, granted: [u64; 2]) -> Permit<'static> {
        let [of_account, of_part] = granted;
        let issuer = JointIssuer([(self.account, of_account), (self.part, of_part)]);
        Permit::new(request.cost()).with_issuer(Arc::new(issuer)).with_amounts(*request.amounts())
    }
}

/// Passes the outcome of a request to both limiters, or to the one that it concerns.
struct JointIssuer([(LocalLimiter, u64); 2]);

impl PermitIssuer for JointIssuer {
    fn is_expired(&self, _: &Permit<'_>) -> bool {
        self.0.iter().any(|(limiter, at)| limiter.shared.is_expired(*at))
    }

    fn renew(&self, request: &PermitRequest) -> Option<Acquire> {
        let [account, part] = self.0.each_ref().map(|(limiter, _)| limiter.clone());
        Some(Pair { account, part }.start(request))
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) -> Effect {
        let effect = |(limiter, at): &(LocalLimiter, u64), own: Scope| match response.concerning(own) {
            Some(response) => {
                limiter.shared.completed((permit.cost(), *at), permit.sent_at(), &response, permit.taken())
            }
            None => {
                limiter.shared.ended_elsewhere((permit.cost(), *at), permit.taken());
                Effect::default()
            }
        };
        let [account, part] = &self.0;
        effect(account, Scope::Account).or(effect(part, Scope::Endpoint))
    }

    fn dropped(&self, permit: &Permit<'_>) {
        for (limiter, at) in &self.0 {
            limiter.shared.dropped((permit.cost(), *at), permit.sent_at().is_some(), permit.taken());
        }
    }

    fn counts_in_flight(&self) -> bool {
        self.0.iter().any(|(limiter, _)| limiter.shared.limits_in_flight())
    }

    fn left_flight(&self, is_cancelled: bool) {
        for (limiter, _) in &self.0 {
            limiter.shared.end_in_flight(is_cancelled);
        }
    }

    fn settled(&self, _: Instant, taken: &Taken, actual: &Amounts) {
        for (limiter, at) in &self.0 {
            limiter.shared.settle(*at, taken, actual);
        }
    }
}

impl<K> fmt::Debug for Joint<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joint").field("account", &self.account).field("parts", &self.parts).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
        time::SystemTime,
    };

    use http::{HeaderMap, HeaderValue, Request, StatusCode};

    use super::*;
    use crate::policy::{Unit, dialect::STANDARD, feedback::Reading};

    fn tokens(amount: u32) -> Amounts {
        Amounts::of(Unit::Tokens, amount)
    }

    /// Settles the amounts of two requests before and after their responses. Returns the tokens of a third request,
    /// which is in flight, and those of accepted requests.
    async fn settle(
        limiter: &LocalLimiter,
        acquire: impl AsyncFn(PermitRequest) -> Permit<'static>,
    ) -> [u64; 2] {
        let accept =
            |permit: Permit<'_>| permit.complete(&ResponseInfo::new(StatusCode::OK, &HeaderMap::new()));
        let request = PermitRequest::new().with_amounts(tokens(1_000));
        let mut first = acquire(request).await;
        let settlement = first.settlement().unwrap().clone();
        settlement.settle(Amounts::NONE);
        settlement.settle(tokens(640));
        accept(first);
        // Takes no tokens, so its tokens do not count.
        let mut second = acquire(PermitRequest::new()).await;
        let settlement = second.settlement().unwrap().clone();
        settlement.settle(tokens(300));
        accept(second);
        settlement.settle(tokens(500));
        let _third = acquire(request).await;
        limiter.locked(|core, _| core.learned_amounts())
    }

    #[tokio::test(start_paused = true)]
    async fn quotas_of_a_response_are_parsed_once_for_the_account_and_its_part() {
        static READS: AtomicUsize = AtomicUsize::new(0);
        // Each parse reads the clock once, because the reset is a Unix time and the response has no `Date`.
        let wall = || {
            READS.fetch_add(1, Relaxed);
            SystemTime::UNIX_EPOCH
        };
        let mut headers = HeaderMap::new();
        headers.insert("x-ratelimit-remaining", HeaderValue::from_static("7"));
        headers.insert("x-ratelimit-reset", HeaderValue::from_static("1767229200"));
        let joint =
            Joint::new(LocalLimiter::adaptive([]), Keyed::new(|_| 0, |_| LocalLimiter::without_quota()));
        let request = PermitRequest::new();
        let permit = joint.acquire_for(RequestHead::of(&Request::new(())), &request).await.unwrap();
        let reading = Reading::new(&STANDARD, StatusCode::OK, &headers, None, wall);
        permit.complete(&ResponseInfo::of_call(reading, None));
        assert_eq!(READS.load(Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn joint_and_wrapped_limiters_count_the_amounts_that_a_permit_took() {
        let joint =
            Joint::new(LocalLimiter::adaptive([]), Keyed::new(|_| 0, |_| LocalLimiter::without_quota()));
        let acquire = async |request: PermitRequest| {
            joint.acquire_for(RequestHead::of(&Request::new(())), &request).await.unwrap()
        };
        assert_eq!(settle(joint.account(), acquire).await, [1_000, 640]);
        let limiter = LocalLimiter::adaptive([]);
        let acquire = async |request: PermitRequest| {
            let permit = limiter.acquire_with(&request).await.unwrap();
            permit.with_issuer(Arc::new(limiter.clone())).with_amounts(*request.amounts())
        };
        assert_eq!(settle(&limiter, acquire).await, [1_000, 640]);
    }
}
