//! Tests of the queue and the task that queries the store, with a scripted store and paused time.

mod arguments;
mod gates;
mod in_flight;
mod units;
mod waits;

use std::{
    num::NonZeroU32,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::{JoinSet, yield_now},
    time::{self, Instant},
};

use super::{
    RedisLimiter,
    inner::Inner,
    permits::{Free, Lease, Permits, Source, Store, lock},
    protocol::{Decide, Decided, Known, Query, Reply},
    settings::Settings,
};
use crate::{
    error::{Reason, Refusal},
    limit::{self, Limiter, PermitSource, core::Rule},
    policy::Quota,
};

/// A store that replies with the result of `script`, and records each query with its time.
struct ScriptedStore<F> {
    script: F,
    delay: Duration,
    queries: Arc<Mutex<Vec<(Instant, Query)>>>,
    running: Arc<AtomicU32>,
}

impl<F: Fn(&Query) -> Result<Reply, String> + Send + Sync> Decide for ScriptedStore<F> {
    fn decide(&self, query: Query) -> Decided<'_> {
        Box::pin(async move {
            assert_eq!(self.running.fetch_add(1, Ordering::Relaxed), 0, "two queries run at once");
            let running = Arc::clone(&self.running);
            let _running = RunningQuery(running);
            self.queries.lock().unwrap().push((Instant::now(), query.clone()));
            time::sleep(self.delay).await;
            (self.script)(&query)
        })
    }
}

/// Marks a query as running until this value is dropped. Each query holds one such value until the query ends, with or
/// without a reply.
struct RunningQuery(Arc<AtomicU32>);

impl Drop for RunningQuery {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

type Log = Arc<Mutex<Vec<(Instant, Query)>>>;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn limiter() -> RedisLimiter {
    let quota = Quota::new(100, Duration::from_secs(10)).unwrap().without_margin();
    RedisLimiter::token_bucket("redis://localhost", "key", [quota])
        .unwrap()
        .with_lease(1, millis(100))
        .unwrap()
}

fn scripted(
    limiter: RedisLimiter,
    delay: Duration,
    script: impl Fn(&Query) -> Result<Reply, String> + Send + Sync + 'static,
) -> (RedisLimiter, Log) {
    let queries = Log::default();
    let store = ScriptedStore { script, delay, queries: Arc::clone(&queries), running: Arc::default() };
    (RedisLimiter { inner: Inner::new(Box::new(store), Arc::clone(&limiter.inner.settings)) }, queries)
}

fn reply(grants: &[(u64, u32)], free: u64) -> Reply {
    let known = Known { born: 1, granted: 1 };
    let grants = grants.iter().map(|(due, permits)| (millis(*due), *permits)).collect();
    Reply {
        known,
        paused: Duration::ZERO,
        free: millis(free),
        is_spent: free > 0,
        query_in: millis(free.saturating_sub(100)),
        grants,
        admitted: 0,
        is_full: false,
        at: 0,
        units: Vec::new(),
    }
}

/// Grants all requested permits immediately.
fn grant_all(query: &Query) -> Result<Reply, String> {
    Ok(reply(&[(0, query.want * query.unit)], 0))
}

fn grant_none(free: u64) -> impl Fn(&Query) -> Result<Reply, String> {
    move |_| Ok(reply(&[], free))
}

fn bounded(max_wait: Option<Duration>) -> limit::PermitRequest {
    costing(1, max_wait)
}

async fn take(limiter: &RedisLimiter, request: limit::PermitRequest) -> Result<(), Refusal> {
    let outcome =
        time::timeout(Duration::from_secs(60), limiter.acquire_with(&request)).await.expect("timed out");
    outcome.map(drop)
}

fn costing(cost: u32, max_wait: Option<Duration>) -> limit::PermitRequest {
    let request = limit::PermitRequest::new().with_cost(NonZeroU32::new(cost).unwrap());
    max_wait.map_or(request, |max_wait| request.with_max_wait(max_wait))
}

#[tokio::test(start_paused = true)]
async fn redis_limiter_sends_one_query_at_a_time_for_all_waiters() {
    let (limiter, queries) = scripted(limiter(), millis(10), grant_all);
    let mut waiters: JoinSet<_> = (0..100)
        .map(|_| {
            let limiter = limiter.clone();
            async move { take(&limiter, bounded(None)).await }
        })
        .collect();
    while let Some(outcome) = waiters.join_next().await {
        outcome.unwrap().unwrap();
    }
    let wanted: Vec<_> = queries.lock().unwrap().iter().map(|(_, query)| query.want).collect();
    assert!(wanted.len() <= 3 && wanted.iter().sum::<u32>() == 100, "{wanted:?}");
}

#[tokio::test(start_paused = true)]
async fn redis_permit_is_used_only_between_its_start_time_and_its_expiry() {
    // The reply takes 30 ms. The permits may be used from 50 ms after the reply until 150 ms after the query.
    let (limiter, queries) = scripted(limiter(), millis(30), |_| Ok(reply(&[(50, 2)], 5_000)));
    let start = Instant::now();
    take(&limiter, bounded(None)).await.unwrap();
    assert_eq!(start.elapsed(), millis(80));
    time::sleep(millis(69)).await;
    take(&limiter, bounded(Some(Duration::ZERO))).await.unwrap();
    assert_eq!(queries.lock().unwrap().len(), 1);

    let (limiter, _) = scripted(self::limiter(), millis(30), |_| Ok(reply(&[(50, 2)], 5_000)));
    take(&limiter, bounded(None)).await.unwrap();
    time::sleep(millis(71)).await;
    let refusal = take(&limiter, bounded(Some(Duration::ZERO))).await.unwrap_err();
    assert_eq!(refusal.reason(), Reason::MaxWait, "the second permit has expired");
}

#[tokio::test(start_paused = true)]
async fn redis_limiter_treats_late_replies_as_a_failure_and_grants_nothing() {
    let (limiter, queries) = scripted(limiter(), millis(101), grant_all);
    let refusal = take(&limiter, bounded(None)).await.unwrap_err();
    assert_eq!(refusal.reason(), Reason::Unavailable);
    assert_eq!((queries.lock().unwrap().len(), limiter.snapshot().granted), (3, 0));
    assert_eq!(limiter.store(), Store::Refusing);
}

#[tokio::test(start_paused = true)]
async fn redis_limiter_waits_50_to_250_ms_before_the_next_query_after_a_timeout() {
    let (limiter, queries) = scripted(limiter(), Duration::from_secs(3_600), grant_all);
    let start = Instant::now();
    let (mut refused, mut last) = (0, None);
    while start.elapsed() < Duration::from_secs(10) {
        let began = Instant::now();
        last = Some(take(&limiter, bounded(None)).await.unwrap_err());
        assert!(began.elapsed() <= millis(250), "{:?}", began.elapsed());
        refused += 1;
        time::sleep(millis(10)).await;
    }
    assert_eq!(last.map(|refusal| refusal.reason()), Some(Reason::Unavailable));
    // Each query takes 250 ms, and the next query follows after 50 to 250 ms.
    let queries = queries.lock().unwrap().len();
    assert!((20..=34).contains(&queries) && refused > 200, "{queries} {refused}");
}

#[tokio::test(start_paused = true)]
async fn redis_limiter_sends_no_query_without_a_waiter_or_before_permits_are_due() {
    let (limiter, queries) = scripted(limiter(), millis(1), grant_none(5_000));
    let refusal = take(&limiter, bounded(Some(Duration::from_secs(4)))).await.unwrap_err();
    assert_eq!(refusal.reason(), Reason::MaxWait);
    assert_eq!(refusal.wait(), Some(Duration::from_secs(5)));
    for _ in 0..1_000 {
        let refusal = take(&limiter, bounded(Some(Duration::from_secs(2)))).await.unwrap_err();
        assert_eq!(refusal.reason(), Reason::MaxWait);
    }
    assert_eq!(queries.lock().unwrap().len(), 1, "a known forecast needs no query");

    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { take(&limiter, bounded(Some(Duration::from_secs(30)))).await }
    });
    time::sleep(Duration::from_secs(20)).await;
    // The task sends a query every 4.9 s, plus a random time of up to a quarter of the horizon.
    let times: Vec<_> = queries.lock().unwrap().iter().map(|(at, _)| *at).collect();
    assert!((4..=5).contains(&times.len()), "{times:?}");
    for pair in times.windows(2) {
        assert!((millis(4_900)..=millis(4_930)).contains(&(pair[1] - pair[0])), "{times:?}");
    }
    waiting.abort();
    let _ = waiting.await;
    time::sleep(Duration::from_secs(20)).await;
    assert!(queries.lock().unwrap().len() <= times.len() + 1);
}

#[tokio::test(start_paused = true)]
async fn max_wait_limits_the_forecast_wait_but_not_the_duration_of_a_redis_query() {
    let (limiter, _) = scripted(limiter(), millis(90), grant_all);
    take(&limiter, bounded(Some(Duration::ZERO))).await.unwrap();

    let (limiter, _) = scripted(self::limiter(), millis(240), grant_none(1));
    let start = Instant::now();
    let request = limit::PermitRequest::new().with_deadline(start + millis(100));
    assert_eq!(take(&limiter, request).await.unwrap_err().reason(), Reason::Deadline);
    assert_eq!(start.elapsed(), millis(100), "the request must be refused during the query");
}

#[tokio::test(start_paused = true)]
async fn redis_lease_grows_if_all_its_permits_are_used_and_shrinks_otherwise() {
    let leased = limiter().with_lease(64, millis(100)).unwrap();
    let (limiter, queries) = scripted(leased, millis(1), grant_all);
    for _ in 0..500 {
        take(&limiter, bounded(None)).await.unwrap();
    }
    let wanted = || queries.lock().unwrap().iter().map(|(_, query)| query.want).collect::<Vec<_>>();
    assert_eq!(wanted()[..7], [2, 4, 8, 16, 32, 64, 64]);
    time::sleep(Duration::from_secs(1)).await;
    for _ in 0..5 {
        take(&limiter, bounded(None)).await.unwrap();
        time::sleep(Duration::from_secs(1)).await;
    }
    assert!(wanted().last().unwrap() <= &2, "{:?}", wanted());
}

#[tokio::test(start_paused = true)]
async fn fallback_share_starts_empty_and_grants_its_part_of_the_quota() {
    let shares = limiter().with_fallback_share(4).unwrap();
    let (limiter, queries) = scripted(shares, millis(1), |_| Err("connection lost".to_owned()));
    let start = Instant::now();
    // The share is 25 permits in 10 s with a burst of 2, so it grants one permit every 435 ms.
    for number in 1..=20 {
        take(&limiter, bounded(None)).await.unwrap();
        assert!(start.elapsed() >= number * millis(434), "{number} after {:?}", start.elapsed());
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(limiter.store(), Store::Fallback);
    let share_used = queries.lock().unwrap().last().and_then(|(_, query)| query.share_used);
    assert!((18..=20).contains(&share_used.unwrap()), "{share_used:?}");
}

#[tokio::test(start_paused = true)]
async fn redis_limiter_refuses_all_waiters_after_a_failed_query() {
    let (limiter, _) = scripted(limiter(), millis(5), |_| Err("connection lost".to_owned()));
    let mut waiters: JoinSet<_> = (0..10)
        .map(|_| {
            let limiter = limiter.clone();
            async move { take(&limiter, bounded(None)).await.map_err(|refusal| refusal.reason()) }
        })
        .collect();
    while let Some(outcome) = waiters.join_next().await {
        assert_eq!(outcome.unwrap(), Err(Reason::Unavailable));
    }
    assert_eq!(limiter.snapshot().queued, 0);
    yield_now().await;
}
