//! A limiter with quotas of requests and tokens against a scripted server of a language model. The limiter
//! learns the tokens of a request at the end of its response. The server counts them on arrival or at the end.

use super::{shared_quota::Random, *};
use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use tower_outbound::limit::{Amounts, Unit};

const REQUESTS: u32 = 500;
const TOKENS: u32 = 200_000;
const MINUTE: Duration = Duration::from_secs(60);
const CALLERS: u64 = 64;

/// Which headers state the remaining quotas.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Dialect {
    OpenAi,
    Anthropic,
}

/// When the server counts the tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Counts {
    OnArrival,
    AtTheEnd,
}

struct LlmServer {
    dialect: Dialect,
    counts: Counts,
    /// The times and the tokens of the requests.
    requests: VecDeque<Instant>,
    tokens: VecDeque<(Instant, u32)>,
    rejected: u64,
    accepted: u64,
    used: u64,
    /// The most tokens of a minute.
    most: u32,
}

/// The tokens and the duration of a request, which the server knows from its text.
#[derive(Clone, Copy)]
struct Prompt {
    tokens: u32,
    takes: Duration,
}

type Streamed = UnsyncBoxBody<Bytes, Infallible>;

impl LlmServer {
    fn new(dialect: Dialect, counts: Counts) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            dialect,
            counts,
            requests: VecDeque::new(),
            tokens: VecDeque::new(),
            rejected: 0,
            accepted: 0,
            used: 0,
            most: 0,
        }))
    }

    /// Returns the requests and the tokens of the last minute.
    fn recent(&mut self) -> (u32, u32) {
        let from = Instant::now().checked_sub(MINUTE);
        let is_old = |at: &Instant| from.is_some_and(|from| *at < from);
        self.requests.retain(|at| !is_old(at));
        self.tokens.retain(|(at, _)| !is_old(at));
        (self.requests.len() as u32, self.tokens.iter().map(|(_, tokens)| tokens).sum())
    }

    fn count(&mut self, tokens: u32) {
        self.tokens.push_back((Instant::now(), tokens));
        self.used += u64::from(tokens);
        self.most = self.most.max(self.recent().1);
    }

    fn head(&mut self, status: u16) -> http::response::Builder {
        let (requests, tokens) = self.recent();
        let left = (REQUESTS.saturating_sub(requests), TOKENS.saturating_sub(tokens));
        let reset = |used: u32, limit: u32| format!("{}ms", 1 + 60_000 * u64::from(used) / u64::from(limit));
        let response = Response::builder().status(status);
        match self.dialect {
            Dialect::OpenAi => response
                .header("x-ratelimit-limit-requests", REQUESTS)
                .header("x-ratelimit-remaining-requests", left.0)
                .header("x-ratelimit-reset-requests", reset(requests, REQUESTS))
                .header("x-ratelimit-limit-tokens", TOKENS)
                .header("x-ratelimit-remaining-tokens", left.1)
                .header("x-ratelimit-reset-tokens", reset(tokens, TOKENS)),
            Dialect::Anthropic => response
                .header("anthropic-ratelimit-requests-remaining", left.0)
                .header("anthropic-ratelimit-requests-limit", REQUESTS)
                .header("anthropic-ratelimit-tokens-remaining", left.1 / 1_000 * 1_000)
                .header("anthropic-ratelimit-tokens-limit", TOKENS),
        }
    }
}

/// Responds with a stream of text, and with the tokens at its end.
fn respond(server: &Arc<Mutex<LlmServer>>, prompt: Prompt) -> Response<Streamed> {
    let mut own = server.lock().unwrap();
    let (requests, tokens) = own.recent();
    if requests >= REQUESTS || tokens >= TOKENS {
        own.rejected += 1;
        let response = own.head(429).header("retry-after", 1);
        return response.body(UnsyncBoxBody::new(http_body_util::Empty::new())).unwrap();
    }
    own.accepted += 1;
    own.requests.push_back(Instant::now());
    if own.counts == Counts::OnArrival {
        own.count(prompt.tokens);
    }
    let head = own.head(200);
    drop(own);
    let server = Arc::clone(server);
    let frames = futures_util::stream::unfold(0, move |frame| {
        let server = Arc::clone(&server);
        async move {
            let text = match frame {
                0 => "data: {\"delta\":\"hello\"}\n\n".to_owned(),
                1 => {
                    sleep(prompt.takes).await;
                    let mut server = server.lock().unwrap();
                    if server.counts == Counts::AtTheEnd {
                        server.count(prompt.tokens);
                    }
                    format!("data: {{\"usage\":{{\"total_tokens\":{}}}}}\n\n", prompt.tokens)
                }
                _ => return None,
            };
            Some((Ok(Frame::data(Bytes::from(text))), frame + 1))
        }
    });
    head.body(UnsyncBoxBody::new(StreamBody::new(frames))).unwrap()
}

/// Returns the number behind `"total_tokens":`, as soon as the data contains it.
fn usage(data: &[u8]) -> Option<Amounts> {
    let text = std::str::from_utf8(data).ok()?;
    let (_, rest) = text.split_once("\"total_tokens\":")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some(Amounts::of(Unit::Tokens, digits.parse().ok()?))
}

/// The tokens that a caller expects.
#[derive(Clone, Copy)]
struct Estimate(u32);

/// Lets all callers send prompts for `time`. `estimate` computes the estimate from the actual tokens and a random number.
async fn run(
    limiter: LocalLimiter,
    server: &Arc<Mutex<LlmServer>>,
    time: Duration,
    estimate: fn(u32, f64) -> u32,
) {
    let own = Arc::clone(server);
    let service = RateLimitLayer::new(limiter)
        .with_estimate(|head| Amounts::of(Unit::Tokens, head.extensions.get::<Estimate>().unwrap().0))
        .with_meter(|_, _| usage)
        .layer(tower::service_fn(move |request: Request<Prompt>| {
            ready(Ok::<_, Infallible>(respond(&own, request.into_body())))
        }));
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let service = service.clone();
        callers.spawn(async move {
            let mut random = Random(caller);
            loop {
                let tokens = 100 + (random.next() * 900.0) as u32;
                let takes = millis(500 + (random.next() * 6_000.0) as u64);
                let mut request = Request::new(Prompt { tokens, takes });
                request.extensions_mut().insert(Estimate(estimate(tokens, random.next())));
                let response = service.clone().oneshot(request).await.unwrap();
                response.into_body().collect().await.unwrap();
            }
        });
    }
    sleep(time).await;
    callers.abort_all();
}

fn quotas() -> [Quota; 2] {
    [
        Quota::per_minute(REQUESTS).unwrap(),
        Quota::per_minute(TOKENS).unwrap().with_unit(Unit::Tokens).unwrap(),
    ]
}

/// Returns the used tokens in percent of the quota, the rejected requests in percent, and the most tokens of a minute.
async fn shares(
    limiter: LocalLimiter,
    dialect: Dialect,
    counts: Counts,
    estimate: fn(u32, f64) -> u32,
) -> (f64, f64, u32) {
    const MINUTES: u32 = 20;
    let server = LlmServer::new(dialect, counts);
    run(limiter, &server, MINUTE * MINUTES, estimate).await;
    let server = server.lock().unwrap();
    let sent = server.accepted + server.rejected;
    (
        100.0 * server.used as f64 / f64::from(TOKENS * MINUTES),
        100.0 * server.rejected as f64 / sent as f64,
        server.most,
    )
}

const DIALECTS: [Dialect; 2] = [Dialect::OpenAi, Dialect::Anthropic];

const LIMITERS: [fn([Quota; 2]) -> LocalLimiter; 4] = [
    LocalLimiter::paced_window,
    LocalLimiter::sliding_window,
    LocalLimiter::token_bucket,
    LocalLimiter::adaptive,
];

#[tokio::test(start_paused = true)]
async fn callers_with_inexact_estimates_use_the_tokens_with_few_rejections() {
    for dialect in DIALECTS {
        for counts in [Counts::OnArrival, Counts::AtTheEnd] {
            for (kind, limiter) in LIMITERS.into_iter().enumerate() {
                let half = |tokens, random| (f64::from(tokens) * (0.5 + random)) as u32;
                let (used, rejected, _) = shares(limiter(quotas()), dialect, counts, half).await;
                assert!(
                    used >= 95.0 && rejected <= 0.5,
                    "{dialect:?}, {counts:?}, limiter {kind}: {used:.1} % used, {rejected:.2} % rejected"
                );
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn callers_with_upper_bounds_are_never_rejected() {
    for dialect in DIALECTS {
        for (kind, limiter) in LIMITERS.into_iter().enumerate() {
            let bound = |tokens, random| (f64::from(tokens) * (1.0 + random)) as u32;
            let (used, rejected, most) = shares(limiter(quotas()), dialect, Counts::OnArrival, bound).await;
            assert!(
                used >= 90.0 && rejected == 0.0 && most <= TOKENS,
                "{dialect:?}, limiter {kind}: {used:.1} % used, {rejected:.2} % rejected, {most} in a minute"
            );
        }
    }
}
