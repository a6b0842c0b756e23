//! Tests when a limiter queries the store because of the requests in flight.

use super::*;

const EXPIRY: Duration = Duration::from_secs(9);

/// A store that admits `max` requests, and grants all permits of admitted requests.
pub(super) fn admit(max: u32) -> impl Fn(&Query) -> Result<Reply, String> {
    move |query| {
        let wanted = u32::try_from(i64::from(query.want) + query.flight.spare).unwrap();
        let admitted = wanted.min(max.saturating_sub(query.flight.requests));
        let is_full = query.want > 0 && wanted > admitted;
        let granted = query.want.min(admitted.saturating_sub(query.flight.spare as u32));
        Ok(Reply { admitted, is_full, ..reply(&[(0, granted)], 0) })
    }
}

fn limited(max: u32) -> (RedisLimiter, Log) {
    // A limit of several requests is used with a lease of as many permits.
    let limiter = limiter().with_lease(max, millis(100)).unwrap();
    let limiter = limiter.with_max_in_flight(max).unwrap().with_in_flight_expiry(EXPIRY).unwrap();
    scripted(limiter, millis(1), admit(max))
}

fn waiter(limiter: &RedisLimiter) -> tokio::task::JoinHandle<Instant> {
    let acquire = limiter.acquire_with(&bounded(None));
    tokio::spawn(async move {
        acquire.await.unwrap();
        Instant::now()
    })
}

/// Returns the requests in flight of each query since `start`, with its time since then.
fn reports(queries: &Log, start: Instant) -> Vec<(u64, u32)> {
    let queries = queries.lock().unwrap();
    let later = queries.iter().filter(|(at, _)| *at >= start);
    later.map(|(at, query)| ((*at - start).as_millis() as u64, query.flight.requests)).collect()
}

#[tokio::test(start_paused = true)]
async fn end_of_a_request_queries_the_store_at_once_and_admits_a_waiter() {
    let (limiter, queries) = limited(1);
    let permit = limiter.acquire_with(&bounded(None)).await.unwrap();
    let waiting = waiter(&limiter);
    time::sleep(Duration::from_secs(20)).await;
    // The first queries follow after 10 ms, later ones after an eighth of the time waited, and the last after 250 ms.
    let polls = queries.lock().unwrap().len();
    assert!((95..=125).contains(&polls), "{polls} queries");
    let ended = Instant::now();
    drop(permit);
    assert!(waiting.await.unwrap() - ended <= millis(3));
}

#[tokio::test(start_paused = true)]
async fn requests_in_flight_are_reported_after_each_third_of_their_expiry() {
    let (limiter, queries) = limited(1);
    let permit = limiter.acquire_with(&bounded(None)).await.unwrap();
    let start = Instant::now();
    time::sleep(Duration::from_secs(10)).await;
    let times: Vec<_> =
        reports(&queries, start).iter().map(|(at, requests)| (at / 1_000, *requests)).collect();
    assert_eq!(times, [(2, 1), (5, 1), (8, 1)]);
    let ended = Instant::now();
    drop(permit);
    time::sleep(Duration::from_secs(20)).await;
    assert_eq!(reports(&queries, ended), [(0, 0)], "the end is reported once");
}

#[tokio::test(start_paused = true)]
async fn dropped_waiter_gives_back_its_turn_or_its_admission_at_once() {
    let (limiter, queries) = limited(1);
    let permit = limiter.acquire_with(&bounded(None)).await.unwrap();
    let waiting = waiter(&limiter);
    time::sleep(Duration::from_secs(5)).await;
    // Waits for a poll, after which the next one is not due for 250 ms.
    let polls = queries.lock().unwrap().len();
    while queries.lock().unwrap().len() == polls {
        time::sleep(millis(1)).await;
    }
    time::sleep(millis(5)).await;
    let dropped = Instant::now();
    waiting.abort();
    time::sleep(Duration::from_secs(2)).await;
    let seen = reports(&queries, dropped);
    assert!(matches!(seen[..], [(0..=1, 1)]), "{seen:?}");

    let mut queued = tokio_test::task::spawn(limiter.acquire_with(&bounded(None)));
    tokio_test::assert_pending!(queued.poll());
    drop(permit);
    time::sleep(millis(5)).await;
    assert!(queued.is_woken());
    assert_eq!(limiter.snapshot().requests_in_flight, Some(1));
    let dropped = Instant::now();
    drop(queued);
    time::sleep(Duration::from_secs(20)).await;
    assert_eq!(reports(&queries, dropped), [(0, 0)]);
}

#[tokio::test(start_paused = true)]
async fn admission_of_a_leased_permit_ends_with_the_permit() {
    let (limiter, queries) = limited(8);
    take(&limiter, bounded(None)).await.unwrap();
    let start = Instant::now();
    time::sleep(Duration::from_secs(20)).await;
    let seen = reports(&queries, start);
    // The second permit expires 100 ms after the query, which took 1 ms.
    assert_eq!(seen.last().map(|(at, _)| *at), Some(99), "{seen:?}");
    assert!(seen.len() <= 3, "{seen:?}");
    assert_eq!(limiter.inner.limiter.flight().requests, 0);
}

#[tokio::test(start_paused = true)]
async fn waiter_with_a_max_wait_is_refused_one_timeout_after_it_if_the_limit_is_reached() {
    let (limiter, _) = limited(1);
    let _permit = limiter.acquire_with(&bounded(None)).await.unwrap();
    let start = Instant::now();
    let refusal = take(&limiter, bounded(Some(millis(100)))).await.unwrap_err();
    assert_eq!((refusal.reason(), refusal.max_in_flight()), (Reason::MaxWait, Some(1)));
    assert!((millis(350)..=millis(362)).contains(&start.elapsed()), "{:?}", start.elapsed());
}

/// The permit of the waiter is due in 50 ms. The update is reported before, with a query that requests no permit.
#[tokio::test(start_paused = true)]
async fn waiter_with_fetched_amounts_stays_admitted_while_an_update_is_reported() {
    let admit = admit(2);
    let tokens = Quota::new(1_000, Duration::from_secs(10)).unwrap().with_unit(limit::Unit::Tokens).unwrap();
    let limiter = RedisLimiter::token_bucket("redis://localhost", "key", [tokens]).unwrap();
    let limiter = limiter.with_lease(1, millis(100)).unwrap().with_max_in_flight(2).unwrap();
    let (limiter, queries) = scripted(limiter, millis(1), move |query| {
        let Reply { grants, admitted, is_full, .. } = admit(query)?;
        let grants: Vec<_> = grants.iter().map(|(_, permits)| (50, *permits)).collect();
        Ok(Reply { admitted, is_full, ..reply(&grants, 0) })
    });
    let start = Instant::now();
    let request = bounded(None).with_amounts(limit::Amounts::of(limit::Unit::Tokens, 10));
    let waiting = tokio::spawn(limiter.acquire_with(&request));
    time::sleep(millis(20)).await;
    limiter.resume();
    drop(waiting.await.unwrap().unwrap());
    assert_eq!(start.elapsed(), millis(51));
    let wanted: Vec<_> = queries.lock().unwrap().iter().map(|(_, query)| query.want).collect();
    assert_eq!(wanted[..2], [1, 0]);
    assert_eq!(wanted.iter().sum::<u32>(), 1, "{wanted:?}");
}

/// The quota is full, so its ten permits may be available together as soon as the permit is dropped.
#[tokio::test(start_paused = true)]
async fn waiters_of_a_full_quota_stay_queued_while_the_limit_is_reached() {
    let (limiter, _) = scripted(limiter().with_max_in_flight(1).unwrap(), millis(1), admit(1));
    let _permit = limiter.acquire_with(&bounded(None)).await.unwrap();
    let mut waiters: JoinSet<_> = (0..10)
        .map(|_| {
            let limiter = limiter.clone();
            async move { take(&limiter, bounded(Some(millis(500)))).await }
        })
        .collect();
    time::sleep(millis(100)).await;
    assert_eq!(limiter.snapshot().queued, 10);
    waiters.abort_all();
}

/// The clock of the process may stop while the process is suspended, so that it cannot state whether they still count.
#[tokio::test(start_paused = true)]
async fn query_states_until_when_the_store_counts_the_requests_by_the_clock_of_the_store() {
    let at = Arc::new(AtomicU32::new(5_000_000));
    let limiter = limiter().with_max_in_flight(1).unwrap().with_in_flight_expiry(EXPIRY).unwrap();
    let (limiter, queries) = scripted(limiter, millis(1), {
        let at = Arc::clone(&at);
        move |query| Ok(Reply { at: at.load(Ordering::Relaxed).into(), ..admit(1)(query)? })
    });
    let permit = limiter.acquire_with(&bounded(None)).await.unwrap();
    time::sleep(millis(3_100)).await;
    at.store(8_000_000, Ordering::Relaxed);
    time::sleep(millis(3_100)).await;
    drop(permit);
    time::sleep(millis(3_100)).await;
    take(&limiter, bounded(None)).await.unwrap();
    let queries = queries.lock().unwrap();
    let until: Vec<_> = queries.iter().map(|(_, query)| query.flight.counted_until).collect();
    assert_eq!(until[..5], [0, 14_000_000, 14_000_000, 17_000_000, 0]);
}
