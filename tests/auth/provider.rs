use std::error::Error as _;

use tokio::time::{advance, timeout};
use tokio_test::{assert_pending, task::spawn};
use tower::ServiceBuilder;
use tower_outbound::{
    Quota,
    auth::KeyError,
    limit::{RateLimitLayer, TokenBucket},
    test_util::Arrivals,
};

use super::*;

#[tokio::test(start_paused = true)]
async fn concurrent_requests_share_one_refresh() {
    let server = Server::accepting("key");
    let (provided, asked) = provided(millis(100), &[Fetch::Gives(60)]);
    let client = client(provided, &server);
    for round in 1..=3 {
        let ended = together(50, || {
            let client = client.clone();
            async move { send(&client).await.unwrap().status() }
        });
        assert!(ended.await.iter().all(|status| *status == 200));
        assert_eq!(asked.times(), round, "one refresh for all 50 requests");
        let (keys, expected) = (server.keys(), format!("key-{round}"));
        assert_eq!(keys.len(), 50 * round);
        assert!(keys[50 * (round - 1)..].iter().all(|key| *key == expected), "{keys:?}");
        advance(secs(60)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn sends_the_old_key_while_a_refresh_ahead_of_its_expiry_runs() {
    let server = Server::accepting("key");
    let (provided, asked) = provided(millis(500), &[Fetch::Gives(1_000)]);
    let keys = KeySource::from(provided);
    let client = client(keys.clone(), &server);
    send(&client).await.unwrap();
    advance(secs(799)).await;
    send(&client).await.unwrap();
    assert_eq!(asked.times(), 1, "the refresh starts a fifth of the lifetime ahead, not earlier");
    advance(secs(1)).await;
    let before = Instant::now();
    for _ in 0..3 {
        send(&client).await.unwrap();
    }
    assert_eq!(
        (before.elapsed(), asked.times()),
        (Duration::ZERO, 2),
        "no request waits, and one starts the refresh"
    );
    tokio::time::sleep(millis(500)).await;
    send(&client).await.unwrap();
    assert_eq!(server.keys(), ["key-1", "key-1", "key-1", "key-1", "key-1", "key-2"]);
    assert_eq!((asked.times(), keys.last_error().is_none()), (2, true));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_completes_during_a_call() {
    let given = Asked(Arc::default());
    let count = given.clone();
    let keys = KeySource::from(RefreshingKey::new(move || {
        let count = count.clone();
        async move {
            tokio::time::sleep(millis(500)).await;
            count.0.fetch_add(1, Ordering::Relaxed);
            let key = ApiKey::new(format!("key-{}", count.times()))?;
            Ok::<_, BoxError>(FreshKey::new(key).with_lifetime(secs(1_000)))
        }
    }));
    assert_eq!(keys.current().await.unwrap().expose(), "key-1");
    advance(secs(850)).await;
    let slow = support::ScriptedService::new([support::Scripted::Delayed(600, 200)]);
    layer(keys.clone()).layer(slow).oneshot(get(URI)).await.unwrap();
    assert_eq!(given.times(), 2, "fetched before the next request");
    assert_eq!(keys.current().await.unwrap().expose(), "key-2");
}

#[test]
fn a_call_outside_a_runtime_leaves_the_refresh_to_the_next_call() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let asked = Asked(Arc::default());
    let count = asked.clone();
    let provider = move || {
        let number = count.0.fetch_add(1, Ordering::Relaxed) + 1;
        async move {
            let key = FreshKey::new(ApiKey::new(format!("key-{number}"))?);
            if number == 2 { Err(BoxError::from("the vault is shut")) } else { Ok(key) }
        }
    };
    let backoff = ExponentialBackoff::new(Duration::from_nanos(1), Duration::from_nanos(1)).unwrap();
    let keys = KeySource::from(RefreshingKey::new(provider).with_backoff(backoff));
    runtime.block_on(async {
        let key = keys.current().await.unwrap();
        assert!(keys.reject(&key), "another key is fetched");
        assert!(keys.current().await.is_err());
    });
    let server = Server::accepting("key-");
    let mut client = client(keys.clone(), &server);
    let call = Service::<Request<Content>>::call(&mut client, get(URI));
    assert_eq!((server.keys(), asked.times()), (vec!["key-1".to_owned()], 2));
    runtime.block_on(async {
        assert_eq!((call.await.unwrap().status().as_u16(), asked.times()), (200, 2));
        advance(millis(1)).await;
        assert_eq!(keys.current().await.unwrap().expose(), "key-3");
    });
}

/// If the key expires between readiness and the request, the latest key is sent, and the server's response decides.
#[tokio::test(start_paused = true)]
async fn sends_the_newer_of_two_expired_keys() {
    let server = Server::accepting("key-");
    let asked = Asked(Arc::default());
    let count = asked.clone();
    // The provider responds immediately, so the request that starts the refresh has the new key.
    let provider = RefreshingKey::new(move || {
        let number = count.0.fetch_add(1, Ordering::Relaxed) + 1;
        let lifetime = if number == 1 { secs(10) } else { secs(1) };
        async move {
            Ok::<_, BoxError>(FreshKey::new(ApiKey::new(format!("key-{number}"))?).with_lifetime(lifetime))
        }
    });
    let mut client = client(provider, &server);
    std::future::poll_fn(|cx| Service::<Request<Content>>::poll_ready(&mut client, cx)).await.unwrap();
    client.call(get(URI)).await.unwrap();
    advance(millis(8_500)).await;
    std::future::poll_fn(|cx| Service::<Request<Content>>::poll_ready(&mut client, cx)).await.unwrap();
    assert_eq!(asked.times(), 2);
    advance(millis(1_500)).await;
    client.call(get(URI)).await.unwrap();
    assert_eq!(server.keys(), ["key-1", "key-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_continues_after_some_waiting_calls_are_dropped() {
    let server = Server::accepting("key");
    let (provided, asked) = provided(secs(2), &[Fetch::Gives(60)]);
    let client = client(provided, &server);
    // The first call starts the refresh, and all three wait. The first two are dropped halfway.
    let mut first = spawn(send(&client));
    let mut second = spawn(send(&client));
    let mut third = spawn(send(&client));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    advance(secs(1)).await;
    drop(first);
    assert_pending!(second.poll());
    drop(second);
    advance(secs(1)).await;
    assert!(third.is_woken());
    assert_eq!(third.await.unwrap().status(), 200);
    assert_eq!((asked.times(), server.keys().len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_continues_after_all_waiting_calls_are_dropped() {
    let server = Server::accepting("key");
    for pause in [millis(100), secs(3), millis(10_200), secs(59)] {
        let (provided, asked) = provided(secs(2), &[Fetch::Gives(60)]);
        let client = client(provided, &server);
        assert!(timeout(millis(10), send(&client)).await.is_err());
        tokio::time::sleep(pause).await;
        let before = Instant::now();
        assert_eq!(send(&client).await.unwrap().status(), 200);
        let waited = secs(2).saturating_sub(pause + millis(10));
        // After 48 of the 60 s, a refresh ahead of the expiry is running.
        let in_all = if pause > secs(50) { 2 } else { 1 };
        assert_eq!((before.elapsed(), asked.times()), (waited, in_all), "{pause:?}");
    }
}

/// Regular single calls: no request is in flight between two of them that could poll a refresh.
#[tokio::test(start_paused = true)]
async fn occasional_calls_never_wait_for_the_next_key() {
    for every in [secs(10), secs(15), secs(100)] {
        let server = Server::accepting("key").after(millis(20));
        let (provided, asked) = provided(millis(100), &[Fetch::Gives(3_600)]);
        let keys = KeySource::from(provided);
        let client = client(keys.clone(), &server);
        send(&client).await.unwrap();
        let start = Instant::now();
        while start.elapsed() < secs(2 * 3_600) {
            let before = Instant::now();
            send(&client).await.unwrap();
            assert!(before.elapsed() < millis(30), "{:?} at {:?}", before.elapsed(), start.elapsed());
            tokio::time::sleep(every).await;
        }
        assert_eq!((asked.times(), keys.last_error().is_none()), (3, true), "{every:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reused_service_gets_a_current_key_for_each_request() {
    /// Sends a request with this instance, not with a clone.
    async fn send(client: &mut Client, uri: &str) {
        let ready = ServiceExt::<Request<Content>>::ready(client).await.unwrap();
        ready.call(get(uri)).await.unwrap();
    }
    let elsewhere = "https://other.example.com/";
    let server = Server::accepting("");
    let (provided, asked) = provided(millis(10), &[Fetch::Gives(100), Fetch::Fails, Fetch::Gives(100)]);
    let mut client = client(provided, &server);
    send(&mut client, elsewhere).await;
    // The key has expired, and the next refresh fails.
    advance(secs(200)).await;
    send(&mut client, elsewhere).await;
    advance(secs(200)).await;
    send(&mut client, URI).await;
    assert_eq!((asked.times(), server.keys()), (3, vec![String::new(), String::new(), "key-3".to_owned()]));
}

/// For example a client in a static, and a runtime for each test.
#[test]
fn starts_another_refresh_after_the_runtime_of_the_first_one_ended() {
    let server = Server::accepting("key");
    let (provided, asked) = provided(secs(1), &[Fetch::Gives(60)]);
    let client = client(provided, &server);
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    assert!(runtime().block_on(async { timeout(millis(10), send(&client)).await }).is_err());
    assert_eq!(runtime().block_on(send(&client)).unwrap().status(), 200);
    assert_eq!(asked.times(), 2);
}

#[tokio::test(start_paused = true)]
async fn backs_off_after_a_failed_refresh_and_uses_the_old_key_while_it_is_valid() {
    let server = Server::accepting("key");
    let (provided, asked) = provided(Duration::ZERO, &[Fetch::Gives(100), Fetch::Fails]);
    let keys = KeySource::from(provided);
    let client = client(keys.clone(), &server);
    let started = Instant::now();
    // The refresh is due at 80 s, then after a backoff of 1, 2, 4 and 8 s, with the next request.
    for (at, times) in
        [(0, 1), (79, 1), (80, 2), (80, 2), (81, 3), (82, 3), (83, 4), (86, 4), (87, 5), (95, 6)]
    {
        advance((started + secs(at)) - Instant::now()).await;
        assert_eq!(send(&client).await.unwrap().status(), 200, "{at}");
        assert_eq!(asked.times(), times, "{at}");
    }
    assert!(server.keys().iter().all(|key| key == "key-1"));
    assert_eq!(keys.last_error().unwrap().source().unwrap().to_string(), "the vault is shut");
    // From 100 s on no key is valid.
    advance((started + secs(100)) - Instant::now()).await;
    let error = send(&client).await.unwrap_err();
    assert!(error.is_auth() && !error.is_service() && !error.is_timeout(), "{error:?}");
    let cause: &KeyError = support::cause(&error).unwrap();
    assert_eq!(cause.retry_in(), Some(secs(11)), "the backoff of 16 s began at 95 s");
    assert_eq!(
        format!("{error:#}"),
        "credential could not be attached: the key provider failed, next attempt in 11s: the vault is shut"
    );
    assert_eq!(
        (asked.times(), server.keys().len()),
        (6, 10),
        "no refresh was started, and no request was sent"
    );
}

#[tokio::test(start_paused = true)]
async fn all_requests_that_wait_for_a_failed_refresh_fail() {
    let server = Server::accepting("key");
    let (provided, asked) = provided(secs(1), &[Fetch::Fails, Fetch::Gives(60)]);
    let client = client(provided, &server);
    let ended = together(20, || {
        let client = client.clone();
        async move { send(&client).await.unwrap_err() }
    });
    for error in ended.await {
        let cause: &KeyError = support::cause(&error).unwrap();
        assert_eq!((error.is_auth(), cause.retry_in()), (true, Some(secs(1))));
        assert_eq!(error.retry_after(), Some(secs(1)));
    }
    assert_eq!(asked.times(), 1);
    advance(secs(1)).await;
    assert_eq!(send(&client).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_fails_if_the_provider_hangs_panics_or_returns_an_expired_key() {
    let server = Server::accepting("key");
    for (fetch, said, after) in [
        (Fetch::Hangs, "gave no key within 10s", secs(10)),
        (Fetch::Panics, "panicked", Duration::ZERO),
        (Fetch::Gives(0), "has expired", Duration::ZERO),
    ] {
        let script = Box::leak(Box::new([fetch, Fetch::Gives(60)]));
        let (provided, asked) = provided(Duration::ZERO, script);
        let client = client(provided, &server);
        let before = Instant::now();
        let error = send(&client).await.unwrap_err();
        assert!(error.is_auth() && format!("{error:#}").contains(said), "{error:#}");
        assert_eq!(before.elapsed(), after, "{said}");
        advance(secs(1)).await;
        assert_eq!(send(&client).await.unwrap().status(), 200, "{said}");
        assert_eq!(asked.times(), 2);
    }
}

/// A permit that expires during the wait for a key is replaced.
#[tokio::test(start_paused = true)]
async fn requests_that_waited_for_a_key_stay_within_the_quota() {
    let server = Server::accepting("key");
    let (provided, _) = provided(secs(9), &[Fetch::Lasting]);
    let quota = Quota::new(10, secs(10)).unwrap().with_burst(5).unwrap();
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(TokenBucket::new(quota)))
        .layer(layer(provided))
        .service(server.clone());
    let ended = together(40, || service.clone().oneshot(get(URI))).await;
    assert!(ended.iter().all(Result::is_ok));
    server.times().into_iter().collect::<Arrivals>().assert_within(quota);
}

#[tokio::test]
async fn sends_no_key_to_another_origin() {
    let server = Server::accepting("");
    let (provided, _) = provided(Duration::ZERO, &[Fetch::Fails]);
    let response = client(provided, &server).oneshot(get("https://other.example.com")).await.unwrap();
    assert_eq!((response.status().as_u16(), server.keys()), (200, vec![String::new()]));
}
