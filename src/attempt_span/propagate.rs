use http::HeaderMap;
use tracing::Span;

/// Writes the context of an attempt's span into the headers of its request, so that the server's spans become its
/// children. A closure over both is one; `adapter::TraceContext`, behind the feature `otel`, writes W3C's `traceparent`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not write a span's context",
    label = "not a `Propagate`",
    note = "a closure `|span: &tracing::Span, headers: &mut http::HeaderMap|` does, and `adapter::TraceContext` with the feature `otel`"
)]
pub trait Propagate: Send + Sync {
    /// Called once for each attempt, before the inner service. The span is disabled if no subscriber enables it.
    ///
    /// The headers have room for 500 fields. A request without that room is rejected before this call.
    fn propagate(&self, span: &Span, headers: &mut HeaderMap);
}

impl<F: Fn(&Span, &mut HeaderMap) + Send + Sync> Propagate for F {
    fn propagate(&self, span: &Span, headers: &mut HeaderMap) {
        self(span, headers);
    }
}
