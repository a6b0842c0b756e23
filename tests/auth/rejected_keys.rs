//! Tests of how a 401 affects the API key: replacement, backoff and the `KeyReplaced` extension for the retry layer.

use http::HeaderValue;
use tokio::time::advance;

use super::*;

#[tokio::test(start_paused = true)]
async fn concurrent_401s_share_one_refresh_and_each_request_is_resent_once() {
    for latency in [Duration::ZERO, millis(300)] {
        let server = Server::slow("key-2", millis(20));
        let (provider, fetches) = key_provider(latency, &[Fetch::Expiring(3_600)]);
        let client = client(provider, &server);
        let results = run_concurrently(100, || send_with_resend(client.clone())).await;
        assert!(results.iter().all(|result| result.as_ref().unwrap().status() == 200));
        assert_eq!(fetches.count(), 2, "the provider fetches the first key and one replacement");
        let keys = server.keys();
        assert_eq!((keys.len(), keys.iter().filter(|key| *key == "key-1").count()), (200, 100));
    }
}

#[tokio::test(start_paused = true)]
async fn key_rejected_after_long_use_is_replaced_immediately() {
    let server = Server::accepting("key-1");
    let (provider, fetches) = key_provider(Duration::ZERO, &[Fetch::Lasting]);
    let client = client(provider, &server);
    send(&client).await.unwrap();
    for (round, next) in ["key-2", "key-3", "key-4"].into_iter().enumerate() {
        advance(secs(3_600)).await;
        server.accept(next);
        assert_eq!(send_with_resend(client.clone()).await.unwrap().status(), 200, "{next}");
        assert_eq!(fetches.count(), round + 2);
    }
    // The server accepted each key for an hour, so the provider backs off for only 1 s before the next fetch.
    advance(secs(1)).await;
    server.accept("key-5");
    assert_eq!(send_with_resend(client.clone()).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn key_rejected_during_a_refresh_starts_no_second_refresh() {
    let (provider, fetches) = key_provider(secs(1), &[Fetch::Expiring(1_000)]);
    let keys = KeySource::from(provider);
    let old = keys.current().await.unwrap();
    advance(secs(850)).await;
    // The key is due for a refresh. The call of `current` starts the refresh and returns the old key.
    assert_eq!(keys.current().await.unwrap(), old);
    assert!(keys.reject(&old));
    assert_ne!(keys.current().await.unwrap(), old, "a call waits for the new key if the old key is rejected");
    assert_eq!(fetches.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn call_returns_the_401_if_the_key_refresh_fails() {
    let server = Server::accepting("no key");
    let (provider, fetches) = key_provider(Duration::ZERO, &[Fetch::Lasting, Fetch::Fails]);
    let client = client(provider, &server);
    assert_eq!(send_with_resend(client.clone()).await.unwrap().status(), 401);
    assert_eq!((server.keys().len(), fetches.count()), (2, 2));
    assert_eq!(send_with_resend(client).await.unwrap().status(), 401);
    assert_eq!(
        (server.keys().len(), fetches.count()),
        (3, 2),
        "the provider fetches no key during its backoff"
    );
}

#[tokio::test(start_paused = true)]
async fn auth_layer_does_not_insert_key_replaced_for_a_fixed_key_or_a_key_of_the_caller() {
    let server = Server::accepting("no key");
    let fixed = client(ApiKey::new("fixed").unwrap(), &server);
    let response = send(&fixed).await.unwrap();
    assert!(response.status() == 401 && response.extensions().get::<KeyReplaced>().is_none());

    let (provider, fetches) = key_provider(Duration::ZERO, &[Fetch::Lasting]);
    let mut request = get(URI);
    request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_static("Bearer own"));
    let response = client(provider, &server).oneshot(request).await.unwrap();
    assert!(response.status() == 401 && response.extensions().get::<KeyReplaced>().is_none());
    assert_eq!((server.keys(), fetches.count()), (vec!["fixed".to_owned(), "own".to_owned()], 1));
}

/// Returns a key provider, the key in the provider's vault, and a counter of the provider's fetches. A fetch takes 10 s
/// and returns the key that the vault contained when the fetch started. A key expires after 100 s, so a refresh is due
/// after 80 s.
fn slow_provider() -> (RefreshingKey, Arc<Mutex<&'static str>>, FetchCount) {
    let (stored, fetches) = (Arc::new(Mutex::new("key-1")), FetchCount(Arc::default()));
    let (vault, counter) = (Arc::clone(&stored), fetches.clone());
    let provider = move || {
        counter.0.fetch_add(1, Ordering::Relaxed);
        let key = *vault.lock().unwrap();
        async move {
            tokio::time::sleep(secs(10)).await;
            Ok::<_, BoxError>(FreshKey::new(ApiKey::new(key)?).with_lifetime(secs(100)))
        }
    };
    (RefreshingKey::new(provider).with_timeout(secs(30)).unwrap(), stored, fetches)
}

#[tokio::test(start_paused = true)]
async fn provider_is_called_again_if_a_fetch_returns_a_key_that_was_just_rejected() {
    let (provider, stored, fetches) = slow_provider();
    let server = Server::accepting("key-1");
    let client = client(provider, &server);
    send(&client).await.unwrap();
    tokio::time::sleep(secs(80)).await;
    send(&client).await.unwrap();
    tokio::time::sleep(secs(1)).await;
    assert_eq!(fetches.count(), 2, "the refresh of the key has started");
    *stored.lock().unwrap() = "key-2";
    server.accept("key-2");
    let results = run_concurrently(20, || send_with_resend(client.clone())).await;
    assert!(results.iter().all(|result| result.as_ref().unwrap().status() == 200));
    assert_eq!(fetches.count(), 3, "all 20 requests share one more fetch");

    // A fetch is repeated only if it returned the rejected key. This fetch returns `key-3`, so it is not repeated.
    tokio::time::sleep(secs(60)).await;
    *stored.lock().unwrap() = "key-3";
    tokio::time::sleep(secs(20)).await;
    send(&client).await.unwrap();
    tokio::time::sleep(secs(1)).await;
    server.accept("key-3");
    assert_eq!(send_with_resend(client.clone()).await.unwrap().status(), 200);
    assert_eq!(fetches.count(), 4);
}

/// The server rejects the only key in the vault.
#[tokio::test(start_paused = true)]
async fn provider_is_called_again_only_once_if_the_vault_has_only_the_rejected_key() {
    let (provider, _, fetches) = slow_provider();
    let server = Server::accepting("key-1");
    let client = client(provider, &server);
    send(&client).await.unwrap();
    tokio::time::sleep(secs(80)).await;
    send(&client).await.unwrap();
    server.accept("no key");
    assert_eq!(send_with_resend(client.clone()).await.unwrap().status(), 401);
    assert_eq!((fetches.count(), server.keys().len()), (3, 4));
}

#[tokio::test(start_paused = true)]
async fn provider_backs_off_longer_after_each_rejected_key() {
    let server = Server::accepting("no key");
    let (provider, fetches) = key_provider(Duration::ZERO, &[Fetch::Lasting]);
    let client = client(provider, &server);
    // Ten rejected calls per second for a minute.
    for _ in 0..600 {
        advance(millis(100)).await;
        assert_eq!(send_with_resend(client.clone()).await.unwrap().status(), 401);
    }
    assert!((5..=9).contains(&fetches.count()), "{}", fetches.count());
}
