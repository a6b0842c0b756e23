//! Conversions of durations, quotas and jitters from and to configuration files.

use std::time::Duration;

use super::{
    Jitter, Quota,
    duration_text::{DurationText, parse_duration},
};

crate::config::text::text! {
    Duration, "a duration such as 60s", parse_duration, |it: &Duration| DurationText(*it).to_string();
    Quota, "a quota such as 100/60s", str::parse, |it: &Quota| format!("{it:#}");
    Jitter, "a jitter percentage such as 50%", str::parse, Jitter::to_string;
}
