//! Tests how a limiter queries and settles amounts of other units than requests.

use super::*;
use crate::limit::{Amounts, Unit};

fn tokens(amount: u32) -> Amounts {
    Amounts::of(Unit::Tokens, amount)
}

fn limited(
    delay: Duration,
    script: impl Fn(&Query) -> Result<Reply, String> + Send + Sync + 'static,
) -> (RedisLimiter, Log) {
    let second = Duration::from_secs(1);
    let requests = Quota::new(100, 10 * second).unwrap().without_margin();
    let quotas = [requests, Quota::new(1_000, 10 * second).unwrap().with_unit(Unit::Tokens).unwrap()];
    let limiter = RedisLimiter::token_bucket("redis://localhost", "key", quotas).unwrap();
    scripted(limiter.with_lease(1, millis(100)).unwrap(), delay, script)
}

async fn acquire(limiter: &RedisLimiter, amounts: Amounts) -> limit::Permit<'static> {
    let mut permit = limiter.acquire_with(&bounded(None).with_amounts(amounts)).await.unwrap();
    permit.mark_sent(Instant::now());
    permit
}

/// Returns the amounts that each query requests, reports beyond the estimates, and returns.
fn amounts(queries: &Log) -> Vec<(u32, u32, Vec<u32>)> {
    let of = |amounts: &Amounts| amounts.get(Unit::Tokens);
    let queries = queries.lock().unwrap();
    let all = queries.iter().map(|(_, Query { amounts, updates, .. })| {
        (of(amounts), of(&updates.more), updates.less.iter().map(|returned| of(&returned.amounts)).collect())
    });
    all.collect()
}

#[tokio::test(start_paused = true)]
async fn each_request_with_amounts_takes_one_query() {
    let (limiter, queries) = limited(millis(10), grant_all);
    let mut waiters: JoinSet<_> = (1..=3)
        .map(|number| {
            let limiter = limiter.clone();
            async move { drop(acquire(&limiter, tokens(number).with(Unit::Points, 7)).await) }
        })
        .collect();
    while let Some(outcome) = waiters.join_next().await {
        outcome.unwrap();
    }
    assert_eq!(amounts(&queries), [(1, 0, vec![]), (2, 0, vec![]), (3, 0, vec![])]);
    assert!(queries.lock().unwrap().iter().all(|(_, query)| (query.want, query.unit) == (1, 1)));
    // The limiter has no quota of points.
    assert!(queries.lock().unwrap().iter().all(|(_, query)| query.amounts.get(Unit::Points) == 0));
}

#[tokio::test(start_paused = true)]
async fn excess_is_resent_after_a_failed_query_and_a_returned_amount_is_not() {
    let fails = Arc::new(AtomicU32::new(0));
    let (limiter, queries) = limited(millis(10), {
        let fails = Arc::clone(&fails);
        move |query| match fails.swap(0, Ordering::Relaxed) {
            0 => grant_all(query),
            _ => Err("connection lost".to_owned()),
        }
    });
    let [mut one, mut other] = [acquire(&limiter, tokens(10)).await, acquire(&limiter, tokens(20)).await];
    queries.lock().unwrap().clear();
    fails.store(1, Ordering::Relaxed);
    one.settlement().unwrap().settle(tokens(15));
    other.settlement().unwrap().settle(tokens(12));
    time::sleep(millis(100)).await;
    assert_eq!(amounts(&queries), [(0, 5, vec![8])]);
    time::sleep(millis(300)).await;
    drop(acquire(&limiter, tokens(1)).await);
    assert_eq!(amounts(&queries)[1..], [(1, 5, vec![])]);
    drop(acquire(&limiter, tokens(1)).await);
    assert_eq!(amounts(&queries)[2..], [(1, 0, vec![])]);
}

#[tokio::test(start_paused = true)]
async fn amounts_of_a_dropped_waiter_are_returned_at_once() {
    // The waiter is dropped during the query, or after its reply.
    for wait in [5, 20] {
        let (limiter, queries) = limited(millis(10), grant_all);
        let mut queued =
            tokio_test::task::spawn(limiter.acquire_with(&bounded(None).with_amounts(tokens(30))));
        tokio_test::assert_pending!(queued.poll());
        time::sleep(millis(wait)).await;
        drop(queued);
        time::sleep(millis(20)).await;
        let returned: Vec<_> = amounts(&queries).into_iter().flat_map(|(_, _, less)| less).collect();
        assert_eq!(returned, [30], "{wait}");
    }
}

#[tokio::test(start_paused = true)]
async fn amounts_that_expire_are_returned() {
    let (limiter, queries) = limited(millis(10), |query| {
        Ok(Reply { at: 5_000_000, ..reply(&[(50, query.want * query.unit)], 0) })
    });
    let mut queued = tokio_test::task::spawn(limiter.acquire_with(&bounded(None).with_amounts(tokens(30))));
    tokio_test::assert_pending!(queued.poll());
    time::sleep(millis(20)).await;
    // The grant expires during the pause.
    limiter.pause_until(Instant::now() + millis(500));
    let _permit = queued.await.unwrap();
    time::sleep(millis(200)).await;
    let returned: Vec<_> = amounts(&queries).into_iter().flat_map(|(_, _, less)| less).collect();
    assert_eq!(returned, [30]);
    // The lower bound of the time is at most a hold and the time until a collection before the grant.
    let since = queries.lock().unwrap().iter().find_map(|(_, query)| Some(query.updates.less.first()?.since));
    assert!((4_800_000..=5_000_000).contains(&since.unwrap()), "{since:?}");
}

#[tokio::test(start_paused = true)]
async fn amounts_of_a_late_reply_are_returned_with_the_time_of_the_store() {
    let (limiter, queries) = limited(millis(101), |query| {
        Ok(Reply { at: 5_000_000, ..reply(&[(40, query.want * query.unit)], 0) })
    });
    let request = bounded(None).with_amounts(tokens(30)).with_deadline(Instant::now() + millis(150));
    take(&limiter, request).await.unwrap_err();
    time::sleep(millis(500)).await;
    let queries = queries.lock().unwrap();
    let returned: Vec<_> = queries.iter().flat_map(|(_, query)| &query.updates.less).collect();
    assert!(!returned.is_empty());
    for back in returned {
        assert_eq!((back.since, back.amounts), (5_040_000, tokens(30)));
    }
}

#[tokio::test(start_paused = true)]
async fn request_with_a_smaller_amount_is_queried_before_the_forecast_of_a_larger_one() {
    let (limiter, queries) = limited(millis(10), |query| match query.amounts.get(Unit::Tokens) {
        900 => Ok(Reply {
            query_in: Duration::from_secs(5),
            units: vec![(100, Duration::from_secs(5))],
            ..reply(&[], 0)
        }),
        _ => grant_all(query),
    });
    let large = bounded(Some(millis(100))).with_amounts(tokens(900));
    let refusal = take(&limiter, large).await.unwrap_err();
    assert_eq!((refusal.reason(), refusal.unit()), (Reason::MaxWait, Some(Unit::Tokens)));
    assert_eq!(limiter.snapshot().units[0].available, 100);
    let start = Instant::now();
    drop(acquire(&limiter, tokens(100)).await);
    assert_eq!((start.elapsed(), queries.lock().unwrap().len()), (millis(10), 2));
    // The amount is above the one that the last reply stated as available, and no request may wait for a reply.
    let large = take(&limiter, bounded(Some(Duration::ZERO)).with_amounts(tokens(900))).await.unwrap_err();
    assert_eq!(large.unit(), Some(Unit::Tokens));
    // A waiter is queried every 250 ms to 300 ms, because another process may return amounts.
    let before = queries.lock().unwrap().len();
    let waiter = tokio::time::timeout(Duration::from_secs(3), acquire(&limiter, tokens(900)));
    waiter.await.unwrap_err();
    let queried = queries.lock().unwrap().len() - before;
    assert!((9..=12).contains(&queried), "{queried}");
}

/// The task waits for its next query, which may follow after 250 ms.
#[tokio::test(start_paused = true)]
async fn request_of_a_higher_priority_is_queried_at_once() {
    let (limiter, _) = limited(millis(10), |query| match query.amounts.get(Unit::Tokens) {
        900 => Ok(Reply { units: vec![(100, Duration::from_secs(5))], ..reply(&[], 5_000) }),
        _ => grant_all(query),
    });
    let large = bounded(None).with_amounts(tokens(900)).with_priority(limit::Priority::Low);
    let waiting = tokio::spawn(limiter.acquire_with(&large));
    time::sleep(millis(50)).await;
    let start = Instant::now();
    drop(acquire(&limiter, tokens(100)).await);
    assert_eq!(start.elapsed(), millis(10));
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn estimate_above_the_capacity_of_a_bucket_takes_the_capacity_of_each_quota() {
    let of = |quota: Quota| quota.with_unit(Unit::Tokens).unwrap();
    let bucket = of(Quota::bucket(100, 10, Duration::from_secs(1)).unwrap());
    let quotas = [of(Quota::per_hour(10_000).unwrap()), bucket];
    let limiter = RedisLimiter::token_bucket("redis://localhost", "key", quotas).unwrap();
    let (limiter, queries) = scripted(limiter, millis(10), grant_all);
    let mut permit = acquire(&limiter, tokens(5_000)).await;
    for actual in [40, 700, 5_000, u32::MAX] {
        permit.settlement().unwrap().settle(tokens(actual));
        time::sleep(millis(100)).await;
    }
    let expected =
        [(100, 0, vec![]), (0, 0, vec![60]), (0, 660, vec![]), (0, 0, vec![600]), (0, 900, vec![])];
    assert_eq!(amounts(&queries), expected);
}
