//! Tests of the limit of requests in flight at the layer: when a request is no longer in flight.

use super::*;
use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use tower_outbound::limit::Joint;

/// A body of two frames. The second one is an error if the path of the request is `/broken`.
type Streamed = UnsyncBoxBody<Bytes, std::io::Error>;

async fn respond(request: Request<()>) -> Result<Response<Streamed>, Infallible> {
    assert!(request.uri().path() != "/panic", "the inner service panics");
    if request.uri().path() == "/pending" {
        std::future::pending::<()>().await;
    }
    let last = match request.uri().path() {
        "/broken" => Err(std::io::Error::other("broken")),
        _ => Ok(Frame::data(Bytes::from_static(b"last"))),
    };
    let frames = [Ok(Frame::data(Bytes::from_static(b"first"))), last];
    Ok(Response::new(UnsyncBoxBody::new(StreamBody::new(futures_util::stream::iter(frames)))))
}

type Limited =
    RateLimit<tower::util::BoxCloneSyncService<Request<()>, Response<Streamed>, Infallible>, AnyLimiter>;

fn limited(layer: RateLimitLayer<AnyLimiter>) -> Limited {
    layer.layer(tower::util::BoxCloneSyncService::new(tower::service_fn(respond)))
}

fn over<L>(limiter: L) -> Limited
where
    L: SelectLimiter + std::fmt::Debug + Send + Sync + 'static,
{
    limited(RateLimitLayer::new(AnyLimiter::new(limiter)))
}

fn to(path: &str) -> Request<()> {
    Request::get(format!("https://api.example.com{path}")).body(()).unwrap()
}

fn one_at_a_time() -> LocalLimiter {
    LocalLimiter::without_quota().with_max_in_flight(1).unwrap()
}

/// Asserts whether the limiter allows another request.
#[track_caller]
fn assert_free(service: &Limited, is_free: bool) {
    let mut next = task::spawn(service.clone().oneshot(to("/next")));
    assert_eq!(next.poll().is_ready(), is_free);
}

#[tokio::test(start_paused = true)]
async fn request_is_in_flight_until_its_body_ends_is_dropped_or_breaks() {
    let keyed = Keyed::new(|_| 0, |_: &u32| one_at_a_time());
    let part = Joint::new(LocalLimiter::without_quota(), keyed.clone());
    let account = Joint::new(one_at_a_time(), Keyed::new(|_| 0, |_: &u32| LocalLimiter::without_quota()));
    let untrusted = RateLimitLayer::new(AnyLimiter::new(one_at_a_time())).with_feedback_from(|_| false);
    let adaptive = LocalLimiter::adaptive([]).with_max_in_flight(1).unwrap();
    for service in [
        over(one_at_a_time()),
        over(LocalLimiter::paced_window(Quota::per_minute(100).unwrap()).with_max_in_flight(1).unwrap()),
        over(adaptive),
        over(keyed),
        over(part),
        over(account),
        limited(untrusted),
    ] {
        let send = |path| service.clone().oneshot(to(path));
        let mut body = send("/").await.unwrap().into_body();
        assert_free(&service, false);
        body.frame().await.unwrap().unwrap();
        assert_free(&service, false);
        body.frame().await.unwrap().unwrap();
        assert!(body.frame().await.is_none());
        assert_free(&service, true);
        drop(body);

        let mut body = send("/broken").await.unwrap().into_body();
        body.frame().await.unwrap().unwrap();
        assert_free(&service, false);
        body.frame().await.unwrap().unwrap_err();
        assert_free(&service, true);

        let unread = send("/").await.unwrap();
        assert_free(&service, false);
        drop(unread);
        assert_free(&service, true);
        assert_eq!(send("/").await.unwrap().into_body().collect().await.unwrap().to_bytes(), "firstlast");
        assert_free(&service, true);
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_and_panicking_calls_are_no_longer_in_flight() {
    let service = over(one_at_a_time());
    let mut pending = task::spawn(service.clone().oneshot(to("/pending")));
    assert_pending!(pending.poll());
    let mut queued = task::spawn(service.clone().oneshot(to("/")));
    assert_pending!(queued.poll());
    drop(pending);
    assert!(queued.is_woken());
    // A granted call that was never polled again.
    drop(queued);
    assert_free(&service, true);
    tokio::spawn(service.clone().oneshot(to("/panic"))).await.unwrap_err();
    assert_free(&service, true);
}

#[tokio::test(start_paused = true)]
async fn cancelled_request_counts_for_the_hold_and_one_read_to_its_end_does_not() {
    let service = over(one_at_a_time().with_hold_after_cancel(seconds(5)));
    service.clone().oneshot(to("/")).await.unwrap().into_body().collect().await.unwrap();
    assert_free(&service, true);
    for cancel in ["before the response", "during the body"] {
        // `assert_free` has dropped an unread body.
        advance(seconds(5)).await;
        match cancel {
            "before the response" => {
                let mut pending = task::spawn(service.clone().oneshot(to("/pending")));
                assert_pending!(pending.poll());
            }
            _ => drop(service.clone().oneshot(to("/")).await.unwrap()),
        }
        advance(seconds(5) - millis(1)).await;
        assert_free(&service, false);
        advance(millis(1)).await;
        assert_free(&service, true);
    }
    advance(seconds(5)).await;
    let start = Instant::now();
    drop(service.clone().oneshot(to("/")).await.unwrap());
    service.oneshot(to("/")).await.unwrap();
    assert_eq!(start.elapsed(), seconds(5), "a queued call leaves when the hold ends");
}

#[tokio::test(start_paused = true)]
async fn layer_can_end_requests_at_the_head_of_the_response() {
    let limiter = AnyLimiter::new(one_at_a_time());
    let service = limited(RateLimitLayer::new(limiter.clone()).with_in_flight_until_head());
    let _unread = service.clone().oneshot(to("/")).await.unwrap();
    assert_free(&service, true);
    let mut pending = task::spawn(service.clone().oneshot(to("/pending")));
    assert_pending!(pending.poll());
    assert_free(&service, false);
    let snapshot = limiter.downcast_ref::<LocalLimiter>().unwrap().snapshot();
    assert_eq!((snapshot.requests_in_flight, snapshot.available), (Some(1), 0));
}

#[tokio::test(start_paused = true)]
async fn permit_without_a_layer_is_in_flight_until_it_completes_or_its_in_flight_ends() {
    let limiter = one_at_a_time();
    let (ok, headers) = (http::StatusCode::OK, HeaderMap::new());
    let response = ResponseInfo::new(ok, &headers);
    limiter.try_acquire().unwrap().complete(&response);
    let in_flight = limiter.try_acquire().unwrap().complete_head(&response);
    assert_eq!(limiter.try_acquire().unwrap_err().max_in_flight(), Some(1));
    in_flight.end();
    let owned = limiter.acquire().await.unwrap();
    let error = limiter.try_acquire().unwrap_err().to_string();
    assert_eq!(error, "the wait would exceed the allowed maximum (requests in flight: 1 of 1)");
    owned.release();
    limiter.acquire().await.unwrap();
}

/// The request keeps the ready inner service while it waits for another permit. If a queued request left first,
/// both would wait for each other.
#[tokio::test(start_paused = true)]
async fn request_whose_permit_has_expired_stays_in_flight() {
    let slots = Arc::new(Semaphore::new(1));
    let inner = ConcurrencyLimit::with_semaphore(tower::service_fn(respond), Arc::clone(&slots));
    let limiter = LocalLimiter::token_bucket(quota(2, 1_000, 1)).with_max_in_flight(1).unwrap();
    let service = RateLimitLayer::new(limiter.clone()).layer(inner);
    let busy = slots.acquire().await.unwrap();
    let calls = [(); 2].map(|()| tokio::spawn(service.clone().oneshot(to("/"))));
    sleep(millis(500)).await;
    drop(busy);
    for call in calls {
        drop(tokio::time::timeout(seconds(60), call).await.unwrap().unwrap().unwrap());
    }
    assert_eq!((limiter.snapshot().granted, limiter.snapshot().requests_in_flight), (3, Some(0)));
}

/// The request that is in flight waits in the queue of its part behind another one, which has its turn there, and waits
/// for the end of the first in the queue of the account.
#[tokio::test(start_paused = true)]
async fn request_whose_permit_has_expired_goes_first_in_both_queues_of_a_joint_limiter() {
    let slots = Arc::new(Semaphore::new(1));
    let inner = ConcurrencyLimit::with_semaphore(tower::service_fn(respond), Arc::clone(&slots));
    let parts = Keyed::new(|_| 0, |_: &u32| LocalLimiter::token_bucket(quota(2, 1_000, 1)));
    let limiter = Joint::new(one_at_a_time(), parts);
    let layer = RateLimitLayer::new(limiter.clone()).with_priority(|_| Priority::High);
    let service = layer.layer(inner);
    let busy = slots.acquire().await.unwrap();
    let calls = [(); 2].map(|()| tokio::spawn(service.clone().oneshot(to("/"))));
    sleep(millis(1_500)).await;
    drop(busy);
    for call in calls {
        drop(tokio::time::timeout(seconds(60), call).await.unwrap().unwrap().unwrap());
    }
    assert_eq!(limiter.account().snapshot().requests_in_flight, Some(0));
}

/// The second permit of the first request is due later than that of the second request, which waits for its end.
#[tokio::test(start_paused = true)]
async fn request_whose_permit_has_expired_is_served_when_its_permits_are_due() {
    let slots = Arc::new(Semaphore::new(1));
    let inner = ConcurrencyLimit::with_semaphore(tower::service_fn(respond), Arc::clone(&slots));
    let limiter = LocalLimiter::token_bucket(quota(10, 10_000, 5)).with_max_in_flight(1).unwrap();
    let layer = RateLimitLayer::new(limiter).with_priority(|_| Priority::High);
    let cost = |head: RequestHead<'_>| if head.uri.path() == "/costly" { 5 } else { 1 };
    let service = layer.with_cost(move |head| NonZeroU32::new(cost(head)).unwrap()).layer(inner);
    let busy = slots.acquire().await.unwrap();
    let calls = ["/costly", "/"].map(|path| tokio::spawn(service.clone().oneshot(to(path))));
    sleep(seconds(3)).await;
    drop(busy);
    for call in calls {
        drop(tokio::time::timeout(seconds(60), call).await.unwrap().unwrap().unwrap());
    }
}

/// Such a response has no body, so nobody has to read it.
#[tokio::test(start_paused = true)]
async fn response_without_a_body_ends_its_request() {
    for (method, status, name, value) in [
        (Method::GET, 204, "x", ""),
        (Method::GET, 304, "x", ""),
        (Method::GET, 503, "content-length", "0"),
        (Method::GET, 200, "grpc-status", "14"),
        (Method::HEAD, 200, "content-length", "5"),
    ] {
        let response = ScriptedResponse::status(status).with_header(name, value);
        let inner = ScriptedService::new([response]);
        let limiter = one_at_a_time().with_hold_after_cancel(seconds(60));
        let service = RateLimitLayer::new(limiter.clone()).layer(inner);
        let request = Request::builder().method(method.clone()).uri("https://api.example.com/");
        let _unread = service.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(limiter.snapshot().requests_in_flight, Some(0), "{method} {status}");
    }
}

/// The server has not received such a request, so it counts no longer.
#[tokio::test(start_paused = true)]
async fn request_that_was_not_sent_is_not_held() {
    for (response, requests) in [
        (ScriptedResponse::refused(), 0),
        (ScriptedResponse::io_error(std::io::ErrorKind::ConnectionReset), 1),
    ] {
        let limiter = one_at_a_time().with_hold_after_cancel(seconds(60));
        let service = RateLimitLayer::new(limiter.clone()).layer(ScriptedService::new([response]));
        service
            .oneshot(Request::get("https://api.example.com/").body(Body::empty()).unwrap())
            .await
            .unwrap_err();
        assert_eq!(limiter.snapshot().requests_in_flight, Some(requests));
    }
}

#[tokio::test(start_paused = true)]
async fn request_that_an_inner_limiter_refuses_is_not_held() {
    let limiter = one_at_a_time().with_hold_after_cancel(seconds(60));
    let inner = one_at_a_time();
    let _busy = inner.acquire().await.unwrap();
    let inner = RateLimitLayer::new(inner).with_max_wait(Duration::ZERO).layer(ScriptedService::new([200]));
    let service = RateLimitLayer::new(limiter.clone()).layer(inner);
    let request = Request::get("https://api.example.com/").body(Body::empty()).unwrap();
    assert!(service.oneshot(request).await.unwrap_err().is_rate_limited());
    assert_eq!(limiter.snapshot().requests_in_flight, Some(0));
}

#[test]
fn limit_of_zero_is_rejected() {
    let error = LocalLimiter::without_quota().with_max_in_flight(0).unwrap_err();
    assert_eq!(error.to_string(), "invalid max in flight `0`: expected at least 1");
}

#[tokio::test(start_paused = true)]
async fn cancelled_body_frees_one_place_of_several() {
    let service = over(LocalLimiter::without_quota().with_max_in_flight(3).unwrap());
    let send = || service.clone().oneshot(to("/"));
    let [_first, _second, mut third] = [send().await.unwrap(), send().await.unwrap(), send().await.unwrap()];
    third.body_mut().frame().await.unwrap().unwrap();
    drop(third);
    let _next = send().await.unwrap();
    assert_free(&service, false);
}
