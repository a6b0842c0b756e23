//! Tests of quotas that describe a server's bucket.

use super::*;
use tower_outbound::{
    limit::{Amounts, Settlement, Unit},
    test_util::Arrival,
};

#[tokio::test(start_paused = true)]
async fn local_limiters_use_the_full_bucket_of_a_server_without_rejections() {
    let quota = Quota::bucket(40, 2, seconds(1)).unwrap();
    let kinds: [fn(Quota) -> LocalLimiter; 3] =
        [LocalLimiter::token_bucket, LocalLimiter::paced_window, LocalLimiter::sliding_window];
    for limiter in kinds {
        // Forty requests at once, and one per 500 ms.
        let server = ServerLimit::spacing(120, seconds(60), 39);
        let traffic = Traffic::new(millis(200), 7);
        let counts = traffic.run(&limiter(quota), &server, seconds(600), seconds(600)).await;
        let Count { accepted, rejected } = *counts.last().unwrap();
        assert_eq!(rejected, 0);
        assert!(accepted >= 38 + 1_200 - 10, "{accepted} of 1,240");
    }
}

#[test]
fn bucket_of_arrivals_overflows_only_with_more_permits_than_its_capacity() {
    let quota = Quota::bucket(2, 1, seconds(1)).unwrap();
    let start = Instant::now();
    let arrivals = |times: &[u64]| times.iter().map(|time| start + millis(*time)).collect::<Arrivals>();
    arrivals(&[0, 0, 1_000, 2_000, 5_000, 5_000]).assert_within(quota);
    for over in [&[0, 0, 999][..], &[5, 5, 5], &[0, 500, 999, 1_000], &[0, 0, 1_000, 1_999]] {
        assert!(std::panic::catch_unwind(|| arrivals(over).assert_within(quota)).is_err(), "{over:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn bucket_after_a_window_has_the_permits_that_were_left_before_it() {
    let bucket = || Quota::bucket(1_000, 1, seconds(3_600)).unwrap().without_margin();
    let window = || quota(10, 60_000, 5);
    let take = |limiter: &LocalLimiter, number| {
        (0..number).for_each(|_| drop(limiter.try_acquire().unwrap()));
    };
    for (kind, spent, left) in [
        (LocalLimiter::sliding_window as fn(Quota) -> LocalLimiter, 0, 1_000),
        (LocalLimiter::sliding_window, 600, 400),
        (LocalLimiter::sliding_window, 1_000, 0),
        // A larger burst becomes available gradually.
        (LocalLimiter::paced_window, 0, 5),
    ] {
        for wait in [0, 300] {
            let limiter = kind(bucket());
            take(&limiter, spent);
            limiter.set_quotas([window()]);
            assert_eq!(limiter.snapshot().available, 0);
            advance(seconds(wait)).await;
            let later = if wait == 0 { 0 } else { 3 };
            take(&limiter, later);
            limiter.set_quotas([quota(20, 60_000, 5)]);
            limiter.set_quotas([bucket()]);
            let available = limiter.snapshot().available;
            assert_eq!(available, if left == 0 { 0 } else { left - later }, "{spent} spent, {wait} s");
        }
    }
}

/// Shopify's bucket of points.
fn points() -> Quota {
    Quota::bucket(1_000, 50, seconds(1)).unwrap().with_unit(Unit::Points).unwrap()
}

fn of(amount: u32) -> Amounts {
    Amounts::of(Unit::Points, amount)
}

fn taking(amount: u32) -> PermitRequest {
    PermitRequest::new().with_amounts(of(amount))
}

/// Takes an amount now, and sends the request, whose call is dropped.
#[track_caller]
fn send(limiter: &LocalLimiter, amount: u32) -> Settlement {
    let mut permit = assert_ready_ok!(task::spawn(limiter.acquire_with(&taking(amount))).poll());
    permit.mark_sent(Instant::now());
    permit.settlement().unwrap().clone()
}

/// Returns how long a request for this amount would wait.
fn wait(limiter: &LocalLimiter, amount: u32) -> Duration {
    let request = taking(amount).with_max_wait(Duration::ZERO);
    match task::spawn(limiter.acquire_with(&request)).poll() {
        Poll::Ready(Err(refused)) => {
            assert_eq!((refused.reason(), refused.unit()), (Reason::MaxWait, Some(Unit::Points)));
            refused.wait().unwrap()
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_available(limiter: &LocalLimiter, available: u32) {
    assert_eq!(limiter.snapshot().units[0].available, available);
}

const KINDS: [fn(Quota) -> LocalLimiter; 4] = [
    LocalLimiter::token_bucket,
    LocalLimiter::paced_window,
    LocalLimiter::sliding_window,
    LocalLimiter::adaptive,
];

#[tokio::test(start_paused = true)]
async fn every_limiter_applies_a_bucket_of_points_and_settles_its_amounts() {
    for limiter in KINDS {
        let limiter = limiter(points().without_margin());
        let settlement = send(&limiter, 400);
        assert_available(&limiter, 600);
        assert_eq!(wait(&limiter, 700), seconds(2));
        advance(seconds(2)).await;
        assert_available(&limiter, 700);
        // A smaller amount is available again at once, and a larger one counts from now on.
        settlement.settle(of(100));
        assert_available(&limiter, 1_000);
        settlement.settle(of(700));
        assert_available(&limiter, 400);
        advance(seconds(12)).await;
        assert_available(&limiter, 1_000);
        // A request that was not sent.
        drop(limiter.acquire_with(&taking(600)).await.unwrap());
        assert_available(&limiter, 1_000);
    }
}

#[tokio::test(start_paused = true)]
async fn bucket_refills_an_actual_amount_above_its_capacity_and_only_the_capacity_of_an_estimate() {
    let new = || LocalLimiter::paced_window(points().without_margin());
    let limiter = new();
    let settlement = send(&limiter, 10);
    settlement.settle(of(5_000));
    assert_available(&limiter, 0);
    assert_eq!(wait(&limiter, 50), seconds(81));
    // A request without points waits for none.
    let request = PermitRequest::new().with_max_wait(Duration::ZERO);
    assert_ready_ok!(task::spawn(limiter.acquire_with(&request)).poll());
    settlement.settle(of(1_500));
    assert_eq!(wait(&limiter, 50), seconds(11));
    settlement.settle(of(400));
    assert_available(&limiter, 600);
    // An amount that cannot be right stops the limiter for at most ten times as long as the bucket takes to fill up.
    settlement.settle(of(u32::MAX));
    assert_eq!(wait(&limiter, 1_000), 10 * seconds(20));
    settlement.settle(of(0));
    assert_available(&limiter, 1_000);

    let limiter = new();
    let settlement = send(&limiter, 50_000);
    assert_eq!(wait(&limiter, 50), seconds(1));
    assert_eq!(wait(&limiter, 90_000), seconds(20));
    settlement.settle(of(1_500));
    assert_eq!(wait(&limiter, 50), seconds(11));
    settlement.settle(of(50_000));
    settlement.settle(of(400));
    assert_available(&limiter, 600);
}

/// The bucket would have been full at the grant of the second request, or soon after.
#[tokio::test(start_paused = true)]
async fn amount_that_the_bucket_has_refilled_is_not_returned() {
    for (first, gap, second, returned) in [
        (400, 0, 100, 400),
        (400, 1, 100, 350),
        (1_000, 15, 500, 250),
        (1_000, 30, 1_000, 0),
        (1_000, 79, 900, 0),
    ] {
        let limiter = LocalLimiter::sliding_window(points().without_margin());
        let settlement = send(&limiter, first);
        advance(seconds(gap)).await;
        send(&limiter, second);
        let available = || limiter.snapshot().units[0].available;
        let before = available();
        settlement.settle(of(0));
        // Without the first request, the bucket was full when the second one left.
        assert_eq!(available(), 1_000 - second, "{first}, {gap}");
        assert_eq!(available() - before, returned, "{first}, {gap}");
    }
    // After four times the time in which the bucket fills up, nothing is returned.
    let limiter = LocalLimiter::sliding_window(points().without_margin());
    let settlement = send(&limiter, 10);
    settlement.settle(of(9_000));
    advance(seconds(81)).await;
    let before = wait(&limiter, 50);
    settlement.settle(of(0));
    assert_eq!(wait(&limiter, 50), before);
}

/// The margin of 1 s takes 50 points of the burst, but not of the largest amount.
#[tokio::test(start_paused = true)]
async fn amount_above_the_burst_waits_until_the_server_has_room_for_it_after_any_delay() {
    let limiter = LocalLimiter::paced_window(points());
    assert_available(&limiter, 950);
    // Nothing was sent before.
    send(&limiter, 1_000);
    assert_eq!(wait(&limiter, 1), millis(1_020));
    assert_eq!(wait(&limiter, 1_000), seconds(21));
    let waiter = tokio::spawn(limiter.acquire_with(&taking(1_000)));
    let behind = tokio::spawn(limiter.acquire_with(&taking(50)));
    let start = Instant::now();
    waiter.await.unwrap().unwrap().mark_sent(Instant::now());
    assert_eq!(start.elapsed(), seconds(21));
    behind.await.unwrap().unwrap().mark_sent(Instant::now());
    assert_eq!(start.elapsed(), seconds(23));
}

#[tokio::test(start_paused = true)]
async fn bucket_and_window_of_one_unit_both_apply() {
    let hour = Quota::per_hour(1_500).unwrap().with_unit(Unit::Points).unwrap().without_margin();
    let limiter =
        LocalLimiter::sliding_window([Quota::per_second(9).unwrap(), points().without_margin(), hour]);
    let available = || limiter.snapshot().units.iter().map(|unit| unit.available).collect::<Vec<_>>();
    let settlement = send(&limiter, 1_000);
    assert_eq!(available(), [0, 500]);
    advance(seconds(20)).await;
    assert_eq!(available(), [1_000, 500]);
    assert_eq!(wait(&limiter, 501), seconds(3_580) + Duration::from_nanos(1));
    settlement.settle(of(200));
    assert_eq!(available(), [1_000, 1_300]);
}

#[tokio::test(start_paused = true)]
async fn limiter_that_obeys_the_server_applies_its_remaining_points_to_a_bucket() {
    let tokens = points().with_unit(Unit::Tokens).unwrap().without_margin();
    let limiter = LocalLimiter::paced_window(tokens).with_server_remaining();
    let send = |amount| {
        let request = PermitRequest::new().with_amounts(Amounts::of(Unit::Tokens, amount));
        let mut permit = assert_ready_ok!(task::spawn(limiter.acquire_with(&request)).poll());
        permit.mark_sent(Instant::now());
        permit
    };
    let first = send(100);
    advance(seconds(1)).await;
    let _unreported = send(50);
    let headers = [("x-ratelimit-remaining-tokens", "300"), ("x-ratelimit-reset-tokens", "14s")];
    let headers =
        headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
    first.complete(&ResponseInfo::new(StatusCode::OK, &headers.into_iter().collect()));
    // The server has not counted the second request.
    assert_available(&limiter, 250);
    advance(seconds(14)).await;
    assert_available(&limiter, 1_000);
}

#[tokio::test(start_paused = true)]
async fn changed_bucket_of_points_still_counts_spent_amounts() {
    let changed = async |before: Quota, after: Quota| {
        let limiter = LocalLimiter::sliding_window(before);
        let settlement = send(&limiter, 600);
        advance(seconds(2)).await;
        limiter.set_quotas([after]);
        // An amount from before the change is not returned.
        settlement.settle(of(500));
        limiter.snapshot().units[0].available
    };
    let bucket = points().without_margin();
    let window = Quota::per_minute(1_000).unwrap().with_unit(Unit::Points).unwrap().without_margin();
    let larger =
        Quota::bucket(2_000, 50, seconds(1)).unwrap().with_unit(Unit::Points).unwrap().without_margin();
    assert_eq!(changed(bucket, larger).await, 500);
    assert_eq!(changed(larger, bucket).await, 500);
    assert_eq!(changed(bucket, window).await, 400);
    assert_eq!(changed(window, bucket).await, 500);
}

#[test]
fn bucket_of_another_unit_round_trips_as_text() {
    let text = "bucket 1000 points, 50/1s, margin 1s";
    assert_eq!((format!("{:#}", points()), text.parse()), (text.to_owned(), Ok(points())));
    assert_eq!("bucket 1000  points, 50/1s".parse(), Ok(points()));
    assert_eq!("bucket 40 requests, 2/1s".parse(), Quota::bucket(40, 2, seconds(1)));
    let shown = "bucket 1000 points, 50 per 1s, burst 950, margin 1s, sustains 50 per second";
    assert_eq!(points().to_string(), shown);
    let twice = Quota::bucket(1_000, 50, seconds(1)).unwrap().with_unit(Unit::Points).unwrap();
    assert_eq!(twice.with_margin(seconds(2)).unwrap().unit(), Unit::Points);
    assert!(points().with_unit(Unit::Concurrency).is_err());
    for text in [
        "bucket 40, 2 tokens/1s",
        "bucket 40 tokens, 2 tokens/1s",
        "bucket tokens, 2/1s",
        "bucket 40 tokens/1s",
        "bucket 40 tokens",
    ] {
        assert!(
            text.parse::<Quota>().unwrap_err().to_string().contains("bucket 1000 points, 50/1s"),
            "{text}"
        );
    }
}

#[derive(Debug, Clone)]
enum Step {
    Take(u32),
    /// Settles the request with this index from the end.
    Settle(usize, u32),
    Advance(u64),
}

fn steps(largest: u32) -> impl Strategy<Value = Vec<Step>> {
    let amount = prop_oneof![8 => 0..largest / 2, 1 => 0..2 * largest];
    let step = prop_oneof![
        4 => amount.clone().prop_map(Step::Take),
        3 => (0usize..5, amount).prop_map(|(index, amount)| Step::Settle(index, amount)),
        4 => prop_oneof![0u64..200, 0u64..5_000, 0u64..30_000].prop_map(Step::Advance),
    ];
    vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// At each grant, no time of any length `t` until then contains settled amounts of more than `capacity + refill × t
    /// / per`. An estimate counts as at most the capacity, and an actual amount as at most ten times the capacity.
    #[test]
    fn settled_amounts_of_any_time_never_exceed_the_bucket(
        (capacity, refill) in (1u32..2_000, 1u32..100),
        (kind, has_window, has_margin, rises) in (0..KINDS.len() - 1, any::<bool>(), any::<bool>(), any::<bool>()),
        steps in steps(1_000),
    ) {
        let bucket = Quota::bucket(capacity, refill, seconds(1)).unwrap().with_unit(Unit::Points).unwrap();
        let bucket = if has_margin { bucket } else { bucket.without_margin() };
        run_paused(async {
            let limiter = KINDS[kind](bucket);
            if has_window {
                limiter.set_quotas([bucket, Quota::per_minute(2_000).unwrap().with_unit(Unit::Points).unwrap()]);
            }
            let mut sent: Vec<(Instant, u32, Settlement)> = Vec::new();
            for step in steps {
                match step {
                    Step::Advance(time) => advance(millis(time)).await,
                    Step::Settle(index, amount) => {
                        let Some(index) = sent.len().checked_sub(1 + index) else { continue };
                        let (_, _, settlement) = &sent[index];
                        let most = if rises { u32::MAX } else { settlement.charged().get(Unit::Points) };
                        settlement.settle(of(amount.min(most)));
                    }
                    Step::Take(amount) => {
                        let request = taking(amount).with_max_wait(Duration::ZERO);
                        let Poll::Ready(Ok(mut permit)) = task::spawn(limiter.acquire_with(&request)).poll() else {
                            continue;
                        };
                        permit.mark_sent(Instant::now());
                        let settlement = permit.settlement().unwrap().clone();
                        sent.push((Instant::now(), amount, settlement));
                        let amounts = sent.iter().map(|(at, estimate, settlement)| {
                            let amount = settlement.charged().get(Unit::Points);
                            (*at, amount.min(if amount == *estimate { capacity } else { 10 * capacity }))
                        });
                        let level = level(amounts, refill);
                        assert!(amount == 0 || level <= f64::from(capacity) + 1e-3, "{level}: {bucket:#} {sent:?}");
                    }
                }
            }
            if !rises {
                let amount = |settlement: &Settlement| settlement.charged().get(Unit::Points).min(capacity);
                let arrival = |(at, _, settlement): &(Instant, u32, Settlement)| {
                    Arrival::from(*at).with_permits(amount(settlement))
                };
                sent.iter().map(arrival).collect::<Arrivals>().assert_within(bucket);
            }
        });
    }
}

/// Returns the level of a bucket after these amounts.
fn level(amounts: impl Iterator<Item = (Instant, u32)>, refill: u32) -> f64 {
    let mut last = None;
    amounts.fold(0.0, |level: f64, (at, amount)| {
        let passed = last.replace(at).map_or(0.0, |last| at.duration_since(last).as_secs_f64());
        (level - passed * f64::from(refill)).max(0.0) + f64::from(amount)
    })
}

/// A GraphQL service with the bucket of [`points`]. It takes the requested points of a query at once, and returns what
/// the query did not use at its end. With inexact estimates, it learns the points of a query at its end.
struct PointsServer {
    left: f64,
    at: Instant,
    /// The accepted and the rejected queries, and the points of the accepted ones.
    counts: [u32; 3],
}

impl PointsServer {
    fn new() -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self { left: 1_000.0, at: Instant::now(), counts: [0; 3] }))
    }

    fn add(&mut self, points: f64) {
        let refilled = self.at.elapsed().as_secs_f64() * 50.0;
        (self.left, self.at) = ((self.left + refilled).min(1_000.0) + points, Instant::now());
    }

    /// Accepts a query if the bucket has room for its requested points, or any room if it requests none.
    fn accepts(&mut self, requested: u32) -> bool {
        self.add(0.0);
        let is_accepted = self.left + 1e-6 >= f64::from(requested.max(1));
        self.counts[usize::from(!is_accepted)] += 1;
        if is_accepted {
            self.add(-f64::from(requested));
        }
        is_accepted
    }
}

async fn query(
    server: Arc<Mutex<PointsServer>>,
    request: Request<(u32, u32, u32)>,
) -> Result<Response<()>, Infallible> {
    let (number, requested, actual) = *request.body();
    sleep(millis(u64::from(5 + number % 40))).await;
    if !server.lock().unwrap().accepts(requested) {
        return Ok(Response::builder().status(429).header("retry-after", "1").body(()).unwrap());
    }
    if requested == 0 {
        server.lock().unwrap().add(-f64::from(actual));
    }
    sleep(millis(u64::from(200 + 20 * (number % 70)))).await;
    let mut server = server.lock().unwrap();
    server.counts[2] += actual;
    server.add(f64::from(requested.saturating_sub(actual)));
    Ok(Response::builder().header("x-query-cost", actual).body(()).unwrap())
}

/// The estimate is the points that the service requires at first, or differs from the actual points by up to 50 %.
#[tokio::test(start_paused = true)]
async fn callers_use_the_points_of_a_graphql_service_with_few_rejections() {
    for (kind, is_requested) in (0..3).flat_map(|kind| [(kind, true), (kind, false)]) {
        let (server, mut callers) = (PointsServer::new(), JoinSet::new());
        let layer = RateLimitLayer::new(KINDS[kind](points())).with_actual(|_, headers: &HeaderMap| {
            Some(of(headers.get("x-query-cost")?.to_str().ok()?.parse().ok()?))
        });
        let own = Arc::clone(&server);
        let service = layer.layer(tower::service_fn(move |request| query(Arc::clone(&own), request)));
        for caller in 0..32_u32 {
            let service = service.clone();
            callers.spawn(async move {
                for number in 0.. {
                    let [size, error] = [7, 13].map(|prime| (31 * caller + prime * number) % 100);
                    let actual = 5 + size;
                    let (estimate, requested) = if is_requested {
                        (actual * 2, actual * 2)
                    } else {
                        (actual * (50 + error) / 100, 0)
                    };
                    let mut request = Request::new((31 * caller + 17 * number, requested, actual));
                    request.extensions_mut().insert(of(estimate));
                    service.clone().oneshot(request).await.unwrap();
                }
            });
        }
        sleep(seconds(20 * 60)).await;
        let [accepted, rejected, used] = server.lock().unwrap().counts.map(f64::from);
        let (used, rejected) = (used / (1_000.0 + 1_200.0 * 50.0), rejected / (accepted + rejected));
        println!("{kind} {is_requested}: {used} used, {rejected} rejected");
        assert!(used >= 0.95 && rejected <= 0.005, "limiter {kind}: {used} used, {rejected} rejected");
    }
}
