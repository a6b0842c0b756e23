//! The data in the store, and the server limits that processes share through it.

use tower_outbound::limit::ResponseInfo;

use super::*;

#[tokio::test]
async fn the_server_has_no_name_and_no_key_without_expiry() {
    let server = server();
    for make in [bucket, window] {
        let quotas = vec![quota(100, millis(500)), quota(200, millis(1_500))];
        let limiter = make(&server.url(), "sk_live_secret", quotas).unwrap().with_namespace("app").unwrap();
        take(&limiter, ask(1, None)).await.unwrap();
    }
    let mut connection = connect(&server).await;
    let keys: Vec<String> = redis::cmd("Keys").arg("*").query_async(&mut connection).await.unwrap();
    assert_eq!(keys.len(), 1 + 3, "{keys:?}");
    let slot = |key: &String| key.split(['{', '}']).nth(1).map(str::to_owned);
    for key in &keys {
        assert!(key.starts_with("app:{") && !key.contains("secret"), "{key}");
        assert_eq!(slot(key), slot(&keys[0]));
        let left: i64 = redis::cmd("PTTL").arg(key).query_async(&mut connection).await.unwrap();
        assert!((1..10_000).contains(&left), "{key} {left}");
    }
    let dump: Vec<Vec<u8>> = {
        let mut pipe = redis::pipe();
        for key in &keys {
            pipe.cmd("DUMP").arg(key);
        }
        pipe.query_async(&mut connection).await.unwrap()
    };
    assert!(dump.iter().all(|value| !String::from_utf8_lossy(value).contains("secret")));
}

fn two(server: &RedisServer) -> [RedisLimiter; 2] {
    [(); 2].map(|()| bucket(&server.url(), "key", [quota(1_000, millis(1_000))]).unwrap())
}

#[tokio::test]
async fn a_pause_of_one_process_applies_to_all() {
    let server = server();
    let [one, other] = two(&server);
    for limiter in [&one, &other] {
        take(limiter, ask(1, None)).await.unwrap();
    }
    let (start, pause) = (Instant::now(), millis(3_000));
    one.pause_until(Instant::now() + pause);
    // A task reports the pause immediately.
    let refusal = loop {
        match take(&other, ask(1, Some(millis(100)))).await {
            Ok(_) => tokio::time::sleep(millis(1)).await,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal.reason(), Reason::MaxWait);
    assert!(refusal.wait().unwrap() + start.elapsed() >= pause, "{refusal}");
    assert!(other.snapshot().paused_until.is_some());
    take(&other, ask(1, None)).await.unwrap();
    assert!(start.elapsed() >= pause, "{:?}", start.elapsed());
}

#[tokio::test]
async fn shares_the_remaining_permits_until_resume() {
    let server = server();
    let [one, other] = two(&server);
    for limiter in [&one, &other] {
        take(limiter, ask(1, None)).await.unwrap();
    }
    let headers = http::HeaderMap::from_iter([(
        http::HeaderName::from_static("ratelimit"),
        http::HeaderValue::from_static("\"default\";r=3;t=20"),
    )]);
    let permit = one.acquire_with(&ask(1, None)).await.unwrap();
    permit.complete(&ResponseInfo::new(http::StatusCode::OK, &headers));
    // Reported with the next query. The permit of that query is one of the three.
    take(&one, ask(1, None)).await.unwrap();
    for _ in 0..2 {
        take(&other, ask(1, Some(millis(100)))).await.unwrap();
    }
    let refusal = take(&other, ask(1, Some(millis(100)))).await.unwrap_err();
    assert!(refusal.wait().unwrap() > millis(1_000), "{refusal}");

    one.resume();
    tokio::time::sleep(millis(100)).await;
    take(&one, ask(1, Some(millis(100)))).await.unwrap();
}
