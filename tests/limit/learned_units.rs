//! Tests of the rates of tokens that an adaptive limiter learns from a simulated LLM service.

use super::*;
use futures_util::FutureExt;
use tower_outbound::limit::{Amounts, Unit};

const REQUESTS: f64 = 500.0;
const TOKENS: f64 = 30_000.0;

/// The rate-limit headers of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    OpenAi,
    Anthropic,
    Bare,
}

impl Style {
    fn unit(self) -> Unit {
        if self == Self::Anthropic { Unit::InputTokens } else { Unit::Tokens }
    }
}

/// A bucket that refills its limit once per minute.
struct Bucket {
    limit: f64,
    left: f64,
}

impl Bucket {
    /// Returns the seconds until `amount` is available.
    fn until(&self, amount: f64) -> f64 {
        (amount - self.left).max(0.0) * 60.0 / self.limit
    }
}

/// A service that allows 500 requests and 30,000 tokens per minute, and counts both on arrival.
struct Llm {
    style: Style,
    requests: Bucket,
    tokens: Bucket,
    start: Instant,
    at: Instant,
    /// The numbers of accepted requests, rejected requests and tokens.
    counts: [f64; 3],
}

impl Llm {
    fn new(style: Style) -> Self {
        let bucket = |limit| Bucket { limit, left: limit };
        let (requests, tokens, start) = (bucket(REQUESTS), bucket(TOKENS), Instant::now());
        Self { style, requests, tokens, start, at: start, counts: [0.0; 3] }
    }

    /// Counts a request. Returns the status and the headers of the response.
    fn respond(&mut self, tokens: u32) -> (StatusCode, HeaderMap) {
        let passed = self.at.elapsed().as_secs_f64();
        self.at = Instant::now();
        let costs = [1.0, f64::from(tokens)];
        let buckets = [&mut self.requests, &mut self.tokens];
        for bucket in buckets {
            bucket.left = (bucket.left + passed * bucket.limit / 60.0).min(bucket.limit);
        }
        let next = self.requests.until(costs[0]).max(self.tokens.until(costs[1]));
        let is_accepted = next <= 1e-9;
        self.counts[usize::from(!is_accepted)] += 1.0;
        if is_accepted {
            self.counts[2] += costs[1];
            self.requests.left -= costs[0];
            self.tokens.left -= costs[1];
        }
        let status = if is_accepted { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
        (status, self.headers((!is_accepted).then_some(next)))
    }

    fn headers(&self, next: Option<f64>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let mut add = |name: String, value: String| {
            headers.insert(HeaderName::try_from(name).unwrap(), HeaderValue::try_from(value).unwrap());
        };
        let buckets = [("requests", &self.requests), ("tokens", &self.tokens)];
        match self.style {
            Style::OpenAi => {
                for (unit, bucket) in buckets {
                    add(format!("x-ratelimit-limit-{unit}"), bucket.limit.to_string());
                    add(format!("x-ratelimit-remaining-{unit}"), bucket.left.floor().to_string());
                    add(format!("x-ratelimit-reset-{unit}"), format!("{:.3}s", bucket.until(bucket.limit)));
                }
                next.into_iter()
                    .for_each(|next| add("retry-after-ms".into(), (next * 1e3).ceil().to_string()));
            }
            Style::Anthropic => {
                let now = self.start.elapsed().as_secs_f64() + 0.4;
                let clock = |at: f64| {
                    let at = at as u64;
                    format!("{:02}:{:02}:{:02}", 1 + at / 3_600, at / 60 % 60, at % 60)
                };
                for (unit, bucket) in buckets {
                    let name = if unit == "tokens" { "input-tokens" } else { unit };
                    // The service rounds the remaining tokens to thousands.
                    let left = if unit == "tokens" {
                        (bucket.left / 1e3).round() * 1e3
                    } else {
                        bucket.left.floor()
                    };
                    add(format!("anthropic-ratelimit-{name}-limit"), bucket.limit.to_string());
                    add(format!("anthropic-ratelimit-{name}-remaining"), left.to_string());
                    let reset = clock((now + bucket.until(bucket.limit)).ceil());
                    add(format!("anthropic-ratelimit-{name}-reset"), format!("2026-01-01T{reset}Z"));
                }
                add("date".into(), format!("Thu, 01 Jan 2026 {} GMT", clock(now)));
                next.into_iter().for_each(|next| add("retry-after".into(), next.ceil().to_string()));
            }
            Style::Bare => {}
        }
        headers
    }
}

/// Sends the requests of 64 callers for `minutes`. The requests take 500 to 1,490 tokens, and their estimates are off by up
/// to `error` percent. Returns the used share of the tokens and the share of the rejected requests, in percent, without
/// the first five minutes.
async fn use_tokens(limiter: &LocalLimiter, style: Style, minutes: u64, error: u32) -> (f64, f64) {
    let server = Arc::new(Mutex::new(Llm::new(style)));
    let mut callers = JoinSet::new();
    for caller in 0..64_u32 {
        let (limiter, server) = (limiter.clone(), Arc::clone(&server));
        callers.spawn(async move {
            for number in 0.. {
                let [size, time, factor] = [7, 11, 13].map(|prime| (31 * caller + prime * number) % 100);
                let actual = 500 + 10 * size;
                let estimate = actual * (100 - error + factor * 2 * error / 100) / 100;
                let amounts = |amount| Amounts::of(style.unit(), amount);
                let request = PermitRequest::new().with_amounts(amounts(estimate));
                let mut permit = limiter.acquire_with(&request).await.unwrap();
                permit.mark_sent(Instant::now());
                sleep(millis(20 + u64::from(time))).await;
                let (status, headers) = server.lock().unwrap().respond(actual);
                sleep(millis(500 + 10 * u64::from(time))).await;
                let settled = if status == StatusCode::OK { actual } else { 0 };
                let settlement = permit.settlement().unwrap().clone();
                permit.complete(&ResponseInfo::new(status, &headers));
                settlement.settle(amounts(settled));
            }
        });
    }
    sleep(seconds(300)).await;
    let before = server.lock().unwrap().counts;
    sleep(seconds(60 * minutes - 300)).await;
    let after = server.lock().unwrap().counts;
    let [accepted, rejected, used] = [0, 1, 2].map(|place| after[place] - before[place]);
    let allowed = TOKENS * (minutes - 5) as f64;
    (100.0 * used / allowed, 100.0 * rejected / (accepted + rejected))
}

/// Returns a limiter that has learned 500 requests and 30,000 tokens per minute, of which all are available.
pub(super) async fn learned() -> LocalLimiter {
    let limiter = LocalLimiter::adaptive([]);
    end(send(&limiter, 1_000), StatusCode::OK, ["499", "29000"]);
    assert_eq!(rates(&limiter), [Some(490.0), Some(29_412.0)]);
    advance(seconds(3)).await;
    limiter
}

/// Returns a limiter whose pause after a rejection because of its tokens is over. The next request with tokens is the
/// probe.
pub(super) async fn probing() -> LocalLimiter {
    let limiter = learned().await;
    end(send(&limiter, 1_000), StatusCode::TOO_MANY_REQUESTS, ["498", "0"]);
    sleep(seconds(60)).await;
    limiter
}

/// The guide's page `adaptive_limits` states these figures.
#[tokio::test(start_paused = true)]
async fn adaptive_limiter_learns_the_tokens_per_minute() {
    for (style, least, most, unit) in [
        (Style::OpenAi, 95.0, 0.5, Some(Unit::Tokens)),
        (Style::Anthropic, 95.0, 0.5, Some(Unit::InputTokens)),
        (Style::Bare, 85.0, 0.5, None),
    ] {
        let limiter = LocalLimiter::adaptive([]);
        let (used, rejected) = use_tokens(&limiter, style, 35, 50).await;
        let text = format!("{style:?}: {used:.1} % used, {rejected:.2} % rejected");
        println!("{text}");
        assert!(used >= least && rejected <= most, "{text}");
        let snapshot = limiter.snapshot();
        assert_eq!(snapshot.learned_units.first().map(|learned| learned.unit), unit);
        // Rejections because of tokens lower the rate of requests only if the headers do not show the reason.
        let is_throttled = snapshot.learned.is_some_and(|learned| learned.throttled_at.is_some());
        assert_eq!(is_throttled, unit.is_none());
    }
}

/// Without headers, the amounts of the last requests may have caused a rejection, so it lowers the rate less, and a raise
/// takes more requests.
#[tokio::test(start_paused = true)]
async fn requests_with_amounts_of_an_unknown_unit_lower_and_raise_the_rate_more_slowly() {
    for (amount, expected) in [(0, (0.7, 80)), (1_000, (0.75, 120))] {
        let limiter = LocalLimiter::adaptive([]);
        let respond = async |status| {
            let mut permit = limiter.acquire_with(&costly(amount)).await.unwrap();
            permit.mark_sent(Instant::now());
            sleep(millis(100)).await;
            permit.complete(&ResponseInfo::new(status, &HeaderMap::new()));
            limiter.snapshot().learned.map_or(0.0, |learned| learned.rate())
        };
        for _ in 0..20 {
            respond(StatusCode::OK).await;
        }
        respond(StatusCode::TOO_MANY_REQUESTS).await;
        let before = respond(StatusCode::OK).await;
        let lowered = respond(StatusCode::TOO_MANY_REQUESTS).await;
        // The probe.
        respond(StatusCode::OK).await;
        let mut number = 0;
        while respond(StatusCode::OK).await <= lowered {
            number += 1;
        }
        assert_eq!(((100.0 * lowered / before).round() / 100.0, number), expected);
    }
}

pub(super) fn costly(amount: u32) -> PermitRequest {
    PermitRequest::new().with_amounts(Amounts::of(Unit::Tokens, amount))
}

/// Takes permits now, and sends the request.
pub(super) fn send(limiter: &LocalLimiter, amount: u32) -> Permit<'static> {
    let mut permit = assert_ready_ok!(task::spawn(limiter.acquire_with(&costly(amount))).poll());
    permit.mark_sent(Instant::now());
    permit
}

/// Ends a request with the headers of 500 requests and 30,000 tokens per minute, of which `left` remain.
pub(super) fn end(permit: Permit<'static>, status: StatusCode, left: [&str; 2]) {
    let field = |name: &str, value: &str| {
        let name = HeaderName::try_from(format!("x-ratelimit-{name}")).unwrap();
        (name, HeaderValue::from_str(value).unwrap())
    };
    let headers = HeaderMap::from_iter([
        field("limit-requests", "500"),
        field("remaining-requests", left[0]),
        field("reset-requests", "60s"),
        field("limit-tokens", "30000"),
        field("remaining-tokens", left[1]),
        field("reset-tokens", "60s"),
    ]);
    permit.complete(&ResponseInfo::new(status, &headers));
}

/// Returns the learned rates of requests and of tokens per minute, rounded.
pub(super) fn rates(limiter: &LocalLimiter) -> [Option<f64>; 2] {
    let snapshot = limiter.snapshot();
    let tokens = snapshot.learned_units.first().copied();
    [snapshot.learned, tokens].map(|learned| learned.map(|learned| (60.0 * learned.rate()).round()))
}

#[tokio::test(start_paused = true)]
async fn rejection_because_of_tokens_lowers_the_rate_of_tokens_only() {
    let limiter = LocalLimiter::adaptive([]);
    end(send(&limiter, 1_000), StatusCode::OK, ["499", "29000"]);
    assert_eq!(rates(&limiter), [Some(490.0), Some(29_412.0)]);
    advance(seconds(3)).await;
    // Tokens remain, but fewer than the request takes.
    end(send(&limiter, 1_000), StatusCode::TOO_MANY_REQUESTS, ["498", "900"]);
    assert_eq!(rates(&limiter), [Some(490.0), Some(28_824.0)]);
    // After the pause, one request with tokens tests whether the server accepts them. Requests without tokens do not
    // wait for its response.
    let pause = limiter.snapshot().paused_until.unwrap() - Instant::now();
    assert!(pause > seconds(2) && pause < seconds(3), "the refill of the tokens of one request: {pause:?}");
    let probe = limiter.acquire_with(&costly(1_000)).await.unwrap();
    let mut next = queued(&limiter, &costly(1_000));
    assert!(limiter.acquire().now_or_never().is_none(), "the queue is first in, first out");
    end(probe, StatusCode::OK, ["497", "900"]);
    sleep(seconds(3)).await;
    assert_ready_ok!(next.poll());
    // Without a reported quota of tokens, a rejection lowers the rate of requests.
    let permit = limiter.acquire_with(&costly(1_000)).await.unwrap();
    permit.complete(&ResponseInfo::new(StatusCode::TOO_MANY_REQUESTS, &HeaderMap::new()));
    assert_eq!(rates(&limiter), [Some(480.0), Some(28_824.0)]);
}

#[tokio::test(start_paused = true)]
async fn request_without_tokens_does_not_wait_for_the_probe_of_the_tokens() {
    let limiter = probing().await;
    let probe = send(&limiter, 1_000);
    advance(seconds(1)).await;
    let other = send(&limiter, 0);
    // Its response does not end the probe.
    end(other, StatusCode::OK, ["496", "0"]);
    let mut next = queued(&limiter, &costly(1_000));
    sleep(seconds(3)).await;
    assert_pending!(next.poll());
    end(probe, StatusCode::OK, ["497", "0"]);
    sleep(seconds(3)).await;
    assert_ready_ok!(next.poll());
}

#[tokio::test(start_paused = true)]
async fn learned_rate_never_exceeds_the_quota_of_its_unit() {
    let tokens = |limit| Quota::per_minute(limit).unwrap().with_unit(Unit::Tokens).unwrap();
    let limiter = LocalLimiter::adaptive(tokens(6_100));
    // The quota of tokens applies, so their headers do not matter until a rejection because of them.
    end(send(&limiter, 100), StatusCode::OK, ["499", "29000"]);
    assert_eq!(rates(&limiter), [Some(490.0), None]);
    advance(seconds(3)).await;
    end(send(&limiter, 100), StatusCode::TOO_MANY_REQUESTS, ["498", "0"]);
    assert_eq!(rates(&limiter), [Some(490.0), Some(5_880.0)], "0.98 of the quota");
    limiter.set_quotas([tokens(610)]);
    assert_eq!(rates(&limiter)[1], Some(600.0));
    // Without a quota, the learned rate from before it applies.
    limiter.set_quotas([]);
    assert_eq!(rates(&limiter)[1], Some(5_880.0));
    limiter.resume();
    assert_eq!(rates(&limiter), [None, None]);
}

#[tokio::test(start_paused = true)]
async fn lost_requests_do_not_raise_the_rate_of_their_tokens() {
    let limiter = LocalLimiter::adaptive([]);
    end(send(&limiter, 1_000), StatusCode::OK, ["499", "29000"]);
    for number in 0..600 {
        let mut permit = limiter.acquire_with(&costly(1_000)).await.unwrap();
        permit.mark_sent(Instant::now());
        drop(permit);
        if number % 10 == 0 {
            end(limiter.acquire().await.unwrap(), StatusCode::OK, ["400", "20000"]);
        }
    }
    assert_eq!(rates(&limiter)[1], Some(29_412.0));
}

#[tokio::test(start_paused = true)]
async fn accepted_requests_without_headers_raise_the_rate_of_their_tokens() {
    let limiter = LocalLimiter::adaptive([]);
    end(send(&limiter, 1_000), StatusCode::OK, ["499", "29000"]);
    for number in 0..600 {
        let permit = limiter.acquire_with(&costly(1_000)).await.unwrap();
        if number % 10 == 0 {
            end(permit, StatusCode::OK, ["400", "20000"]);
        } else {
            permit.complete(&ResponseInfo::new(StatusCode::OK, &HeaderMap::new()));
        }
    }
    assert!(rates(&limiter)[1].unwrap() > 29_900.0, "{:?}", rates(&limiter));
}

#[tokio::test(start_paused = true)]
async fn rejection_because_of_a_unit_without_amounts_lowers_the_rate_of_requests() {
    let limiter = LocalLimiter::adaptive([]);
    end(send(&limiter, 0), StatusCode::OK, ["499", "29000"]);
    advance(seconds(3)).await;
    end(send(&limiter, 0), StatusCode::TOO_MANY_REQUESTS, ["498", "0"]);
    assert_eq!(rates(&limiter), [Some(480.0), None]);
    assert!(limiter.snapshot().paused_until.is_some());
}

#[tokio::test(start_paused = true)]
async fn lost_request_without_tokens_does_not_end_the_probe_of_the_tokens() {
    let limiter = probing().await;
    let probe = send(&limiter, 1_000);
    advance(seconds(1)).await;
    drop(send(&limiter, 0));
    assert_eq!(limiter.snapshot().paused_until, None);
    let mut next = queued(&limiter, &costly(1_000));
    sleep(seconds(3)).await;
    assert_pending!(next.poll());
    // The loss of the probe delays the next one.
    drop(probe);
    sleep(seconds(10)).await;
    assert_ready_ok!(next.poll());
}

#[tokio::test(start_paused = true)]
async fn accepted_probe_that_costs_no_tokens_ends() {
    let limiter = probing().await;
    let mut probe = send(&limiter, 1_000);
    probe.settlement().unwrap().settle(Amounts::NONE);
    end(probe, StatusCode::NOT_MODIFIED, ["497", "0"]);
    let mut next = queued(&limiter, &costly(1_000));
    sleep(seconds(3)).await;
    assert_ready_ok!(next.poll());
}

#[tokio::test(start_paused = true)]
async fn unsent_probe_is_replaced_at_once() {
    let limiter = probing().await;
    drop(assert_ready_ok!(task::spawn(limiter.acquire_with(&costly(1_000))).poll()));
    send(&limiter, 1_000);
}

#[tokio::test(start_paused = true)]
async fn forecast_counts_an_amount_above_the_limit_of_the_server_as_the_limit() {
    let limiter = LocalLimiter::adaptive([]);
    end(send(&limiter, 1_000), StatusCode::OK, ["499", "29000"]);
    let _held = send(&limiter, 1_000);
    // Both wait for its 1,000 tokens, the second one also for the limit of 30,000.
    let _first = queued(&limiter, &costly(u32::MAX));
    let wait = limiter.acquire_with(&costly(1_000).with_max_wait(Duration::ZERO)).await.unwrap_err().wait();
    let wait = wait.unwrap().as_secs_f64();
    assert!(wait > 62.0 && wait < 64.0, "{wait}");
}
