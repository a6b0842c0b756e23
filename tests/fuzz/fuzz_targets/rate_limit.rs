#![no_main]
//! Fuzzes `policy::remaining`. The first line of the input is the current time, every other line is a header.

use std::{cmp::Reverse, time::Duration};

use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};
use tower_outbound::policy::{MAX_POLICIES, MAX_REQUESTED_DELAY, Remaining, remaining};
use tower_outbound_fuzz::{at, doubled, headers, now, with_clock};

const NAMES: [&str; 12] = [
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-limit",
    "x-shopify-shop-api-call-limit",
    "auth0-client-quota-limit",
    "x-rate-limit-remaining",
    "date",
    "age",
];

fuzz_target!(|data: &[u8]| {
    let (now, lines) = now(data);
    let headers = headers(lines, &NAMES);
    let list = with_clock(now, |wall| remaining(&headers, &[], wall));
    check(&list);
    if headers.get_all("age").iter().any(|age| age.to_str().is_ok_and(|age| age.trim() == "1")) {
        assert_eq!(
            list,
            [],
            "a response with an `Age` above zero comes from a cache, so its headers must be ignored"
        );
    }

    // Repeated headers may add policies, but the result stays valid and its tightest policy stays the same. With
    // limits, a repeated list may pair a number with another limit, which it contradicts.
    let twice = with_clock(now, |wall| remaining(&doubled(&headers), &[], wall));
    check(&twice);
    if !headers.contains_key("x-ratelimit-limit") {
        assert_eq!(tightest(&twice), tightest(&list), "{headers:?}");
    }

    // The lines of a list field must give the same result if they are joined into one line.
    let lines: Vec<_> = headers.get_all("ratelimit").iter().filter_map(|line| line.to_str().ok()).collect();
    let separate = remaining(&rate_limit(&lines), &[], || now);
    let non_empty: Vec<_> =
        lines.iter().copied().filter(|line| !line.trim_matches([' ', '\t']).is_empty()).collect();
    if !separate.is_empty() {
        assert_eq!(remaining(&rate_limit(&[&non_empty.join(" ,\t")]), &[], || now), separate, "{lines:?}");
    }

    for line in lines {
        let reference: Vec<_> = reference(line).into_iter().take(MAX_POLICIES).collect();
        // `sfv` also validates the content of byte sequences and display strings. This crate checks only the form of
        // such values.
        if !reference.is_empty() || !line.contains([':', '%']) {
            let ours: Vec<_> = remaining(&rate_limit(&[line]), &[], || at(0))
                .into_iter()
                .map(|quota| (quota.left(), Reverse(quota.reset_after())))
                .collect();
            assert_eq!(ours, reference, "{line:?}");
        }
    }
});

/// Checks the properties of every result: the order, the number of policies and the longest delay.
fn check(list: &[Remaining]) {
    let rank = |quota: &Remaining| (quota.left(), Reverse(quota.reset_after()));
    assert!(list.len() <= MAX_POLICIES);
    assert!(list.is_sorted_by_key(rank), "{list:?}");
    assert!(list.iter().all(|quota| quota.reset_after() <= MAX_REQUESTED_DELAY), "{list:?}");
}

fn tightest(list: &[Remaining]) -> Option<(u64, Duration)> {
    list.first().map(|quota| (quota.left(), quota.reset_after()))
}

/// Creates headers with these `RateLimit` lines only.
fn rate_limit(lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append("ratelimit", HeaderValue::from_str(line).expect("the line is a valid header value"));
    }
    headers
}

/// Parses a `RateLimit` field with the crate `sfv`. The field is parsed as draft 10, or as draft 07 if that fails.
fn reference(line: &str) -> Vec<(u64, Reverse<Duration>)> {
    let line = line.trim_matches([' ', '\t']);
    let list = Parser::new(line).parse::<List>().ok().and_then(items).filter(|items| !items.is_empty());
    let dictionary = || Parser::new(line).parse::<Dictionary>().ok().and_then(|fields| pair(&fields));
    let mut limits = list.or_else(|| dictionary().map(|pair| vec![pair])).unwrap_or_default();
    limits.sort();
    limits
}

/// Returns the remaining permits and the reset time of each member of a draft 10 list, or `None` if the field is
/// invalid.
fn items(list: List) -> Option<Vec<(u64, Reverse<Duration>)>> {
    let mut limits = Vec::new();
    for entry in list {
        let ListEntry::Item(item) = entry else { return None };
        if !matches!(item.bare_item, BareItem::String(_) | BareItem::Token(_)) {
            return None;
        }
        let reset_after = item.params.get("t").map(natural);
        let left = item.params.get("r").map(natural);
        match (left, reset_after) {
            (Some(None), Some(_)) | (_, Some(None)) => return None,
            (Some(Some(left)), Some(Some(seconds))) => limits.push((left, capped(seconds))),
            _ => {}
        }
    }
    Some(limits)
}

/// Returns the remaining permits and the reset time of a draft 07 dictionary. A limit of zero, or one below the
/// remaining permits, makes the field invalid.
fn pair(fields: &Dictionary) -> Option<(u64, Reverse<Duration>)> {
    // This crate rejects a field that contains an inner list.
    if fields.values().any(|entry| matches!(entry, ListEntry::InnerList(_))) {
        return None;
    }
    let number = |key: &str| match fields.get(key)? {
        ListEntry::Item(item) => natural(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    let (left, reset) = (number("remaining")?, capped(number("reset")?));
    let is_possible = number("limit").is_none_or(|limit| limit > 0 && left <= limit);
    is_possible.then_some((left, reset))
}

fn natural(item: &BareItem) -> Option<u64> {
    i64::from(item.as_integer()?).try_into().ok()
}

fn capped(seconds: u64) -> Reverse<Duration> {
    Reverse(Duration::from_secs(seconds).min(MAX_REQUESTED_DELAY))
}
