//! What a retry that its caller drops has cost of the budget.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use http::{Request, Response};
use tokio::time::timeout;
use tower::{Layer, Service, ServiceBuilder, ServiceExt, layer::layer_fn, service_fn};
use tower_outbound::{
    Quota,
    body::ReplayBody,
    call::KeyReplaced,
    error::BoxError,
    limit::{RateLimitLayer, TokenBucket},
    policy::Budget,
    retry::RetryLayer,
};

use super::{
    URI,
    probe::{
        Answer::{Is, Silent},
        Content, Probe, broken, get, secs,
    },
};

type Sent = Request<ReplayBody<Content>>;

/// So many at once, and then nothing for longer than a call here lives.
fn permits(burst: u32) -> RateLimitLayer<TokenBucket> {
    let quota = Quota::new(burst + 1, secs(3_600)).and_then(|quota| quota.with_burst(burst));
    RateLimitLayer::new(TokenBucket::new(quota.unwrap()))
}

/// What is left of the budget when a call is given up in its second attempt.
async fn left<S, R>(below: S) -> u32
where
    S: Service<Sent, Response = Response<R>, Error: Into<BoxError>> + Clone,
    R: http_body::Body,
{
    let budget = Budget::new();
    let call = RetryLayer::new().with_budget(budget.clone()).layer(below).oneshot(get(URI));
    assert!(timeout(secs(20), call).await.is_err(), "it waits for ever");
    budget.left()
}

/// Ready for one call in all.
#[derive(Clone)]
struct Once<S> {
    inner: S,
    used: Arc<AtomicBool>,
}

impl<S: Service<Sent>> Service<Sent> for Once<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if self.used.load(Relaxed) { Poll::Pending } else { self.inner.poll_ready(cx) }
    }

    fn call(&mut self, request: Sent) -> S::Future {
        self.used.store(true, Relaxed);
        self.inner.call(request)
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_limiter_held_to_the_end_costs_nothing() {
    let server = Probe::new([Is(503), Silent]);
    let waiting = ServiceBuilder::new().layer(permits(1)).service(server.clone());
    assert_eq!((left(waiting).await, server.calls()), (500, 1));

    // With its permits, for want of room below.
    let once = layer_fn(|inner| Once { inner, used: Arc::default() });
    let server = Probe::new([Is(503), Silent]);
    let unready = ServiceBuilder::new().layer(permits(9)).layer(once).service(server.clone());
    assert_eq!((left(unready).await, server.calls()), (500, 1));
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_is_paid_for() {
    let server = Probe::new([Is(503), Silent]);
    let sent = ServiceBuilder::new().layer(permits(9)).service(server.clone());
    assert_eq!((left(sent).await, server.calls()), (486, 2));
    assert_eq!(left(Probe::new([Is(503), Silent])).await, 486, "without a limiter");
}

/// One further in does not know what the one before it let through.
#[tokio::test(start_paused = true)]
async fn what_one_limiter_let_through_and_another_one_holds_is_paid_for() {
    let twice = ServiceBuilder::new().layer(permits(9)).layer(permits(1)).service(Probe::new([Is(503)]));
    assert_eq!(left(twice).await, 486);
}

#[tokio::test(start_paused = true)]
async fn of_two_copies_one_that_was_sent_is_paid_for_in_whatever_order() {
    for sent_first in [false, true] {
        let copies = Probe::new([Is(503), Silent]);
        let sent = ServiceBuilder::new().layer(permits(9)).service(copies.clone());
        let held = ServiceBuilder::new().layer(permits(1)).service(Probe::new([Is(503)]));
        let both = service_fn(move |request: Sent| {
            let (sent, held) = (sent.clone(), held.clone());
            let (head, body) = request.into_parts();
            let copy = Request::from_parts(head.clone(), ReplayBody::from(Content::default()));
            let (sent, held) = (sent.oneshot(copy), held.oneshot(Request::from_parts(head, body)));
            async move {
                let (mut sent, mut held) = (std::pin::pin!(sent), std::pin::pin!(held));
                match sent_first {
                    true => tokio::join!(biased; &mut sent, &mut held).1,
                    false => tokio::join!(biased; &mut held, &mut sent).0,
                }
            }
        });
        assert_eq!((left(both).await, copies.calls()), (486, 2), "{sent_first}");
    }
}

/// A limiter that takes too long for the layer before it, or refuses, or has nothing below it that gets ready.
#[tokio::test(start_paused = true)]
async fn what_no_limiter_has_any_more_and_goes_another_way_is_paid_for() {
    for (case, limited, other, calls) in [
        ("too long", permits(1).layer(Probe::new([Is(503)])), Probe::new([Silent]), 1),
        ("refused", permits(1).with_max_wait(secs(1)).layer(Probe::new([Is(503)])), Probe::new([Silent]), 1),
        ("not ready", permits(9).layer(broken()), Probe::new([Is(503), Silent]), 2),
    ] {
        let way = other.clone();
        let below = service_fn(move |request: Sent| {
            let (limited, way) = (limited.clone(), way.clone());
            let (head, body) = request.into_parts();
            async move {
                let copy = Request::from_parts(head.clone(), ReplayBody::from(Content::default()));
                let mut limited = Some(Box::pin(limited.oneshot(Request::from_parts(head, body))));
                let waited =
                    limited.as_mut().map(|limited| timeout(secs(2), limited.as_mut())).unwrap().await;
                match waited {
                    Ok(Ok(response)) => return Ok::<_, BoxError>(response),
                    // What has failed is kept meanwhile.
                    Ok(Err(_)) => {}
                    Err(_) => limited = None,
                }
                let answer = way.oneshot(copy).await?;
                drop(limited);
                Ok(answer)
            }
        });
        assert_eq!((left(below).await, other.calls()), (486, calls), "{case}");
    }
}

/// The server has had the retry; only what is sent once more for its new key is held, or refused.
#[tokio::test(start_paused = true)]
async fn what_was_refused_its_key_is_paid_for_though_it_is_not_sent_again() {
    let replaced = |mut response: Response<_>| {
        if response.status() == 401 {
            response.extensions_mut().insert(KeyReplaced);
        }
        response
    };
    let server = Probe::new([Is(503), Is(401)]);
    let held = ServiceBuilder::new().layer(permits(2)).map_response(replaced).service(server.clone());
    assert_eq!((left(held).await, server.calls()), (486, 2));

    let server = Probe::new([Is(503), Is(401)]);
    let budget = Budget::new();
    let refused = ServiceBuilder::new()
        .layer(RetryLayer::new().with_budget(budget.clone()))
        .layer(permits(2).with_max_wait(secs(1)))
        .map_response(replaced)
        .service(server.clone());
    assert!(refused.oneshot(get(URI)).await.unwrap_err().is_rate_limited());
    assert_eq!((budget.left(), server.calls()), (486, 2));
}

#[tokio::test(start_paused = true)]
async fn of_two_retry_layers_only_the_one_whose_attempt_was_not_sent_gets_it_back() {
    let server = Probe::new([Is(503), Is(503), Is(503)]);
    let inner = Budget::new();
    let layer = RetryLayer::new().with_budget(inner.clone()).with_max_attempts(2).unwrap();
    let below = ServiceBuilder::new().layer(layer).layer(permits(3)).service(server.clone());
    // The outer one's second attempt was sent once, and its second attempt in turn waits for its permit.
    assert_eq!((left(below).await, server.calls()), (486, 3));
    assert_eq!(inner.left(), 486, "one of its two was sent");
}
