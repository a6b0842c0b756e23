//! Tests of the rates of tokens that an adaptive limiter learns from a simulated LLM service.

use super::*;
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

/// The guide's page `adaptive_limits` states these figures.
#[tokio::test(start_paused = true)]
async fn adaptive_limiter_learns_the_tokens_per_minute() {
    for style in [Style::OpenAi, Style::Anthropic, Style::Bare] {
        for error in [0, 50] {
            for ceiling in [None, Some(60_000)] {
                let quota =
                    ceiling.map(|limit| Quota::per_minute(limit).unwrap().with_unit(style.unit()).unwrap());
                let limiter = LocalLimiter::adaptive(quota);
                let (used, rejected) = use_tokens(&limiter, style, 35, error).await;
                let snapshot = limiter.snapshot();
                println!(
                    "{style:?}, error {error}, ceiling {ceiling:?}: {used:.1} % used, {rejected:.2} % rejected, {:?} {:?}",
                    snapshot.learned, snapshot.learned_units
                );
            }
        }
    }
}
