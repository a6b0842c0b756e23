#![no_main]
//! `policy::remaining`: the first line is the time, each other line a header.

use std::{cmp::Reverse, time::Duration};

use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use sfv::{BareItem, Dictionary, List, ListEntry, Parser};
use tower_outbound::policy::{MAX_REQUESTED_DELAY, MAX_POLICIES, Remaining, remaining};
use tower_outbound_fuzz::{at, doubled, headers, now, with_clock};

const NAMES: [&str; 8] = [
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "date",
    "age",
];

fuzz_target!(|data: &[u8]| {
    let (now, lines) = now(data);
    let headers = headers(lines, &NAMES);
    let list = with_clock(now, |wall| remaining(&headers, wall));
    check(&list);
    if headers.get_all("age").iter().any(|age| age.to_str().is_ok_and(|age| age.trim() == "1")) {
        assert_eq!(list, [], "it was in a cache");
    }

    // Said twice is said once: nothing appears, nothing goes, and the tightest stays the tightest.
    let twice = with_clock(now, |wall| remaining(&doubled(&headers), wall));
    check(&twice);
    assert_eq!(tightest(&twice), tightest(&list), "{headers:?}");

    // Lines are members of one list, which may as well stand in one line.
    let lines: Vec<_> = headers.get_all("ratelimit").iter().filter_map(|line| line.to_str().ok()).collect();
    let apart = remaining(&only(&lines), || now);
    let filled: Vec<_> =
        lines.iter().copied().filter(|line| !line.trim_matches([' ', '\t']).is_empty()).collect();
    if !apart.is_empty() {
        assert_eq!(remaining(&only(&[&filled.join(" ,\t")]), || now), apart, "{lines:?}");
    }

    for line in lines {
        let read: Vec<_> = read(line).into_iter().take(MAX_POLICIES).collect();
        // Of these two the crate checks the form alone.
        if !read.is_empty() || !line.contains([':', '%']) {
            let ours: Vec<_> = remaining(&only(&[line]), || at(0))
                .into_iter()
                .map(|quota| (quota.left(), Reverse(quota.reset_after())))
                .collect();
            assert_eq!(ours, read, "{line:?}");
        }
    }
});

fn check(list: &[Remaining]) {
    let rank = |quota: &Remaining| (quota.left(), Reverse(quota.reset_after()));
    assert!(list.len() <= MAX_POLICIES);
    assert!(list.is_sorted_by_key(rank), "{list:?}");
    assert!(list.iter().all(|quota| quota.reset_after() <= MAX_REQUESTED_DELAY), "{list:?}");
}

fn tightest(list: &[Remaining]) -> Option<(u64, Duration)> {
    list.first().map(|quota| (quota.left(), quota.reset_after()))
}

fn only(lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append("ratelimit", HeaderValue::from_str(line).expect("it was a header before"));
    }
    headers
}

/// The same field as another reader of structured fields has it, without a policy: draft 10, else draft 07.
fn read(line: &str) -> Vec<(u64, Reverse<Duration>)> {
    let line = line.trim_matches([' ', '\t']);
    let list = Parser::new(line).parse::<List>().ok().and_then(items).filter(|items| !items.is_empty());
    let dictionary = || Parser::new(line).parse::<Dictionary>().ok().and_then(|fields| pair(&fields));
    let mut read = list.or_else(|| dictionary().map(|pair| vec![pair])).unwrap_or_default();
    read.sort();
    read
}

fn items(list: List) -> Option<Vec<(u64, Reverse<Duration>)>> {
    let mut read = Vec::new();
    for entry in list {
        let ListEntry::Item(item) = entry else { return None };
        if !matches!(item.bare_item, BareItem::String(_) | BareItem::Token(_)) {
            return None;
        }
        let reset_after = item.params.get("t").map(natural);
        let left = item.params.get("r").map(natural);
        match (left, reset_after) {
            (Some(None), Some(_)) | (_, Some(None)) => return None,
            (Some(Some(left)), Some(Some(seconds))) => read.push((left, more(seconds))),
            _ => {}
        }
    }
    Some(read)
}

fn pair(fields: &Dictionary) -> Option<(u64, Reverse<Duration>)> {
    // No field that is read has an Inner List.
    if fields.values().any(|entry| matches!(entry, ListEntry::InnerList(_))) {
        return None;
    }
    let number = |key: &str| match fields.get(key)? {
        ListEntry::Item(item) => natural(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    Some((number("remaining")?, more(number("reset")?)))
}

fn natural(item: &BareItem) -> Option<u64> {
    i64::from(item.as_integer()?).try_into().ok()
}

fn more(seconds: u64) -> Reverse<Duration> {
    Reverse(Duration::from_secs(seconds).min(MAX_REQUESTED_DELAY))
}
