//! The text of errors and reports, and finding an `Error` inside other errors.

use std::{error::Error as StdError, fmt};

use hyper_util::client::legacy::connect::HttpConnector;
use tower::Layer;
use tower_outbound::{ErrorKind, Report};

use super::{
    support::{Scripted::*, ScriptedService, get, request, secs},
    *,
};

fn tcp() -> Connector {
    BoxCloneSyncService::new(HttpConnector::new().map_err(BoxError::from))
}

#[tokio::test]
async fn shows_one_line_with_the_cause_attempts_stop_reason_and_id() {
    let (_socket, refused) = refusing();
    let error = through_client(&format!("http://{refused}"), tcp(), false, no_body).await;
    let id = error.request_id().unwrap().to_str().unwrap().to_owned();
    let shown = format!("{error:?}");
    let expected = format!(
        "connection refused after 3 attempts (exhausted, request id {id}): client error (Connect): tcp connect error: \
         Connection refused (os error 111)"
    );
    if cfg!(target_os = "linux") {
        assert_eq!(shown, expected);
    }
    assert_eq!(format!("{error:#?}"), shown, "one line in every format");
    assert_eq!(error.to_string(), format!("connection refused after 3 attempts (request id {id})"));
    assert!(format!("{error:#}").starts_with(&format!("{error}: client error (Connect): tcp connect error")));
    let report = error.report().unwrap();
    assert_eq!(
        report.to_string(),
        format!("request id {id}: 3 attempts (not sent, not sent, not sent), exhausted")
    );
}

#[cfg(feature = "json")]
#[tokio::test]
async fn shows_the_error_of_a_json_call_on_one_line() {
    let (_socket, refused) = refusing();
    let client = preset(&format!("http://{refused}")).client().unwrap();
    let error = client.get_json::<()>("/v1").await.unwrap_err();
    let shown = format!("{error:?}");
    assert!(
        shown.contains("connection refused after 3 attempts") && shown.contains("tcp connect error"),
        "{shown}"
    );
    assert!(shown.len() < 200 && !shown.contains(['\n', '{']), "{shown}");
    let id = error.request_id().unwrap();
    let expected = format!("no response: connection refused, request id {}", id.to_str().unwrap());
    assert_eq!(error.to_string(), expected);
}

#[tokio::test(start_paused = true)]
async fn shows_a_report_on_one_line() {
    for (script, method, expected) in [
        (&[Status(503), Refused, Status(200)][..], "GET", "3 attempts (503, not sent, 200), success"),
        (&[Status(404)], "GET", "1 attempt (404), not_retryable"),
        (&[Io(std::io::ErrorKind::ConnectionReset)], "POST", "1 attempt (failed), not_idempotent"),
    ] {
        let result = retry()
            .layer(ScriptedService::new(script.iter().copied()))
            .oneshot(request(method, "http://h/"))
            .await;
        let shown = match &result {
            Ok(response) => Report::from_response(response).unwrap().to_string(),
            Err(error) => error.report().unwrap().to_string(),
        };
        assert_eq!(shown, expected);
    }
    // The call waits for the limiter.
    let quota = tower_outbound::Quota::per_minute(2).unwrap().with_burst(1).unwrap().without_margin();
    let preset = preset("http://127.0.0.1").with_quota(quota);
    let service = preset.layer().unwrap().layer(ScriptedService::new([Status(200)]));
    service.clone().oneshot(get("http://127.0.0.1/")).await.unwrap();
    let response = service.oneshot(get("http://127.0.0.1/")).await.unwrap();
    let report = Report::from_extensions(response.extensions()).unwrap();
    let id = report.request_id().unwrap();
    let waited = format!(", waited {:.1?}", report.waited());
    assert!(report.waited() > secs(10));
    assert_eq!(
        report.to_string(),
        format!("request id {}: 1 attempt (200), success{waited}", id.to_str().unwrap())
    );
}

/// Wraps an error as `anyhow::Error` and `eyre::Report` do. It is not an error itself.
struct Anyhow(BoxError);

impl std::ops::Deref for Anyhow {
    type Target = dyn StdError + Send + Sync + 'static;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

#[derive(Debug)]
struct Context(BoxError);

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("could not load the rates")
    }
}

impl StdError for Context {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn finds_the_error_in_a_box_and_in_wrappers() {
    async fn failed() -> Error {
        retry().layer(ScriptedService::new([Refused])).oneshot(get("http://h/")).await.unwrap_err()
    }
    let kind = |error: &(dyn StdError + 'static)| Error::find_in(error).map(Error::kind);
    let refused = Some(ErrorKind::ConnectRefused);
    assert_eq!(kind(&failed().await), refused);
    let boxed: BoxError = failed().await.into();
    assert_eq!(kind(&*boxed), refused);
    assert_eq!(kind(boxed.as_ref()), refused);
    let borrowed: &BoxError = &boxed;
    assert_eq!(kind(&**borrowed), refused);
    let plain: Box<dyn StdError> = Box::new(failed().await);
    assert_eq!(kind(&*plain), refused);
    assert_eq!(kind(&Context(boxed)), refused);
    let anyhow = Anyhow(Box::new(Context(failed().await.into())));
    assert_eq!(kind(&*anyhow), refused);
    assert_eq!(kind(&std::io::Error::other(failed().await)), refused, "found, although `source()` skips it");
    assert_eq!(kind(&std::io::Error::other("another")), None);
}
