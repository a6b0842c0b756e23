//! Callers: they call, wait or give up, and write down how it ended.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use tower_outbound::{
    Body, BoxError, Error, Report,
    call::{Deadline, Outcome},
    limit::PermitCost,
};

use super::{
    dice::Dice,
    ledger::{Ended, Ledger, write},
    listener,
    site::Site,
};

/// Calls until it is over, now and then after a pause.
pub(crate) async fn calls(site: Arc<Site>, ledger: Arc<Ledger>, seed: u64) {
    while !ledger.is_over() {
        let number = ledger.started.fetch_add(1, Relaxed);
        let mut dice = Dice::about(seed, "call", number);
        call(&site, &ledger, number, &mut dice).await;
        if dice.chance(300) {
            tokio::time::sleep(dice.millis(1, 100)).await;
        }
    }
}

/// Plain calls, until the budget is as full as it was. Fewer and fewer where they fail: on a machine that is busy enough
/// the handshakes of all of them together would take longer than an attempt may, for ever.
pub(crate) async fn recovers(site: Arc<Site>, ledger: Arc<Ledger>) {
    let mut pause = Duration::ZERO;
    while site.budget.left() < site.budget.capacity() {
        tokio::time::sleep(pause).await;
        let number = ledger.started.fetch_add(1, Relaxed);
        let request = Request::get("/v1/calm").header("x-call", number).body(Body::empty()).unwrap();
        let outcome = site.client.request(request).await;
        end(&ledger, number, &outcome);
        pause = match outcome {
            Ok(response) => {
                let _ = response.into_body().collect(64 << 10).await;
                Duration::ZERO
            }
            Err(_) => (pause * 2).clamp(Duration::from_millis(50), Duration::from_secs(3)),
        };
    }
}

async fn call(site: &Site, ledger: &Ledger, number: u64, dice: &mut Dice) {
    let request = request(number, dice);
    let calling = site.client.request(request);
    let patience = dice.chance(200).then(|| dice.millis(0, 120));
    let outcome = match patience {
        None => calling.await,
        Some(patience) => match tokio::time::timeout(patience, calling).await {
            Ok(outcome) => outcome,
            Err(_) => return ledger.end("cancelled"),
        },
    };
    end(ledger, number, &outcome);
    if let Ok(response) = outcome {
        let how = read(response, dice).await;
        write(|| *ledger.bodies.lock().unwrap().entry(how).or_default() += 1);
    }
}

fn request(number: u64, dice: &mut Dice) -> Request<Body> {
    let method = dice.weighed(&[
        (450, Method::GET.as_str()),
        (400, Method::POST.as_str()),
        (100, Method::PUT.as_str()),
        (50, Method::DELETE.as_str()),
    ]);
    let body = match method {
        "GET" | "DELETE" => Body::empty(),
        _ if dice.chance(200) => streamed(dice.below(6) as usize),
        _ => Body::from(vec![b'l'; dice.below(4_000) as usize]),
    };
    let mut request =
        Request::builder().method(method).uri("/v1/letters").header("x-call", number).body(body).unwrap();
    if dice.chance(50) {
        let cost = u32::try_from(1 + dice.below(3)).unwrap();
        request.headers_mut().insert("x-cost", cost.into());
        request.extensions_mut().insert(PermitCost(cost.try_into().unwrap()));
    }
    if dice.chance(100) {
        request.extensions_mut().insert(Deadline::after(dice.millis(20, 400)));
    }
    request
}

/// A body that comes by and by.
fn streamed(chunks: usize) -> Body {
    let frames = stream::iter(0..chunks).then(|_| async {
        tokio::time::sleep(Duration::from_millis(3)).await;
        Ok::<_, BoxError>(Frame::data(Bytes::from_static(&[b'l'; 500])))
    });
    Body::new(StreamBody::new(frames))
}

async fn read(response: Response<Body>, dice: &mut Dice) -> &'static str {
    if dice.chance(200) {
        return "dropped";
    }
    let reading = response.into_body().collect(64 << 10);
    match tokio::time::timeout(Duration::from_millis(400), reading).await {
        Ok(Ok(_)) => "read",
        Ok(Err(error)) => {
            listener::search("a body's error", || format!("{error} {error:?}"));
            "failed"
        }
        Err(_) => "given up",
    }
}

/// Writes down how a call ended, and looks for keys in all that it tells.
fn end(ledger: &Ledger, number: u64, outcome: &Result<Response<Body>, Error>) {
    let report = match outcome {
        Ok(response) => Report::from_response(response),
        Err(error) => error.report(),
    };
    match outcome {
        Ok(response) => {
            ledger.end(&format!("answered {}", response.status().as_u16()));
            listener::search("an answer", || format!("{response:?} {report:?}"));
        }
        Err(error) => {
            ledger.end(kind(error));
            listener::search("an error", || format!("{error} {error:#} {error:?} {error:#?} {report:?}"));
        }
    }
    let Some(report) = report else { return ledger.wrong(format!("call {number} has no report")) };
    let (mut answers, mut maybe_sent) = (0, 0);
    for attempt in report.attempts() {
        match attempt.outcome {
            Some(Outcome::Response(_)) => (answers, maybe_sent) = (answers + 1, maybe_sent + 1),
            Some(Outcome::NotSent | Outcome::Refused) => {}
            _ => maybe_sent += 1,
        }
    }
    let ended = Ended { call: number, answers, maybe_sent };
    write(|| ledger.ended.lock().unwrap().push(ended));
}

fn kind(error: &Error) -> &'static str {
    let kinds = [
        (error.is_rate_limited(), "failed: refused by the limiter"),
        (error.kind() == tower_outbound::ErrorKind::TooCostly, "failed: too costly"),
        (error.is_deadline(), "failed: deadline"),
        (error.is_timeout() && !error.is_deadline(), "failed: attempt's timeout"),
        (error.is_auth(), "failed: no key"),
        (error.is_service(), "failed: transport"),
        (error.is_invalid_request(), "failed: invalid request"),
    ];
    // Exactly one of them.
    match kinds.iter().filter(|(is, _)| *is).count() {
        1 => kinds.iter().find(|(is, _)| *is).map_or("", |(_, kind)| kind),
        _ => "failed: of no kind, or of two",
    }
}
