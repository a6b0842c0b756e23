//! Contains typical mistakes of users, one in each function. Only messages.rs compiles this file, to read the
//! compiler's messages.
#![cfg(outbound_mistakes)]
#![allow(unused)]

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{Empty, Full};
use tower::{Layer, Service, service_fn};
use tower_outbound::{
    BoxError, ExponentialBackoff, Quota,
    attempt_span::AttemptSpanLayer,
    auth::{AnySign, AuthLayer, RefreshingKey},
    body::ReplayBody,
    limit::{LocalLimiter, RateLimit, RateLimitLayer},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    stack::StackBuilder,
};

type Content = Full<Bytes>;

/// Copy of the helper function that the crate's docs recommend for finding out why a stack does not compile.
fn check<B, S: Service<Request<B>>>(service: S) -> S {
    service
}

struct Mine;

fn error_does_not_convert_to_box_error(retry: RetryLayer) {
    let service =
        service_fn(|_: Request<ReplayBody<Content>>| async { Err::<Response<Content>, Mine>(Mine) });
    check::<Content, _>(retry.layer(service));
}

fn service_is_not_clone(retry: RetryLayer, mine: Mine) {
    let service = service_fn(move |_: Request<ReplayBody<Content>>| {
        let _ = &mine;
        async { Ok::<Response<Content>, BoxError>(Response::default()) }
    });
    check::<Content, _>(retry.layer(service));
}

fn service_does_not_return_an_http_response(retry: RetryLayer) {
    let service = service_fn(|_: Request<ReplayBody<Content>>| async { Ok::<_, BoxError>("text") });
    check::<Content, _>(retry.layer(service));
}

fn response_body_does_not_implement_body(retry: RetryLayer) {
    let service =
        service_fn(|_: Request<ReplayBody<Content>>| async { Ok::<_, BoxError>(Response::new(Mine)) });
    check::<Content, _>(retry.layer(service));
}

fn service_takes_the_body_without_replay(preset: StackBuilder) {
    let service =
        service_fn(|_: Request<Content>| async { Ok::<Response<Content>, BoxError>(Response::default()) });
    check::<Content, _>(preset.layer().unwrap().layer(service));
}

fn quota_instead_of_a_limiter(quota: Quota) {
    RateLimitLayer::new(quota);
}

fn body_does_not_convert_from_bytes(sign: AuthLayer<AnySign>) {
    let service = service_fn(|_: Request<Empty<Bytes>>| async {
        Ok::<Response<Content>, BoxError>(Response::default())
    });
    check::<Empty<Bytes>, _>(sign.layer(service));
}

fn values_instead_of_policies_and_closures(preset: StackBuilder) {
    RetryLayer::new().with_classify(Mine);
    RetryLayer::new().with_custom_backoff(Duration::from_secs(1));
    preset.clone().with_authorize("key");
    preset.clone().with_signature("key");
    RefreshingKey::new("key");
    RequestIdLayer::new().with_maker("key");
    AttemptSpanLayer::new().with_propagation("key");
}
