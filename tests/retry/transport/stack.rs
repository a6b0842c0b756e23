//! The service stacks under test, and assertions about the results of their calls.

use std::time::Duration;

use http::{Method, Request, StatusCode};
use tower::{Layer, Service};
use tower_outbound::{
    ApiKey, Body, Client, Error, ExponentialBackoff, Report,
    call::{Outcome, StopReason},
    preset,
    retry::{Retry, RetryLayer},
};

use super::{Inner, server::Server, within};

pub(crate) const METHODS: [Method; 2] = [Method::POST, Method::GET];

pub(crate) const CASES: [(Wire, Method); 4] = [
    (Wire::Http1, Method::POST),
    (Wire::Http1, Method::GET),
    (Wire::Http2, Method::POST),
    (Wire::Http2, Method::GET),
];

pub(crate) const OK: Outcome = Outcome::Response(StatusCode::OK);

/// The protocol of the connections.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Wire {
    Http1,
    Http2,
}

/// The two ways to add retries to an HTTP client.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Setup {
    RetryLayer,
    ReadyClient,
}

pub(crate) const SETUPS: [Setup; 2] = [Setup::RetryLayer, Setup::ReadyClient];

#[allow(clippy::large_enum_variant, reason = "a test creates few stacks")]
pub(crate) enum Stack {
    Layer { service: Retry<Inner>, url: String },
    Client(Client),
}

/// The result of a call, with the outcome of each attempt.
#[derive(Debug)]
pub(crate) struct CallResult {
    pub(crate) result: Result<StatusCode, Error>,
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) stop_reason: Option<StopReason>,
}

/// Returns a retry layer with three attempts and a backoff of at most 5 ms.
pub(crate) fn quick_retry() -> RetryLayer {
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(5)).unwrap();
    RetryLayer::new().with_backoff(backoff)
}

impl Stack {
    /// Creates a stack that has no connection yet.
    pub(crate) fn new(setup: Setup, url: &str, wire: Wire) -> Self {
        match setup {
            Setup::RetryLayer => {
                Self::Layer { service: quick_retry().layer(super::inner(wire)), url: url.to_owned() }
            }
            Setup::ReadyClient => {
                let preset = preset::realtime_messaging(url).unwrap();
                let preset = preset.with_api_key(ApiKey::new("key").unwrap()).with_retry(quick_retry());
                Self::Client(super::ready_client(&preset, wire))
            }
        }
    }

    /// Sends a request and reads the response to its end. Only a POST has a body.
    pub(crate) async fn send(&mut self, method: Method) -> CallResult {
        let body = if method == Method::POST { Body::from("the letter") } else { Body::empty() };
        self.send_body(method, body).await
    }

    pub(crate) async fn send_body(&mut self, method: Method, body: Body) -> CallResult {
        let request = Request::builder().method(method).uri(match self {
            Self::Layer { url, .. } => format!("{url}/v1"),
            Self::Client(_) => "/v1".to_owned(),
        });
        let request = request.body(body).unwrap();
        let called = match self {
            Self::Layer { service, .. } => {
                let result = within(service.call(request)).await;
                result.map(|response| (Report::from_response(&response).cloned(), response.status()))
            }
            Self::Client(client) => match within(client.execute(request)).await {
                Ok(response) => {
                    let report_and_status = (response.report().cloned(), response.status());
                    // An unread response body would keep the connection out of the pool.
                    let _ = within(response.into_body().bytes_up_to(1024)).await;
                    Ok(report_and_status)
                }
                Err(error) => Err(error),
            },
        };
        let (report, result) = match called {
            Ok((report, status)) => (report.unwrap(), Ok(status)),
            Err(error) => (error.report().unwrap().clone(), Err(error)),
        };
        let outcomes = report.attempts().iter().filter_map(|attempt| attempt.outcome).collect();
        CallResult { result, outcomes, stop_reason: report.stop_reason() }
    }
}

impl CallResult {
    pub(crate) fn assert_retried_after(&self, first: Outcome, case: &str) {
        assert_eq!(self.outcomes, [first, OK], "{case}: {self:?}");
        assert_eq!(self.result.as_ref().ok(), Some(&StatusCode::OK), "{case}: {self:?}");
    }

    fn assert_not_retried(&self, case: &str) {
        assert_eq!(self.outcomes, [Outcome::Failed], "{case}: {self:?}");
        assert_eq!(self.stop_reason, Some(StopReason::NotIdempotent), "{case}: {self:?}");
        assert!(self.result.as_ref().is_err_and(Error::is_service), "{case}: {self:?}");
    }
}

/// Asserts that the client retries a GET, but not a POST, because the server may have processed the first attempt.
/// `processed` is the number of times that the server processed the first attempt.
pub(crate) fn assert_only_get_is_retried(
    server: &Server,
    method: &Method,
    call: &CallResult,
    processed: usize,
    case: &str,
) {
    match *method {
        Method::POST => {
            call.assert_not_retried(case);
            assert_eq!(server.processed(method), processed, "{case}");
        }
        _ => {
            call.assert_retried_after(Outcome::Failed, case);
            assert_eq!(server.processed(method), processed + 1, "{case}");
        }
    }
}
