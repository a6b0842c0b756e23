//! Tests tower-http's `Trace` around and inside the preset's stack.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex},
};

use tower::{Layer as _, ServiceExt};
use tower_http::trace::TraceLayer;
use tracing::{
    Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id},
};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

use super::{
    URI,
    capture::keep_dispatchers,
    rates,
    support::{Scripted::*, ScriptedService, get},
};

/// Records each span's `uri` field, and the span's path, such as `parent/name`.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<Vec<Seen>>>);

type Seen = (String, Option<String>);

struct Uri(Option<String>);

impl Visit for Uri {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "uri" {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let path: Vec<_> = span.scope().from_root().map(|span| span.name()).collect();
        let mut uri = Uri(None);
        attributes.record(&mut uri);
        self.0.lock().unwrap().push((path.join("/"), uri.0));
    }
}

async fn spans(above: bool) -> Vec<Seen> {
    keep_dispatchers();
    let spans = Spans::default();
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(spans.clone()));
    let layer = rates().with_key_placement("query:key".parse().unwrap()).layer().unwrap();
    let (trace, client) = (TraceLayer::new_for_http(), ScriptedService::new([Status(503), Status(200)]));
    if above {
        trace.layer(layer.layer(client)).oneshot(get(URI)).await.unwrap();
    } else {
        layer.layer(trace.layer(client)).oneshot(get(URI)).await.unwrap();
    }
    spans.0.lock().unwrap().clone()
}

fn paths(spans: &[Seen]) -> Vec<&str> {
    spans.iter().map(|(path, _)| path.as_str()).collect()
}

#[tokio::test(start_paused = true)]
async fn trace_span_around_a_stack_contains_the_call_span_and_no_key() {
    let spans = spans(true).await;
    assert_eq!(paths(&spans), ["request", "request/call", "request/call/attempt", "request/call/attempt"]);
    assert!(spans.iter().all(|(_, uri)| uri.as_ref().is_none_or(|uri| !uri.contains("s3cret"))));
}

/// Inside the stack, tower-http's span records the URI that is sent, including a key in the query.
#[tokio::test(start_paused = true)]
async fn trace_span_inside_each_attempt_span_records_a_key_in_the_query() {
    let spans = spans(false).await;
    let attempt = ["call/attempt", "call/attempt/request"];
    assert_eq!(paths(&spans), ["call", attempt[0], attempt[1], attempt[0], attempt[1]]);
    let uris: Vec<_> = spans.iter().filter_map(|(_, uri)| uri.as_deref()).collect();
    assert!(uris.len() == 2 && uris.iter().all(|uri| uri.contains("key=s3cret")), "{uris:?}");
}
