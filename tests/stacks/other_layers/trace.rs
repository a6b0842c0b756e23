//! Tests tower-http's `Trace` above and below the whole stack.

use tower::{Layer, ServiceExt};
use tower_http::trace::TraceLayer;

use super::{
    URI,
    capture::{Capture, Span},
    rates,
    support::{Scripted::*, ScriptedService, get},
};

/// Below the stack, tower-http's span shows the URI that is sent, including a key in the query.
#[tokio::test(start_paused = true)]
async fn trace_span_contains_the_call_span_without_the_key_or_is_in_each_attempt_span_with_the_key() {
    for is_above in [true, false] {
        let (capture, _guard) = Capture::all();
        let layer = rates().with_key_placement("query:key".parse().unwrap()).layer().unwrap();
        let (trace, client) = (TraceLayer::new_for_http(), ScriptedService::new([Status(503), Status(200)]));
        if is_above {
            trace.layer(layer.layer(client)).oneshot(get(URI)).await.unwrap();
        } else {
            layer.layer(trace.layer(client)).oneshot(get(URI)).await.unwrap();
        }
        let parent = |span: &Span| span.parent.map(|parent| capture.span(parent).name);
        let spans = capture.spans("request");
        let shown: Vec<_> =
            spans.iter().map(|span| (span.fields["uri"].contains("key=s3cret"), parent(span))).collect();
        if is_above {
            assert_eq!((shown, parent(&capture.spans("call")[0])), (vec![(false, None)], Some("request")));
        } else {
            assert_eq!(shown, [(true, Some("attempt")); 2]);
        }
    }
}
