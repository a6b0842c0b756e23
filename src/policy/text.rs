//! Conversions of durations, quotas, units, jitters and retry rules from and to configuration files.

use std::time::Duration;

use super::{
    Jitter, Quota,
    duration_text::{DurationText, parse_duration},
    rate_limit::Unit,
    retry::RetryRejected,
};
use crate::config::InvalidConfig;

crate::config::text::text! {
    Duration, "a duration such as 60s", parse_duration, |it: &Duration| DurationText(*it).to_string();
    Quota, "a quota such as 100/60s", str::parse, |it: &Quota| format!("{it:#}");
    Jitter, "a jitter percentage such as 50%", str::parse, Jitter::to_string;
    RetryRejected, "any_method or idempotent", retry_rejected, |it: &RetryRejected| match it {
        RetryRejected::AnyMethod => "any_method".to_owned(),
        RetryRejected::Idempotent => "idempotent".to_owned(),
    };
    Unit, "requests, tokens, points, bytes or concurrency", unit, |it: &Unit| {
        UNITS.iter().find(|(known, _)| known == it).map_or_else(String::new, |(_, name)| (*name).to_owned())
    };
}

const UNITS: [(Unit, &str); 5] = [
    (Unit::Requests, "requests"),
    (Unit::Tokens, "tokens"),
    (Unit::Points, "points"),
    (Unit::Bytes, "bytes"),
    (Unit::Concurrency, "concurrency"),
];

fn unit(text: &str) -> Result<Unit, InvalidConfig> {
    let known = UNITS.iter().find(|(_, name)| *name == text);
    known.map(|(unit, _)| *unit).ok_or_else(|| {
        let text = text.escape_debug().to_string();
        InvalidConfig::new("unit", text, "requests, tokens, points, bytes or concurrency")
    })
}

fn retry_rejected(text: &str) -> Result<RetryRejected, InvalidConfig> {
    match text {
        "any_method" => Ok(RetryRejected::AnyMethod),
        "idempotent" => Ok(RetryRejected::Idempotent),
        _ => {
            let text = text.escape_debug().to_string();
            Err(InvalidConfig::new("retry rejected", text, "any_method or idempotent"))
        }
    }
}
