//! Tests that every form of the rate-limit headers is read, and that the newest form takes precedence.

use std::time::UNIX_EPOCH;

use super::{Lines, one, read};
use crate::policy::{head_of, remaining};

#[test]
fn reads_every_form_of_rate_limit_headers() {
    type Case<'a> = (Lines<'a>, &'a [(u64, u64)]);
    let cases: [Case<'_>; 19] = [
        (&[], &[]),
        // draft-ietf-httpapi-ratelimit-headers-10 and -11
        (
            &[("ratelimit-policy", r#""default";q=100;w=60"#), ("ratelimit", r#""default";r=50;t=30"#)],
            &[(50, 30)],
        ),
        (&[("ratelimit", r#""burst";r=90;t=1, "daily";r=7;t=36000"#)], &[(7, 36_000), (90, 1)]),
        (
            &[("ratelimit", r#""burst";r=90;t=1"#), ("ratelimit", r#""daily";r=7;t=36000"#)],
            &[(7, 36_000), (90, 1)],
        ),
        (&[("ratelimit", "default;r=50;t=30")], &[(50, 30)]),
        (&[("ratelimit", "\t\"a\"; r=1;  t=2\t ,\t \"b\";x;r=3;t=4;y=?0 ")], &[(1, 2), (3, 4)]),
        (&[("ratelimit", r#""a";r=9;t=9;r=1;t=2"#)], &[(1, 2)]), // the last value of a parameter is used
        (&[("ratelimit", r#""a";r=0;t=0"#)], &[(0, 0)]),
        (
            &[
                ("ratelimit", r#""hour";r=5, "day";r=3;t=7, "week";r=1"#),
                ("ratelimit-policy", r#""hour";q=1000;w=3600,"day";q=5000;w=86400"#),
            ],
            &[(3, 7), (5, 3_600)],
        ),
        // If several lines of `RateLimit-Policy` contain the same name, the longest window is used.
        (
            &[
                ("ratelimit", r#"hour;r=1"#),
                ("ratelimit-policy", r#""hour";q=1;w=60;pk=:YQ==:"#),
                ("ratelimit-policy", r#""day";q=1, "hour";q=2;w=70"#),
                ("ratelimit-policy", r#""hour";q=3;w=65"#),
            ],
            &[(1, 70)],
        ),
        // draft -07, in which the window is the parameter `w` of a limit
        (&[("ratelimit", "limit=10, remaining=9, reset=4"), ("ratelimit-policy", "10;w=60")], &[(9, 4)]),
        (&[("ratelimit", "reset=4;x=1"), ("ratelimit", "remaining=9, also, limit=10")], &[(9, 4)]),
        // draft -06, in the form that Kong sends
        (&[("ratelimit-limit", "10"), ("ratelimit-remaining", "9"), ("ratelimit-reset", "50")], &[(9, 50)]),
        // GitLab sends this form.
        (&[("ratelimit-remaining", "59"), ("ratelimit-reset", "1377010300")], &[(59, 59)]),
        // GitHub sends this form.
        (
            &[
                ("x-ratelimit-limit", "60"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1377013266"),
                ("x-ratelimit-resource", "core"),
            ],
            &[(0, 3_025)],
        ),
        // Reddit sends this form, with a fraction.
        (&[("x-ratelimit-remaining", "599.0"), ("x-ratelimit-reset", "372")], &[(599, 372)]),
        // Brave sends this form, with two quotas.
        (
            &[
                ("x-ratelimit-limit", "1, 15000"),
                ("x-ratelimit-policy", "1;w=1, 15000;w=2592000"),
                ("x-ratelimit-remaining", "1, 1000"),
                ("x-ratelimit-reset", "1, 1419704"),
            ],
            &[(1, 1), (1_000, 1_419_704)],
        ),
        (
            &[
                ("x-ratelimit-remaining", "8"),
                ("x-ratelimit-reset", "6"),
                ("x-ratelimit-remaining", "7"),
                ("x-ratelimit-reset", "5"),
            ],
            &[(7, 5), (8, 6)],
        ),
        // These headers are ignored, because Spring reports no reset.
        (&[("x-ratelimit-remaining", "3"), ("x-ratelimit-burst-capacity", "4")], &[]),
    ];
    for (lines, expected) in cases {
        assert_eq!(read(lines), expected, "{lines:?}");
    }
}

#[test]
fn ignores_all_members_of_a_malformed_rate_limit_header() {
    let good = r#""a";r=1;t=2"#;
    assert_eq!(one("ratelimit", good), [(1, 2)]);
    let bad = r#"
        x,  ,x  x;  x=1  (x)  "x  1  ?1  @1  :YQ==:  %"a"  remaining=1,reset=1
        x;r=-1;t=2  x;r=1.0;t=2  x;r="1";t=2  x;r;t=2  x;r=?1;t=2  x;r=one;t=2  x;r=1234567890123456;t=2
        x;r=1;t=-2  x;r=1;t=2.5  x;r=1;t="2"  x;r=1;t  x;r=1;t=@2  x;t=-2
    "#;
    for bad in bad.split_whitespace() {
        for text in [format!("{bad},{good}"), format!("{good}, {bad}")] {
            assert_eq!(one("ratelimit", &text), [], "{text}");
        }
        assert_eq!(read(&[("ratelimit", good), ("ratelimit", bad)]), [], "{bad}");
    }
    // Skips an item without a required parameter, and ignores unknown parameters.
    for text in ["x", "x;r=1", "x;t=2", "x;q=5;qu=\"bytes\";a=1.5;r=1", "x;remaining=1;reset=1"] {
        let text = format!("{text},{good}");
        assert_eq!(one("ratelimit", &text), [(1, 2)], "{text}");
    }

    let bad = r#"a;w=0  a;w=-1  a;w=1.0  a;w  a;w="6"  10;w=60  a;w=60,  a;w=60,("#;
    for text in bad.split_whitespace() {
        let lines = [("ratelimit", "a;r=1"), ("ratelimit-policy", text)];
        assert_eq!(read(&lines), [], "{text}");
        assert_eq!(read(&[lines[0], ("ratelimit-policy", "a;w=6"), lines[1]]), [], "{text}");
        assert_eq!(read(&[("ratelimit", good), lines[1]]), [(1, 2)], "{text}");
    }

    let bad = "
        remaining=1  reset=1  remaining=1,reset  remaining=1,reset=-1  remaining=1,reset=1.0
        remaining=1,reset=1,  remaining=1,reset=1;  remaining=1;reset=1  remaining=one,reset=1
        Remaining=1,reset=1  remaining=1,reset=1,x=(1)
    ";
    for text in bad.split_whitespace().chain(["remaining=1 reset=1", "remaining = 1, reset = 1"]) {
        assert_eq!(one("ratelimit", text), [], "{text}");
    }

    let bad = ["", "x", "+1", "1,", ",1", "1,2", "1 2", "1.", ".5", "1.5.5", "1e3", "0x1", "1,x"];
    for text in bad {
        assert_eq!(read(&[("ratelimit-remaining", text), ("ratelimit-reset", "1")]), [], "{text}");
        assert_eq!(read(&[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", text)]), [], "{text}");
    }
}

#[test]
fn treats_non_ascii_rate_limit_header_as_malformed() {
    for name in ["ratelimit", "x-ratelimit-remaining"] {
        for bytes in ["ü;r=1;t=2".as_bytes(), b"\xff", b"\"\xfc\";r=1;t=2", "١".as_bytes()] {
            let lines = [(name, bytes), ("ratelimit", b"a;r=1;t=2"), ("x-ratelimit-reset", b"3")];
            let found = remaining(&head_of(lines), &[], || UNIX_EPOCH);
            let expected = if name == "ratelimit" { 0 } else { 1 };
            assert_eq!(found.as_slice().len(), expected, "{bytes:?}");
        }
    }
}

#[test]
fn reads_the_newest_valid_form_of_rate_limit_headers() {
    let x = [("x-ratelimit-remaining", "4"), ("x-ratelimit-reset", "4")];
    let draft_6 = [("ratelimit-remaining", "3"), ("ratelimit-reset", "3")];
    let draft_7 = ("ratelimit", "limit=9, remaining=2, reset=2");
    let draft_10 = ("ratelimit", "x;r=1;t=1");
    assert_eq!(read(&[x[0], x[1], draft_6[0], draft_6[1], draft_10]), [(1, 1)]);
    assert_eq!(read(&[x[0], x[1], draft_6[0], draft_6[1], draft_7]), [(2, 2)]);
    assert_eq!(read(&[x[0], x[1], draft_6[0], draft_6[1]]), [(3, 3)]);
    assert_eq!(read(&x), [(4, 4)]);

    // A newer form without a valid quota is skipped.
    for text in ["", "x;r=1", "x;t=1", "x;r=1;t=1,", "remaining=1"] {
        assert_eq!(read(&[x[0], x[1], ("ratelimit", text)]), [(4, 4)], "{text}");
    }
    assert_eq!(read(&[x[0], x[1], draft_6[0]]), [(4, 4)]);
    assert_eq!(read(&[x[0], x[1], draft_6[0], ("ratelimit-reset", "soon")]), [(4, 4)]);
}

#[test]
fn reads_an_empty_quota_in_an_older_form_behind_a_gateway() {
    let gateway = [("ratelimit-limit", "100"), ("ratelimit-remaining", "99"), ("ratelimit-reset", "20")];
    let own = |left| [("x-ratelimit-remaining", left), ("x-ratelimit-reset", "300")];
    for (left, expected) in [("0", &[(0, 300), (99, 20)][..]), ("0, 7", &[(99, 20)]), ("7", &[(99, 20)])] {
        assert_eq!(read(&[&gateway[..], &own(left)].concat()), expected, "{left}");
    }
    let empty = [("ratelimit-remaining", "0"), ("ratelimit-reset", "20")];
    assert_eq!(read(&[&empty[..], &own("0")].concat()), [(0, 20)], "the same quota in each form");
    let third = [("x-rate-limit-remaining", "0"), ("x-rate-limit-reset", "9")];
    assert_eq!(read(&[&gateway[..], &own("7"), &third].concat()), [(0, 9), (99, 20)]);
}

#[test]
fn ignores_rate_limit_headers_of_a_cached_response() {
    let cases = [("0", 1), ("000", 1), ("", 1), ("-1", 1), ("old", 1), ("1", 0), (" 60 ", 0)];
    for (age, expected) in cases {
        let forms: [Lines<'_>; 2] = [
            &[("ratelimit", "x;r=1;t=1"), ("age", age)],
            &[("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "1"), ("age", age)],
        ];
        for lines in forms {
            assert_eq!(read(lines).len(), expected, "{lines:?}");
        }
    }
    assert_eq!(read(&[("ratelimit", "x;r=1;t=1"), ("age", "0"), ("age", "9999999999999999999999")]), []);
}
