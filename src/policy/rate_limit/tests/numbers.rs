//! Tests of numbers in the headers: seconds, Unix times and policy ids.

use std::time::{Duration, UNIX_EPOCH};

use super::{LONGEST, list, one, read};
use crate::policy::{MAX_REQUESTED_DELAY, head_of, remaining};

#[test]
fn reads_rate_limit_reset_as_duration_or_moment() {
    let cases: [(&str, Option<u64>); 14] = [
        ("0", Some(0)),
        ("007", Some(7)),
        ("1.0", Some(1)),
        ("946080001", Some(LONGEST)),
        ("1000000001", Some(0)),
        ("1377010240", Some(0)),
        ("1377010241", Some(0)),
        ("1377010302", Some(61)),
        ("999999999999", Some(LONGEST)),
        ("1377010301000", Some(60)),
        ("18446744073709551615.5", Some(LONGEST)),
        ("-1", Some(0)),
        ("6m0s", Some(360)),
        ("2013-08-20T14:51:41Z", Some(60)),
    ];
    for (text, expected) in cases {
        let found = read(&[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", text)]);
        assert_eq!(found.first().map(|item| item.1), expected, "{text}");
    }
    let served = |date| {
        read(&[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "1377010301"), ("date", date)])[0].1
    };
    assert_eq!(served("Tue, 20 Aug 2013 14:50:51 GMT"), 50);
    assert_eq!(served("Tue, 20 Aug 2013 14:51:51 GMT"), 0);
    assert_eq!(served("Tuesday, 20-Aug-13 14:50:51 GMT"), 50);
    assert_eq!(served("Tue, 20 Aug 2013"), 60);
    // The local clock is between two whole seconds.
    let lines = [("x-ratelimit-remaining", "1".as_bytes()), ("x-ratelimit-reset", b"1377010301")];
    let found = remaining(&head_of(lines), &[], || UNIX_EPOCH + Duration::from_millis(1_377_010_300_900));
    assert_eq!(found.as_slice()[0].reset_after(), Duration::from_millis(100));
    let found = remaining(&head_of(lines), &[], || UNIX_EPOCH - Duration::from_secs(1));
    assert_eq!(found.as_slice()[0].reset_after(), MAX_REQUESTED_DELAY);
}

#[test]
fn caps_large_numbers_in_rate_limit_headers() {
    let most = 999_999_999_999_999;
    assert_eq!(one("ratelimit", &format!("x;r={most};t={most}")), [(most, LONGEST)]);
    assert_eq!(one("ratelimit", &format!("remaining={most}, reset={most}")), [(most, LONGEST)]);
    let window = format!("x;w={most}");
    assert_eq!(read(&[("ratelimit", "x;r=1"), ("ratelimit-policy", &window)]), [(1, LONGEST)]);
    let left = "9".repeat(100);
    assert_eq!(read(&[("ratelimit-remaining", &left), ("ratelimit-reset", "1")]), [(u64::MAX, 1)]);
}

#[test]
fn policy_id_is_a_hash_of_name_and_partition() {
    let policies = |text: &str| -> Vec<u64> {
        let text = text.replace('|', ";r=1;t=1,") + ";r=1;t=1";
        list(&[("ratelimit", &text)]).into_iter().map(|item| item.policy()).collect()
    };
    // This test vector comes from the authors of the hash function FNV.
    assert_eq!(policies("\"foobar\""), [0x8594_4171_f739_67e8]);
    let same = policies(r#""foobar"|foobar|foobar;q=7"#);
    assert!(same.iter().all(|policy| *policy == same[0]), "{same:?}");
    let mut differ = policies(r#"a|b|ab|a;pk=:b:|ab;pk=::|a;pk=:c:|"a:b:"|"""#);
    differ.sort_unstable();
    differ.dedup();
    assert_eq!(differ.len(), 8);

    let places = list(&[("ratelimit-remaining", "1, 1"), ("ratelimit-reset", "1, 1")]);
    let [first, second] = places.as_slice() else { panic!("{places:?}") };
    assert_ne!(first.policy(), second.policy());
}
