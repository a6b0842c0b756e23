//! Property tests: generated rate-limit headers are parsed correctly, and no bytes cause a panic.

use std::{
    cmp::Reverse,
    time::{Duration, UNIX_EPOCH},
};

use http::{HeaderMap, HeaderValue};
use proptest::{prelude::*, sample::select};

use super::NAMES;
use crate::policy::{
    MAX_POLICIES, MAX_REQUESTED_DELAY, Remaining, head_of,
    rate_limit::{policy, remaining},
};

#[derive(Debug, Clone)]
struct Member {
    name: String,
    parameters: Vec<(&'static str, String)>,
    comma: &'static str,
}

impl Member {
    fn get(&self, key: &str) -> Option<&str> {
        self.parameters.iter().rfind(|(name, _)| *name == key).map(|(_, value)| value.as_str())
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.get(key).map(|value| value.parse().unwrap())
    }
}

/// Generates List members. The parameters in `numbers` are numbers, and may be repeated or missing. The other
/// parameters have any type.
fn members(numbers: &'static [&'static str]) -> impl Strategy<Value = Vec<Member>> {
    let quoted =
        "[ -~]{0,3}".prop_map(|text| format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\"")));
    let name = prop_oneof![quoted.clone(), "[a-c]".prop_map(|name| format!("\"{name}\"")), "[a-c]"];
    let number = (select(numbers), prop_oneof![1u64..4, 1u64..1_000_000_000_000_000])
        .prop_map(|(key, number)| (key, number.to_string()));
    let partition = "[a-zA-Z0-9+/]{0,4}".prop_map(|text| ("pk", format!(":{text}:")));
    let other = prop_oneof![
        quoted,
        "[a-zA-Z*][a-z!#:/]{0,5}",
        "-?[0-9]{1,15}",
        "-?[0-9]{1,12}\\.[0-9]{1,3}",
        "@-?[0-9]{1,15}",
        "\\?[01]",
        ":[a-zA-Z0-9+/]{0,4}:",
        "%\"([a-z,;]|%c3%bc){0,3}\"",
        Just(String::new()),
    ];
    let other = (select(vec!["x", "*x", "left"]), other);
    let unit = select(vec![("qu", "\"requests\"".to_owned()), ("qu", "\"content-bytes\"".to_owned())]);
    let parameters =
        prop::collection::vec(prop_oneof![8 => number, 2 => partition, 2 => other, 1 => unit], 0..5);
    let comma = select(vec![",", ", ", " ,\t", "\n"]);
    let member =
        (name, parameters, comma).prop_map(|(name, parameters, comma)| Member { name, parameters, comma });
    prop::collection::vec(member, 0..30)
}

/// Formats the members of a List as header lines.
fn format(members: &[Member]) -> Vec<String> {
    let mut text = String::new();
    for (place, member) in members.iter().enumerate() {
        text += if place == 0 { "" } else { member.comma };
        text += &member.name;
        for (key, value) in &member.parameters {
            text += if value.len() % 2 == 0 { ";" } else { ";  " };
            text += key;
            text += if value.is_empty() { "" } else { "=" };
            text += value;
        }
    }
    text.split('\n').map(str::to_owned).collect()
}

fn bare(name: &str) -> &str {
    name.strip_prefix('"').and_then(|name| name.strip_suffix('"')).unwrap_or(name)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn parses_formatted_rate_limit_headers(items in members(&["r", "t"]), policies in members(&["w"])) {
        let (fields, policy_fields) = (format(&items), format(&policies));
        let lines = fields.iter().map(|line| ("ratelimit", line.as_bytes()));
        let lines = lines.chain(policy_fields.iter().map(|line| ("ratelimit-policy", line.as_bytes())));
        let found = remaining(&head_of(lines), &[], || panic!("the clock was read"));

        let window = |name: &str| {
            let same = policies.iter().filter(|policy| bare(&policy.name) == bare(name));
            same.filter_map(|policy| policy.number("w")).max()
        };
        let expected = items.iter().filter_map(|item| {
            let window = window(&item.name);
            let left = item.number("r")?;
            let reset_after = item.number("t").or(window)?.min(window.unwrap_or(u64::MAX));
            let policy = policy(bare(&item.name), item.get("pk").map(str::as_bytes));
            Some((policy, left, Duration::from_secs(reset_after).min(MAX_REQUESTED_DELAY)))
        });
        let mut expected: Vec<_> = expected.collect();
        expected.sort_by_key(|(_, left, reset_after)| (*left, Reverse(*reset_after)));
        expected.truncate(MAX_POLICIES);
        let found = found.into_iter().map(|item| (item.policy(), item.left(), item.reset_after()));
        prop_assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn any_bytes_in_rate_limit_headers_cause_no_panic(
        bytes in prop::collection::vec(32u8..=255, 0..60),
        near in "[a-c\"; ,=:?@%.rtw0-9\\\\-]{0,60}",
        items in members(&["r", "t", "w"]), cut in any::<prop::sample::Index>(), put in "[ -~]{0,2}",
        before: bool, seconds: u32,
    ) {
        let mut edited = format(&items).join(",");
        let cut = cut.index(edited.len() + 1);
        edited.replace_range(cut..(cut + put.len()).min(edited.len()), &put);
        let wall = Duration::from_secs(seconds.into());
        let wall = if before { UNIX_EPOCH - wall } else { UNIX_EPOCH + wall };
        for value in [bytes.as_slice(), near.as_bytes(), edited.as_bytes()] {
            let Ok(value) = HeaderValue::from_bytes(value) else { continue };
            for name in NAMES {
                let mut headers = HeaderMap::new();
                for (field, filler) in
                    NAMES.iter().zip(["a;r=1", "a;w=1", "1", "1", "1", "1", "1", "1", "1;w=1", "1377010301"]) {
                    headers.insert(*field, HeaderValue::from_static(filler));
                }
                headers.insert(name, value.clone());
                let found = remaining(&headers, &[], || wall);
                prop_assert!(found.into_iter().all(|item| item.reset_after() <= MAX_REQUESTED_DELAY));
                for field in NAMES {
                    headers.insert(field, value.clone());
                }
                let found = remaining(&headers, &[], || wall);
                prop_assert!(found.as_slice().is_sorted_by_key(Remaining::left));
            }
        }
    }
}
