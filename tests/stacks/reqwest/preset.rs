//! Tests whole presets over reqwest.

use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};

use http::{Request, Response};
use http_body_util::BodyExt;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_outbound::{
    ApiKey, Body, Report,
    adapter::{Reqwest, SendWith},
    call::Outcome,
    preset,
    stack::StackBuilder,
};

use super::{
    Site, builder, empty, inner,
    stack::{Wire, quick_retry, within},
    text,
};

fn presets(url: &str) -> impl Iterator<Item = StackBuilder> {
    let key = || ApiKey::new("s3cret").unwrap();
    preset::ALL
        .iter()
        .map(move |(_, preset)| preset(url).unwrap().with_api_key(key()).with_retry(quick_retry()))
}

/// Starts a server that responds with 503 and 200 in turn.
async fn alternating_site() -> Site {
    let number = std::sync::Arc::new(AtomicUsize::new(0));
    Site::start(move |_, body| {
        let status = if number.fetch_add(1, SeqCst).is_multiple_of(2) { 503 } else { 200 };
        async move {
            let _ = body.collect().await;
            Response::builder().status(status).body(text("hello")).unwrap()
        }
    })
    .await
}

#[tokio::test]
async fn each_attempt_sends_the_key_and_the_request_id() {
    for wire in [Wire::Http1, Wire::Http2] {
        let site = alternating_site().await;
        for (number, preset) in presets(&site.url).enumerate() {
            let client = preset.client_with_service(inner(wire)).unwrap();
            let response =
                within(client.execute(Request::put("/v1/resources").body("letter").unwrap())).await.unwrap();
            let report = response.report().unwrap().clone();
            assert_eq!((response.status().as_u16(), report.attempt_count()), (200, 2));
            assert_eq!(response.into_body().bytes_up_to(64).await.unwrap(), "hello");
            let seen = site.seen();
            assert_eq!(seen.len(), 2 * number + 2);
            for seen in &seen[2 * number..] {
                assert_eq!(seen.headers["authorization"], "Bearer s3cret");
                assert_eq!(Some(&seen.headers["x-request-id"]), report.request_id().as_ref());
                assert_eq!(seen.uri.path(), "/v1/resources");
            }
        }
    }
}

/// Sends a request that reqwest's builder created, and converts the response to reqwest's type.
#[tokio::test]
async fn preset_over_a_reqwest_client_accepts_and_returns_reqwests_types() {
    let site = alternating_site().await;
    let rates = presets(&site.url).next().unwrap();
    let client = builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let service = rates.reqwest(client).unwrap();

    let client = service.get_ref().get_ref();
    let request = client.get(format!("{}/v1?q=1", site.url)).header("x-custom", "7").build().unwrap();
    let request = Request::<reqwest::Body>::try_from(request).unwrap();
    // The call runs in a task, as in a server's handler.
    let response = within(tokio::spawn(service.clone().oneshot(request))).await.unwrap().unwrap();
    let response = reqwest::Response::from(response.map(reqwest::Body::wrap));
    assert_eq!((response.status().as_u16(), site.seen().len()), (200, 2));
    assert!(response.extensions().get::<Report>().is_some());
    assert_eq!(response.text().await.unwrap(), "hello");
    assert_eq!(site.seen()[1].headers["x-custom"], "7");
    assert_eq!(site.seen()[1].headers["authorization"], "Bearer s3cret");
}

#[tokio::test]
async fn send_with_preserves_the_reqwest_request_and_returns_a_reqwest_response() {
    let site = alternating_site().await;
    let rates = presets(&site.url).next().unwrap();
    let client = builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let stack = rates.reqwest(client.clone()).unwrap();
    let url = format!("{}/v1", site.url);
    let put = client.put(&url).query(&[("q", "a b")]).json(&["x"]).header("x-custom", "7");
    let response: reqwest::Response = within(put.send_with(&stack)).await.unwrap();
    assert_eq!(response.url().as_str(), format!("{url}?q=a+b"));
    assert_eq!(Report::from_extensions(response.extensions()).unwrap().attempt_count(), 2);
    assert_eq!(response.error_for_status().unwrap().text().await.unwrap(), "hello");
    for seen in site.seen() {
        assert_eq!(seen.uri.to_string(), "/v1?q=a+b");
        assert_eq!(seen.headers["x-custom"], "7");
        assert_eq!(seen.headers["content-type"], "application/json");
        assert_eq!(seen.headers["authorization"], "Bearer s3cret");
    }

    let error = client.get("not a url").send_with(&stack).await.unwrap_err();
    assert!(error.is_invalid_request(), "{error:?}");
    client.get("http://127.0.0.1:1/").send_with(&stack).await.unwrap_err();
    assert_eq!(site.seen().len(), 2, "the two failed calls should send nothing to the server");
}

#[tokio::test]
async fn timeout_of_a_reqwest_request_becomes_the_deadline_of_its_call() {
    let site = Site::start(|_, _| std::future::pending()).await;
    let rates = presets(&site.url).next().unwrap();
    let client = builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let stack = rates.reqwest(client.clone()).unwrap();
    let start = Instant::now();
    let get = client.get(&site.url).timeout(Duration::from_millis(200));
    assert!(within(get.send_with(&stack)).await.unwrap_err().is_timeout());
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "the call should end before the default attempt timeout of 10 s"
    );
}

/// reqwest stores a request's timeout in the request's extensions. Every attempt gets these extensions.
#[tokio::test]
async fn timeout_of_a_reqwest_request_bounds_each_attempt() {
    let site = Site::start(|_, _| std::future::pending()).await;
    let reqwest = inner(Wire::Http1);
    let request = reqwest.get_ref().get(&site.url).timeout(Duration::from_millis(50)).build().unwrap();
    let request = Request::<reqwest::Body>::try_from(request).unwrap();
    let error = within(quick_retry().layer(reqwest).oneshot(request)).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    let attempts = error.report().unwrap().attempts();
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [Some(Outcome::Timeout); 3]);
}

/// `Client` and the layers require that the adapter implements these traits.
#[test]
fn adapter_implements_clone_and_send_and_sync_and_debug() {
    fn shared<T: Clone + Send + Sync + std::fmt::Debug + 'static>(_: &T) {}
    shared(&inner(Wire::Http1));
    fn future<S: Service<Request<Body>, Future: Send>>(_: S) {}
    future::<Reqwest>(inner(Wire::Http1));
    let _ = empty();
}
