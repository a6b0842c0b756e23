//! Tests whole presets over reqwest.

use std::time::Duration;

use http::Request;
use tokio::time::Instant;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    ApiKey, Report,
    adapter::{Reqwest, SendWith},
    call::Outcome,
    preset,
    stack::StackService,
};

use super::{
    Site, builder, inner, site,
    stack::{Wire, quick_retry},
    within,
};

/// Returns a client of reqwest that follows no redirects, and the stack of a preset over it.
fn client_and_stack(url: &str) -> (reqwest::Client, StackService<Reqwest>) {
    let client = builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let preset = preset::currency_rates(url).unwrap().with_api_key(ApiKey::new("s3cret").unwrap());
    (client.clone(), preset.with_retry(quick_retry()).reqwest(client).unwrap())
}

/// Sends a request that reqwest's builder created, and converts the response to reqwest's type.
#[tokio::test]
async fn preset_over_a_reqwest_client_accepts_and_returns_reqwests_types() {
    let site = Site::with_statuses(site::Wire::Http1, [503, 200]).await;
    let (_, service) = client_and_stack(&site.url());
    let client = service.get_ref().get_ref();
    let request = client.get(format!("{}/v1?q=1", site.url())).header("x-custom", "7").build().unwrap();
    let request = Request::<reqwest::Body>::try_from(request).unwrap();
    // The call runs in a task, as in a server's handler.
    let response = within(tokio::spawn(service.clone().oneshot(request))).await.unwrap().unwrap();
    let response = reqwest::Response::from(response.map(reqwest::Body::wrap));
    assert_eq!((response.status().as_u16(), site.requests()), (200, 2));
    assert!(response.extensions().get::<Report>().is_some());
    assert_eq!(response.text().await.unwrap(), "answer 2");
    assert_eq!(site.heads()[1].headers["x-custom"], "7");
    assert_eq!(site.heads()[1].headers["authorization"], "Bearer s3cret");
}

#[tokio::test]
async fn send_with_preserves_the_reqwest_request_and_returns_a_reqwest_response() {
    let site = Site::with_statuses(site::Wire::Http1, [503, 200]).await;
    let (client, stack) = client_and_stack(&site.url());
    let url = format!("{}/v1", site.url());
    let put = client.put(&url).query(&[("q", "a b")]).json(&["x"]).header("x-custom", "7");
    let response: reqwest::Response = within(put.send_with(&stack)).await.unwrap();
    assert_eq!(response.url().as_str(), format!("{url}?q=a+b"));
    let report = Report::from_extensions(response.extensions()).unwrap();
    assert_eq!(report.attempt_count(), 2);
    for seen in site.seen() {
        assert_eq!(seen.uri.to_string(), "/v1?q=a+b");
        assert_eq!(
            (seen.header("x-custom"), seen.header("content-type")),
            (Some("7"), Some("application/json"))
        );
        assert_eq!(seen.header("authorization"), Some("Bearer s3cret"));
        assert_eq!(Some(&seen.headers["x-request-id"]), report.request_id().as_ref());
    }
    assert_eq!(response.error_for_status().unwrap().text().await.unwrap(), "answer 2");

    let error = client.get("not a url").send_with(&stack).await.unwrap_err();
    assert!(error.is_invalid_request(), "{error:?}");
    client.get("http://127.0.0.1:1/").send_with(&stack).await.unwrap_err();
    assert_eq!(site.requests(), 2, "the two failed calls should send nothing to the server");
}

#[tokio::test]
async fn timeout_of_a_reqwest_request_becomes_the_deadline_of_its_call() {
    let site = Site::start(site::Wire::Http1, |_, _| std::future::pending()).await;
    let (client, stack) = client_and_stack(&site.url());
    let start = Instant::now();
    let get = client.get(site.url()).timeout(Duration::from_millis(200));
    assert!(within(get.send_with(&stack)).await.unwrap_err().is_timeout());
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "the call should end before the default attempt timeout of 10 s"
    );
}

/// reqwest stores a request's timeout in the request's extensions. Every attempt gets these extensions.
#[tokio::test]
async fn timeout_of_a_reqwest_request_bounds_each_attempt() {
    let site = Site::start(site::Wire::Http1, |_, _| std::future::pending()).await;
    let reqwest = inner(Wire::Http1);
    let request = reqwest.get_ref().get(site.url()).timeout(Duration::from_millis(50)).build().unwrap();
    let request = Request::<reqwest::Body>::try_from(request).unwrap();
    let error = within(quick_retry().layer(reqwest).oneshot(request)).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    let attempts = error.report().unwrap().attempts();
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [Some(Outcome::Timeout); 3]);
}
