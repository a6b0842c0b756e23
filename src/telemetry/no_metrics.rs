//! Feature `metrics` is off: the names of `metric.rs`, and nothing behind them.

use std::{sync::Arc, time::Duration};

use http::Request;

use super::Answered;
use crate::{call::CallContext, clock::Instant, error::Error};

pub(super) fn on() -> bool {
    false
}

#[derive(Debug)]
pub(super) enum Stopwatch {}

impl Stopwatch {
    pub(super) fn start<B>(_: &Request<B>, _: Option<&CallContext>) -> Option<Self> {
        None
    }

    pub(super) fn stop(self, _: Result<Answered<'_>, &Error>) {}

    pub(super) fn cut_off(self) {}
}

#[derive(Debug)]
pub(super) struct Queued;

impl Queued {
    pub(super) fn begin(_: Option<&CallContext>) -> Self {
        Self
    }

    pub(super) fn over(self, _: Duration) {}
}

pub(super) fn called(_: Option<&Arc<str>>, _: Result<Answered<'_>, &Error>, _: Instant) {}
pub(super) fn count<const N: usize>(_: &str, _: Option<&CallContext>, _: [(&str, &str); N]) {}
pub(super) fn paused(_: Option<&CallContext>, _: Duration) {}
