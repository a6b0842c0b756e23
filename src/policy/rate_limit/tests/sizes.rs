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

#[test]
fn reads_the_limit_and_the_window_of_a_quota() {
    type Case<'a> = (&'a [(&'static str, &'a str)], (Option<u64>, Option<u64>));
    let draft_7 = ("ratelimit", "limit=10, remaining=9, reset=4");
    let cases: [Case<'_>; 8] = [
        (&[("ratelimit", "a;r=9;t=4")], (None, None)),
        (&[("ratelimit", "a;r=9;t=4"), ("ratelimit-policy", "a;q=10;w=60")], (Some(10), Some(60))),
        (&[draft_7], (Some(10), None)),
        (&[draft_7, ("ratelimit-policy", "5;w=1, 10;w=60")], (Some(10), Some(60))),
        (&[draft_7, ("ratelimit-policy", "10;w=0")], (Some(10), None)),
        (&[draft_7, ("ratelimit-policy", "10;w=60, ?")], (Some(10), None)),
        (
            &[
                ("ratelimit-limit", "10"),
                ("ratelimit-remaining", "9"),
                ("ratelimit-reset", "4"),
                ("ratelimit-policy", "10;w=60"),
            ],
            (Some(10), Some(60)),
        ),
        (
            &[
                ("x-ratelimit-limit", "1, 15000"),
                ("x-ratelimit-policy", "1;w=1, 15000;w=2592000"),
                ("x-ratelimit-remaining", "1, 1000"),
                ("x-ratelimit-reset", "1, 1419704"),
            ],
            (Some(1), Some(1)),
        ),
    ];
    for (lines, expected) in cases {
        let first = list(lines)[0];
        assert_eq!((first.limit(), first.window().map(|window| window.as_secs())), expected, "{lines:?}");
    }
}

#[test]
fn ignores_more_remaining_permits_than_the_limit_and_a_reset_after_the_window() {
    let policy = ("ratelimit-policy", r#""p";q=2;w=120"#);
    for (fields, expected) in [
        ([("ratelimit", r#""p";r=1;t=946080000"#), policy], &[(1, 120)][..]),
        ([("ratelimit", r#""p";r=2;t=119"#), policy], &[(2, 119)]),
        ([("ratelimit", r#""p";r=3;t=119"#), policy], &[]),
        ([("ratelimit", "limit=10, remaining=9, reset=61"), ("ratelimit-policy", "10;w=60")], &[(9, 60)]),
        ([("ratelimit", "limit=10, remaining=11, reset=4"), ("ratelimit-policy", "10;w=60")], &[]),
    ] {
        assert_eq!(read(&fields), expected, "{fields:?}");
    }
    let x =
        |limit| [("x-ratelimit-limit", limit), ("x-ratelimit-remaining", "500"), ("x-ratelimit-reset", "9")];
    assert_eq!((read(&x("500")), read(&x("2"))), (vec![(500, 9)], Vec::new()));
}

#[test]
fn skips_a_quota_that_does_not_count_requests() {
    for (policy, expected) in [
        ("a;q=9;w=1;qu=\"requests\"", [(1, 1), (2, 1)].as_slice()),
        ("a;q=9;w=1;qu=\"content-bytes\"", &[(2, 1)]),
        ("a;q=9;w=1;qu=\"concurrent-requests\", a;q=9;w=1", &[(2, 1)]),
    ] {
        assert_eq!(read(&[("ratelimit", "a;r=1;t=1, b;r=2;t=1"), ("ratelimit-policy", policy)]), expected);
    }
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
            assert!(remaining(&HeaderMap::from_iter(fields), &[], || UNIX_EPOCH).len() <= MAX_POLICIES);
        }
    }
    let text: Vec<_> = (0..8_192).map(|name| format!("a{name};r=1;w=1")).collect();
    let text = text.join(",");
    assert_eq!(read(&[("ratelimit", &text), ("ratelimit-policy", &text)]), [(1, 1); MAX_POLICIES]);
}
