//! Tests of the formats of rate-limit headers: IETF drafts, `X-RateLimit-*`, dates, cached responses and very long
//! values.

use super::*;

/// Returns the server after `calls` calls that follow a response with these headers.
async fn calls_after(headers: &[(&str, &str)], calls: usize) -> Server {
    let (server, service) = Server::behind(&ample_limiter());
    server.respond_once(&service, response(200, headers)).await;
    assert_all_succeed(spawn_calls(&service, calls).await).await;
    server
}

#[tokio::test(start_paused = true)]
async fn every_header_format_limits_requests_to_the_remaining_permits() {
    for permits in [0, 3] {
        let (date, reset) = ("Tue, 20 Aug 2013 14:50:41 GMT", (1_377_010_241 + 5).to_string());
        let left = permits.to_string();
        let (draft_10, named) =
            (format!(r#""default";r={left};t=5"#), format!(r#""burst";r=900;t=1, "day";r={left};t=5"#));
        let (windowed, draft_07) =
            (format!(r#""default";r={left}"#), format!("limit=10, remaining={left}, reset=5"));
        let forms: [&[(&str, &str)]; 7] = [
            &[("ratelimit", &draft_10)],
            &[("ratelimit", &named)],
            &[("ratelimit", &windowed), ("ratelimit-policy", r#""default";q=10;w=5"#)],
            &[("ratelimit", &draft_07)],
            &[("ratelimit-limit", "10"), ("ratelimit-remaining", &left), ("ratelimit-reset", "5")],
            &[("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", &left), ("x-ratelimit-reset", "5")],
            &[("date", date), ("x-ratelimit-remaining", &left), ("x-ratelimit-reset", &reset)],
        ];
        for form in forms {
            calls_after(form, 10).await.assert_arrivals(times(&[(permits, 0.0), (10 - permits, 5.0)]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn limiter_compares_reset_timestamp_with_local_clock_if_date_is_missing() {
    // The reset timestamp is in full seconds, so the wait may be up to one second shorter than 5 s.
    let reset = (SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() + 5).to_string();
    let server = calls_after(&[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", &reset)], 1).await;
    let waited = server.start.elapsed();
    assert!(waited > seconds(3) && waited <= millis(5_002), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn limiter_ignores_the_rate_limit_headers_of_cached_responses() {
    for (age, at) in [("0", 5.0), ("1", 0.0), ("86400", 0.0)] {
        for header in [("ratelimit", r#""default";r=0;t=5"#), ("x-ratelimit-remaining", "0")] {
            calls_after(&[("age", age), header, ("x-ratelimit-reset", "5")], 2)
                .await
                .assert_arrivals([at; 2]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn limiter_reads_a_rate_limit_header_with_a_thousand_members() {
    // The clock of the test's thread is paused, but a new thread reads the real time.
    let start = std::thread::spawn(Instant::now).join().unwrap();
    let mut members: Vec<_> = (0..1_000).map(|number| format!(r#""p{number}";r=5000;t=86400"#)).collect();
    members[777] = r#""tight";r=2;t=5"#.to_owned();
    let (list, numbers) = (members.join(", "), vec!["7"; 1_000].join(","));
    let headers: [(&str, &str, usize); 4] = [
        ("ratelimit", &list, 2),
        // The limiter ignores the whole header value if its end is malformed.
        ("ratelimit", &format!("{list}, ;"), 100),
        // The limiter ignores the numbers of remaining permits if no header contains a reset time.
        ("x-ratelimit-remaining", &numbers, 100),
        ("ratelimit", &"x".repeat(60_000), 100),
    ];
    for (name, value, permits) in headers {
        let server = calls_after(&[(name, value)], 100).await;
        server.assert_arrivals(times(&[(permits, 0.0), (100 - permits, 5.0)]));
    }
    let elapsed = std::thread::spawn(Instant::now).join().unwrap() - start;
    assert!(elapsed < seconds(5), "{elapsed:?}");
}
