//! Tests the maximum number of quotas, their order, and the parsing time of a large header.

use std::time::UNIX_EPOCH;

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{NAMES, list, one, read};
use crate::policy::{MAX_POLICIES, remaining};

#[test]
fn lists_the_quota_with_the_fewest_remaining_permits_first() {
    let list = list(&[("ratelimit", r#""daily";r=7;t=36000, "burst";r=90;t=1, "hour";r=7;t=60"#)]);
    let left: Vec<_> = list.iter().map(|item| (item.left(), item.reset_after().as_secs())).collect();
    assert_eq!(left, [(7, 36_000), (7, 60), (90, 1)]);
}

#[test]
fn keeps_only_the_quotas_with_the_fewest_remaining_permits() {
    let members: Vec<_> = (0..1_000).map(|left| format!("a;r={};t=1", (left * 7 + 5) % 1_000)).collect();
    let least: Vec<_> = (0..MAX_POLICIES as u64).map(|left| (left, 1)).collect();
    assert_eq!(one("ratelimit", &members.join(",")), least);
    let members: Vec<_> = members.iter().map(|member| ("ratelimit", member.as_str())).collect();
    assert_eq!(read(&members), least);

    // If all quotas have equally many remaining permits, the quotas with the longest wait are kept.
    let members: Vec<_> = (0..1_000).map(|reset_after| format!("a;r=1;t={reset_after}")).collect();
    let longest: Vec<_> = (0..MAX_POLICIES as u64).map(|place| (1, 999 - place)).collect();
    assert_eq!(one("ratelimit", &members.join(",")), longest);
}

/// A parser with quadratic running time would take minutes for headers of this size.
#[test]
fn reads_large_rate_limit_headers_in_linear_time() {
    let units = r#", ; " \ \" % a 0 0, 1.1, : a, "a", ;a ;a="b" a;r=1, a;r=1;t=1, a;w=1, a=1, remaining=1,"#;
    for unit in units.split(' ').chain([" ", "\t"]) {
        for (start, end) in
            [("", ""), ("", "1"), ("a", ";r=1"), ("\"", "\""), ("a;b=%\"", "\""), ("a;b=:", ":")]
        {
            let text = format!("{start}{}{end}", unit.repeat(65_536 / unit.len()));
            let value = HeaderValue::from_str(&text).unwrap();
            let fields = NAMES.map(|name| (HeaderName::from_static(name), value.clone()));
            assert!(remaining(&HeaderMap::from_iter(fields), || UNIX_EPOCH).len() <= MAX_POLICIES);
        }
    }
    let text: Vec<_> = (0..8_192).map(|name| format!("a{name};r=1;w=1")).collect();
    let text = text.join(",");
    assert_eq!(read(&[("ratelimit", &text), ("ratelimit-policy", &text)]), [(1, 1); MAX_POLICIES]);
}
