//! Tests of how the auth layer treats requests, responses and errors.

use std::{future::Future as _, pin::pin, task::Waker};

use http::HeaderValue;
use support::{
    Scripted::{Refused, Status},
    ScriptedService,
};

use super::*;

#[tokio::test]
async fn auth_layer_forwards_the_method_and_headers_and_extensions_and_body() {
    let mut request = request("DELETE", URI);
    request.headers_mut().insert("x-other", HeaderValue::from_static("1"));
    request.extensions_mut().insert(7_u8);
    let server = ScriptedService::new([Status(200)]);
    bearer_layer(URI).layer(server.clone()).oneshot(request).await.unwrap();
    let seen = server.seen().remove(0);
    assert_eq!((seen.head.method.as_str(), &seen.head.headers["x-other"]), ("DELETE", &"1".parse().unwrap()));
    assert_eq!(seen.head.extensions.get(), Some(&7_u8));
    assert_eq!(seen.body.unwrap(), "hello");
}

#[tokio::test]
async fn auth_layer_returns_the_error_of_the_inner_service() {
    let error = bearer_layer(URI).layer(ScriptedService::new([Refused])).oneshot(get(URI)).await.unwrap_err();
    assert!(error.is_service());
    assert!(support::cause::<std::io::Error>(&error).is_some());
}

#[test]
fn auth_layer_and_its_service_implement_clone_and_send_and_sync() {
    fn assert_clone_send_sync<T: Clone + Send + Sync>(_: &T) {}
    let layer = bearer_layer(URI);
    assert_clone_send_sync(&layer);
    assert_clone_send_sync(&layer.layer(ScriptedService::new([Status(200)])).clone());
}

/// Only the first request with a key allocates its header value. Later requests share the same header value.
#[tokio::test(start_paused = true)]
async fn attaching_a_cached_key_allocates_nothing() {
    let provider = RefreshingKey::new(|| async { Ok::<_, BoxError>(FreshKey::new(ApiKey::new("k")?)) });
    let provider = KeySource::from(provider);
    provider.current().await.unwrap();
    let inner = tower::service_fn(|_: Request<()>| std::future::ready(Ok::<_, BoxError>(Response::new(()))));
    for keys in [KeySource::from(key()), provider] {
        let layer = AuthLayer::new(keys, origin(URI)).unwrap();
        let mut service = layer.layer(inner);
        let mut cx = Context::from_waker(Waker::noop());
        let mut allocated = 0;
        // The first request allocates the header value, so the test counts allocations only for the second request.
        for _ in 0..2 {
            let mut request = Request::get(URI).body(()).unwrap();
            request.headers_mut().reserve(4);
            let counted = allocation_counter::measure(|| {
                assert!(service.poll_ready(&mut cx).is_ready());
                let response = pin!(service.call(request)).poll(&mut cx);
                assert!(matches!(response, Poll::Ready(Ok(_))));
            });
            allocated = counted.count_total;
        }
        assert_eq!(allocated, 0, "{layer:?}");
    }
}
