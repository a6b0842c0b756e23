//! Tests the log events of a call with a pool.

use super::*;

/// The first member is throttled. The base URL of the builder is that of the first member.
#[tokio::test(start_paused = true)]
async fn events_of_a_pool_contain_the_member_and_the_path_that_it_received() {
    for level in [LevelFilter::INFO, LevelFilter::DEBUG] {
        let (capture, _guard) = Capture::at(level);
        let key = |key: &str| ApiKey::new(key).unwrap();
        let limiter = || LocalLimiter::paced_window(Quota::per_second(10).unwrap());
        let members = ["https://eu.example.com/eu/v1", "https://us.example.com/us/v1"];
        let pool = Pool::new(members.map(|url| (url, key("k3y"), limiter()))).unwrap();
        let builder = StackBuilder::new(members[0]).unwrap().with_pool(pool);
        let script = [Headers(429, &[("retry-after", "30")]), Status(200)];
        let service = builder.layer().unwrap().layer(ScriptedService::new(script));
        service.oneshot(get("https://eu.example.com/eu/v1/translate")).await.unwrap();
        let limits = capture.of(LIMIT);
        let paused = limits.iter().find(|event| event.message == "limiter paused by the server").unwrap();
        assert_eq!(paused.fields["member"], "0");
        let call = &capture.of(CALL)[0];
        assert_eq!(call.message, "call completed");
        let expected = [("member", "1"), ("url.path", "/us/v1/translate")];
        for (field, value) in expected {
            assert_eq!(call.fields[field], value, "{field} at {level}");
        }
    }
}

/// The closure returns the same key again. The server rejects it only once.
#[tokio::test(start_paused = true)]
async fn rejected_key_of_a_member_is_logged_once() {
    let fixed = |key: &str| KeySource::from(ApiKey::new(key).unwrap());
    let same = || ready(ApiKey::new("k3y-0").map(FreshKey::new));
    for keys in [fixed("k3y-0"), RefreshingKey::new(same).into()] {
        let (capture, _guard) = Capture::at(LevelFilter::INFO);
        let members = [keys, fixed("k3y-1")].map(|keys| (URI, keys, LocalLimiter::without_quota()));
        let builder = StackBuilder::new(URI).unwrap().with_pool(Pool::new(members).unwrap());
        let service = builder.layer().unwrap().layer(ScriptedService::new([Status(401), Status(200)]));
        for _ in 0..3 {
            assert_eq!(service.clone().oneshot(get(URI)).await.unwrap().status(), 200);
        }
        let events = capture.ours();
        assert_eq!(events.iter().filter(|event| event.message == "key rejected by the server").count(), 1);
    }
}
