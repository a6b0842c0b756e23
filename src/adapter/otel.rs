use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::trace::TraceContextExt;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::headers;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Writes the context of an attempt's span into the request's headers, as W3C `traceparent` and `tracestate`.
///
/// Writes nothing unless the subscriber contains the layer of `tracing-opentelemetry` and that layer records the span.
/// The span has the level TRACE, or INFO with [`with_info_spans`](crate::request_id::RequestIdLayer::with_info_spans).
/// Never sends baggage. OpenTelemetry's global propagator is not used, because it may also write fields that are meant
/// for the application's own services.
///
/// The `traceparent` is marked as sensitive, so that HTTP/2 does not add it to its compression table.
///
/// If the caller has set a `traceparent`, each attempt keeps this `traceparent` and its `tracestate`.
///
/// ```
/// use tower_outbound::{
///     adapter::trace_context, attempt_span::AttemptSpanLayer, preset, request_id::RequestIdLayer,
/// };
///
/// # fn main() -> Result<(), tower_outbound::InvalidConfig> {
/// let rates = preset::currency_rates("https://rates.example.com")?
///     .with_request_id(RequestIdLayer::new().with_info_spans())
///     .with_attempt_span(AttemptSpanLayer::new().with_propagation(trace_context));
/// # Ok(())
/// # }
/// ```
pub fn trace_context(span: &Span, headers: &mut HeaderMap) {
    if span.is_disabled() || headers.contains_key(TRACEPARENT) {
        return;
    }
    let context = span.context();
    let span = context.span();
    let span = span.span_context();
    // The only flag in version 00 of `traceparent` is set if the trace is sampled.
    let (trace, id, sampled) = (span.trace_id(), span.span_id(), u8::from(span.is_sampled()));
    let Ok(mut parent) = HeaderValue::try_from(format!("00-{trace}-{id}-{sampled:02x}")) else { return };
    headers::mark_unique(&mut parent);
    if !span.is_valid() || headers.try_insert(TRACEPARENT, parent).is_err() {
        return;
    }
    // Removes a `tracestate` that the caller has set, because it is invalid without its `traceparent`.
    headers.remove(TRACESTATE);
    let state = span.trace_state().header();
    if let Some(state) = HeaderValue::try_from(state).ok().filter(|state| !state.is_empty()) {
        // `tracestate` is optional, so a failed insertion is ignored. The attempt span layer has checked that the
        // header map has room.
        let _ = headers.try_insert(TRACESTATE, state);
    }
}
