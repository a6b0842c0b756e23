//! The callers, which send requests, sometimes cancel calls, and record the outcomes.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request};
use http_body::Frame;
use http_body_util::StreamBody;
use tower_outbound::{Body, BoxError, Error, ErrorKind, call::Deadline, client::Response, limit::PermitCost};

use super::{api::Api, history::History, log_scanner, rng::Rng};

/// Sends random requests until the load phase ends.
pub(crate) async fn send_until_load_ends(api: Arc<Api>, history: Arc<History>, seed: u64) {
    while !history.has_load_ended() {
        let number = history.calls_started.fetch_add(1, Relaxed);
        let mut rng = Rng::new(seed, "call", number);
        send(&api, &history, number, &mut rng).await;
        if rng.chance(300) {
            tokio::time::sleep(rng.millis(1, 100)).await;
        }
    }
}

/// Sends plain requests until the retry budget is full.
///
/// Each failure increases the pause between requests. Without the pause, the TLS handshakes of all callers together
/// could repeatedly exceed the attempt timeout on a busy machine.
pub(crate) async fn send_until_budget_is_full(api: Arc<Api>, history: Arc<History>) {
    let mut pause = Duration::ZERO;
    while api.budget.left() < api.budget.capacity() {
        tokio::time::sleep(pause).await;
        let number = history.calls_started.fetch_add(1, Relaxed);
        let request = Request::get("/v1/recovery").header("x-call", number).body(Body::empty()).unwrap();
        let result = api.client.execute(request).await;
        record(&history, number, &result);
        pause = match result {
            Ok(response) => {
                let _ = response.into_body().bytes_up_to(64 << 10).await;
                Duration::ZERO
            }
            Err(_) => (pause * 2).clamp(Duration::from_millis(50), Duration::from_secs(3)),
        };
    }
}

async fn send(api: &Api, history: &History, number: u64, rng: &mut Rng) {
    let request = random_request(number, rng);
    let call = api.client.execute(request);
    let cancel_after = rng.chance(200).then(|| rng.millis(0, 120));
    let result = match cancel_after {
        None => call.await,
        Some(time) => match tokio::time::timeout(time, call).await {
            Ok(result) => result,
            Err(_) => return history.count_call("cancelled"),
        },
    };
    record(history, number, &result);
    let is_read = rng.chance(800);
    let Some(response) = result.ok().filter(|_| is_read) else { return };
    let reading = response.into_body().bytes_up_to(64 << 10);
    if let Ok(Err(error)) = tokio::time::timeout(Duration::from_millis(400), reading).await {
        log_scanner::search("a body error", || format!("{error} {error:?}"));
    }
}

fn random_request(number: u64, rng: &mut Rng) -> Request<Body> {
    let method = rng.choose_weighted(&[
        (450, Method::GET.as_str()),
        (400, Method::POST.as_str()),
        (100, Method::PUT.as_str()),
        (50, Method::DELETE.as_str()),
    ]);
    let body = match method {
        "GET" | "DELETE" => Body::empty(),
        _ if rng.chance(200) => streamed(rng.below(6) as usize),
        _ => Body::from(vec![b'l'; rng.below(4_000) as usize]),
    };
    let mut request =
        Request::builder().method(method).uri("/v1/letters").header("x-call", number).body(body).unwrap();
    if rng.chance(50) {
        let cost = u32::try_from(1 + rng.below(3)).unwrap();
        request.extensions_mut().insert(PermitCost(cost.try_into().unwrap()));
    }
    if rng.chance(100) {
        request.extensions_mut().insert(Deadline::after(rng.millis(20, 400)));
    }
    request
}

/// Returns a request body that takes 3 ms per chunk.
fn streamed(chunks: usize) -> Body {
    let frames = stream::iter(0..chunks).then(|_| async {
        tokio::time::sleep(Duration::from_millis(3)).await;
        Ok::<_, BoxError>(Frame::data(Bytes::from_static(&[b'l'; 500])))
    });
    Body::new(StreamBody::new(frames))
}

/// Records the outcome of a call, and searches the response, error and report for keys.
fn record(history: &History, number: u64, result: &Result<Response, Error>) {
    let report = match result {
        Ok(response) => response.report(),
        Err(error) => error.report(),
    };
    match result {
        Ok(response) => {
            history.count_call(&format!("response {}", response.status().as_u16()));
            log_scanner::search("a response", || format!("{response:?} {report:?}"));
        }
        Err(error) => {
            history.count_call(error.kind().as_str());
            if kinds(error) != 1 {
                history.add_violation(format!("call {number}: not exactly one kind of error: {error:?}"));
            }
            log_scanner::search("an error", || format!("{error} {error:#} {error:?} {error:#?} {report:?}"));
        }
    }
    if report.is_none() {
        history.add_violation(format!("call {number}: no report"));
    }
}

/// Returns how many kinds the predicates of an error name.
fn kinds(error: &Error) -> usize {
    let kinds = [
        error.is_rate_limited(),
        error.kind() == ErrorKind::TooCostly,
        error.is_deadline(),
        error.is_timeout() && !error.is_deadline() && !error.is_service(),
        error.is_auth(),
        error.is_service(),
    ];
    kinds.into_iter().filter(|is| *is).count()
}
