//! Tests the data in the store, and the server limits that processes share through the store.

use tower_outbound::limit::ResponseInfo;

use super::*;

#[tokio::test]
async fn redis_keys_expire_and_contain_no_quota_name() {
    let server = server();
    for make in [bucket, window] {
        let quotas = vec![quota(100, millis(500)), quota(200, millis(1_500))];
        let limiter = make(&server.url(), "sk_live_secret", quotas).unwrap().with_namespace("app").unwrap();
        take(&limiter, request(1, None)).await.unwrap();
    }
    let mut connection = connect(&server).await;
    let keys: Vec<String> = redis::cmd("Keys").arg("*").query_async(&mut connection).await.unwrap();
    assert_eq!(keys.len(), 1 + 3, "{keys:?}");
    let slot = |key: &String| key.split(['{', '}']).nth(1).map(str::to_owned);
    for key in &keys {
        assert!(key.starts_with("app:{") && !key.contains("secret"), "{key}");
        assert_eq!(slot(key), slot(&keys[0]));
        let ttl: i64 = redis::cmd("PTTL").arg(key).query_async(&mut connection).await.unwrap();
        assert!((1..10_000).contains(&ttl), "{key}: {ttl} ms");
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

fn two_limiters(server: &RedisServer) -> [RedisLimiter; 2] {
    [(); 2].map(|()| bucket(&server.url(), "key", [quota(1_000, millis(1_000))]).unwrap())
}

#[tokio::test]
async fn pause_of_one_process_applies_to_all_processes() {
    let server = server();
    let [one, other] = two_limiters(&server);
    for limiter in [&one, &other] {
        take(limiter, request(1, None)).await.unwrap();
    }
    let (start, pause) = (Instant::now(), millis(3_000));
    one.pause_until(Instant::now() + pause);
    // A background task reports the pause to the store, so the second limiter sees the pause after a short delay.
    let refusal = loop {
        match take(&other, request(1, Some(millis(100)))).await {
            Ok(_) => tokio::time::sleep(millis(1)).await,
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal.reason(), Reason::MaxWait);
    assert!(refusal.wait().unwrap() + start.elapsed() >= pause, "{refusal}");
    assert!(other.snapshot().paused_until.is_some());
    take(&other, request(1, None)).await.unwrap();
    assert!(start.elapsed() >= pause, "{:?}", start.elapsed());
}

#[tokio::test]
async fn processes_share_the_reported_remaining_permits_until_resume_is_called() {
    let server = server();
    let [one, other] = two_limiters(&server);
    for limiter in [&one, &other] {
        take(limiter, request(1, None)).await.unwrap();
    }
    let headers = http::HeaderMap::from_iter([(
        http::HeaderName::from_static("ratelimit"),
        http::HeaderValue::from_static("\"default\";r=3;t=20"),
    )]);
    let permit = one.acquire_with(&request(1, None)).await.unwrap();
    permit.complete(&ResponseInfo::new(http::StatusCode::OK, &headers));
    // The API server reported three remaining permits. The limiter's next query to Redis stores this number, and takes
    // one of the three.
    take(&one, request(1, None)).await.unwrap();
    for _ in 0..2 {
        take(&other, request(1, Some(millis(100)))).await.unwrap();
    }
    let refusal = take(&other, request(1, Some(millis(100)))).await.unwrap_err();
    assert!(refusal.wait().unwrap() > millis(1_000), "{refusal}");

    one.resume();
    tokio::time::sleep(millis(100)).await;
    take(&one, request(1, Some(millis(100)))).await.unwrap();
}

#[tokio::test]
async fn forecast_is_the_latest_reset_of_the_policies_without_permits() {
    let server = server();
    let [one, other] = two_limiters(&server);
    let mut permits = Vec::new();
    for _ in 0..2 {
        permits.push(one.acquire_with(&request(1, None)).await.unwrap());
    }
    for (permit, value) in permits.into_iter().zip(["\"a\";r=0;t=10", "\"b\";r=0;t=60"]) {
        let field = (http::HeaderName::from_static("ratelimit"), http::HeaderValue::from_static(value));
        permit.complete(&ResponseInfo::new(http::StatusCode::OK, &http::HeaderMap::from_iter([field])));
    }
    // The query that reports the pause also reports the remaining permits.
    one.pause_until(Instant::now() + millis(200));
    let refusal = loop {
        match take(&other, request(1, Some(millis(20_000)))).await {
            Ok(_) => tokio::time::sleep(millis(1)).await,
            Err(refusal) => break refusal,
        }
    };
    assert!(refusal.wait().unwrap() > millis(50_000), "{refusal}");
}
