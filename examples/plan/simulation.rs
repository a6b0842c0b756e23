//! Simulates callers that always have a request to send. Requests pass a limiter and a network, and reach a server that
//! enforces the quota.

use std::time::Duration;

use http::{Request, Response};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout_at},
};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_outbound::{Body, BoxError, Quota, limit::RateLimitLayer, test_util::ScriptedService};

use crate::{arguments::Arguments, strategies::Strategy};

/// The time that a request takes to the server, and that a response takes back.
pub(crate) const HOP: Duration = Duration::from_millis(20);
/// The callers send requests for this number of windows.
pub(crate) const LOAD_WINDOWS: u32 = 3;

/// The requests of one strategy.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) strategy: &'static Strategy,
    /// The requests in the order in which they left the limiter.
    pub(crate) requests: Vec<Sent>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    /// The time since the start of the run at which the request left the limiter. The network delays all requests
    /// equally, so the server counts the same windows.
    pub(crate) at: Duration,
    /// How long the request waited in the limiter.
    pub(crate) wait: Duration,
    pub(crate) is_accepted: bool,
}

/// The time at which a request left the limiter, as an extension of its response.
#[derive(Debug, Clone, Copy)]
struct LeftAt(Instant);

/// Returns the time before the first request.
pub(crate) fn idle(quota: Quota) -> Duration {
    quota.window() / 4
}

/// Returns the length of a run.
pub(crate) fn length(quota: Quota) -> Duration {
    idle(quota) + quota.window() * LOAD_WINDOWS
}

/// Returns the number of callers, which is at least 10. They can send four times as many requests as the quota allows.
pub(crate) fn callers(quota: Quota) -> usize {
    let per_second = f64::from(quota.limit()) / quota.window().as_secs_f64();
    let busy = per_second * 2.0 * HOP.as_secs_f64();
    (4.0 * busy).ceil().max(10.0) as usize
}

pub(crate) async fn run(strategy: &'static Strategy, arguments: &Arguments) -> Result<Run, BoxError> {
    let quota = arguments.quota;
    let (start, limiter) = (Instant::now(), (strategy.limiter)(quota)?);
    let server = (arguments.server)(quota).with_headers(arguments.headers);
    let api = ScriptedService::from_fn(move |_| server.respond());
    let network = service_fn(move |request| deliver(api.clone(), request));
    let service = RateLimitLayer::new(limiter).layer(network);

    sleep(idle(quota)).await;
    let end = start + length(quota);
    let callers: JoinSet<_> = (0..callers(quota)).map(|_| send_until(end, start, service.clone())).collect();
    let mut requests = Vec::new();
    for sent in callers.join_all().await {
        requests.extend(sent?);
    }
    requests.sort_by_key(|sent| sent.at);
    Ok(Run { strategy, requests })
}

/// Delivers a request to the server, and its response back.
async fn deliver(api: ScriptedService, request: Request<Body>) -> Result<Response<Body>, BoxError> {
    let left_at = LeftAt(Instant::now());
    sleep(HOP).await;
    let mut response = api.oneshot(request).await?;
    sleep(HOP).await;
    response.extensions_mut().insert(left_at);
    Ok(response)
}

/// Sends one request after the other until `end`. Returns the requests that left the limiter before `end`.
async fn send_until<S>(end: Instant, start: Instant, mut service: S) -> Result<Vec<Sent>, BoxError>
where
    S: Service<Request<Body>, Response = Response<Body>, Error: Into<BoxError>>,
{
    let mut requests = Vec::new();
    loop {
        let called_at = Instant::now();
        let call = async {
            let service = service.ready().await?;
            service.call(Request::new(Body::empty())).await
        };
        // A request that left before the end has its response by then.
        let Ok(response) = timeout_at(end + HOP * 2, call).await else { return Ok(requests) };
        let response = response.map_err(Into::into)?;
        let LeftAt(left_at) = *response.extensions().get().ok_or("the response lacks its send time")?;
        if left_at >= end {
            return Ok(requests);
        }
        requests.push(Sent {
            at: left_at - start,
            wait: left_at - called_at,
            is_accepted: response.status().is_success(),
        });
    }
}
