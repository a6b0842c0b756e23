//! Tests that a request that gets no credential, and is therefore not sent, takes nothing from the limiter.

use std::task::Poll;

use tower_outbound::{
    Quota,
    auth::{BoxSignFuture, Sign},
    limit::{Amounts, LocalLimiter, Unit},
    stack::{Pool, StackBuilder},
};

use super::*;

const TOKENS: u32 = 10_000;

fn limiter() -> LocalLimiter {
    let tokens = Quota::per_minute(TOKENS).unwrap().with_unit(Unit::Tokens).unwrap();
    LocalLimiter::sliding_window(tokens).with_max_in_flight(2).unwrap().with_hold_after_cancel(secs(60))
}

fn stack(limiter: &LocalLimiter) -> StackBuilder {
    StackBuilder::new(URI).unwrap().with_limiter(limiter.clone())
}

fn post() -> Request<Content> {
    let mut request = request("POST", URI);
    request.extensions_mut().insert(Amounts::of(Unit::Tokens, 4_000));
    request
}

/// Sends the request through the stack. Returns its error.
async fn failed(stack: StackBuilder, server: &ScriptedService, request: Request<Content>) -> Error {
    stack.layer().unwrap().layer(server.clone()).oneshot(request).await.unwrap_err()
}

#[track_caller]
fn assert_unused(limiter: &LocalLimiter, case: &str) {
    let snapshot = limiter.snapshot();
    assert_eq!((snapshot.requests_in_flight, snapshot.units[0].available), (Some(0), TOKENS), "{case}");
}

struct Signer<F>(F);

impl<F> Sign for Signer<F>
where
    F: Fn() -> Poll<Result<(), BoxError>> + Send + Sync,
{
    fn sign<'a>(&'a self, _: &'a mut Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
        Box::pin(std::future::poll_fn(|_| (self.0)()))
    }
}

#[tokio::test(start_paused = true)]
async fn request_whose_credential_fails_takes_no_amounts_and_is_not_in_flight() {
    let server = ScriptedService::new([Status(200)]);
    let limiter = limiter();
    let (keys, _) = key_provider(Duration::ZERO, &[Fetch::Fails]);
    let pool = Pool::new([(URI, KeySource::from(key()), limiter.clone())]).unwrap();
    let mut own = post();
    own.headers_mut().insert(AUTHORIZATION, "Bearer own".parse().unwrap());
    let signer = Signer(|| Poll::Ready(Err("the key service is unavailable".into())));
    for (case, stack, request) in [
        ("key", stack(&limiter).with_keys(keys), post()),
        ("closure", stack(&limiter).with_authorize(|_| Err("no credential yet".into())), post()),
        ("signature", stack(&limiter).with_signature(signer), post()),
        ("member with another credential", StackBuilder::new(URI).unwrap().with_pool(pool), own),
    ] {
        let error = failed(stack, &server, request).await;
        assert!(!error.is_service() && !error.may_have_been_processed(), "{case}: {error:?}");
        assert_unused(&limiter, case);
    }
    assert_eq!(server.calls(), 0);
}
