//! "Was it sent?": servers that fail in every way there is, and their own count of what they processed. Whatever
//! they do, a POST is never processed twice, one that was provably not sent is sent again, and a GET always arrives.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod faults;
mod frames;
mod http2;
mod queued;
mod server;

use std::{future::Future, time::Duration};

use http::{Method, Request, StatusCode};
use hyper_util::{
    client::legacy::{Client as Connections, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{Layer, Service};
use tower_outbound::{
    ApiKey, Body, Client, Error, ExponentialBackoff, Report,
    body::ReplayBody,
    call::{Ended, Outcome},
    client::Transport,
    preset,
    retry::{Retry, RetryLayer},
};

use self::server::Server;

const METHODS: [Method; 2] = [Method::POST, Method::GET];

const CASES: [(Wire, Method); 4] = [
    (Wire::Http1, Method::POST),
    (Wire::Http1, Method::GET),
    (Wire::Http2, Method::POST),
    (Wire::Http2, Method::GET),
];

const OK: Outcome = Outcome::Answer(StatusCode::OK);

/// What speaks to the server.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wire {
    Http1,
    Http2,
}

/// The two ways to have retries over hyper-util's client.
#[allow(clippy::large_enum_variant, reason = "one a test")]
enum Stack {
    Layer { service: Retry<Connections<HttpConnector, ReplayBody<Body>>>, url: String },
    Ready(Client),
}

/// What came of a call.
#[derive(Debug)]
struct Came {
    result: Result<StatusCode, Error>,
    outcomes: Vec<Outcome>,
    ended: Option<Ended>,
}

fn quick_retry() -> RetryLayer {
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(5)).unwrap();
    RetryLayer::new().with_backoff(backoff)
}

fn transport(wire: Wire) -> Transport {
    match wire {
        Wire::Http1 => Transport::new(),
        Wire::Http2 => Transport::new().with_http2_prior_knowledge(),
    }
}

impl Stack {
    /// Each of the two, new, without a connection.
    fn both(url: &str, wire: Wire) -> [Self; 2] {
        let preset = preset::realtime_messaging(url).unwrap().with_api_key(ApiKey::new("key").unwrap());
        let ready = preset.with_retry(quick_retry()).client_over(transport(wire)).unwrap();
        let connections =
            Connections::builder(TokioExecutor::new()).http2_only(wire == Wire::Http2).build_http();
        [Self::layer(connections, url), Self::Ready(ready)]
    }

    /// One of them.
    fn number(at: usize, url: &str, wire: Wire) -> Self {
        Self::both(url, wire).into_iter().nth(at).unwrap()
    }

    fn layer(connections: Connections<HttpConnector, ReplayBody<Body>>, url: &str) -> Self {
        Self::Layer { service: quick_retry().layer(connections), url: url.to_owned() }
    }

    /// Sends a request, a POST with a body, and reads the answer to its end.
    async fn send(&mut self, method: Method) -> Came {
        let body = if method == Method::POST { Body::from("the letter") } else { Body::empty() };
        self.send_body(method, body).await
    }

    async fn send_body(&mut self, method: Method, body: Body) -> Came {
        let request = Request::builder().method(method).uri(match self {
            Self::Layer { url, .. } => format!("{url}/v1"),
            Self::Ready(_) => "/v1".to_owned(),
        });
        let request = request.body(body).unwrap();
        let sent = match self {
            Self::Layer { service, .. } => {
                let answer = within(service.call(request)).await;
                answer.map(|response| (Report::of(&response).cloned(), response.status()))
            }
            Self::Ready(client) => match within(client.request(request)).await {
                Ok(response) => {
                    let head = (Report::of(&response).cloned(), response.status());
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
        let outcomes = report.attempts().iter().filter_map(|attempt| attempt.outcome()).collect();
        Came { result, outcomes, ended: report.ended() }
    }
}

impl Came {
    fn assert_sent_again_after(&self, first: Outcome, case: &str) {
        assert_eq!(self.outcomes, [first, OK], "{case}: {self:?}");
        assert_eq!(self.result.as_ref().ok(), Some(&StatusCode::OK), "{case}: {self:?}");
    }

    fn assert_given_up(&self, case: &str) {
        assert_eq!(self.outcomes, [Outcome::Failed], "{case}: {self:?}");
        assert_eq!(self.ended, Some(Ended::NotIdempotent), "{case}: {self:?}");
        assert!(self.result.as_ref().is_err_and(Error::is_service), "{case}: {self:?}");
    }
}

/// The first attempt of a POST came to nothing, after the server had processed it so often; it may have been, so it
/// is not sent again. A GET is.
fn assert_maybe(server: &Server, method: &Method, came: &Came, processed: usize, case: &str) {
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
async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("within 10 s")
}

/// Lets the tasks of this thread run until they wait for something: a connection goes back to its pool in a task of
/// hyper's, after the answer was read. No time passes.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
