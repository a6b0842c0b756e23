//! Tests of `RateLimitLayer`: shared limiters, the settings of its requests, the readiness of the inner service, and
//! cancelled calls.

use super::{support::Scripted::Status, *};

fn layer() -> RateLimitLayer<LocalLimiter> {
    RateLimitLayer::new(LocalLimiter::token_bucket(one_per_second()))
}

/// Returns a layer whose limiter grants one permit every ten seconds.
fn slow_layer() -> RateLimitLayer<LocalLimiter> {
    RateLimitLayer::new(LocalLimiter::token_bucket(quota(2, 10_000, 1)))
}

#[tokio::test(start_paused = true)]
async fn call_waiting_for_a_permit_does_not_reserve_the_inner_service() {
    let mut inner = tower::limit::ConcurrencyLimitLayer::new(1).layer(ok_service());
    let limited = layer().layer(inner.clone());
    limited.clone().oneshot(Request::new(())).await.unwrap();
    let waiting = [(); 2].map(|()| tokio::spawn(limited.clone().oneshot(Request::new(()))));
    sleep(millis(500)).await;
    assert!(task::spawn(inner.ready()).poll().is_ready(), "the slot is free while the requests wait");
    drop(inner);
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn call_is_in_flight_from_its_first_poll_until_it_ends_or_is_dropped() {
    let bucket = refilling(1, 5);
    let counts = || (bucket.snapshot().granted, bucket.snapshot().awaiting_response);
    let layer = RateLimitLayer::new(bucket.clone());
    let mut service = layer.layer(ok_service());
    drop(service.call(Request::new(())));
    let unpolled = service.call(Request::new(()));
    assert_eq!(counts(), (0, 0));
    unpolled.await.unwrap();
    assert_eq!(counts(), (1, 0));

    // The next call is granted a permit, and is dropped before the inner service is ready.
    let never_ready = ConcurrencyLimit::with_semaphore(ok_service(), Arc::new(Semaphore::new(0)));
    let mut granted = task::spawn(layer.layer(never_ready).call(Request::new(())));
    assert_pending!(granted.poll());
    assert_eq!(counts(), (2, 1));
    drop(granted);
    assert_eq!(counts(), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn layer_takes_the_cost_from_the_extensions_or_a_function() {
    let bucket = refilling(1, 10);
    let layer = RateLimitLayer::new(bucket.clone());
    let mut request = Request::get("/0123456789").body(()).unwrap();
    let by_path = layer.clone().with_cost(|head| permits(head.uri.path().len() as u32));
    let error = by_path.layer(ok_service()).oneshot(request.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooCostly);
    request.extensions_mut().insert(PermitCost(permits(11)));
    let error = layer.layer(ok_service()).oneshot(request).await.unwrap_err();
    assert!(error.kind() == ErrorKind::TooCostly && !error.is_rate_limited());
    assert_eq!(
        format!("{error:#}"),
        "refused by the rate limiter: the request costs 11 permits, but at most 10 can be granted at once: lower the \
         cost, or raise the quota's burst (Quota::with_burst, in a file `burst`), a bucket's capacity or a sliding \
         window's limit"
    );
    assert_eq!((bucket.snapshot().granted, bucket.snapshot().refused), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn layer_takes_the_priority_from_the_extensions_or_a_function() {
    for by_function in [false, true] {
        let of = |path: &str| if path == "/first" { Priority::High } else { Priority::Normal };
        let layer = RateLimitLayer::new(refilling(1, 1).with_initial_burst(0));
        let by_path = layer.clone().with_priority(move |head| of(head.uri.path()));
        let service = if by_function { by_path } else { layer }.layer(ok_service());
        let [last, first] = ["/last", "/first"].map(|path| {
            let mut request = Request::get(path).body(()).unwrap();
            if !by_function {
                request.extensions_mut().insert(of(path));
            }
            let (service, start) = (service.clone(), Instant::now());
            tokio::spawn(async move { service.oneshot(request).await.map(|_| start.elapsed().as_secs()) })
        });
        assert_eq!((first.await.unwrap().unwrap(), last.await.unwrap().unwrap()), (1, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn queued_request_is_sent_unchanged() {
    for (length, mark) in [(10, None), (10, Some(7_u8)), (2_000, None)] {
        let server = ScriptedService::new([Status(200)]);
        let ready = Arc::new(Semaphore::new(1));
        let inner = ConcurrencyLimit::with_semaphore(server.clone(), Arc::clone(&ready));
        let service = slow_layer().layer(inner);
        let mut secret = HeaderValue::from_bytes(&vec![b's'; length]).unwrap();
        secret.set_sensitive(true);
        // `HeaderName::from_bytes` rejects this name.
        let quoted = HeaderName::from_lowercase(b"x\"y").unwrap();
        let request = Request::post("https://api.example.com/v1?q=1").version(Version::HTTP_2);
        let request = request.header("x-many", "1").header(quoted, "3").header("x-secret", secret);
        let mut request = request.header("x-many", "2").body(String::new()).unwrap();
        if let Some(mark) = mark {
            request.extensions_mut().insert(mark);
        }
        let start = Instant::now();
        service.clone().oneshot(request.clone()).await.unwrap();
        // The second request waits for a permit, then for the inner service, and then for another permit.
        let busy = ready.acquire_owned().await.unwrap();
        tokio::spawn(async move {
            sleep(seconds(12)).await;
            drop(busy);
        });
        service.oneshot(request.clone()).await.unwrap();
        assert!(start.elapsed() >= seconds(20), "the second request waits for two permits");
        let sent = &server.seen()[1].head;
        assert_eq!((&sent.method, &sent.uri, sent.version), (&Method::POST, request.uri(), Version::HTTP_2));
        assert!(sent.headers.iter().eq(request.headers()), "{length}");
        assert!(sent.headers["x-secret"].is_sensitive() && !sent.headers["x-many"].is_sensitive());
        let extensions = &sent.extensions;
        assert_eq!((extensions.get::<u8>().copied(), extensions.len()), (mark, mark.iter().count()));
    }
}
