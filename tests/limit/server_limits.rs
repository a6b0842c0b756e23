//! Tests of the rate-limit headers of responses, which `RateLimitLayer` passes to its limiter.

use super::*;

/// A server that returns the queued responses in order. If no response is queued, it immediately returns an empty 200.
struct Server {
    start: Instant,
    api: ScriptedService,
    responses: Arc<Mutex<VecDeque<ScriptedResponse>>>,
    /// The number of requests that [`assert_arrivals`](Self::assert_arrivals) ignores.
    ignored: Cell<usize>,
}

type Limited = RateLimit<ScriptedService, LocalLimiter>;
type Call = JoinHandle<Result<Response<InFlightBody<Body>>, Error>>;

impl Server {
    /// Starts a server, and returns it with a service that sends requests to it through `limiter`.
    fn behind(limiter: &LocalLimiter) -> (Self, Limited) {
        let responses = Arc::<Mutex<VecDeque<_>>>::default();
        let queued = Arc::clone(&responses);
        let next = move || queued.lock().unwrap().pop_front().unwrap_or(ScriptedResponse::status(200));
        let api = ScriptedService::from_fn(move |_| next());
        let service = RateLimitLayer::new(limiter.clone()).layer(api.clone());
        (Self { start: Instant::now(), api, responses, ignored: Cell::new(0) }, service)
    }

    /// Queues a response that the server returns `delay` seconds after a request arrives.
    fn will_respond(&self, delay: f64, response: ScriptedResponse) {
        let response = response.with_delay(Duration::from_secs_f64(delay));
        self.responses.lock().unwrap().push_back(response);
    }

    fn with_layer(&self, layer: &RateLimitLayer<LocalLimiter>) -> Limited {
        layer.layer(self.api.clone())
    }

    /// Makes one call that receives `response`, so that the limiter reads the headers of `response`. The first
    /// arrival is then ignored.
    async fn respond_once(&self, service: &Limited, response: ScriptedResponse) {
        self.will_respond(0.0, response);
        service.clone().oneshot(costing(1)).await.unwrap();
        self.ignored.set(self.ignored.get() + 1);
    }

    /// Asserts that the requests arrived at the `expected` times, in seconds since the server was started.
    #[track_caller]
    fn assert_arrivals(&self, expected: impl AsRef<[f64]>) {
        let arrivals = self.api.arrivals().times().into_iter().skip(self.ignored.get());
        let arrivals: Vec<_> = arrivals.map(|at| (at - self.start).as_secs_f64()).collect();
        let expected = expected.as_ref();
        // A request may arrive up to 2 ms late, because tokio's timer rounds up to the next millisecond. No request may
        // be early.
        let fits = |(at, due): (&f64, &f64)| (*due..=due + 0.002).contains(at);
        let same = arrivals.len() == expected.len() && arrivals.iter().zip(expected).all(fits);
        assert!(same, "requests arrived at {arrivals:?} s, expected {expected:?} s");
    }
}

/// Returns the arrival time of every request. Each group contains a number of requests and the time when they arrive.
fn times(groups: &[(usize, f64)]) -> Vec<f64> {
    groups.iter().flat_map(|(count, at)| std::iter::repeat_n(*at, *count)).collect()
}

/// Returns a limiter that obeys the remaining permits of the server, and whose own quota delays no request of the
/// tests.
fn ample_limiter() -> LocalLimiter {
    LocalLimiter::paced_window(quota(1_000, 1_000, 500)).with_server_remaining()
}

fn response(status: u16, headers: &[(&str, &str)]) -> ScriptedResponse {
    let response = ScriptedResponse::status(status);
    headers.iter().fold(response, |response, (name, value)| response.with_header(name, value))
}

/// Returns a 200 response with a `RateLimit` header in the format of IETF draft 10.
fn remaining(permits: u64, reset_after: u64) -> ScriptedResponse {
    response(200, &[("ratelimit", &format!(r#""default";r={permits};t={reset_after}"#))])
}

/// Spawns `count` calls in order. Returns when every call has completed or waits for the limiter, the server or a
/// timer.
async fn spawn_calls(service: &Limited, count: usize) -> Vec<Call> {
    let calls = (0..count).map(|_| tokio::spawn(service.clone().oneshot(costing(1)))).collect();
    settle().await;
    calls
}

/// Runs the spawned tasks until every task waits, without advancing the clock.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

async fn assert_all_succeed(calls: Vec<Call>) {
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

fn costing(cost: u32) -> Request<Body> {
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(PermitCost(permits(cost)));
    request
}

#[tokio::test(start_paused = true)]
async fn limiter_never_sends_more_requests_than_the_server_allows() {
    // The server has one window, and reports the remaining permits with every response. Requests and responses overtake
    // one another. The first requests are sent before any limit is known.
    for seed in 0..50 {
        let limit = 1 + (seed as u32 * 7) % 40;
        for limiter in [LocalLimiter::without_quota(), ample_limiter()] {
            let server = ServerLimit::fixed_window(limit, seconds(30)).with_headers(LimitHeaders::XRateLimit);
            let callers = (1 + seed as usize % 10).min(limit as usize);
            let traffic = Traffic { callers, hop: (Duration::ZERO, millis(800)), seed };
            traffic.run(&limiter, &server, seconds(25), seconds(25)).await;
            let (accepted, rejected) = (server.accepted(), server.rejected());
            let case = format!("limit {limit}, {callers} callers: {accepted} accepted, {rejected} rejected");
            assert!(rejected == 0 && accepted <= limit.into(), "{case}");
        }
    }
}

/// If the status is not 429, 503 or 529, `Retry-After` delays only the call that received the header. Examples are a
/// redirect and the status 522 of a CDN. `Retry-After` takes precedence over an earlier reset.
#[tokio::test(start_paused = true)]
async fn retry_after_pauses_all_callers_only_if_the_status_is_429_503_or_529() {
    let reset = ("ratelimit", r#""default";r=5;t=1"#);
    for status in [429, 503, 529, 202, 301, 500, 502, 504, 520, 521, 522, 523, 524, 530] {
        for (name, value) in [("retry-after", "1.2, 3"), ("retry-after-ms", "2999.9, 7")] {
            let (server, service) = Server::behind(&ample_limiter());
            server.respond_once(&service, response(status, &[(name, value), reset])).await;
            assert_all_succeed(spawn_calls(&service, 1).await).await;
            server.assert_arrivals([if [429, 503, 529].contains(&status) { 3.0 } else { 0.0 }]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn server_limits_apply_to_all_callers_of_one_limiter_but_not_to_other_limiters() {
    for limits in [remaining(0, 5), response(429, &[("retry-after", "5")])] {
        let limiter = ample_limiter();
        let layer = RateLimitLayer::new(limiter.clone());
        let (server, first) = Server::behind(&limiter);
        let (other_server, other) = Server::behind(&limiter);
        let (unrelated_server, unrelated) = Server::behind(&ample_limiter());
        let short = layer.clone().with_max_queue(7);
        server.respond_once(&first, limits).await;
        let without_layer = tokio::spawn(limiter.acquire());
        let mut calls = Vec::new();
        for service in [first, server.with_layer(&layer), server.with_layer(&short), other, unrelated] {
            calls.extend(spawn_calls(&service, 1).await);
        }
        assert_all_succeed(calls).await;
        without_layer.await.unwrap().unwrap();
        server.assert_arrivals(times(&[(3, 5.0)]));
        other_server.assert_arrivals([5.0]);
        unrelated_server.assert_arrivals([0.0]);
    }
}

/// Without the reported remaining permits, the limiter would send all three requests at once.
#[tokio::test(start_paused = true)]
async fn limiter_with_a_quota_obeys_only_the_remaining_permits_of_throttled_responses() {
    let quota = Quota::per_second(1_000).unwrap().with_burst(500).unwrap();
    let (server, service) = Server::behind(&LocalLimiter::paced_window(quota));
    server.will_respond(0.0, remaining(0, 7));
    server.will_respond(0.0, response(429, &[("ratelimit", r#""default";r=0;t=9"#)]));
    for _ in 0..3 {
        service.clone().oneshot(costing(1)).await.unwrap();
    }
    server.assert_arrivals([0.0, 0.0, 9.0]);
}

/// A response without a limit sets no rate, and the reset applies only after a throttled response.
#[tokio::test(start_paused = true)]
async fn presets_do_not_wait_for_the_reset_of_a_used_up_quota() {
    for preset in [
        preset::currency_rates("https://rates.example.com"),
        preset::email_delivery("https://mail.example.com"),
        preset::realtime_messaging("https://push.example.com"),
    ] {
        let preset = preset.unwrap().with_api_key(ApiKey::new("k3y").unwrap());
        let (server, _) = Server::behind(&LocalLimiter::without_quota());
        let service = preset.layer().unwrap().layer(server.api.clone());
        server.will_respond(0.0, remaining(0, 7));
        for _ in 0..2 {
            let request = Request::get(preset.base_url().clone()).body(Body::empty()).unwrap();
            let response = service.clone().oneshot(request).await.unwrap();
            assert!(Report::from_response(&response).is_some());
        }
        server.assert_arrivals([0.0, 0.0]);
    }
}
