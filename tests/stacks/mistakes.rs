//! Typical mistakes, one a function. Compiled by messages.rs alone, to read what the compiler says of them.
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
    auth::{RefreshingKey, SignLayer},
    body::ReplayBody,
    limit::{RateLimit, RateLimitLayer, TokenBucket},
    request_id::RequestIdLayer,
    retry::RetryLayer,
    stack::StackBuilder,
};

type Content = Full<Bytes>;

/// What the manual says to put around a stack that does not compile.
fn check<B, S: Service<Request<B>>>(service: S) -> S {
    service
}

struct Mine;

fn the_error_is_no_error(retry: RetryLayer) {
    let service =
        service_fn(|_: Request<ReplayBody<Content>>| async { Err::<Response<Content>, Mine>(Mine) });
    check::<Content, _>(retry.layer(service));
}

fn the_service_is_not_clone(retry: RetryLayer, mine: Mine) {
    let service = service_fn(move |_: Request<ReplayBody<Content>>| {
        let _ = &mine;
        async { Ok::<Response<Content>, BoxError>(Response::default()) }
    });
    check::<Content, _>(retry.layer(service));
}

fn the_answer_is_no_response(retry: RetryLayer) {
    let service = service_fn(|_: Request<ReplayBody<Content>>| async { Ok::<_, BoxError>("answer") });
    check::<Content, _>(retry.layer(service));
}

fn the_answers_body_is_none(retry: RetryLayer) {
    let service =
        service_fn(|_: Request<ReplayBody<Content>>| async { Ok::<_, BoxError>(Response::new(Mine)) });
    check::<Content, _>(retry.layer(service));
}

fn the_service_takes_the_body_itself(preset: StackBuilder) {
    let service =
        service_fn(|_: Request<Content>| async { Ok::<Response<Content>, BoxError>(Response::default()) });
    check::<Content, _>(preset.layer().unwrap().layer(service));
}

fn the_quota_is_no_limiter(quota: Quota) {
    RateLimitLayer::new(quota);
}

fn the_body_cannot_be_signed(sign: SignLayer) {
    let service = service_fn(|_: Request<Empty<Bytes>>| async {
        Ok::<Response<Content>, BoxError>(Response::default())
    });
    check::<Empty<Bytes>, _>(sign.layer(service));
}

fn the_policies_are_none(preset: StackBuilder) {
    RetryLayer::new().with_classify(Mine);
    RetryLayer::new().with_custom_backoff(Duration::from_secs(1));
    preset.clone().with_authorize("key");
    preset.clone().with_signature("key");
    RefreshingKey::new("key");
    RequestIdLayer::new().with_maker("key");
    AttemptSpanLayer::new().with_propagation("key");
}
