//! Reports a response to the limiter.

use http::Response;

use super::{feedback::ResponseInfo, in_flight::InFlight, permit::Permit, settings::Settings};
use crate::{call::CallContext, clock, policy::feedback::Reading, telemetry};

/// Reports the response to the limiter. The request stays in flight.
#[inline]
pub(super) fn complete<'a, L, R>(
    mut permit: Permit<'a>,
    trusted: bool,
    settings: &Settings<L>,
    call: Option<&CallContext>,
    response: &Response<R>,
) -> InFlight<'a> {
    if trusted {
        let reading = Reading::of(&settings.dialect, response, clock::wall);
        if reading.has_limits() || !permit.end_ordinary() {
            report(&mut permit, &ResponseInfo::of_call(reading, call), call);
        }
    } else {
        permit.report_unrelated();
    }
    if settings.in_flight_until_head {
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
