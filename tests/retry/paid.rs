//! The cost of a retry whose caller drops it.

use http::{Request, Response};
use tokio::time::timeout;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    BoxError, Quota,
    body::ReplayBody,
    call::KeyReplaced,
    limit::{RateLimitLayer, TokenBucket},
    retry::{Budget, RetryLayer},
};

use super::{
    URI,
    support::{
        Content,
        Scripted::{NoResponse, Status},
        ScriptedService, get, secs,
    },
};

type Sent = Request<ReplayBody<Content>>;

/// Grants `burst` permits at once, then none for longer than any call here.
fn permits(burst: u32) -> RateLimitLayer<TokenBucket> {
    let quota = Quota::new(burst + 1, secs(3_600)).and_then(|quota| quota.with_burst(burst));
    RateLimitLayer::new(TokenBucket::new(quota.unwrap()))
}

/// Returns the credit after the caller dropped a call in its second attempt.
async fn left<S, R>(below: S) -> u32
where
    S: Service<Sent, Response = Response<R>, Error: Into<BoxError>> + Clone,
    R: http_body::Body,
{
    let budget = Budget::new();
    let call = RetryLayer::new().with_budget(budget.clone()).layer(below).oneshot(get(URI));
    assert!(timeout(secs(20), call).await.is_err(), "the call ended");
    budget.left()
}

#[tokio::test(start_paused = true)]
async fn a_retry_costs_credit_wherever_its_caller_drops_it() {
    let server = ScriptedService::new([Status(503), NoResponse]);
    let queued = ServiceBuilder::new().layer(permits(1)).service(server.clone());
    assert_eq!((left(queued).await, server.calls()), (486, 1));

    let server = ScriptedService::new([Status(503), NoResponse]);
    let sent = ServiceBuilder::new().layer(permits(9)).service(server.clone());
    assert_eq!((left(sent).await, server.calls()), (486, 2));
    assert_eq!(left(ScriptedService::new([Status(503), NoResponse])).await, 486, "without a limiter");
}

/// The server received the retry. Only the resend with another key is queued, or refused.
#[tokio::test(start_paused = true)]
async fn a_resend_that_is_not_sent_returns_no_credit() {
    let replaced = |mut response: Response<_>| {
        if response.status() == 401 {
            response.extensions_mut().insert(KeyReplaced);
        }
        response
    };
    let server = ScriptedService::new([Status(503), Status(401)]);
    let held = ServiceBuilder::new().layer(permits(2)).map_response(replaced).service(server.clone());
    assert_eq!((left(held).await, server.calls()), (486, 2));

    let server = ScriptedService::new([Status(503), Status(401)]);
    let budget = Budget::new();
    let refused = ServiceBuilder::new()
        .layer(RetryLayer::new().with_budget(budget.clone()))
        .layer(permits(2).with_max_wait(secs(1)))
        .map_response(replaced)
        .service(server.clone());
    assert!(refused.oneshot(get(URI)).await.unwrap_err().is_rate_limited());
    assert_eq!((budget.left(), server.calls()), (486, 2));
}
