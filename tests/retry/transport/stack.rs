//! A client under test, and what is said of its calls.

use std::{future::Future, time::Duration};

use http::{Method, Request, StatusCode};
use tower::{Layer, Service};
use tower_outbound::{
    ApiKey, Body, Client, Error, ExponentialBackoff, Report,
    call::{Outcome, StopReason},
    preset,
    retry::{Retry, RetryLayer},
};

use super::{Inner, server::Server};

pub(crate) const METHODS: [Method; 2] = [Method::POST, Method::GET];

pub(crate) const CASES: [(Wire, Method); 4] = [
    (Wire::Http1, Method::POST),
    (Wire::Http1, Method::GET),
    (Wire::Http2, Method::POST),
    (Wire::Http2, Method::GET),
];

pub(crate) const OK: Outcome = Outcome::Response(StatusCode::OK);

/// What speaks to the server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Wire {
    Http1,
    Http2,
}

/// The two ways to have retries over a client.
#[allow(clippy::large_enum_variant, reason = "one a test")]
pub(crate) enum Stack {
    Layer { service: Retry<Inner>, url: String },
    Ready(Client),
}

/// What came of a call.
#[derive(Debug)]
pub(crate) struct Came {
    pub(crate) result: Result<StatusCode, Error>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) ended: Option<StopReason>,
}

pub(crate) fn quick_retry() -> RetryLayer {
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(5)).unwrap();
    RetryLayer::new().with_backoff(backoff)
}

impl Stack {
    /// Each of the two, new, without a connection.
    pub(crate) fn both(url: &str, wire: Wire) -> [Self; 2] {
        let preset = preset::realtime_messaging(url).unwrap().with_api_key(ApiKey::new("key").unwrap());
        let ready = super::ready(&preset.with_retry(quick_retry()), wire);
        [Self::layer(super::inner(wire), url), Self::Ready(ready)]
    }

    /// One of them.
    pub(crate) fn number(at: usize, url: &str, wire: Wire) -> Self {
        Self::both(url, wire).into_iter().nth(at).unwrap()
    }

    pub(crate) fn layer(inner: Inner, url: &str) -> Self {
        Self::Layer { service: quick_retry().layer(inner), url: url.to_owned() }
    }

    /// Sends a request, a POST with a body, and reads the answer to its end.
    pub(crate) async fn send(&mut self, method: Method) -> Came {
        let body = if method == Method::POST { Body::from("the letter") } else { Body::empty() };
        self.send_body(method, body).await
    }

    pub(crate) async fn send_body(&mut self, method: Method, body: Body) -> Came {
        let request = Request::builder().method(method).uri(match self {
            Self::Layer { url, .. } => format!("{url}/v1"),
            Self::Ready(_) => "/v1".to_owned(),
        });
        let request = request.body(body).unwrap();
        let sent = match self {
            Self::Layer { service, .. } => {
                let answer = within(service.call(request)).await;
                answer.map(|response| (Report::from_response(&response).cloned(), response.status()))
            }
            Self::Ready(client) => match within(client.request(request)).await {
                Ok(response) => {
                    let head = (Report::from_response(&response).cloned(), response.status());
                    // Or its connection can't go back to the pool.
                    let _ = within(response.into_body().collect(1024)).await;
                    Ok(head)
                }
                Err(error) => Err(error),
            },
        };
        let (report, result) = match sent {
            Ok((report, status)) => (report.unwrap(), Ok(status)),
            Err(error) => (error.report().unwrap().clone(), Err(error)),
        };
        let outcomes = report.attempts().iter().filter_map(|attempt| attempt.outcome).collect();
        Came { result, outcomes, ended: report.stop_reason() }
    }
}

impl Came {
    pub(crate) fn assert_sent_again_after(&self, first: Outcome, case: &str) {
        assert_eq!(self.outcomes, [first, OK], "{case}: {self:?}");
        assert_eq!(self.result.as_ref().ok(), Some(&StatusCode::OK), "{case}: {self:?}");
    }

    pub(crate) fn assert_given_up(&self, case: &str) {
        assert_eq!(self.outcomes, [Outcome::Failed], "{case}: {self:?}");
        assert_eq!(self.ended, Some(StopReason::NotIdempotent), "{case}: {self:?}");
        assert!(self.result.as_ref().is_err_and(Error::is_service), "{case}: {self:?}");
    }
}

/// The first attempt of a POST came to nothing, after the server had processed it so often; it may have been, so it
/// is not sent again. A GET is.
pub(crate) fn assert_maybe(server: &Server, method: &Method, came: &Came, processed: usize, case: &str) {
    match *method {
        Method::POST => {
            came.assert_given_up(case);
            assert_eq!(server.processed(method), processed, "{case}");
        }
        _ => {
            came.assert_sent_again_after(Outcome::Failed, case);
            assert_eq!(server.processed(method), processed + 1, "{case}");
        }
    }
}

/// Fails a test that would hang.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("within 60 s")
}

/// Lets the tasks of this thread run until they wait for something: a connection goes back to its pool in a task of
/// hyper's, after the answer was read. No time passes.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
