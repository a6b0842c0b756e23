//! Tests the arguments and the keys of the script.

use super::*;

#[test]
fn redis_window_is_longer_than_the_quota_window_by_margin_and_hold() {
    let quota = Quota::new(100, Duration::from_secs(1)).unwrap().with_burst(20).unwrap();
    let quota = quota.with_margin(millis(50)).unwrap();
    let of = |rule| {
        let info = super::super::connection::parse("redis://localhost").unwrap();
        let settings = Settings::new(info, "key", rule, vec![quota, quota]).unwrap();
        let settings = Settings { hold: millis(30), ..settings };
        let mut command = redis::cmd("EVAL");
        settings.write(&mut command, &Query::default(), false);
        let written = String::from_utf8(command.get_packed_command()).unwrap();
        let arguments: Vec<_> = written.split("\r\n").skip(2).step_by(2).collect();
        (arguments.join(" "), settings.longest(), settings.keys())
    };
    let (bucket, longest, keys) = of(Rule::TokenBucket);
    // The window is 1,080 ms plus one microsecond, because both of its ends count. The time between two permits is this
    // window divided by 80 permits, rounded up.
    assert_eq!(longest, Duration::from_micros(1_080_001));
    let quotas = "2 100 20 1080001 13500013 1000000.0 100 20 1080001 13500013 1000000.1 0 0 0 0";
    assert!(bucket.trim().ends_with(quotas), "{bucket}");
    let key = |suffix: &str| format!("tower-outbound:{{2c70e12b7a0646f92279f427c7b38e73}}:{suffix}");
    assert_eq!(keys, [key("bucket")]);
    assert_eq!(of(Rule::SlidingWindow).2, ["window", "window:1000000.0", "window:1000000.1"].map(key));
}

#[test]
fn redis_bucket_leaves_room_for_margin_and_hold_like_a_local_bucket_with_both() {
    let of = |bucket: Quota, hold| {
        let make = |make: fn(&str, &str, Quota) -> Result<RedisLimiter, crate::config::InvalidConfig>| {
            let limiter = make("redis://localhost", "key", bucket).unwrap();
            let settings = Arc::clone(&limiter.with_lease(1, hold).unwrap().inner.settings);
            let mut command = redis::cmd("EVAL");
            settings.write(&mut command, &Query::default(), false);
            let written = String::from_utf8(command.get_packed_command()).unwrap();
            let arguments: Vec<_> = written.split("\r\n").skip(2).step_by(2).skip(14).collect();
            (arguments.join(" "), settings.keys().len(), settings.largest())
        };
        let bucket = make(RedisLimiter::token_bucket);
        assert_eq!(bucket, make(RedisLimiter::sliding_window));
        bucket
    };
    let shop = Quota::bucket(40, 2, Duration::from_secs(1)).unwrap();
    let local = shop.with_margin(millis(1_250)).unwrap();
    assert_eq!((local.burst(), local.refill_interval()), (37, millis(500)));
    assert_eq!(of(shop, millis(250)), ("1 40 37 21250001 500000000 20000000.0 0 0 0 0".to_owned(), 1, 37));
    // A capacity that is too small extends the interval.
    let small = Quota::bucket(1, 2, Duration::from_secs(1)).unwrap().with_margin(millis(400)).unwrap();
    assert_eq!(of(small, millis(100)), ("1 1 1 1000001 1000000000 500000.0 0 0 0 0".to_owned(), 1, 1));
}

#[test]
fn redis_bucket_of_another_unit_has_its_burst_interval_and_four_times_its_length() {
    let points =
        Quota::bucket(1_000, 50, Duration::from_secs(1)).unwrap().with_unit(limit::Unit::Points).unwrap();
    type Make = fn(&str, &str, [Quota; 2]) -> Result<RedisLimiter, crate::config::InvalidConfig>;
    let kinds: [Make; 2] = [RedisLimiter::token_bucket, RedisLimiter::sliding_window];
    for make in kinds {
        let limiter = make("redis://localhost", "key", [points, points.without_margin()]).unwrap();
        let limiter = limiter.with_lease(1, millis(100)).unwrap();
        let mut command = redis::cmd("EVAL");
        let query = Query { amounts: limit::Amounts::of(limit::Unit::Points, 7), ..Query::default() };
        limiter.inner.settings.write(&mut command, &query, false);
        let written = String::from_utf8(command.get_packed_command()).unwrap();
        let arguments: Vec<_> = written.split("\r\n").skip(2).step_by(2).collect();
        let units = "2 1000 84400001 945 20000000 7 0 points.20000000.0 1000 80400001 995 20000000 7 0 \
                     points.20000000.1 0";
        assert!(arguments.join(" ").trim().ends_with(units), "{arguments:?}");
        // A process has its part of the bucket while the store fails.
        let share = limiter.with_fallback_share(2).unwrap().inner.settings.share.clone().unwrap();
        assert_eq!(share[0], "bucket 500 points, 50/2s, margin 1s".parse().unwrap());
    }
}
