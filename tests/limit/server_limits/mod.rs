//! Tests of the rate-limit headers of responses, which `RateLimitLayer` passes to its limiter.

mod headers;
mod in_flight;
mod reports;

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
