//! Helpers that all tests of the rate-limit headers share.

mod forms;
mod generated;
mod numbers;
mod services;
mod sizes;

use std::{
    cell::Cell,
    time::{Duration, UNIX_EPOCH},
};

use super::{Remaining, Unit, remaining};
use crate::policy::{MAX_REQUESTED_DELAY, head_of};

type Lines<'a> = &'a [(&'static str, &'a str)];

const LONGEST: u64 = MAX_REQUESTED_DELAY.as_secs();

const NAMES: [&str; 10] = [
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-remaining",
    "ratelimit-reset",
    "ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-policy",
    "date",
];

/// The wall clock of the tests: Tue, 20 Aug 2013 14:50:41 GMT.
const NOW: u64 = 1_377_010_241;

fn list(lines: Lines<'_>) -> Vec<Remaining> {
    let headers = head_of(lines.iter().map(|(name, value)| (*name, value.as_bytes())));
    let reads = Cell::new(0);
    let list = remaining(&headers, &[], || {
        reads.set(reads.get() + 1);
        UNIX_EPOCH + Duration::from_secs(NOW)
    });
    assert!(reads.get() <= 1);
    list
}

/// Returns, for each quota of requests, the remaining permits and the seconds until more permits become available.
fn read(lines: Lines<'_>) -> Vec<(u64, u64)> {
    let requests = list(lines).into_iter().filter(|item| item.unit() == Unit::Requests);
    requests.map(|item| (item.left(), item.reset_after().as_secs())).collect()
}

fn one(field: &'static str, value: &str) -> Vec<(u64, u64)> {
    read(&[(field, value)])
}
