//! Tests of quotas that count tokens, points and other units.

use super::*;
use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::{BodyExt, Full};
use tower_outbound::limit::{Amounts, Dialect, Joint, Metered, QuotaHeaders, Settlement, Unit};

fn tokens(limit: u32) -> Quota {
    Quota::per_minute(limit).unwrap().with_unit(Unit::Tokens).unwrap()
}

fn of(amount: u32) -> Amounts {
    Amounts::of(Unit::Tokens, amount)
}

fn requesting(amount: u32) -> PermitRequest {
    PermitRequest::new().with_amounts(of(amount))
}

/// Takes permits now.
fn take(limiter: &LocalLimiter, amount: u32) -> Option<Permit<'static>> {
    let mut permit = task::spawn(limiter.acquire_with(&requesting(amount)));
    match permit.poll() {
        Poll::Ready(permit) => Some(permit.unwrap()),
        Poll::Pending => None,
    }
}

/// Takes permits and sends the request.
fn sent(limiter: &LocalLimiter, amount: u32) -> Permit<'static> {
    let mut permit = take(limiter, amount).unwrap();
    permit.mark_sent(Instant::now());
    permit
}

/// Takes permits and sends the request, whose call is dropped.
fn send(limiter: &LocalLimiter, amount: u32) -> Settlement {
    sent(limiter, amount).settlement().unwrap().clone()
}

#[track_caller]
fn assert_available(limiter: &LocalLimiter, available: u32) {
    assert_eq!(limiter.snapshot().units[0].available, available);
}

#[tokio::test(start_paused = true)]
async fn request_takes_all_units_together_or_none() {
    let quotas = [Quota::per_minute(500).unwrap(), tokens(1_000)];
    let limiter = LocalLimiter::sliding_window(quotas);
    let _held = take(&limiter, 900).unwrap();
    assert!(take(&limiter, 101).is_none());
    assert_eq!((limiter.snapshot().available, limiter.snapshot().units[0].available), (499, 100));
}

#[tokio::test(start_paused = true)]
async fn real_amount_replaces_the_estimate_in_the_window_of_the_grant() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000).without_margin());
    let settlement = send(&limiter, 400);
    assert_available(&limiter, 600);
    advance(seconds(30)).await;
    // Less is returned, and counts from the grant.
    settlement.settle(of(100));
    assert_available(&limiter, 900);
    // A later amount replaces the earlier one. The excess counts from the settlement.
    settlement.settle(of(500));
    assert_eq!(settlement.charged(), of(500));
    assert_available(&limiter, 500);
    settlement.settle(of(500));
    assert_available(&limiter, 500);
    advance(seconds(31)).await;
    assert_available(&limiter, 600);
    // The grant has left the window. Only its excess still counts.
    settlement.settle(of(0));
    assert_available(&limiter, 600);
    advance(seconds(30)).await;
    assert_available(&limiter, 1_000);
}

#[tokio::test(start_paused = true)]
async fn requests_that_take_more_than_estimated_delay_the_next_ones() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000).without_margin());
    let sent = [(); 5].map(|()| send(&limiter, 200));
    sent.iter().for_each(|settlement| settlement.settle(of(400)));
    assert_available(&limiter, 0);
    let mut next = task::spawn(limiter.acquire_with(&requesting(1)));
    assert_pending!(next.poll());
    let refused = limiter.acquire_with(&requesting(1).with_max_wait(seconds(59))).await.unwrap_err();
    assert_eq!(refused.unit(), Some(Unit::Tokens));
    assert!(refused.to_string().ends_with("(required wait: 60.000000001s, quota of tokens)"), "{refused}");
    advance(seconds(61)).await;
    assert_ready_ok!(next.poll());
}

#[tokio::test(start_paused = true)]
async fn pause_is_not_reported_as_a_delay_by_tokens() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000));
    limiter.pause_until(Instant::now() + seconds(10));
    let refused = limiter.acquire_with(&requesting(100).with_max_wait(seconds(5))).await.unwrap_err();
    assert_eq!((refused.unit(), refused.wait()), (None, Some(seconds(10))));
}

#[test]
fn amounts_of_requests_and_of_requests_in_flight_are_ignored() {
    let amounts = Amounts::of(Unit::Requests, 5).with(Unit::Concurrency, 5);
    assert!(amounts.is_empty());
    assert_eq!(format!("{:?}", amounts.with(Unit::Bytes, 7)), "{\"bytes\": 7}");
}

#[tokio::test(start_paused = true)]
async fn returned_amounts_serve_the_waiters_at_once() {
    for limiter in [LocalLimiter::sliding_window(tokens(1_000)), LocalLimiter::paced_window(tokens(1_000))] {
        let settlement = send(&limiter, 1_000);
        let mut next = task::spawn(limiter.acquire_with(&requesting(600)));
        assert_pending!(next.poll());
        settlement.settle(of(0));
        assert!(next.is_woken());
        assert_ready_ok!(next.poll());
    }
}

#[tokio::test(start_paused = true)]
async fn amount_of_a_waiter_that_left_delays_no_later_request() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000).without_margin());
    let _held = sent(&limiter, 1_000);
    let waits = || {
        let request = requesting(600).with_max_wait(Duration::ZERO);
        let refused = task::spawn(limiter.acquire_with(&request)).poll();
        refused.map(|refused| refused.unwrap_err().wait().unwrap().as_secs())
    };
    let _first = queued(&limiter, &requesting(100));
    let second = queued(&limiter, &requesting(600));
    assert_eq!(waits(), Poll::Ready(120));
    drop(second);
    assert_eq!(waits(), Poll::Ready(60));
}

/// The waiter with a bound is queued behind one without.
#[tokio::test(start_paused = true)]
async fn waiter_that_a_settlement_or_a_report_delays_beyond_its_bound_is_refused() {
    for is_reported in [false, true] {
        let limiter = LocalLimiter::sliding_window(tokens(1_000).without_margin()).with_server_remaining();
        send(&limiter, 500);
        advance(seconds(10)).await;
        let mut permit = sent(&limiter, 400);
        let _first = queued(&limiter, &requesting(200));
        let mut second = queued(&limiter, &requesting(200).with_max_wait(seconds(55)));
        if is_reported {
            permit.complete(&ResponseInfo::new(StatusCode::OK, &remaining_tokens("0", "65s")));
        } else {
            permit.settlement().unwrap().settle(of(1_000));
        }
        sleep(millis(20)).await;
        assert!(second.is_woken(), "reported: {is_reported}");
        let refused = assert_ready!(second.poll()).unwrap_err();
        assert_eq!((refused.reason(), refused.unit()), (Reason::MaxWait, Some(Unit::Tokens)));
    }
}

#[tokio::test(start_paused = true)]
async fn amount_from_before_a_change_of_quotas_is_never_returned() {
    let requests = Quota::per_minute(100).unwrap();
    let limiter = LocalLimiter::sliding_window(requests);
    let early = send(&limiter, 500);
    limiter.set_quotas([requests, tokens(1_000)]);
    send(&limiter, 700);
    early.settle(of(100));
    assert_available(&limiter, 300);
    // Other quotas of requests do not change those of tokens.
    advance(millis(1)).await;
    let late = send(&limiter, 300);
    limiter.set_quotas([Quota::per_minute(50).unwrap(), tokens(1_000)]);
    late.settle(of(0));
    assert_available(&limiter, 300);
}

#[tokio::test(start_paused = true)]
async fn waiter_takes_from_each_quota_of_a_unit_what_an_immediate_request_takes() {
    let day = Quota::new(100_000, seconds(86_400)).unwrap().with_unit(Unit::Tokens).unwrap();
    let limiter = LocalLimiter::sliding_window([tokens(1_000).without_margin(), day]);
    send(&limiter, 10);
    let mut waiter = task::spawn(limiter.acquire_with(&requesting(5_000)));
    assert_pending!(waiter.poll());
    sleep(seconds(61)).await;
    let mut permit = assert_ready_ok!(waiter.poll());
    permit.mark_sent(Instant::now());
    let available = || limiter.snapshot().units.iter().map(|unit| unit.available).collect::<Vec<_>>();
    assert_eq!(available(), [0, 94_990]);
    permit.settlement().unwrap().settle(of(200));
    assert_eq!(available(), [800, 99_790]);
}

#[tokio::test(start_paused = true)]
async fn adaptive_limiter_obeys_a_rejection_because_of_tokens_and_keeps_its_rate() {
    let limiter = LocalLimiter::adaptive(tokens(1_000));
    let respond = |status, left: &str| {
        let permit = sent(&limiter, 10);
        let mut headers = remaining_tokens(left, "50s");
        headers.insert("x-ratelimit-remaining-requests", HeaderValue::from_static("40"));
        headers.insert("x-ratelimit-reset-requests", HeaderValue::from_static("1s"));
        permit.complete(&ResponseInfo::new(status, &headers));
    };
    // An accepted request that has taken the last tokens.
    respond(StatusCode::OK, "0");
    assert!(limiter.snapshot().paused_until.is_none() && limiter.snapshot().available > 0);
    respond(StatusCode::TOO_MANY_REQUESTS, "0");
    assert_eq!((limiter.snapshot().available, limiter.snapshot().learned), (0, None));
    advance(seconds(50)).await;
    assert!(limiter.snapshot().available > 0);
}

/// Returns OpenAI's headers of a quota of tokens.
fn remaining_tokens(left: &str, reset: &str) -> HeaderMap {
    let headers = [("x-ratelimit-remaining-tokens", left), ("x-ratelimit-reset-tokens", reset)];
    let field = |(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    headers.map(field).into_iter().collect()
}

#[tokio::test(start_paused = true)]
async fn amounts_of_a_request_that_was_not_sent_are_available_again() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000));
    drop(take(&limiter, 700));
    assert_available(&limiter, 1_000);
    // A waiter that is never polled.
    let held = send(&limiter, 600);
    let mut waiter = task::spawn(limiter.acquire_with(&requesting(600)));
    assert_pending!(waiter.poll());
    held.settle(of(0));
    assert_available(&limiter, 400);
    drop(waiter);
    assert_available(&limiter, 1_000);
    // A sent request keeps its estimate, even if its call is dropped.
    let permit = sent(&limiter, 300);
    drop(permit);
    assert_available(&limiter, 700);
    let permit = sent(&limiter, 300);
    permit.release();
    assert_available(&limiter, 400);
    let permit = sent(&limiter, 300);
    permit.complete(&ResponseInfo::new(StatusCode::OK, &HeaderMap::new()));
    assert_available(&limiter, 100);
}

#[tokio::test(start_paused = true)]
async fn amount_above_the_limit_counts_as_the_limit() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000));
    let settlement = send(&limiter, 50_000);
    assert_available(&limiter, 0);
    settlement.settle(of(70_000));
    assert_available(&limiter, 0);
    settlement.settle(of(400));
    assert_available(&limiter, 600);
    // A burst delays such a request until it is full, and no longer.
    let limiter = LocalLimiter::paced_window(tokens(1_000));
    send(&limiter, 1);
    let mut waiter = task::spawn(limiter.acquire_with(&requesting(50_000)));
    assert_pending!(waiter.poll());
    sleep(seconds(62)).await;
    assert_ready_ok!(waiter.poll());
}

#[tokio::test(start_paused = true)]
async fn limiter_without_a_quota_of_the_unit_ignores_its_amounts() {
    let limiter = LocalLimiter::paced_window(Quota::per_minute(100).unwrap());
    send(&limiter, 50_000).settle(of(90_000));
    assert!(limiter.snapshot().units.is_empty());
    assert_eq!(limiter.snapshot().available, 9);
    let points = Quota::per_minute(10).unwrap().with_unit(Unit::Points).unwrap();
    let limiter = LocalLimiter::without_quota();
    limiter.set_quotas([points]);
    send(&limiter, 50_000);
    assert_available(&limiter, 1);
}

#[tokio::test(start_paused = true)]
async fn snapshot_names_the_unit_that_delays_the_first_waiter() {
    let limiter = LocalLimiter::sliding_window([Quota::per_minute(2).unwrap(), tokens(1_000)]);
    let delayed_by = || limiter.snapshot().delayed_by;
    send(&limiter, 900);
    assert_eq!(delayed_by(), None);
    let request = |amount| PermitRequest::new().with_amounts(of(amount));
    let mut waiter = task::spawn(limiter.acquire_with(&request(200)));
    assert_pending!(waiter.poll());
    assert_eq!(delayed_by(), Some(Unit::Tokens));
    drop(waiter);
    send(&limiter, 100);
    // The quota of requests has no permit until later than the quota of tokens.
    advance(seconds(1)).await;
    let mut waiter = task::spawn(limiter.acquire_with(&request(0)));
    assert_pending!(waiter.poll());
    assert_eq!(delayed_by(), None);
}

#[test]
fn quota_in_another_unit_round_trips_as_text_and_rejects_unsupported_units() {
    for (unit, name) in [
        (Unit::Tokens, "tokens"),
        (Unit::InputTokens, "input_tokens"),
        (Unit::OutputTokens, "output_tokens"),
        (Unit::Points, "points"),
        (Unit::Bytes, "bytes"),
    ] {
        let quota = Quota::per_minute(1_000).unwrap().with_unit(unit).unwrap();
        let text = format!("1000 {name}/60s, burst 100, margin 1s");
        assert_eq!((format!("{quota:#}"), text.parse::<Quota>()), (text.clone(), Ok(quota)));
    }
    let requests = Quota::per_minute(10).unwrap();
    assert_eq!(requests.with_unit(Unit::Requests), Ok(requests));
    assert_eq!("10 requests/60s".parse::<Quota>(), Ok(requests));
    let error = requests.with_unit(Unit::Concurrency).unwrap_err().to_string();
    assert!(
        error.ends_with("expected a unit other than concurrency, which `max_in_flight` limits"),
        "{error}"
    );
    for (text, unit) in [
        ("10 pages/60s", "pages"),
        ("bucket 40 pages, 2/1s", "pages"),
        ("10 Tokens/60s, burst 1", "Tokens"),
        ("10 tokens 5/60s", "tokens 5"),
    ] {
        let error = text.parse::<Quota>().unwrap_err().to_string();
        let expected = "expected requests, tokens, input_tokens, output_tokens, points or bytes";
        assert_eq!(error, format!("invalid unit `{unit}`: {expected}"));
    }
    for text in ["10 concurrency/60s", "tokens/60s"] {
        assert!(text.parse::<Quota>().is_err(), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn limiter_that_obeys_the_server_applies_its_remaining_tokens() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000)).with_server_remaining();
    let first = sent(&limiter, 100);
    advance(seconds(1)).await;
    let unreported = send(&limiter, 50);
    // The server has not counted the second request.
    first.complete(&ResponseInfo::new(StatusCode::OK, &remaining_tokens("300", "20s")));
    assert_available(&limiter, 250);
    unreported.settle(of(50));
    assert_available(&limiter, 250);
    unreported.settle(of(150));
    assert_available(&limiter, 150);
    assert!(take(&limiter, 151).is_none());
    advance(seconds(20)).await;
    assert_available(&limiter, 750);
    // `resume` discards a report.
    let last = sent(&limiter, 50);
    last.complete(&ResponseInfo::new(StatusCode::OK, &remaining_tokens("0", "20s")));
    assert_available(&limiter, 0);
    limiter.resume();
    assert_available(&limiter, 700);
    // Without the setting, the limiter's own quota suffices.
    let limiter = LocalLimiter::sliding_window(tokens(1_000));
    let first = sent(&limiter, 100);
    first.complete(&ResponseInfo::new(StatusCode::OK, &remaining_tokens("300", "20s")));
    assert_available(&limiter, 900);
}

#[tokio::test(start_paused = true)]
async fn rejection_because_of_tokens_does_not_limit_the_requests() {
    let reported = |name: &str, value: &str| {
        let name = HeaderName::from_bytes(format!("x-ratelimit-{name}").as_bytes()).unwrap();
        (name, HeaderValue::from_str(value).unwrap())
    };
    let headers = HeaderMap::from_iter([
        reported("remaining-requests", "3"),
        reported("reset-requests", "50s"),
        reported("remaining-tokens", "0"),
        reported("reset-tokens", "50s"),
    ]);
    let mut with_delay = headers.clone();
    with_delay.insert(http::header::RETRY_AFTER, HeaderValue::from_static("2"));
    // Without a delay, the reset of the tokens is the delay.
    for (headers, delay) in [(with_delay, 2), (headers, 50)] {
        let limiter = LocalLimiter::sliding_window([Quota::per_minute(100).unwrap(), tokens(1_000)]);
        let permit = sent(&limiter, 100);
        permit.complete(&ResponseInfo::new(StatusCode::TOO_MANY_REQUESTS, &headers));
        assert_eq!(limiter.snapshot().available, 0);
        advance(seconds(delay)).await;
        assert_eq!(limiter.snapshot().available, 99);
    }
}

/// Responds with the tokens in the body, and with a 304 for `/cached`.
async fn respond(request: Request<()>) -> Result<Response<Full<Bytes>>, Infallible> {
    let status = if request.uri().path() == "/cached" { 304 } else { 200 };
    let text = format!("tokens={}", request.uri().query().unwrap_or("0"));
    Ok(Response::builder().status(status).body(Full::new(Bytes::from(text))).unwrap())
}

fn to(path: &str) -> Request<()> {
    Request::get(format!("https://api.example.com{path}")).body(()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn layer_settles_by_the_head_the_extension_or_the_meter() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000));
    let layer = RateLimitLayer::new(limiter.clone()).with_estimate(|_| of(400));
    let heads = layer.clone().with_actual(|status, _| (status == 304).then(Amounts::default));
    let heads = heads.layer(tower::service_fn(respond));
    let response = heads.clone().oneshot(to("/cached")).await.unwrap();
    assert_available(&limiter, 1_000);
    drop(response);
    // Without an actual amount, the estimate stays.
    let response = heads.oneshot(to("/")).await.unwrap();
    assert_available(&limiter, 600);
    response.extensions().get::<Settlement>().unwrap().settle(of(50));
    assert_available(&limiter, 950);

    let metered = layer.with_meter(|_, _| {
        |data: &[u8]| Some(of(std::str::from_utf8(data).ok()?.strip_prefix("tokens=")?.parse().ok()?))
    });
    let metered = metered.layer(tower::service_fn(respond));
    let response = metered.clone().oneshot(to("/?150")).await.unwrap();
    assert_available(&limiter, 550);
    response.into_body().collect().await.unwrap();
    assert_available(&limiter, 800);
    drop(metered.oneshot(to("/?150")).await.unwrap());
    assert_available(&limiter, 400);
}

#[tokio::test(start_paused = true)]
async fn layer_takes_the_amounts_from_the_extensions_of_a_request() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000));
    let service = RateLimitLayer::new(limiter.clone()).layer(tower::service_fn(respond));
    let mut request = to("/");
    request.extensions_mut().insert(of(300));
    let response = service.clone().oneshot(request).await.unwrap();
    assert_available(&limiter, 700);
    response.extensions().get::<Settlement>().unwrap().settle(of(100));
    assert_available(&limiter, 900);
    let response = service.oneshot(to("/")).await.unwrap();
    assert!(response.extensions().get::<Settlement>().is_none());
}

#[tokio::test(start_paused = true)]
async fn joint_limiters_settle_both_quotas() {
    let account = LocalLimiter::sliding_window(tokens(1_000));
    let part = LocalLimiter::sliding_window(tokens(600));
    let own = part.clone();
    let joint = Joint::new(account.clone(), Keyed::new(|_| 0, move |_: &u32| own.clone()));
    let layer = RateLimitLayer::new(joint).with_estimate(|_| of(500));
    let service = layer.layer(tower::service_fn(respond));
    let response = service.clone().oneshot(to("/")).await.unwrap();
    assert_available(&account, 500);
    assert_available(&part, 100);
    let mut waiter = task::spawn(service.clone().oneshot(to("/")));
    assert_pending!(waiter.poll());
    assert_available(&account, 500);
    response.extensions().get::<Settlement>().unwrap().settle(of(20));
    assert!(waiter.is_woken());
    let second = assert_ready!(waiter.poll()).unwrap();
    assert_available(&account, 480);
    assert_available(&part, 80);
    second.extensions().get::<Settlement>().unwrap().settle(of(560));
    assert_available(&account, 420);
    assert_available(&part, 20);
}

/// A custom limiter that passes outcomes to the limiter that it wraps.
#[derive(Clone)]
struct Wrapped(LocalLimiter);

impl Limiter for Wrapped {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        let (own, request) = (self.clone(), *request);
        Acquire::new(async move {
            let permit = own.0.acquire_with(&request).await?;
            Ok(permit.with_issuer(Arc::new(own.0)))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn wrapped_limiter_settles_too() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000));
    let layer = RateLimitLayer::new(Wrapped(limiter.clone())).with_estimate(|_| of(500));
    let service = layer.layer(tower::service_fn(respond));
    let response = service.clone().oneshot(to("/")).await.unwrap();
    assert_available(&limiter, 500);
    let settlement = response.extensions().get::<Settlement>().unwrap();
    settlement.settle(of(700));
    assert_available(&limiter, 300);
    settlement.settle(of(100));
    assert_available(&limiter, 900);
    // Without an estimate, only the actual amount counts.
    let layer = RateLimitLayer::new(Wrapped(limiter.clone())).with_actual(|_, _| Some(of(250)));
    layer.layer(tower::service_fn(respond)).oneshot(to("/")).await.unwrap();
    assert_available(&limiter, 650);
}

#[tokio::test(start_paused = true)]
async fn key_with_a_recent_amount_is_not_forgotten() {
    let path = |head: RequestHead<'_>| head.uri.path().to_owned();
    // One key for each of 16 shards.
    let keyed = Keyed::with_max_keys(16, path, |_: &String| LocalLimiter::sliding_window(tokens(100)));
    let layer = RateLimitLayer::new(keyed.clone()).with_estimate(|_| of(60));
    let service = layer.layer(tower::service_fn(respond));
    service.clone().oneshot(to("/a")).await.unwrap();
    for key in 0..200 {
        _ = service.clone().oneshot(to(&format!("/{key}"))).await;
    }
    assert_available(&keyed.limiter(&"/a".to_owned()).unwrap(), 40);
    advance(seconds(62)).await;
    assert!((0..200).all(|key| keyed.limiter(&format!("/{key}")).is_ok()));
}

/// Responds with a stream of these parts.
fn stream_of<const N: usize>(
    parts: [&'static str; N],
) -> Ready<Result<Response<impl http_body::Body<Data = Bytes, Error = Infallible>>, Infallible>> {
    let frames = parts.map(|part| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(part))));
    ready(Ok(Response::new(http_body_util::StreamBody::new(futures_util::stream::iter(frames)))))
}

#[tokio::test(start_paused = true)]
async fn running_sum_of_a_stream_returns_nothing_before_its_end() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000));
    let layer = RateLimitLayer::new(limiter.clone())
        .with_estimate(|_| of(100))
        .with_meter(|_, _| |data: &[u8]| Some(of(std::str::from_utf8(data).ok()?.parse().ok()?)));
    let service = layer.layer(tower::service_fn(|_: Request<()>| stream_of(["10", "150", "90"])));
    let mut body = service.oneshot(to("/")).await.unwrap().into_body();
    for available in [900, 850, 900] {
        body.frame().await.unwrap().unwrap();
        assert_available(&limiter, available);
    }
    assert!(body.frame().await.is_none());
    assert_available(&limiter, 910);
}

#[tokio::test(start_paused = true)]
async fn final_amount_of_a_stream_counts_although_the_body_is_dropped_before_its_end() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000));
    let layer = RateLimitLayer::new(limiter.clone()).with_estimate(|_| of(100)).with_meter(|_, _| {
        |data: &[u8]| Some(Metered::Final(of(std::str::from_utf8(data).ok()?.parse().ok()?)))
    });
    let service = layer.layer(tower::service_fn(|_: Request<()>| stream_of(["hello", "40", "[DONE]"])));
    let mut body = service.oneshot(to("/")).await.unwrap().into_body();
    for available in [900, 960] {
        body.frame().await.unwrap().unwrap();
        assert_available(&limiter, available);
    }
    drop(body);
    assert_available(&limiter, 960);
}

/// A request at a server.
struct Received {
    at: Instant,
    estimate: u32,
    actual: u32,
    is_accepted: bool,
    settled_at: Option<Instant>,
}

/// Asserts that the requests of each minute took at most `limit` tokens and the shortfalls of the estimates that were
/// not settled in it. A rejected request is never settled.
fn assert_windows(received: &[Received], limit: u32) {
    let mut first = 0;
    for (last, end) in received.iter().map(|it| it.at).enumerate() {
        while end - received[first].at >= seconds(60) {
            first += 1;
        }
        let window = received[first..=last].iter();
        let used: u32 = window.clone().map(|it| it.actual).sum();
        let unsettled = window.filter(|it| it.settled_at.is_none_or(|at| at >= end));
        let shortfalls: u32 = unsettled.map(|it| it.actual.saturating_sub(it.estimate)).sum();
        assert!(used <= limit + shortfalls, "{used} tokens, of which {shortfalls} are shortfalls");
    }
}

/// The guide's page `llm_services` states these figures. With upper bounds as estimates, no minute exceeds the limit.
#[tokio::test(start_paused = true)]
async fn callers_with_inexact_estimates_use_the_tokens_with_few_rejections() {
    const LIMIT: u32 = 200_000;
    const KINDS: [fn(Quota) -> LocalLimiter; 3] =
        [LocalLimiter::paced_window, LocalLimiter::sliding_window, LocalLimiter::token_bucket];
    for (kind, lowest, minutes) in KINDS.iter().flat_map(|kind| [(kind, 50, 20), (kind, 100, 4)]) {
        let (limiter, mut callers) = (kind(tokens(LIMIT)), JoinSet::new());
        let server = Arc::new(Mutex::new(Vec::<Received>::new()));
        for caller in 0..64_u32 {
            let (limiter, server) = (limiter.clone(), Arc::clone(&server));
            callers.spawn(async move {
                for number in 0.. {
                    let [size, time, error] = [7, 11, 13].map(|prime| (31 * caller + prime * number) % 100);
                    let actual = 100 + 9 * size;
                    let estimate = actual * (lowest + error) / 100;
                    let mut permit = limiter.acquire_with(&requesting(estimate)).await.unwrap();
                    let at = Instant::now();
                    permit.mark_sent(at);
                    let (index, is_accepted) = {
                        let received = &mut *server.lock().unwrap();
                        let recent = received.iter().rev().take_while(|it| at - it.at <= seconds(60));
                        let used: u32 = recent.filter(|it| it.is_accepted).map(|it| it.actual).sum();
                        let is_accepted = used < LIMIT;
                        received.push(Received { at, estimate, actual, is_accepted, settled_at: None });
                        (received.len() - 1, is_accepted)
                    };
                    sleep(millis(500 + 60 * u64::from(time))).await;
                    if is_accepted {
                        permit.settlement().unwrap().settle(of(actual));
                        server.lock().unwrap()[index].settled_at = Some(Instant::now());
                    }
                }
            });
        }
        sleep(seconds(minutes * 60)).await;
        let received = server.lock().unwrap();
        assert_windows(&received, LIMIT);
        if lowest == 50 {
            let (accepted, rejected): (Vec<_>, Vec<_>) = received.iter().partition(|it| it.is_accepted);
            let used: u32 = accepted.iter().map(|it| it.actual).sum();
            let used = f64::from(used) / (minutes as f64 * f64::from(LIMIT));
            let rejected = rejected.len() as f64 / received.len() as f64;
            assert!(used >= 0.95 && rejected <= 0.005, "{limiter:?}: {used} used, {rejected} rejected");
        }
    }
}

/// The guide's page `llm_services` states these figures.
#[tokio::test(start_paused = true)]
async fn larger_requests_leave_more_of_the_tokens_unused() {
    for (amount, expected) in [(250, 98), (1_750, 86)] {
        let (limiter, start, mut used) = (LocalLimiter::paced_window(tokens(10_000)), Instant::now(), 0);
        while start.elapsed() < seconds(3_600) {
            let mut permit = limiter.acquire_with(&requesting(amount)).await.unwrap();
            permit.mark_sent(Instant::now());
            used += amount;
        }
        assert_eq!(used / 6_000, expected, "percent of the tokens of an hour");
    }
}

#[tokio::test(start_paused = true)]
async fn waiter_from_before_the_first_quota_of_its_unit_takes_its_amount() {
    let requests = Quota::per_minute(1).unwrap().without_margin();
    let limiter = LocalLimiter::sliding_window(requests);
    send(&limiter, 0);
    let mut waiter = task::spawn(limiter.acquire_with(&requesting(500)));
    assert_pending!(waiter.poll());
    limiter.set_quotas([requests, tokens(1_000)]);
    sleep(millis(60_005)).await;
    let mut permit = assert_ready_ok!(waiter.poll());
    permit.mark_sent(Instant::now());
    assert_available(&limiter, 500);
}

/// The request waits 40 ms for its service. Meanwhile another one takes 100 tokens, which the server has then counted.
#[tokio::test(start_paused = true)]
async fn reported_amount_counts_from_the_time_at_which_the_request_was_sent() {
    let limiter = LocalLimiter::sliding_window(tokens(1_000)).with_server_remaining();
    let service = ready_after(40).map_response(|response| {
        let (mut head, body) = response.into_parts();
        head.headers = remaining_tokens("500", "20s");
        Response::from_parts(head, body)
    });
    let layer = RateLimitLayer::new(limiter.clone()).with_estimate(|_| of(100));
    let mut call = task::spawn(layer.layer(service).oneshot(Request::new(())));
    assert_pending!(call.poll());
    advance(millis(20)).await;
    let _other = send(&limiter, 100);
    call.await.unwrap();
    assert_eq!(limiter.snapshot().granted, 2);
    assert_available(&limiter, 500);
}

#[tokio::test(start_paused = true)]
async fn each_of_several_units_refuses_and_settles_alone() {
    let limits = [(Unit::Requests, 3), (Unit::InputTokens, 1_000), (Unit::OutputTokens, 100)];
    let quotas = limits.map(|(unit, limit)| Quota::per_minute(limit).unwrap().with_unit(unit).unwrap());
    let limiter = LocalLimiter::sliding_window(quotas);
    let both = |input, output| Amounts::of(Unit::InputTokens, input).with(Unit::OutputTokens, output);
    let available = || {
        let snapshot = limiter.snapshot();
        [snapshot.available, snapshot.units[0].available, snapshot.units[1].available]
    };
    let acquire = |cost, amounts| {
        let request = costing(cost).with_amounts(amounts).with_max_wait(Duration::ZERO);
        limiter.acquire_with(&request).now_or_never().unwrap()
    };
    let mut permit = acquire(1, both(600, 10)).unwrap();
    permit.mark_sent(Instant::now());
    for (cost, amounts, unit) in [
        (3, both(1, 1), None),
        (1, both(401, 1), Some(Unit::InputTokens)),
        (1, both(1, 91), Some(Unit::OutputTokens)),
    ] {
        assert_eq!((acquire(cost, amounts).unwrap_err().unit(), available()), (unit, [2, 400, 90]));
    }
    for (amounts, expected) in [(both(100, 10), [2, 900, 90]), (both(100, 60), [2, 900, 40])] {
        permit.settlement().unwrap().settle(amounts);
        assert_eq!(available(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn remaining_points_of_a_dialect_limit_the_quota_of_points() {
    let left = HeaderName::from_static("x-credits-left");
    let headers = QuotaHeaders::new(left).with_unit(Unit::Points).with_window(seconds(20));
    let dialect = Dialect::new().with_quota_headers(headers).unwrap();
    let points = Quota::per_minute(1_000).unwrap().with_unit(Unit::Points).unwrap();
    let limiter = LocalLimiter::sliding_window(points).with_server_remaining();
    let layer = RateLimitLayer::new(limiter.clone()).with_dialect(dialect);
    let service = layer.with_estimate(|_| Amounts::of(Unit::Points, 100)).layer(ok_service().map_response(
        |mut response: Response<()>| {
            response.headers_mut().insert("x-credits-left", HeaderValue::from_static("300"));
            response
        },
    ));
    service.oneshot(Request::new(())).await.unwrap();
    assert_available(&limiter, 300);
}
