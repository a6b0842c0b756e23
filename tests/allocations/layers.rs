//! Tests of the allocations of `RateLimitLayer` and `AuthLayer`, and of the size of a rate-limited call's future.

use std::{
    future::{Future, ready},
    pin::Pin,
    task::{Context, Waker},
    time::Duration,
};

use http::{HeaderValue, Request};
use tower::{Layer, Service};
use tower_outbound::{
    ApiKey, Quota,
    auth::{AuthLayer, Origin},
    client::ResponseFuture,
    limit::{Acquire, AnyLimiter, Keyed, Limiter, LocalLimiter, Permit, PermitRequest, RateLimitLayer},
    stack::StackBuilder,
};

use crate::{Content, NoOp, URI, allocations, serial};

#[test]
fn auth_layer_allocates_only_the_credential_header() {
    let _serial = serial();
    let with_header = allocations(tower::util::MapRequest::new(NoOp, |mut request: Request<Content>| {
        let key = HeaderValue::from_static("Bearer k3y");
        request.headers_mut().insert(http::header::AUTHORIZATION, key);
        request
    }));
    let auth = AuthLayer::new(ApiKey::new("k3y").unwrap(), Origin::parse(URI).unwrap()).unwrap();
    assert!(allocations(auth.layer(NoOp)) <= with_header);
}

/// A limiter that grants every request in `acquire_with`.
#[derive(Debug, Clone)]
struct CustomLimiter;

impl Limiter for CustomLimiter {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        Acquire::new(ready(Ok(Permit::new(request.cost()))))
    }
}

/// Returns a quota with a burst of five permits and a refill of one permit per second.
fn quota() -> Quota {
    Quota::new(15, Duration::from_secs(10)).unwrap().with_burst(5).unwrap().without_margin()
}

#[test]
fn rate_limit_layer_boxes_only_the_future_of_a_custom_limiter() {
    let _serial = serial();
    let without_layer = allocations(NoOp);
    let bucket = LocalLimiter::token_bucket(quota());
    let plain = allocations(RateLimitLayer::new(bucket.clone()).layer(NoOp));
    assert!(plain <= without_layer, "{plain} allocations, {without_layer} without the layer");
    for (limiter, most) in [
        (AnyLimiter::new(bucket), 0),
        (AnyLimiter::new(LocalLimiter::sliding_window(quota())), 0),
        (AnyLimiter::new(Keyed::new(|_| 0, |_key: &u8| LocalLimiter::without_quota())), 0),
        (AnyLimiter::new(CustomLimiter), 1),
    ] {
        let name = format!("{limiter:?}");
        let allocated = allocations(RateLimitLayer::new(limiter).layer(NoOp));
        assert!(allocated <= without_layer + most, "{name}: {allocated} allocations");
    }
}

/// The bound of 200 bytes applies only to 64-bit platforms. The tokio timer of a waiting call alone takes 112 bytes.
#[cfg(target_pointer_width = "64")]
#[test]
fn future_of_a_rate_limited_call_is_at_most_200_bytes_larger_than_its_request() {
    let future = RateLimitLayer::new(LocalLimiter::token_bucket(quota())).layer(NoOp).call(Request::new(()));
    let overhead = size_of_val(&future) - size_of::<Request<()>>();
    assert!(overhead <= 200, "the future is {overhead} bytes larger than the request");
}

/// Most of these bytes are the future with the request that the client keeps (1,200), the call (330), the request's
/// extensions (190), and its headers (100). The features `metrics` and `log` of tracing add 250.
#[cfg(all(target_pointer_width = "64", feature = "client"))]
#[test]
fn queued_call_of_a_client_takes_at_most_2_300_bytes() {
    let _serial = serial();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let quota = Quota::new(2, Duration::from_secs(100)).unwrap().with_burst(1).unwrap().without_margin();
    let client = StackBuilder::new(URI)
        .unwrap()
        .with_api_key(ApiKey::new("k3y").unwrap())
        .with_quota(quota)
        .with_total_timeout(Duration::from_secs(365 * 86_400))
        .client_with_service(NoOp)
        .unwrap();
    let poll =
        |call: &mut ResponseFuture| Pin::new(call).poll(&mut Context::from_waker(Waker::noop())).is_pending();
    assert!(!poll(&mut client.get("/v1").send()), "the first call is not queued");
    const CALLS: usize = 1_000;
    let mut calls = Vec::with_capacity(CALLS);
    let memory = allocation_counter::measure(|| {
        for _ in 0..CALLS {
            let mut call = client.get("/v1/resources").send();
            assert!(poll(&mut call));
            calls.push(call);
        }
    });
    let bytes = memory.bytes_current / CALLS as i64;
    assert!(bytes <= 2_300, "{bytes} bytes for each call");
}
