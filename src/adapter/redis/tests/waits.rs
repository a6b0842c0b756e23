//! Tests of waits and deadlines while the store replies late or not at all.

use super::*;

#[tokio::test(start_paused = true)]
async fn request_larger_than_the_share_is_refused_and_the_next_request_is_granted() {
    let shares = limiter().with_fallback_share(4).unwrap();
    let (limiter, _) = scripted(shares, millis(1), |_| Err("connection lost".to_owned()));
    let large = tokio::spawn({
        let limiter = limiter.clone();
        async move { take(&limiter, costing(8, None)).await }
    });
    yield_now().await;
    take(&limiter, bounded(None)).await.unwrap();
    assert_eq!(large.await.unwrap().unwrap_err().reason(), Reason::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn second_waiter_is_refused_at_its_deadline_while_a_redis_query_runs() {
    let (limiter, _) = scripted(limiter(), millis(240), grant_none(1));
    let start = Instant::now();
    let first = tokio::spawn({
        let limiter = limiter.clone();
        async move { take(&limiter, bounded(Some(Duration::from_secs(1)))).await }
    });
    yield_now().await;
    let request = limit::PermitRequest::new().with_deadline(start + millis(50));
    assert_eq!(take(&limiter, request).await.unwrap_err().reason(), Reason::Deadline);
    assert!(start.elapsed() <= millis(61), "{:?}", start.elapsed());
    first.abort();
}

#[tokio::test(start_paused = true)]
async fn second_waiter_is_refused_if_the_forecast_wait_exceeds_its_max_wait() {
    let (limiter, _) = scripted(limiter(), millis(10), grant_none(5_000));
    let start = Instant::now();
    let head = tokio::spawn({
        let limiter = limiter.clone();
        async move { take(&limiter, bounded(None)).await }
    });
    yield_now().await;
    let refusal = take(&limiter, bounded(Some(Duration::from_secs(2)))).await.unwrap_err();
    assert_eq!(refusal.reason(), Reason::MaxWait);
    assert!(start.elapsed() <= millis(20), "{:?}", start.elapsed());
    head.abort();
}

/// Between the calls, a query without a waiter returns the request that the store has counted.
#[tokio::test(start_paused = true)]
async fn late_replies_count_although_queries_without_a_waiter_are_between_them() {
    let limiter = limiter().with_fallback_share(4).unwrap().with_max_in_flight(4).unwrap();
    let (limiter, _) = scripted(limiter, millis(120), super::in_flight::admit(4));
    for _ in 0..10 {
        let _ = take(&limiter, bounded(None).with_deadline(Instant::now() + millis(200))).await;
        time::sleep(millis(300)).await;
    }
    assert_eq!(limiter.store(), Store::Fallback);
}

#[tokio::test(start_paused = true)]
async fn redis_limiter_uses_its_share_while_every_reply_is_late() {
    let shares = limiter().with_fallback_share(4).unwrap();
    let (limiter, queries) = scripted(shares, millis(120), grant_all);
    let start = Instant::now();
    let mut granted = 0;
    while start.elapsed() < Duration::from_secs(20) {
        granted += u32::from(take(&limiter, bounded(Some(Duration::from_secs(1)))).await.is_ok());
    }
    // The share is 25 permits in 10 s.
    assert!((40..=50).contains(&granted), "{granted}");
    assert_eq!(limiter.store(), Store::Fallback);
    let wanted: u32 = queries.lock().unwrap().iter().map(|(_, query)| query.want).sum();
    assert!(wanted < 150, "{wanted} permits were queried and not used");
}

#[tokio::test(start_paused = true)]
async fn redis_limiter_resends_unreported_updates_when_a_request_waits() {
    let fails = Arc::new(AtomicU32::new(0));
    let (limiter, queries) = scripted(limiter(), millis(1), {
        let fails = Arc::clone(&fails);
        move |query| match fails
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
        {
            Ok(_) => Err("connection lost".to_owned()),
            Err(_) => grant_all(query),
        }
    });
    take(&limiter, bounded(None)).await.unwrap();
    queries.lock().unwrap().clear();
    fails.store(2, Ordering::Relaxed);
    // The clock of the scripted store starts with the reply.
    time::sleep(millis(7)).await;
    limiter.resume();
    time::sleep(Duration::from_secs(60)).await;
    assert_eq!(queries.lock().unwrap().len(), 1, "without a waiter, the updates are not sent again");
    take(&limiter, bounded(None)).await.unwrap_err();
    time::sleep(Duration::from_secs(1)).await;
    take(&limiter, bounded(None)).await.unwrap();
    // Each query states when the pause was lifted, so that the store keeps a newer one.
    let queries = queries.lock().unwrap();
    assert!(queries.len() > 2 && queries.iter().all(|(_, query)| query.updates.resumed_at == Some(7_000)));
}

/// The query task already waits until 8 permits are available together. The request for these 8 permits must therefore
/// not wake the task.
#[tokio::test(start_paused = true)]
async fn waiter_for_many_permits_does_not_wake_the_query_task() {
    let (limiter, queries) = scripted(limiter(), millis(1), grant_none(5_000));
    let waiting = take(&limiter, costing(8, Some(Duration::from_secs(14))));
    assert_eq!(waiting.await.unwrap_err().reason(), Reason::MaxWait);
    assert!(queries.lock().unwrap().len() <= 4);
}

/// The store forecasts a permit in 5 s. Several permits may be available by then, so all ten waiters may still be
/// served within their `max_wait`.
#[tokio::test(start_paused = true)]
async fn waiters_stay_queued_if_several_permits_may_become_available_together() {
    let (limiter, _) = scripted(limiter(), millis(1), grant_none(5_000));
    let mut waiters: JoinSet<_> = (0..10)
        .map(|_| {
            let limiter = limiter.clone();
            async move { take(&limiter, bounded(Some(Duration::from_millis(5_100)))).await }
        })
        .collect();
    time::sleep(Duration::from_secs(4)).await;
    assert_eq!(limiter.snapshot().queued, 10);
    waiters.abort_all();
}

#[test]
fn request_for_two_permits_waits_until_both_permits_may_be_used() {
    let permits = Permits::new(&limiter().inner.settings, Arc::default());
    let mut permits = Source(Arc::new(Mutex::new(permits)));
    let free = Free { at: 0, unit: 1, amounts: limit::Amounts::NONE, together: 1 };
    let grant = |due| Lease { due, until: 1_000, permits: 1, amounts: limit::Amounts::NONE };
    for due in [300, 200] {
        assert!(lock(&permits.0).fill([grant(due)], free, 0).is_none());
    }
    let (two, none) = (NonZeroU32::new(2).unwrap(), &limit::Amounts::NONE);
    assert_eq!((permits.forecast(100, 1, 1), permits.forecast(100, 2, 1)), (300, 300));
    assert!(!permits.take(two, none, 299) && permits.take(two, none, 300));
}

#[tokio::test(start_paused = true)]
async fn redis_waiter_sleeps_until_its_permit_after_the_clock_jumps_by_more_than_a_century() {
    let (limiter, queries) = scripted(limiter(), millis(10), |_| Ok(reply(&[(80, 1)], 5_000)));
    time::advance(Duration::from_secs(4_000_000_000)).await;
    let start = Instant::now();
    let mut acquire = tokio_test::task::spawn(limiter.acquire_with(&bounded(None)));
    tokio_test::assert_pending!(acquire.poll());
    yield_now().await;
    assert!(!acquire.is_woken(), "the waiter's timer lies in the past");
    acquire.await.unwrap();
    assert_eq!((start.elapsed(), queries.lock().unwrap().len()), (millis(90), 1));
}

#[tokio::test(start_paused = true)]
async fn reply_to_an_earlier_query_does_not_restore_a_pause_that_resume_has_lifted() {
    let resumed = AtomicU32::new(0);
    let (limiter, queries) = scripted(limiter(), millis(10), move |query| {
        resumed.fetch_or(query.updates.resumed_at.is_some().into(), Ordering::Relaxed);
        match resumed.load(Ordering::Relaxed) {
            0 => Ok(Reply { paused: Duration::from_secs(60), ..reply(&[], 60_000) }),
            _ => grant_all(query),
        }
    });
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { take(&limiter, bounded(None)).await }
    });
    time::sleep(millis(5)).await;
    limiter.resume();
    time::sleep(millis(100)).await;
    assert_eq!(limiter.snapshot().paused_until, None);
    waiting.await.unwrap().unwrap();
    assert_eq!(queries.lock().unwrap().len(), 2);
}

/// Returns when the process has lifted the pause, and whether it has paused again, as each query reports it.
fn reports(queries: &Log) -> Vec<(Option<i64>, bool)> {
    let queries = queries.lock().unwrap();
    queries.iter().map(|(_, query)| (query.updates.resumed_at, query.updates.pause_until > 0)).collect()
}

/// The store receives the pause later than the call of `resume`, so the time of this call would not lift it.
#[tokio::test(start_paused = true)]
async fn resume_lifts_each_pause_of_its_process_that_the_store_may_not_have_received() {
    let (limiter, queries) = scripted(limiter(), millis(10), |_| Ok(reply(&[], 0)));
    let pause = || limiter.pause_until(Instant::now() + Duration::from_secs(60));
    pause();
    yield_now().await;
    limiter.resume();
    limiter.resume();
    time::sleep(millis(15)).await;
    // The report of the earlier call is on the way.
    limiter.resume();
    time::sleep(millis(20)).await;
    let latest = Some(i64::MAX);
    assert_eq!(reports(&queries), [(None, true), (latest, false), (latest, false)]);

    queries.lock().unwrap().clear();
    pause();
    time::sleep(millis(20)).await;
    limiter.resume();
    time::sleep(millis(20)).await;
    // The clock of the scripted store starts with each reply.
    assert_eq!(reports(&queries), [(None, true), (Some(10_000), false)]);

    queries.lock().unwrap().clear();
    pause();
    yield_now().await;
    limiter.resume();
    time::sleep(millis(40)).await;
    // A pause that another process reports 10 s later remains, even if this report is delayed for longer.
    assert_eq!(reports(&queries), [(None, true), (Some(10_010_000), false)]);
}

#[tokio::test(start_paused = true)]
async fn pause_after_resume_is_reported_although_it_ends_before_the_pause_of_the_query_on_the_way() {
    let (limiter, queries) = scripted(limiter(), millis(10), |_| Ok(reply(&[], 0)));
    let pause = |seconds| limiter.pause_until(Instant::now() + Duration::from_secs(seconds));
    pause(60);
    yield_now().await;
    limiter.resume();
    pause(30);
    time::sleep(millis(30)).await;
    assert_eq!(reports(&queries), [(None, true), (Some(i64::MAX), true)]);
}

#[tokio::test(start_paused = true)]
async fn late_reply_to_a_query_without_a_waiter_does_not_end_the_use_of_the_share() {
    let shares = limiter().with_fallback_share(4).unwrap();
    let (limiter, _) = scripted(shares, millis(120), grant_all);
    while limiter.store() != Store::Fallback {
        let _ = take(&limiter, bounded(Some(Duration::from_secs(1)))).await;
    }
    take(&limiter, bounded(None)).await.unwrap();
    // The share grants a permit every 435 ms. A request waits at most for one late reply.
    for number in 0..20 {
        time::sleep(millis(450)).await;
        assert_eq!(limiter.store(), Store::Fallback, "{number}");
        let start = Instant::now();
        take(&limiter, bounded(None)).await.unwrap();
        assert!(start.elapsed() < millis(150), "{number}: {:?}", start.elapsed());
    }
}

/// A store that never replies to its first query.
struct FirstHangs(AtomicU32);

impl Decide for FirstHangs {
    fn decide(&self, query: Query) -> Decided<'_> {
        Box::pin(async move {
            if self.0.fetch_add(1, Ordering::SeqCst) == 0 {
                std::future::pending::<()>().await;
            }
            in_flight::admit(5)(&query)
        })
    }
}

#[test]
fn waiter_is_served_after_the_runtime_of_the_task_that_queries_the_store_has_ended() {
    for (settings, is_behind) in [(limiter(), true), (limiter().with_max_in_flight(5).unwrap(), false)] {
        let settings = settings.with_timeout(Duration::from_secs(3_600)).unwrap();
        let store = Box::new(FirstHangs(AtomicU32::new(0)));
        let limiter = RedisLimiter { inner: Inner::new(store, Arc::clone(&settings.inner.settings)) };
        let runtimes = [(); 2].map(|()| {
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
        });
        let mut waiters = Vec::new();
        // The first of the remaining waiters may be on a runtime that is not driven.
        let idle = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut absent = tokio_test::task::spawn(limiter.acquire_with(&bounded(None)));
        for runtime in &runtimes {
            let (own, queued) = (limiter.clone(), limiter.snapshot().queued);
            waiters.push(runtime.spawn(async move { take(&own, bounded(None)).await }));
            while limiter.snapshot().queued == queued {
                std::thread::yield_now();
            }
            if is_behind && waiters.len() == 1 {
                idle.block_on(async { tokio_test::assert_pending!(absent.poll()) });
            }
        }
        let [first, second] = runtimes;
        drop(first);
        second.block_on(waiters.pop().unwrap()).unwrap().unwrap();
    }
}
