//! Tests responses of a member that are permanent throttles, such as a spent monthly quota.

use tower::util::MapResponseLayer;
use tower_outbound::limit::{Limiter, PermitRequest, RateLimitLayer};

use super::*;

fn exhausted() -> ScriptedResponse {
    ScriptedResponse::status(429).with_header("x-error", "insufficient_quota")
}

/// Where a client reads the permanent signal.
#[derive(Debug, Clone, Copy)]
enum Source {
    /// A layer inserts it into the extensions of the response.
    Layer,
    ServerSignal,
    /// The dialect of the limit layer and of the retry layer.
    Dialects,
    /// A header of the dialect, which has the meaning of [`rejected`].
    PermanentHeader,
}

fn with_signal(builder: StackBuilder, source: Source, signal: ServerSignal) -> StackBuilder {
    let of = move |headers: &http::HeaderMap| headers.contains_key("x-error").then_some(signal);
    let dialect = Dialect::new().with_signal(move |_, headers| of(headers));
    match source {
        Source::Layer => builder.with_transport_layer(MapResponseLayer::new(
            move |mut response: http::Response<tower_outbound::Body>| {
                if let Some(signal) = of(response.headers()) {
                    response.extensions_mut().insert(signal);
                }
                response
            },
        )),
        Source::PermanentHeader => {
            let header = http::HeaderName::from_static("x-error");
            builder.with_dialect(Dialect::new().with_permanent_header(header, None).unwrap())
        }
        Source::ServerSignal => builder.with_server_signal(move |_, headers| of(headers)),
        Source::Dialects => builder
            .with_retry(quick_retry().with_dialect(dialect.clone()))
            .with_limit(move |limit| limit.with_dialect(dialect)),
    }
}

/// The server rejects the signal, but does not process the request.
fn rejected() -> ServerSignal {
    ServerSignal::throttled().with_permanent().with_not_processed()
}

#[tokio::test(start_paused = true)]
async fn permanently_throttled_member_pauses_and_its_requests_go_to_the_other_one() {
    for source in [Source::Layer, Source::ServerSignal, Source::Dialects, Source::PermanentHeader] {
        let cases = [
            (429, rejected(), Method::POST),
            (403, ServerSignal::accepted().with_permanent().with_not_processed(), Method::POST),
            (200, ServerSignal::throttled().with_permanent(), Method::GET),
        ];
        // The header of a dialect has no meaning in a 200.
        let count = if matches!(source, Source::PermanentHeader) { 2 } else { 3 };
        for (status, signal, method) in cases.into_iter().take(count) {
            let eu = per_second(10);
            let service = service(
                move || ScriptedResponse::status(status).with_header("x-error", "quota"),
                || ok().with_delay(SECOND / 2),
            );
            let builder = with_signal(builder(pool(eu.clone(), per_second(10))), source, signal);
            let client = builder.client_with_service(service.clone()).unwrap();
            let calls = (0..200).map(|number| {
                let request = client.request(method.clone(), "/chat");
                async move {
                    tokio::time::sleep(Duration::from_millis(120) * number).await;
                    let response = request.await.unwrap();
                    (response.status().as_u16(), response.headers().contains_key("x-error"))
                }
            });
            assert_eq!(join_all(calls).await, [(200, false); 200], "{source:?} {status}");
            // The pauses after 24 s: 1, 2, 4, 8 and 16 s.
            assert!(eu.snapshot().granted <= 6, "{source:?} {status}: {}", eu.snapshot().granted);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn call_fails_at_once_if_all_members_are_permanently_throttled() {
    let us = per_second(10);
    let is_exhausted = Arc::new(AtomicBool::new(true));
    let read = Arc::clone(&is_exhausted);
    let service = service(exhausted, move || if read.load(Relaxed) { exhausted() } else { ok() });
    let builder = with_signal(builder(pool(per_second(10), us.clone())), Source::ServerSignal, rejected());
    let client = builder.client_with_service(service.clone()).unwrap();
    let post = async || {
        let start = Instant::now();
        let response = client.post("/chat").await.unwrap();
        assert!(start.elapsed() < SECOND / 4, "{:?}", start.elapsed());
        let report = report(&response);
        (response.status().as_u16(), report.attempts().len(), report.stop_reason().unwrap())
    };
    assert_eq!(post().await, (429, 2, StopReason::NotRetryable));
    for _ in 0..50 {
        tokio::time::sleep(SECOND / 4).await;
        assert_eq!(post().await, (429, 1, StopReason::NotRetryable));
        assert_eq!(us.snapshot().paused_until, None);
    }
    // One member serves again, so the other one pauses.
    is_exhausted.store(false, Relaxed);
    let mut results = Vec::new();
    for _ in 0..10 {
        tokio::time::sleep(SECOND / 4).await;
        results.push(post().await.0);
    }
    assert!(results[1..].iter().all(|status| *status == 200), "{results:?}");
}

#[tokio::test(start_paused = true)]
async fn permanently_throttled_call_fails_at_once_if_no_other_member_may_get_it() {
    let unstated = ServerSignal::throttled().with_permanent();
    let retry = || quick_retry().with_honoured_idempotency_key(IdempotencyKey::bare());
    for (signal, has_other, is_paused) in
        [(rejected(), false, false), (unstated, false, false), (unstated, true, true)]
    {
        let eu = per_second(10);
        let pool = match has_other {
            true => pool(eu.clone(), per_second(10)),
            false => Pool::new([(EU, key("eu-key"), eu.clone())]).unwrap(),
        };
        let service = service(exhausted, ok);
        let builder = with_signal(builder(pool).with_retry(retry()), Source::Layer, signal);
        let client = builder.client_with_service(service.clone()).unwrap();
        let start = Instant::now();
        let response = client.post("/chat").await.unwrap();
        assert_eq!((response.status().as_u16(), service.calls(), start.elapsed()), (429, 1, Duration::ZERO));
        assert_eq!(response.extensions().get(), Some(&signal), "the signal is that of the layer");
        assert_eq!(eu.snapshot().paused_until.is_some(), is_paused, "{signal:?} {has_other}");
    }
}

#[tokio::test(start_paused = true)]
async fn call_leaves_a_permanently_throttled_member_although_the_other_one_has_a_queue() {
    for (longest, expected) in [(120, (200, 2)), (5, (429, 1))] {
        let us = per_second(10);
        let service = service(exhausted, ok);
        let retry = quick_retry().with_max_retry_after(SECOND * longest);
        let builder = builder(pool(per_second(10), us.clone())).with_retry(retry);
        let builder = with_signal(builder, Source::ServerSignal, rejected());
        let client = builder.client_with_service(service.clone()).unwrap();
        let mut queue = JoinSet::new();
        for _ in 0..110 {
            queue.spawn(us.acquire_with(&PermitRequest::new()));
        }
        tokio::task::yield_now().await;
        let start = Instant::now();
        let response = client.post("/chat").await.unwrap();
        let attempts = report(&response).attempts().len();
        assert_eq!((response.status().as_u16(), attempts), expected, "{longest}");
        let waited = start.elapsed();
        assert_eq!(waited > SECOND * 9, attempts == 2, "{waited:?}");
        if attempts == 1 {
            assert_eq!(report(&response).stop_reason(), Some(StopReason::NotRetryable));
        }
    }
}

/// The outer limiter is not that of the pool, and a permanent signal does not pause it.
#[tokio::test(start_paused = true)]
async fn permanent_signal_of_a_member_pauses_no_limiter_above_the_pool() {
    let outer = LocalLimiter::without_quota();
    // The member may have processed the request, so that no other one gets it.
    let signal = ServerSignal::throttled().with_permanent();
    for trusts in [true, false] {
        let eu = per_second(10);
        let builder = with_signal(builder(pool(eu.clone(), per_second(10))), Source::Layer, signal);
        let retry = quick_retry().with_honoured_idempotency_key(IdempotencyKey::bare());
        let builder =
            builder.with_retry(retry).with_limit(move |limit| limit.with_feedback_from(move |_| trusts));
        let builder = builder.with_outer_layer(RateLimitLayer::new(outer.clone()));
        let client = builder.client_with_service(service(exhausted, ok)).unwrap();
        assert_eq!(client.post("/chat").await.unwrap().status(), 429);
        assert_eq!(eu.snapshot().paused_until.is_some(), trusts);
        assert_eq!(outer.snapshot().paused_until, None, "{trusts}");
    }
}
