//! Tests of keys from a key provider: when a refresh starts, which requests wait for a refresh, and how a refresh
//! fails.

use std::error::Error as _;

use tokio::{
    task::yield_now,
    time::{advance, timeout},
};
use tower::service_fn;
use tower_outbound::{
    Quota,
    auth::KeyError,
    limit::{LocalLimiter, RateLimitLayer},
};

use super::{key_runtimes::paused_runtime, *};

#[tokio::test(start_paused = true)]
async fn concurrent_requests_share_one_key_refresh() {
    let server = Server::accepting("key");
    let (provider, fetches) = key_provider(millis(100), &[Fetch::Expiring(60)]);
    let client = client(provider, &server);
    for round in 1..=3 {
        let statuses = run_concurrently(50, || {
            let client = client.clone();
            async move { send(&client).await.unwrap().status() }
        });
        assert!(statuses.await.iter().all(|status| *status == 200));
        assert_eq!(fetches.count(), round, "all 50 requests share one refresh");
        let (keys, expected) = (server.keys(), format!("key-{round}"));
        assert_eq!(keys.len(), 50 * round);
        assert!(keys[50 * (round - 1)..].iter().all(|key| *key == expected), "{keys:?}");
        advance(secs(60)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn unexpired_key_is_sent_while_its_refresh_runs() {
    let server = Server::accepting("key");
    let (provider, fetches) = key_provider(millis(500), &[Fetch::Expiring(1_000)]);
    let keys = KeySource::from(provider);
    let client = client(keys.clone(), &server);
    send(&client).await.unwrap();
    advance(secs(799)).await;
    send(&client).await.unwrap();
    assert_eq!(fetches.count(), 1, "the refresh starts only after four fifths of the key's lifetime");
    advance(secs(1)).await;
    let before = Instant::now();
    for _ in 0..3 {
        send(&client).await.unwrap();
    }
    yield_now().await;
    assert_eq!(
        (before.elapsed(), fetches.count()),
        (Duration::ZERO, 2),
        "the first request starts the refresh of the key, and no request waits for the refresh"
    );
    tokio::time::sleep(millis(501)).await;
    send(&client).await.unwrap();
    assert_eq!(server.keys(), ["key-1", "key-1", "key-1", "key-1", "key-1", "key-2"]);
    assert_eq!((fetches.count(), keys.last_error().is_none()), (2, true));
}

/// The permit of a request that waits too long for its key expires, and is replaced.
#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_a_key_stay_within_the_quota() {
    let server = Server::accepting("key");
    let quota = Quota::new(10, secs(10)).unwrap().with_burst(5).unwrap();
    let limit = RateLimitLayer::new(LocalLimiter::token_bucket(quota));
    let service = limit.layer(client(key_provider(secs(9), &[Fetch::Lasting]).0, &server));
    let results = run_concurrently(40, || service.clone().oneshot(get(URI))).await;
    assert!(results.iter().all(Result::is_ok));
    server.service.arrivals().assert_within(quota);
}

#[tokio::test]
async fn request_to_another_origin_needs_no_key() {
    let server = Server::accepting("");
    let client = client(key_provider(Duration::ZERO, &[Fetch::Fails]).0, &server);
    assert_eq!(client.oneshot(get("https://other.example.com")).await.unwrap().status(), 200);
    assert_eq!(server.keys(), [""]);
}

#[test]
fn call_outside_a_runtime_leaves_the_key_refresh_to_the_next_call() {
    let runtime = paused_runtime();
    let (provider, fetches) = key_provider(Duration::ZERO, &[Fetch::Lasting, Fetch::Fails, Fetch::Lasting]);
    let backoff = ExponentialBackoff::new(Duration::from_nanos(1), Duration::from_nanos(1)).unwrap();
    let keys = KeySource::from(provider.with_backoff(backoff));
    runtime.block_on(async {
        let key = keys.current().await.unwrap();
        assert!(keys.reject(&key), "the next call fetches a new key");
        assert!(keys.current().await.is_err());
    });
    // The test calls the service without `poll_ready`, which would wait for the key.
    let mut client = layer(keys.clone()).layer(service_fn(|request: Request<Content>| {
        let key = request.headers()[AUTHORIZATION].clone();
        std::future::ready(Ok::<_, Infallible>(http::Response::new(key)))
    }));
    let call = client.call(get(URI));
    runtime.block_on(async {
        assert_eq!((call.await.unwrap().into_body().to_str().unwrap(), fetches.count()), ("Bearer key-1", 2));
        advance(millis(1)).await;
        keys.current().await.unwrap();
        yield_now().await;
        assert_eq!(keys.current().await.unwrap().expose(), "key-3");
    });
}

#[tokio::test(start_paused = true)]
async fn key_refresh_continues_after_all_waiting_calls_are_dropped() {
    let server = Server::accepting("key");
    for pause in [millis(100), secs(3), millis(10_200), secs(59)] {
        let (provider, fetches) = key_provider(secs(2), &[Fetch::Expiring(60)]);
        let client = client(provider, &server);
        assert!(timeout(millis(10), send(&client)).await.is_err());
        tokio::time::sleep(pause).await;
        let before = Instant::now();
        assert_eq!(send(&client).await.unwrap().status(), 200);
        yield_now().await;
        let waited = secs(2).saturating_sub(pause + millis(10));
        // The key is valid for 60 s, so the next refresh is due when the key is 48 s old.
        let expected = if pause > secs(50) { 2 } else { 1 };
        assert_eq!((before.elapsed(), fetches.count()), (waited, expected), "{pause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn provider_backs_off_after_failed_refreshes_while_the_old_key_is_valid() {
    let server = Server::accepting("key");
    let (provider, fetches) = key_provider(Duration::ZERO, &[Fetch::Expiring(100), Fetch::Fails]);
    let keys = KeySource::from(provider);
    let client = client(keys.clone(), &server);
    let started = Instant::now();
    // The first request after 80 s starts a key refresh. The provider retries the failed refresh after 1, 2, 4 and 8 s.
    for (at, expected) in
        [(0, 1), (79, 1), (80, 2), (80, 2), (81, 3), (82, 3), (83, 4), (86, 4), (87, 5), (95, 6)]
    {
        advance((started + secs(at)) - Instant::now()).await;
        assert_eq!(send(&client).await.unwrap().status(), 200, "at {at} s");
        yield_now().await;
        assert_eq!(fetches.count(), expected, "at {at} s");
    }
    assert!(server.keys().iter().all(|key| key == "key-1"));
    assert_eq!(keys.last_error().unwrap().source().unwrap().to_string(), "the vault is unavailable");
    // The key expires 100 s after the start of the test.
    advance((started + secs(100)) - Instant::now()).await;
    let error = send(&client).await.unwrap_err();
    assert!(error.is_auth() && !error.is_service() && !error.is_timeout(), "{error:?}");
    let cause: &KeyError = support::cause(&error).unwrap();
    assert_eq!(cause.retry_in(), Some(secs(11)), "the refresh that failed at 95 s began a backoff of 16 s");
    assert_eq!(
        format!("{error:#}"),
        "credential could not be attached: the key provider failed, next attempt in 11s: the vault is unavailable"
    );
    assert_eq!(
        (fetches.count(), server.keys().len()),
        (6, 10),
        "a call without a valid key during the backoff starts no refresh and sends no request"
    );
}

#[tokio::test(start_paused = true)]
async fn key_error_of_a_provider_is_passed_on_and_its_delay_is_kept() {
    let (keys, calls, fetches) = keys_of_vault(Duration::ZERO, &[Fetch::Fails, Fetch::Expiring(60)]);
    let error = keys.current().await.unwrap_err();
    assert_eq!(error.to_string(), "the key provider failed, next attempt in 60s");
    assert_eq!(error.source().unwrap().to_string(), "the vault is unavailable");
    // The backoff of the outer source alone would be 1 s.
    advance(secs(59)).await;
    assert_eq!(keys.current().await.unwrap_err().retry_in(), Some(secs(1)));
    assert_eq!((calls.count(), fetches.count()), (1, 1));
    advance(secs(1)).await;
    assert_eq!(keys.current().await.unwrap().expose(), "key-2");
}

#[tokio::test(start_paused = true)]
async fn all_requests_that_wait_for_a_failed_key_refresh_return_an_error() {
    let server = Server::accepting("key");
    let (provider, fetches) = key_provider(secs(1), &[Fetch::Fails, Fetch::Expiring(60)]);
    let client = client(provider, &server);
    let errors = run_concurrently(20, || {
        let client = client.clone();
        async move { send(&client).await.unwrap_err() }
    });
    for error in errors.await {
        let cause: &KeyError = support::cause(&error).unwrap();
        assert_eq!((error.is_auth(), cause.retry_in()), (true, Some(secs(1))));
        assert_eq!(error.retry_after(), Some(secs(1)));
    }
    assert_eq!(fetches.count(), 1);
    advance(secs(1)).await;
    assert_eq!(send(&client).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn key_refresh_fails_if_provider_hangs_or_panics_or_returns_expired_key() {
    let server = Server::accepting("key");
    for (fetch, message, expected) in [
        (Fetch::Hangs, "gave no key within 10s", secs(10)),
        (Fetch::Panics, "panicked", Duration::ZERO),
        (Fetch::Expiring(0), "has expired", Duration::ZERO),
    ] {
        let script = Box::leak(Box::new([fetch, Fetch::Expiring(60)]));
        let (provider, fetches) = key_provider(Duration::ZERO, script);
        let client = client(provider, &server);
        let before = Instant::now();
        let error = send(&client).await.unwrap_err();
        assert!(error.is_auth() && format!("{error:#}").contains(message), "{error:#}");
        assert_eq!(before.elapsed(), expected, "{message}");
        advance(secs(1)).await;
        assert_eq!(send(&client).await.unwrap().status(), 200, "{message}");
        assert_eq!(fetches.count(), 2);
    }
}

/// The old key and its replacement both expire between `poll_ready` and `call`. The auth layer sends the replacement,
/// which the server may still accept.
#[tokio::test(start_paused = true)]
async fn auth_layer_sends_the_newer_of_two_expired_keys() {
    let server = Server::accepting("key-");
    let script = &[Fetch::Expiring(10), Fetch::Expiring(1), Fetch::Hangs];
    let (provider, fetches) = key_provider(Duration::ZERO, script);
    let mut client = client(provider, &server);
    send(&client).await.unwrap();
    advance(millis(8_500)).await;
    send(&client).await.unwrap();
    yield_now().await;
    assert_eq!(fetches.count(), 2);
    std::future::poll_fn(|cx| Service::<Request<Content>>::poll_ready(&mut client, cx)).await.unwrap();
    advance(millis(1_500)).await;
    client.call(get(URI)).await.unwrap();
    assert_eq!(server.keys(), ["key-1", "key-1", "key-2"]);
}
