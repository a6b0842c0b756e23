//! Conversions of durations, quotas, units, jitters and retry rules from and to configuration files.

use std::time::Duration;

use super::{
    Jitter, Quota,
    duration_text::{DurationText, parse_duration},
    rate_limit::Unit,
    retry::RetryRejected,
};
use crate::config::{InvalidConfig, text::Text};

crate::config::text::text! {
    Duration, "a duration such as 60s", parse_duration, |it: &Duration| DurationText(*it).to_string();
    Quota, "a quota such as 100/60s", str::parse, |it: &Quota| format!("{it:#}");
    Jitter, "a jitter percentage such as 50%", str::parse, Jitter::to_string;
    RetryRejected, "any_method or idempotent", |text: &str| RETRY_REJECTED.read(text),
        |it: &RetryRejected| if *it == RetryRejected::Idempotent { "idempotent" } else { "any_method" }.to_owned();
    Unit, "requests, tokens, input_tokens, output_tokens, points, bytes or concurrency", |text: &str| UNITS.read(text),
        |it: &Unit| it.as_str().to_owned();
}

const RETRY_REJECTED: Names<RetryRejected, 2> = Names(
    "retry rejected",
    [(RetryRejected::AnyMethod, "any_method"), (RetryRejected::Idempotent, "idempotent")],
);
const UNITS: Names<Unit, 7> = Names("unit", Unit::NAMES);

/// The name of a field, and its values with their names.
struct Names<T: 'static, const N: usize>(&'static str, [(T, &'static str); N]);

impl<T: Text + Copy, const N: usize> Names<T, N> {
    fn read(&self, text: &str) -> Result<T, InvalidConfig> {
        let known = self.1.iter().find(|(_, name)| *name == text).map(|(value, _)| *value);
        known.ok_or_else(|| InvalidConfig::new(self.0, text.escape_debug().to_string(), T::EXPECTED))
    }
}
