//! What a call pays for each layer, and for the whole preset stack, over a service that does nothing.
//!
//! `cargo bench --bench overhead` prints nanoseconds and allocations a call: the median of the rounds, each row
//! against the bare service in the same run. `-- --quick` runs few rounds, to see that it works.

use std::{
    convert::Infallible,
    error::Error,
    future::{Future, Ready, ready},
    hint::black_box,
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use tower::{Layer, Service, ServiceBuilder};
use tower_outbound::{
    ApiKey, Quota,
    auth::{BearerAuthLayer, Origin},
    limit::{RateLimitLayer, TokenBucket},
    preset::Preset,
    request_id::RequestIdLayer,
    retry::RetryLayer,
    timeout::TimeoutLayer,
};

type Body = Empty<Bytes>;
type BoxError = Box<dyn Error + Send + Sync>;

/// Answers at once, whatever the body.
#[derive(Debug, Clone)]
struct NoOp;

impl<B> Service<Request<B>> for NoOp {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        black_box(&request);
        ready(Ok(Response::new(Body::new())))
    }
}

struct Settings {
    rounds: usize,
    calls: usize,
}

struct Row {
    name: &'static str,
    nanos: f64,
    allocations: f64,
    bytes: f64,
}

fn request() -> Result<Request<Body>, http::Error> {
    // A caller's request is seldom bare: one header, so that the map is there.
    Request::get("https://api.example.com/v1/resources")
        .header("accept", "application/json")
        .body(Body::new())
}

fn call<S, R, E>(service: &mut S) -> Result<(), BoxError>
where
    S: Service<Request<Body>, Response = Response<R>, Error = E>,
    E: Into<BoxError>,
{
    let cx = &mut Context::from_waker(Waker::noop());
    let ready = service.poll_ready(cx).map_err(Into::into)?;
    if ready.is_pending() {
        return Err("the service was not ready".into());
    }
    match pin!(service.call(request()?)).poll(cx) {
        Poll::Ready(response) => {
            black_box(response.map_err(Into::into)?);
            Ok(())
        }
        Poll::Pending => Err("the call had to wait".into()),
    }
}

#[allow(clippy::disallowed_methods, reason = "a bench measures real time")]
fn measure<S, R, E>(settings: &Settings, name: &'static str, mut service: S) -> Result<Row, BoxError>
where
    S: Service<Request<Body>, Response = Response<R>, Error = E>,
    E: Into<BoxError>,
{
    for _ in 0..settings.calls / 10 {
        call(&mut service)?;
    }
    let mut rounds = Vec::with_capacity(settings.rounds);
    for _ in 0..settings.rounds {
        let start = std::time::Instant::now();
        for _ in 0..settings.calls {
            call(&mut service)?;
        }
        rounds.push(start.elapsed().as_nanos() as f64 / settings.calls as f64);
    }
    rounds.sort_by(f64::total_cmp);

    let mut outcome = Ok(());
    let heap = allocation_counter::measure(|| {
        for _ in 0..1_000 {
            if let Err(error) = call(&mut service) {
                outcome = Err(error);
            }
        }
    });
    outcome?;
    Ok(Row {
        name,
        nanos: rounds[rounds.len() / 2],
        allocations: heap.count_total as f64 / 1e3,
        bytes: heap.bytes_total as f64 / 1e3,
    })
}

fn main() -> Result<(), BoxError> {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let settings =
        if quick { Settings { rounds: 5, calls: 2_000 } } else { Settings { rounds: 51, calls: 20_000 } };

    // So large that nothing waits: the price of the permit is measured, not the wait.
    let bucket = || -> Result<TokenBucket, BoxError> {
        let quota = Quota::new(4_000_000_000, Duration::from_secs(1))?.with_burst(2_000_000_000)?;
        Ok(TokenBucket::new(quota))
    };
    let key = ApiKey::new("s3cret")?;
    let auth = BearerAuthLayer::new(key.clone(), Origin::parse("https://api.example.com")?)?;
    let total = TimeoutLayer::total(Duration::from_secs(60))?;
    let attempt = TimeoutLayer::per_attempt(Duration::from_secs(10))?;
    let quota = Quota::new(4_000_000_000, Duration::from_secs(1))?.with_burst(2_000_000_000)?;
    let preset =
        Preset::new("bench", "https://api.example.com")?.with_api_key(key).with_quota(quota).layer()?;
    let four = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(RetryLayer::new())
        .layer(RateLimitLayer::new(bucket()?))
        .layer(auth.clone());

    let rows = [
        measure(&settings, "bare service", NoOp)?,
        measure(&settings, "auth", auth.layer(NoOp))?,
        measure(&settings, "rate limit", RateLimitLayer::new(bucket()?).layer(NoOp))?,
        measure(&settings, "retry", RetryLayer::new().layer(NoOp))?,
        measure(&settings, "request id and log", RequestIdLayer::new().layer(NoOp))?,
        measure(&settings, "total deadline", total.layer(NoOp))?,
        measure(&settings, "attempt timeout", attempt.layer(NoOp))?,
        measure(&settings, "the four layers", four.service(NoOp))?,
        measure(&settings, "full preset stack", preset.layer(NoOp))?,
    ];

    let bare = &rows[0];
    println!("no subscriber, one thread; medians of {} rounds of {} calls", settings.rounds, settings.calls);
    println!();
    println!("| service | ns a call | over bare, ns | ratio | allocations over bare | bytes over bare |");
    println!("|---|---:|---:|---:|---:|---:|");
    for row in &rows {
        println!(
            "| {} | {:.0} | {:+.0} | {:.2} | {:+.1} | {:+.0} |",
            row.name,
            row.nanos,
            row.nanos - bare.nanos,
            row.nanos / bare.nanos,
            row.allocations - bare.allocations,
            row.bytes - bare.bytes,
        );
    }
    Ok(())
}
