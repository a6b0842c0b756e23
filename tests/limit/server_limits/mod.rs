//! Tests of the rate-limit headers of responses, which `RateLimitLayer` passes to its limiter.

mod deadlines;
mod headers;
mod in_flight;
mod remaining;
mod retry_after;
mod slow_start;

use std::{
    collections::VecDeque,
    io,
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response};
use tokio::{task::JoinHandle, time::Instant};
use tower::{ServiceExt, util::BoxCloneSyncService};
use tower_layer::Layer;
use tower_outbound::{
    BoxError, Error, Quota,
    limit::{Limiter, LocalLimiter, PermitCost, RateLimitLayer},
};

/// A server that records when each request arrives. It returns the queued responses in order, each after its delay. If
/// no response is queued, the server immediately returns an empty 200.
struct Server {
    start: Instant,
    responses: Mutex<VecDeque<(Duration, Response<()>)>>,
    arrivals: Mutex<Vec<Instant>>,
}

type Service = BoxCloneSyncService<Request<()>, Response<()>, Error>;
type Call = JoinHandle<Result<Response<()>, Error>>;

/// A queued response with this status makes the server return an I/O error instead.
const RESET: u16 = 999;

impl Server {
    fn start() -> Arc<Self> {
        let (start, responses, arrivals) = (Instant::now(), Mutex::default(), Mutex::default());
        Arc::new(Self { start, responses, arrivals })
    }

    /// Queues a response that the server returns `delay` seconds after a request arrives.
    fn will_respond(&self, delay: f64, response: Response<()>) {
        self.responses.lock().unwrap().push_back((Duration::from_secs_f64(delay), response));
    }

    async fn serve(&self) -> Result<Response<()>, BoxError> {
        self.arrivals.lock().unwrap().push(Instant::now());
        let queued = self.responses.lock().unwrap().pop_front();
        let Some((delay, response)) = queued else { return Ok(Response::new(())) };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if response.status() == RESET { Err(io::Error::other("reset").into()) } else { Ok(response) }
    }

    fn with_layer<L: Limiter + Send + Sync + 'static>(
        self: &Arc<Self>,
        layer: &RateLimitLayer<L>,
    ) -> Service {
        let server = Arc::clone(self);
        let inner = tower::service_fn(move |_: Request<()>| {
            let server = Arc::clone(&server);
            async move { server.serve().await }
        });
        BoxCloneSyncService::new(layer.layer(inner))
    }

    /// Makes one call that receives `response`, so that the limiter reads the headers of `response`. The arrival of the
    /// call is not recorded.
    async fn respond_once(&self, service: &Service, response: Response<()>) {
        self.will_respond(0.0, response);
        service.clone().oneshot(Request::new(())).await.unwrap();
        self.arrivals.lock().unwrap().pop();
    }

    /// Asserts that the requests arrived at the `expected` times, in seconds since the server was started.
    #[track_caller]
    fn assert_arrivals(&self, expected: impl AsRef<[f64]>) {
        let arrivals = self.arrivals.lock().unwrap();
        let arrivals: Vec<_> = arrivals.iter().map(|at| (*at - self.start).as_secs_f64()).collect();
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

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns a limiter that obeys the remaining permits of the server, and whose own quota delays no request of the
/// tests.
fn ample_limiter() -> LocalLimiter {
    LocalLimiter::paced_window(Quota::per_second(1_000).unwrap().with_burst(500).unwrap().without_margin())
        .with_server_remaining()
}

fn one_per_second_limiter() -> LocalLimiter {
    LocalLimiter::paced_window(Quota::per_second(1).unwrap().without_margin()).with_server_remaining()
}

fn response(status: u16, headers: &[(&str, &str)]) -> Response<()> {
    let builder = Response::builder().status(status);
    headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value)).body(()).unwrap()
}

/// Returns a 200 response with a `RateLimit` header in the format of IETF draft 10.
fn remaining(permits: u64, reset_after: u64) -> Response<()> {
    response(200, &[("ratelimit", &format!(r#""default";r={permits};t={reset_after}"#))])
}

/// Spawns `count` calls in order. Returns when every call has completed or waits for the limiter, the server or a
/// timer.
async fn spawn_calls(service: &Service, count: usize) -> Vec<Call> {
    let calls = (0..count).map(|_| tokio::spawn(service.clone().oneshot(Request::new(())))).collect();
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

fn costing(cost: u32) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(PermitCost(NonZeroU32::new(cost).unwrap()));
    request
}
