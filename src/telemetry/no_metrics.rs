//! Replaces `metric.rs` if the feature `metrics` is disabled. All items do nothing.

use std::time::Duration;

use http::Request;

use super::ResponseSummary;
use crate::{
    call::CallContext,
    error::{Error, ErrorKind},
};

pub(crate) fn on() -> bool {
    false
}

#[derive(Debug)]
pub(super) enum Stopwatch {}

impl Stopwatch {
    pub(super) fn start<B>(_: &Request<B>, _: Option<&CallContext>) -> Option<Self> {
        None
    }

    pub(super) fn stop(self, _: Result<ResponseSummary<'_>, ErrorKind>) {}
}

#[derive(Debug)]
pub(crate) enum Raised {}

impl Raised {
    pub(crate) fn new(_: &'static str, _: Option<&CallContext>) -> Option<Self> {
        None
    }
}

pub(super) fn called(_: &CallContext, _: Result<ResponseSummary<'_>, &Error>, _: Duration) {}
pub(crate) fn count(_: &str, _: Option<&CallContext>, _: &[(&str, &str)]) {}
pub(crate) fn set(_: &str, _: Option<&CallContext>, _: f64) {}
pub(crate) fn record(_: &str, _: Option<&CallContext>, _: &[(&str, &str)], _: Duration) {}
