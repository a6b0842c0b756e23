//! Reports a response to the limiter.

use http::{Response, StatusCode, header::CONTENT_LENGTH};

use super::{
    feedback::ResponseInfo,
    in_flight::{InFlight, Metering},
    permit::Permit,
    settings::Options,
};
use crate::{
    call::{CallContext, Report, StopReason},
    clock,
    error::Error,
    policy::feedback::Reading,
    telemetry,
};

/// What a request determines about its response.
#[derive(Debug, Clone, Copy)]
pub(super) struct Expected {
    /// Whether the limiter applies the response's rate-limit headers.
    pub(super) is_trusted: bool,
    /// Whether the request is a `HEAD`, whose response has no body.
    pub(super) is_head: bool,
}

/// Inserts the [`Settlement`] of a request with amounts into its response, and settles it if the head has the amounts.
/// Returns the meter of the body.
#[inline]
pub(super) fn settle<R>(
    permit: &mut Permit<'_>,
    options: &Options,
    response: &mut Response<R>,
) -> Option<Box<Metering>> {
    if permit.has_amounts() || options.actual.is_some() || options.meter.is_some() {
        settle_amounts(permit, options, response)
    } else {
        None
    }
}

#[inline(never)]
fn settle_amounts<R>(
    permit: &mut Permit<'_>,
    options: &Options,
    response: &mut Response<R>,
) -> Option<Box<Metering>> {
    let settlement = permit.settlement()?.clone();
    let (status, headers) = (response.status(), response.headers());
    let read = options.actual.as_ref().and_then(|actual| actual(status, headers));
    let meter = options.meter.as_ref().map(|meter| meter(status, headers));
    read.into_iter().for_each(|amounts| settlement.settle(amounts));
    response.extensions_mut().insert(settlement.clone());
    meter.map(|meter| Box::new(Metering::new(meter, settlement)))
}

/// Emits an event, once for each layer, if one permit was used for several attempts. Only an inner retry layer has
/// already ended the call and inserted its report.
#[inline]
pub(super) fn check_order<R>(options: &Options, outcome: &Result<Response<R>, Error>) {
    let report = match outcome {
        Ok(response) => Report::from_response(response),
        Err(error) => error.report().filter(|report| {
            // A timeout that is inside the retry layer also ends the call.
            report.stop_reason().is_some_and(|reason| reason != StopReason::Deadline)
        }),
    };
    if let Some(report) = report.filter(|report| report.attempt_count() > 1) {
        telemetry::retry_inside_limit(report, &options.order_warning);
    }
}

/// Reports the response to the limiter. The request stays in flight until its body ends, unless it ends with the head.
#[inline]
pub(super) fn complete<'a, R>(
    mut permit: Permit<'a>,
    expected: Expected,
    options: &Options,
    call: Option<&CallContext>,
    response: &Response<R>,
) -> InFlight<'a> {
    if expected.is_trusted {
        let reading = Reading::of(&options.dialect, response, clock::wall);
        if reading.has_limits() || !permit.end_ordinary() {
            report(&mut permit, &ResponseInfo::of_call(reading, call), call);
        }
    } else {
        permit.report_unrelated();
    }
    if options.in_flight_until_head
        || permit.counts_in_flight() && (expected.is_head || has_no_body(response))
    {
        permit.release();
        return InFlight::none();
    }
    InFlight::new(permit)
}

#[inline(never)]
fn report(permit: &mut Permit<'_>, info: &ResponseInfo<'_>, call: Option<&CallContext>) {
    let effect = permit.report(info);
    if let Some(pause) = effect.pause.or(info.requested_pause()) {
        telemetry::paused(call, pause, effect.probe_after, None);
    } else if let Some((quota, pause)) = info.rejecting_quota() {
        telemetry::paused(call, pause, None, Some(quota));
    }
    if let Some(learned) = effect.learned {
        telemetry::learned(call, learned.rate(), learned.source.as_str());
    }
}

/// Returns whether the head of a response shows that it has no body.
fn has_no_body<R>(response: &Response<R>) -> bool {
    matches!(response.status(), StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || response.headers().get(CONTENT_LENGTH).is_some_and(|length| length.as_bytes() == b"0")
        // gRPC's Trailers-Only
        || response.headers().contains_key("grpc-status")
}
