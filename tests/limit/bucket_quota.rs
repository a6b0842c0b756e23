//! Tests of quotas that describe a server's bucket.

use super::*;

#[tokio::test(start_paused = true)]
async fn local_limiters_use_the_full_bucket_of_a_server_without_rejections() {
    let quota = Quota::bucket(40, 2, seconds(1)).unwrap();
    let kinds: [fn(Quota) -> LocalLimiter; 3] =
        [LocalLimiter::token_bucket, LocalLimiter::paced_window, LocalLimiter::sliding_window];
    for limiter in kinds {
        // Forty requests at once, and one per 500 ms.
        let server = ServerLimit::spacing(120, seconds(60), 39);
        let traffic = Traffic::new(millis(200), 7);
        let counts = traffic.run(&limiter(quota), &server, seconds(600), seconds(600)).await;
        let Count { accepted, rejected } = *counts.last().unwrap();
        assert_eq!(rejected, 0);
        assert!(accepted >= 38 + 1_200 - 10, "{accepted} of 1,240");
    }
}

#[test]
fn bucket_of_arrivals_overflows_only_with_more_permits_than_its_capacity() {
    let quota = Quota::bucket(2, 1, seconds(1)).unwrap();
    let start = Instant::now();
    let arrivals = |times: &[u64]| times.iter().map(|time| start + millis(*time)).collect::<Arrivals>();
    arrivals(&[0, 0, 1_000, 2_000, 5_000, 5_000]).assert_within(quota);
    for over in [&[0, 0, 999][..], &[5, 5, 5], &[0, 500, 999, 1_000], &[0, 0, 1_000, 1_999]] {
        assert!(std::panic::catch_unwind(|| arrivals(over).assert_within(quota)).is_err(), "{over:?}");
    }
}
