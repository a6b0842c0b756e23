//! What comes of asking once more for a connection that was not given, after the retry layer has given up: whether that
//! would help, and not before when.

use std::time::Duration;

use http::Response;

use super::{classify::should_retry, delivery::proof};
use crate::{
    call::Report,
    clock,
    error::{Error, Kind},
    policy::feedback,
};

/// The least time to wait after this answer, or none where the next would be the same.
///
/// More passes by itself than in one call: what speaks in place of a server that is being changed says any 5xx, and 425 is
/// for TLS, or for whoever is in front, to mend.
pub(super) fn of_answer<B>(answer: &Response<B>) -> Option<Duration> {
    let (status, headers) = (answer.status(), answer.headers());
    let passes = matches!(status.as_u16(), 408 | 425 | 429 | 500..600);
    let said = should_retry(status, headers);
    let asked = feedback::asked(status, headers, clock::wall);
    let left = Report::from_response(answer).and_then(Report::retry_after);
    said.unwrap_or(passes).then(|| asked.max(left).unwrap_or_default())
}

/// The least time to wait after this error, or none where the next call would fail with it, too.
pub(super) fn of_error(error: &Error) -> Option<Duration> {
    let passes = match error.failure() {
        Kind::RateLimited { .. } | Kind::Timeout { .. } | Kind::NotReady => true,
        Kind::Auth { again_in } => again_in.is_some(),
        Kind::TooCostly | Kind::Request => false,
        Kind::Service => !proof(error).lasting,
    };
    passes.then(|| error.retry_after().unwrap_or_default())
}

#[cfg(test)]
#[cfg(feature = "hyper")]
mod tests {
    use std::io;

    use http::StatusCode;
    use hyper_util::{
        client::legacy::{Client, connect::HttpConnector},
        rt::TokioExecutor,
    };

    use super::*;
    use crate::{
        Body,
        error::{DeliveryError, Reason, Refusal, Scope},
        retry::Reconnect,
    };

    fn answer(status: u16, headers: &[(&'static str, &'static str)]) -> Response<()> {
        let start = Response::builder().status(StatusCode::from_u16(status).unwrap());
        headers.iter().fold(start, |response, (name, value)| response.header(*name, *value)).body(()).unwrap()
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_passes_by_itself_is_asked_for_again_and_never_early() {
        for status in 100..=999 {
            let passes = [408, 425, 429].contains(&status) || (500..600).contains(&status);
            assert_eq!(of_answer(&answer(status, &[])), passes.then_some(Duration::ZERO), "{status}");
        }
        for (status, headers, expected) in [
            (429, &[("retry-after", "7")][..], Some(secs(7))),
            (503, &[("retry-after", "86400")], Some(secs(86_400))),
            (500, &[("retry-after-ms", "1500")], Some(Duration::from_millis(1_500))),
            (429, &[("ratelimit-remaining", "0"), ("ratelimit-reset", "9")], Some(secs(9))),
            (404, &[("retry-after", "7")], None),
            (404, &[("x-should-retry", "true"), ("retry-after", "7")], Some(secs(7))),
            (503, &[("x-should-retry", "false")], None),
            (200, &[("x-should-retry", "true")], None),
        ] {
            let got = of_answer(&answer(status, headers));
            // The limits of draft 6 are rounded up.
            let within = |(got, least): (Duration, Duration)| got >= least && got <= least + secs(1);
            assert!(got.is_some() == expected.is_some(), "{status} {headers:?}: {got:?}");
            assert!(got.zip(expected).is_none_or(within), "{status} {headers:?}: {got:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_passes_by_itself_is_met_again_and_never_early() {
        let refusal = |reason, wait| Error::refused(Refusal::new(reason, wait));
        let of_version_3 = || {
            let mut request = http::Request::get("http://127.0.0.1/").body(Body::empty()).unwrap();
            *request.version_mut() = http::Version::HTTP_3;
            let client: Client<HttpConnector, Body> = Client::builder(TokioExecutor::new()).build_http();
            client.request(request)
        };
        let service = |kind| Error::from_service(io::Error::from(kind));
        for (name, error, expected) in [
            ("a full line", refusal(Reason::QueueFull, Some(secs(30))), Some(secs(30))),
            ("too costly", refusal(Reason::TooCostly, None), None),
            ("a deadline", Error::timeout(Scope::Call, secs(1)), Some(Duration::ZERO)),
            ("a refused connection", service(io::ErrorKind::ConnectionRefused), Some(Duration::ZERO)),
            ("a broken connection", service(io::ErrorKind::ConnectionReset), Some(Duration::ZERO)),
            ("marked not sent", Error::from_service(DeliveryError::not_sent("no")), Some(Duration::ZERO)),
            ("not ready", Error::from_readiness("no"), Some(Duration::ZERO)),
            ("a path out of the base", Error::new(Kind::Request, "no"), None),
            ("no such version", Error::from_service(of_version_3().await.unwrap_err()), None),
            ("a key that may not go there", Error::new(Kind::Auth { again_in: None }, "no"), None),
            ("a provider", Error::new(Kind::Auth { again_in: Some(secs(5)) }, "no"), Some(secs(5))),
        ] {
            assert_eq!(of_error(&error), expected, "{name}");
            let mut reconnect = Reconnect::new();
            let wait = reconnect.failed(&error);
            assert_eq!(wait.is_some(), expected.is_some(), "{name}");
            assert!(wait.zip(expected).is_none_or(|(wait, least)| wait >= least), "{name}: {wait:?}");
            assert_eq!(reconnect.losses(), u32::from(wait.is_some()), "{name}");
        }
    }
}
