use http::HeaderValue;
use tokio::time::advance;
use tower::ServiceBuilder;
use tower_outbound::{
    Quota,
    limit::{RateLimitLayer, TokenBucket},
    test_util::Arrivals,
};

use super::*;

#[tokio::test(start_paused = true)]
async fn a_hundred_concurrent_401s_cause_one_refresh_and_one_resend_each() {
    for latency in [Duration::ZERO, millis(300)] {
        let server = Server::accepting("key-2").after(millis(20));
        let (provided, asked) = provided(latency, &[Fetch::Gives(3_600)]);
        let client = client(provided, &server);
        let ended = together(100, || send_again(client.clone())).await;
        assert!(ended.iter().all(|ended| ended.as_ref().unwrap().status() == 200));
        assert_eq!(asked.times(), 2, "one key for all requests, and one replacement");
        let keys = server.keys();
        assert_eq!((keys.len(), keys.iter().filter(|key| *key == "key-1").count()), (200, 100));
    }
}

#[tokio::test(start_paused = true)]
async fn returns_a_second_401_without_another_refresh() {
    let server = Server::accepting("none of them");
    let (provided, asked) = provided(Duration::ZERO, &[Fetch::Lasting]);
    let client = client(provided, &server);
    let response = send_again(client.clone()).await.unwrap();
    assert_eq!((response.status().as_u16(), server.keys().len(), asked.times()), (401, 2, 2));
    assert!(response.extensions().get::<KeyReplaced>().is_none(), "the second 401 causes no resend");
    // The next calls do not fetch another key right after the 401.
    for _ in 0..10 {
        assert_eq!(send_again(client.clone()).await.unwrap().status(), 401);
    }
    assert_eq!((server.keys().len(), asked.times()), (12, 2));
    // Later calls fetch a key at growing intervals, so ten calls per second for a minute do not flood the provider.
    for _ in 0..600 {
        advance(millis(100)).await;
        assert_eq!(send_again(client.clone()).await.unwrap().status(), 401);
    }
    assert!((5..=9).contains(&asked.times()), "{}", asked.times());
}

#[tokio::test(start_paused = true)]
async fn replaces_a_key_immediately_if_it_was_in_use_for_long() {
    let server = Server::accepting("key-1");
    let (provided, asked) = provided(Duration::ZERO, &[Fetch::Lasting]);
    let client = client(provided, &server);
    send(&client).await.unwrap();
    for (round, next) in ["key-2", "key-3", "key-4"].into_iter().enumerate() {
        advance(secs(3_600)).await;
        server.accept(next);
        assert_eq!(send_again(client.clone()).await.unwrap().status(), 200, "{next}");
        assert_eq!(asked.times(), round + 2);
    }
    // A new key is kept only for the shortest backoff, because the earlier rejections were long ago.
    advance(secs(1)).await;
    server.accept("key-5");
    assert_eq!(send_again(client.clone()).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_late_401_to_the_old_key_does_not_replace_the_new_one() {
    let (provided, asked) = provided(Duration::ZERO, &[Fetch::Lasting]);
    let keys = KeySource::from(provided);
    let old = keys.current().await.unwrap();
    assert!(keys.reject(&old) && keys.reject(&old), "both requests are resent");
    let new = keys.current().await.unwrap();
    assert!(keys.reject(&old), "another key is in use already");
    assert_eq!(keys.current().await.unwrap(), new);
    assert_eq!(asked.times(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_401_during_a_refresh_starts_no_second_one() {
    let (provided, asked) = provided(secs(1), &[Fetch::Gives(1_000)]);
    let keys = KeySource::from(provided);
    let old = keys.current().await.unwrap();
    advance(secs(850)).await;
    // This call starts the refresh and uses the old key.
    assert_eq!(keys.current().await.unwrap(), old);
    assert!(keys.reject(&old));
    assert_ne!(
        keys.current().await.unwrap(),
        old,
        "a rejected key is not used while another one is being fetched"
    );
    assert_eq!(asked.times(), 2);
}

#[tokio::test(start_paused = true)]
async fn returns_the_401_if_no_other_key_can_be_fetched() {
    let server = Server::accepting("none of them");
    let (provided, asked) = provided(Duration::ZERO, &[Fetch::Lasting, Fetch::Fails]);
    let client = client(provided, &server);
    assert_eq!(send_again(client.clone()).await.unwrap().status(), 401);
    assert_eq!((server.keys().len(), asked.times()), (2, 2));
    assert_eq!(send_again(client).await.unwrap().status(), 401);
    assert_eq!((server.keys().len(), asked.times()), (3, 2), "backed off");
}

#[tokio::test(start_paused = true)]
async fn a_rejection_counts_again_at_the_end_of_the_backoff() {
    let (provided, asked) = provided(Duration::ZERO, &[Fetch::Lasting, Fetch::Fails, Fetch::Lasting]);
    let keys = KeySource::from(provided);
    let key = keys.current().await.unwrap();
    assert!(keys.reject(&key));
    assert!(keys.current().await.is_err(), "the refresh fails, and the rejected key is used again");
    advance(millis(999)).await;
    assert!(!keys.reject(&key), "the backoff lasts for a second");
    advance(millis(1)).await;
    assert!(keys.reject(&key));
    assert_eq!(keys.current().await.unwrap().expose(), "key-3");
    assert_eq!(asked.times(), 3);
}

#[tokio::test(start_paused = true)]
async fn does_not_mark_the_401_of_a_fixed_key_or_of_the_callers_own() {
    let server = Server::accepting("none of them");
    let fixed = client(ApiKey::new("fixed").unwrap(), &server);
    let response = send(&fixed).await.unwrap();
    assert!(response.status() == 401 && response.extensions().get::<KeyReplaced>().is_none());

    let (provided, asked) = provided(Duration::ZERO, &[Fetch::Lasting]);
    let mut own = get(URI);
    own.headers_mut().insert(AUTHORIZATION, HeaderValue::from_static("Bearer own"));
    let response = client(provided, &server).oneshot(own).await.unwrap();
    assert!(response.status() == 401 && response.extensions().get::<KeyReplaced>().is_none());
    assert_eq!((server.keys(), asked.times()), (vec!["fixed".to_owned(), "own".to_owned()], 1));
}

/// A resend takes a permit, too.
#[tokio::test(start_paused = true)]
async fn resends_stay_within_the_quota() {
    let server = Server::accepting("key-2");
    let (provided, _) = provided(millis(100), &[Fetch::Lasting]);
    let quota = Quota::new(10, secs(10)).unwrap();
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::new(TokenBucket::new(quota)))
        .layer(layer(provided))
        .service(server.clone());
    let ended = together(30, || send_again(service.clone())).await;
    assert!(ended.iter().all(|ended| ended.as_ref().unwrap().status() == 200));
    server.times().into_iter().collect::<Arrivals>().assert_within(quota);
}

/// A vault that reads its key when a fetch begins, and takes 10 s to return it. The key expires after 100 s, so a refresh
/// begins at 80 s.
fn slow_vault() -> (RefreshingKey, Arc<Mutex<&'static str>>, Asked) {
    let (stored, asked) = (Arc::new(Mutex::new("key-1")), Asked(Arc::default()));
    let (read, count) = (Arc::clone(&stored), asked.clone());
    let provider = move || {
        count.0.fetch_add(1, Ordering::Relaxed);
        let key = *read.lock().unwrap();
        async move {
            tokio::time::sleep(secs(10)).await;
            Ok::<_, BoxError>(FreshKey::new(ApiKey::new(key)?).with_lifetime(secs(100)))
        }
    };
    (RefreshingKey::new(provider).with_timeout(secs(30)).unwrap(), stored, asked)
}

#[tokio::test(start_paused = true)]
async fn fetches_again_if_the_key_is_rejected_while_it_is_fetched() {
    let (vault, stored, asked) = slow_vault();
    let server = Server::accepting("key-1");
    let client = client(vault, &server);
    send(&client).await.unwrap();
    tokio::time::sleep(secs(80)).await;
    send(&client).await.unwrap();
    tokio::time::sleep(secs(1)).await;
    assert_eq!(asked.times(), 2, "the refresh has begun");
    *stored.lock().unwrap() = "key-2";
    server.accept("key-2");
    let ended = together(20, || send_again(client.clone())).await;
    assert!(ended.iter().all(|ended| ended.as_ref().unwrap().status() == 200));
    assert_eq!(asked.times(), 3, "one more fetch for all");

    // A fetch of another key is not repeated.
    tokio::time::sleep(secs(60)).await;
    *stored.lock().unwrap() = "key-3";
    tokio::time::sleep(secs(20)).await;
    send(&client).await.unwrap();
    tokio::time::sleep(secs(1)).await;
    server.accept("key-3");
    assert_eq!(send_again(client.clone()).await.unwrap().status(), 200);
    assert_eq!(asked.times(), 4);
}

/// The server rejects all keys, and the vault has no other.
#[tokio::test(start_paused = true)]
async fn fetches_a_rejected_key_at_most_twice() {
    let (vault, _, asked) = slow_vault();
    let server = Server::accepting("key-1");
    let client = client(vault, &server);
    send(&client).await.unwrap();
    tokio::time::sleep(secs(80)).await;
    send(&client).await.unwrap();
    server.accept("none of them");
    assert_eq!(send_again(client.clone()).await.unwrap().status(), 401);
    assert_eq!((asked.times(), server.keys().len()), (3, 4));
}
