//! Tests the `Display` and `Debug` text of errors and reports.

use tower::Layer;
use tower_outbound::Report;

use super::{
    support::{Scripted::*, ScriptedService, get, request, secs},
    *,
};

#[tokio::test]
async fn debug_text_of_an_error_shows_cause_and_report_in_one_line() {
    let (_socket, address) = refusing_address();
    let error = error_of_client(&format!("http://{address}"), tcp(), false, no_body).await;
    let id = error.request_id().unwrap().to_str().unwrap().to_owned();
    let shown = format!("{error:?}");
    let expected = format!(
        "connection refused after 3 attempts (exhausted, request id {id}): client error (Connect): tcp connect error: \
         Connection refused (os error 111)"
    );
    if cfg!(target_os = "linux") {
        assert_eq!(shown, expected);
    }
    assert_eq!(format!("{error:#?}"), shown, "the alternate `Debug` format is also one line");
    assert_eq!(error.to_string(), format!("connection refused after 3 attempts (request id {id})"));
    assert!(format!("{error:#}").starts_with(&format!("{error}: client error (Connect): tcp connect error")));
    let report = error.report().unwrap();
    let text = report.to_string();
    assert!(text.starts_with(&format!("request id {id}: 3 attempts (connect_refused(not_sent)@")), "{text}");
    assert!(text.contains("ms), exhausted, backoff ") && !text.contains("queued"), "{text}");
}

#[cfg(feature = "json")]
#[tokio::test]
async fn debug_text_of_a_json_error_is_one_line() {
    let (_socket, address) = refusing_address();
    let client = preset(&format!("http://{address}")).client().unwrap();
    let error = client.get("/v1").fetch_json::<()>().await.unwrap_err();
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
async fn display_text_of_a_report_is_one_line() {
    for (script, method, expected) in [
        (
            &[Status(503), Refused, Status(200)][..],
            "GET",
            "3 attempts (503@0ms, connect_refused(not_sent)@0ms, 200@0ms), success",
        ),
        (&[Status(404)], "GET", "1 attempt (404@0ms), not_retryable"),
        (&[Io(std::io::ErrorKind::ConnectionReset)], "POST", "1 attempt (reset@0ms), not_idempotent"),
    ] {
        let result = quick_retry()
            .layer(ScriptedService::new(script.iter().copied()))
            .oneshot(request(method, "http://h/"))
            .await;
        let shown = match &result {
            Ok(response) => Report::from_response(response).unwrap().to_string(),
            Err(error) => error.report().unwrap().to_string(),
        };
        let shown = shown.split(", backoff ").next().unwrap();
        assert_eq!(shown, expected);
    }
    // The text of a report also shows how long the call was queued by the limiter.
    let quota = tower_outbound::Quota::per_minute(2).unwrap().with_burst(1).unwrap().without_margin();
    let preset = preset("http://127.0.0.1").with_quota(quota);
    let service = preset.layer().unwrap().layer(ScriptedService::new([Status(200)]));
    service.clone().oneshot(get("http://127.0.0.1/")).await.unwrap();
    let response = service.oneshot(get("http://127.0.0.1/")).await.unwrap();
    let report = Report::from_extensions(response.extensions()).unwrap();
    let id = report.request_id().unwrap();
    let waited = format!("{:.2}", report.waited().as_secs_f64());
    let queued = format!(", queued {}s", waited.trim_end_matches('0').trim_end_matches('.'));
    assert!(report.waited() > secs(10));
    assert_eq!(
        report.to_string(),
        format!("request id {}: 1 attempt (200@0ms), success{queued}", id.to_str().unwrap())
    );
}
