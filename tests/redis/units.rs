//! Tests quotas of tokens and points that processes share, and how requests settle their amounts.

use tower_outbound::limit::{Amounts, Permit, Unit};

use super::*;

pub(super) fn tokens(amount: u32) -> Amounts {
    Amounts::of(Unit::Tokens, amount)
}

fn quota_of(unit: Unit, limit: u32, window: Duration) -> Quota {
    quota(limit, window).with_unit(unit).unwrap()
}

pub(super) fn token_quota(limit: u32, window: Duration) -> Quota {
    quota_of(Unit::Tokens, limit, window)
}

pub(super) fn taking(amounts: Amounts) -> PermitRequest {
    PermitRequest::new().with_amounts(amounts)
}

/// Waits for the permit of a request, and marks it as sent.
pub(super) async fn send(limiter: &RedisLimiter, amounts: Amounts) -> Permit<'static> {
    let acquire = limiter.acquire_with(&taking(amounts));
    let mut permit = tokio::time::timeout(HANG_TIMEOUT, acquire).await.expect("the limiter hangs").unwrap();
    permit.mark_sent(Instant::now());
    permit
}

pub(super) fn settle(permit: &mut Permit<'_>, amounts: Amounts) {
    permit.settlement().unwrap().settle(amounts);
}

/// Waits until requests for these amounts are refused because of tokens. Returns the last refusal.
async fn wait_until_refused(limiter: &RedisLimiter, amounts: Amounts) -> Refusal {
    let start = Instant::now();
    loop {
        match take(limiter, taking(amounts).with_max_wait(millis(100))).await {
            Ok(_) => tokio::time::sleep(millis(1)).await,
            Err(refusal) => return refusal,
        }
        assert!(start.elapsed() < HANG_TIMEOUT, "{limiter:?}");
    }
}

#[tokio::test]
async fn processes_exceed_neither_a_quota_of_requests_nor_one_of_tokens() {
    let server = shared_server();
    let requests = with_margin(40, millis(1_000));
    let of_window = with_margin(2_000, millis(1_000));
    let of_bucket = Quota::bucket(600, 900, millis(1_000)).unwrap().with_margin(millis(60)).unwrap();
    let run = async |make: Make, name: &str, tokens_quota: Quota| {
        let tokens_quota = tokens_quota.with_unit(Unit::Tokens).unwrap();
        let make = || make(&server.url(), name, vec![requests, tokens_quota]).unwrap();
        let (limiters, length) = ([make(), make()], millis(6_000));
        let (sent, used) = (Arrivals::new(), Arrivals::new());
        let (end, mut calls) = (Instant::now() + length, JoinSet::new());
        for task in 0..12_u32 {
            let (limiter, mut sent, mut used) =
                (limiters[task as usize % 2].clone(), sent.clone(), used.clone());
            calls.spawn(async move {
                for call in 0.. {
                    let estimate = 20 + (task * 31 + call * 17) % 120;
                    let request = taking(tokens(estimate)).with_deadline(end);
                    let earliest = Instant::now();
                    let Ok(mut permit) = limiter.acquire_with(&request).await else { return };
                    let (latest, actual) = (Instant::now(), estimate / (1 + call % 3));
                    // The store granted the permits at most a hold before the poll.
                    let earliest = earliest.max(latest - millis(20));
                    sent.extend([Arrival::between(earliest, latest)]);
                    used.extend([Arrival::between(earliest, latest).with_permits(actual)]);
                    permit.mark_sent(latest);
                    tokio::time::sleep(millis(u64::from(estimate % 40))).await;
                    settle(&mut permit, tokens(actual));
                }
            });
        }
        calls.join_all().await;
        sent.assert_within(requests);
        used.assert_within(tokens_quota);
        assert!(sent.times().len() > 40, "{}", sent.times().len());
    };
    tokio::join!(
        run(bucket, "both", of_window),
        run(window, "both", of_window),
        run(bucket, "in a bucket", of_bucket),
        run(window, "in a bucket", of_bucket)
    );
}

#[tokio::test]
async fn settled_excess_delays_another_process() {
    let server = shared_server();
    let length = millis(3_000);
    let [one, other] =
        [(); 2].map(|()| bucket(&server.url(), "excess", [token_quota(1_000, length)]).unwrap());
    let mut permit = send(&one, tokens(10)).await;
    take(&other, taking(tokens(10))).await.unwrap();
    let settled = Instant::now();
    settle(&mut permit, tokens(2_000));
    let refusal = wait_until_refused(&other, tokens(1)).await;
    assert_eq!((refusal.reason(), refusal.unit()), (Reason::MaxWait, Some(Unit::Tokens)), "{refusal}");
    assert!(refusal.wait().unwrap() > millis(100), "{refusal}");
    assert_eq!(other.snapshot().units[0].available, 0);
    take(&other, taking(tokens(1))).await.unwrap();
    assert!(settled.elapsed() >= length, "{:?}", settled.elapsed());
}

/// An estimate counts as at most the capacity, and the bucket refills each actual amount.
#[tokio::test]
async fn processes_share_a_bucket_of_points_and_settle_its_amounts() {
    let server = shared_server();
    let points = |amount| Amounts::of(Unit::Points, amount);
    let shared = Quota::bucket(100, 50, millis(1_000)).unwrap().with_unit(Unit::Points).unwrap();
    let [one, other] = [(); 2].map(|()| bucket(&server.url(), "points", [shared.without_margin()]).unwrap());
    let mut permit = send(&one, points(5_000)).await;
    let refusal = wait_until_refused(&other, points(50)).await;
    assert_eq!((refusal.reason(), refusal.unit()), (Reason::MaxWait, Some(Unit::Points)));
    assert!(refusal.wait().unwrap() < millis(1_500), "{refusal}");
    settle(&mut permit, points(10));
    let start = Instant::now();
    let mut permit = send(&other, points(60)).await;
    assert!(start.elapsed() < millis(900), "{:?}", start.elapsed());
    settle(&mut permit, points(200));
    let refusal = wait_until_refused(&one, points(50)).await;
    assert!((millis(1_500)..millis(3_500)).contains(&refusal.wait().unwrap()), "{refusal}");
}

#[tokio::test]
async fn returned_amounts_admit_a_waiter_of_another_process() {
    let server = shared_server();
    let length = millis(8_000);
    let [one, other] =
        [(); 2].map(|()| bucket(&server.url(), "returned", [token_quota(100, length)]).unwrap());
    let mut permit = send(&one, tokens(100)).await;
    let granted = Instant::now();
    wait_until_refused(&other, tokens(50)).await;
    let waiter = tokio::spawn({
        let other = other.clone();
        async move { send(&other, tokens(50)).await }
    });
    tokio::time::sleep(millis(300)).await;
    assert!(!waiter.is_finished());
    settle(&mut permit, tokens(50));
    waiter.await.unwrap();
    assert!(granted.elapsed() < length / 2, "{:?}", granted.elapsed());
    // Half of the amount still counts.
    let refusal = wait_until_refused(&one, tokens(1)).await;
    assert_eq!(refusal.unit(), Some(Unit::Tokens));
}

#[tokio::test]
async fn dropped_request_keeps_its_estimate_unless_it_was_not_sent() {
    let server = shared_server();
    let length = millis(8_000);
    let [one, other] = [(); 2].map(|()| window(&server.url(), "unsent", [token_quota(100, length)]).unwrap());
    let permit = send(&one, tokens(60)).await;
    let granted = Instant::now();
    drop(permit);
    let unsent = one.acquire_with(&taking(tokens(40))).await.unwrap();
    assert_eq!(wait_until_refused(&other, tokens(40)).await.unit(), Some(Unit::Tokens));
    drop(unsent);
    drop(send(&other, tokens(40)).await);
    assert!(granted.elapsed() < length / 2, "{:?}", granted.elapsed());
    assert_eq!(wait_until_refused(&one, tokens(1)).await.unit(), Some(Unit::Tokens));
}

/// The flush deletes the log of amounts. The entire quota then counts as spent.
#[tokio::test]
async fn flush_of_the_store_grants_no_second_quota_of_tokens() {
    let (server, length) = (server(), millis(3_000));
    let [one, other] = [(); 2].map(|()| window(&server.url(), "key", [token_quota(100, length)]).unwrap());
    let mut permit = send(&one, tokens(100)).await;
    let mut connection = connect(&server).await;
    redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
    let flushed = Instant::now();
    // The store no longer knows which amounts this would return. Only the process that remembers its grants detects the
    // loss.
    settle(&mut permit, tokens(0));
    while redis::cmd("DBSIZE").query_async::<u64>(&mut connection).await.unwrap() == 0 {
        assert!(flushed.elapsed() < HANG_TIMEOUT, "{one:?}");
        tokio::time::sleep(millis(1)).await;
    }
    take(&other, taking(tokens(100))).await.unwrap();
    assert!(flushed.elapsed() >= length, "{:?}", flushed.elapsed());
}

/// The amounts of a permit that nothing has collected are returned, and the next waiter takes them.
#[tokio::test]
async fn dropped_waiter_returns_the_amounts_that_were_granted_to_it() {
    let server = shared_server();
    let limiter = window(&server.url(), "uncollected", [token_quota(100, millis(8_000))]).unwrap();
    take(&limiter, taking(tokens(1))).await.unwrap();
    let granted = Instant::now();
    let mut queued = tokio_test::task::spawn(limiter.acquire_with(&taking(tokens(99))));
    tokio_test::assert_pending!(queued.poll());
    until_woken(&queued).await;
    drop(queued);
    drop(send(&limiter, tokens(99)).await);
    assert!(granted.elapsed() < millis(4_000), "{:?}", granted.elapsed());
}

#[tokio::test]
async fn refusal_names_the_unit_that_delays() {
    let server = shared_server();
    let length = millis(3_000);
    let quotas = [quota_of(Unit::Points, 10, length), token_quota(100, length)];
    let limiter = window(&server.url(), "units", quotas).unwrap();
    drop(send(&limiter, tokens(100).with(Unit::Points, 5)).await);
    for (amounts, unit) in [(tokens(1), Unit::Tokens), (Amounts::of(Unit::Points, 6), Unit::Points)] {
        let refusal = take(&limiter, taking(amounts).with_max_wait(millis(100))).await.unwrap_err();
        assert_eq!(refusal.unit(), Some(unit));
    }
    let units = limiter.snapshot().units;
    let left: Vec<_> = units.iter().map(|unit| (unit.unit, unit.limit, unit.available)).collect();
    assert_eq!(left, [(Unit::Points, 10, 5), (Unit::Tokens, 100, 0)]);
    // The forecast of six points does not apply to five.
    take(&limiter, taking(Amounts::of(Unit::Points, 5)).with_max_wait(millis(100))).await.unwrap();
}

#[tokio::test]
async fn processes_divide_a_quota_of_tokens_while_the_store_is_down() {
    let mut server = server();
    let shared = token_quota(100, millis(1_000));
    let make = || window(&server.url(), "key", [shared]).unwrap().with_timeout(millis(1_500)).unwrap();
    let limiters = [(); 2].map(|()| make().with_fallback_share(2).unwrap());
    for limiter in &limiters {
        take(limiter, taking(tokens(1))).await.unwrap();
    }
    server.kill().unwrap();
    let arrivals = Arrivals::new();
    let use_share = async |limiter: &RedisLimiter| {
        let _ = take(limiter, taking(tokens(1)).with_max_wait(millis(1))).await;
        wait_until("the limiter uses its share", || limiter.store() == Store::Fallback).await;
        let (mut arrivals, mut own) = (arrivals.clone(), Arrivals::new());
        while own.times().len() < 6 {
            // A request is refused while a query fails.
            if let Ok(mut permit) = limiter.acquire_with(&taking(tokens(20))).await {
                permit.mark_sent(Instant::now());
                let arrival = Arrival::between(permit.granted_at(), Instant::now()).with_permits(20);
                own.extend([arrival]);
                arrivals.extend([arrival]);
            }
        }
        own.assert_within(token_quota(50, millis(1_000)));
    };
    tokio::join!(use_share(&limiters[0]), use_share(&limiters[1]));
    arrivals.assert_within(shared);
    server.restart().unwrap();
    for limiter in &limiters {
        wait_for_recovery(limiter, taking(tokens(1))).await;
    }
}
