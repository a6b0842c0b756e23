//! Tests the `Display` and `Debug` text of errors and reports.

use std::error::Error as StdError;

use tower_outbound::{
    Report,
    auth::KeyError,
    client::ResponseError,
    error::{Reason, Refusal},
};

use super::{
    support::{Scripted::*, ScriptedService, request},
    *,
};

/// Returns the chain of causes as anyhow and eyre print it, which is the `Display` text of each.
fn printed(error: &dyn StdError) -> String {
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(error) = next {
        texts.push(error.to_string());
        next = error.source();
    }
    texts.join(": ")
}

/// Asserts that the message contains `cause`, and that a printed chain and `Debug` contain it once.
#[track_caller]
fn assert_says_once(error: &dyn StdError, cause: &str) {
    assert!(error.to_string().contains(cause), "{error}");
    for shown in [printed(error), format!("{error:#}"), format!("{error:?}")] {
        assert_eq!(shown.matches(cause).count(), 1, "{shown}");
    }
}

#[tokio::test(start_paused = true)]
async fn message_contains_the_cause_that_this_crate_states() {
    let client =
        || preset("https://host/v1").client_with_service(ScriptedService::new([Status(200)])).unwrap();
    let error = client().get("https://other/v1").await.unwrap_err();
    let cause = "url `https://other/…`: its origin is not the client's origin, https://host:443";
    assert_eq!(error.to_string(), format!("invalid request: {cause}"));
    assert_says_once(&error, cause);
    assert_says_once(&client().get("/a/../b").await.unwrap_err(), "path `/a/../b`: ");
    let error = client().get("/").header("no header", "value").await.unwrap_err();
    assert_says_once(&error, "invalid header name `no…`");

    let limit =
        RateLimitLayer::new(LocalLimiter::token_bucket(Quota::per_minute(2).unwrap())).with_max_queue(0);
    let service = limit.layer(ScriptedService::new([Status(200)]));
    service.clone().oneshot(get("https://host/")).await.unwrap();
    let error = service.clone().oneshot(get("https://host/")).await.unwrap_err();
    assert_says_once(&error, "the queue is full");
    assert_eq!(error.shown_cause().map(Refusal::reason), Some(Reason::QueueFull));
    let mut costly = get("https://host/");
    costly.extensions_mut().insert(PermitCost(NonZeroU32::new(9).unwrap()));
    let error = service.oneshot(costly).await.unwrap_err();
    assert_says_once(&error, "the request costs 9 permits, but at most 1 can be granted at once");
    assert_says_once(&error, "Quota::with_burst");

    let failing =
        || async { Err::<tower_outbound::auth::FreshKey, _>(BoxError::from("the vault is sealed")) };
    let keys: KeySource = RefreshingKey::new(failing).into();
    let layer = AuthLayer::new(keys, tower_outbound::auth::Origin::parse("https://host").unwrap()).unwrap();
    let service = layer.layer(ScriptedService::new([Status(200)]));
    let error = service.oneshot(get("https://host/")).await.unwrap_err();
    assert_says_once(&error, "the key provider failed, next attempt in ");
    assert_eq!(error.source().unwrap().to_string(), "the vault is sealed");
    assert!(error.shown_cause::<KeyError>().unwrap().retry_in().is_some());
}

/// The error of a custom service may contain its request, so only `Debug`, `{:#}` and the chain show it.
#[tokio::test(start_paused = true)]
async fn message_omits_the_text_of_another_crate() {
    let failing = service_fn(|_: http::Request<_>| async {
        Err::<http::Response<String>, _>(BoxError::from("s3cret"))
    });
    let error = quick_retry().layer(failing).oneshot(get("https://host/")).await.unwrap_err();
    assert!(!error.to_string().contains("s3cret"), "{error}");
    for shown in [printed(&error), format!("{error:#}"), format!("{error:?}")] {
        assert_eq!(shown.matches("s3cret").count(), 1, "{shown}");
    }
}

#[tokio::test]
async fn response_error_repeats_no_text_of_the_call_error_in_it() {
    let (_socket, address) = refusing_address();
    let client = preset(&format!("http://{address}")).client().unwrap();
    let error = client.get("/v1").fetch_text().await.unwrap_err();
    assert_says_once(&error, "connection refused after 3 attempts");
    let boxed: BoxError = error.into();
    assert_eq!(Error::find_in(&*boxed).unwrap().kind(), tower_outbound::ErrorKind::ConnectRefused);
    assert!(boxed.is::<ResponseError>());
    let error = ResponseError::from(client.get("/../up").await.unwrap_err());
    assert_says_once(&error, "path `/../up`: ");
}

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
    let waited = format!("{:.2}", report.queued().as_secs_f64());
    let queued = format!(", queued {}s", waited.trim_end_matches('0').trim_end_matches('.'));
    assert!(report.queued() > secs(10));
    assert_eq!(
        report.to_string(),
        format!("request id {}: 1 attempt (200@0ms), success{queued}", id.to_str().unwrap())
    );
}
