//! Tests trace contexts and spans, through an OpenTelemetry SDK with an in-memory exporter.

use std::{collections::BTreeMap, io::ErrorKind::*};

use http::{HeaderName, HeaderValue, request::Parts};
use opentelemetry::{
    Value,
    trace::{SpanKind, Status, TracerProvider},
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, Sampler, SdkTracerProvider, SpanData};
use opentelemetry_semantic_conventions::attribute::{
    ERROR_TYPE, HTTP_REQUEST_METHOD, HTTP_REQUEST_RESEND_COUNT, HTTP_RESPONSE_STATUS_CODE,
    NETWORK_PROTOCOL_VERSION, SERVER_ADDRESS, SERVER_PORT, URL_FULL,
};
use tokio_test::{assert_pending, task};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    ApiKey, adapter::trace_context, attempt_span::AttemptSpanLayer, preset, request_id::RequestIdLayer,
    stack::StackLayer,
};
use tracing::{Instrument, level_filters::LevelFilter, subscriber::DefaultGuard};
use tracing_subscriber::{Registry, layer::SubscriberExt};

use crate::support::{
    Scripted::{self, *},
    ScriptedService,
    capture::keep_dispatchers,
    get, request,
};

const URI: &str = "https://api.example.com:8443/v1/resources?key=s3cret";

struct Pipeline {
    exporter: InMemorySpanExporter,
    provider: SdkTracerProvider,
    _guard: DefaultGuard,
}

impl Pipeline {
    fn new() -> Self {
        Self::with_sampler(Sampler::AlwaysOn)
    }

    fn with_sampler(sampler: Sampler) -> Self {
        keep_dispatchers();
        let exporter = InMemorySpanExporter::default();
        let provider =
            SdkTracerProvider::builder().with_sampler(sampler).with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = Registry::default().with(LevelFilter::INFO).with(layer);
        Self { exporter, provider, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// Returns all spans in the order in which they ended.
    fn spans(&self) -> Vec<SpanData> {
        self.provider.force_flush().unwrap();
        self.exporter.get_finished_spans().unwrap()
    }

    fn attempts(&self) -> Vec<SpanData> {
        self.spans().into_iter().filter(|span| span.span_kind == SpanKind::Client).collect()
    }

    fn call(&self) -> SpanData {
        let mut calls = self.spans().into_iter().filter(|span| span.name == "call");
        let call = calls.next().unwrap();
        assert!(calls.next().is_none(), "more than one call span");
        call
    }
}

fn stack() -> StackLayer {
    let attempt_span = AttemptSpanLayer::new().with_propagation(trace_context);
    let preset = preset::currency_rates(URI.split('?').next().unwrap()).unwrap();
    let preset = preset.with_request_id(RequestIdLayer::new().with_info_spans());
    preset.with_api_key(ApiKey::new("k3y").unwrap()).with_attempt_span(attempt_span).layer().unwrap()
}

fn attributes(span: &SpanData) -> BTreeMap<&str, Value> {
    // Attributes that tracing-opentelemetry adds about the source code and the thread are omitted.
    let added = ["code.", "thread.", "busy_ns", "idle_ns", "target"];
    let own = span.attributes.iter().map(|pair| (pair.key.as_str(), pair.value.clone()));
    own.filter(|(key, _)| !added.iter().any(|added| key.starts_with(added))).collect()
}

/// Returns the version, trace id, span id and flags of the request's only `traceparent` header.
fn traceparent(head: &Parts) -> [String; 4] {
    let mut values = head.headers.get_all("traceparent").iter();
    let value = values.next().expect("no traceparent").to_str().unwrap();
    assert!(values.next().is_none() && value.len() == 55, "{value}");
    let parts: Vec<_> = value.split('-').map(str::to_owned).collect();
    parts.try_into().unwrap()
}

/// Makes one call and records its spans.
async fn call(script: &[Scripted], method: &str) -> (Pipeline, ScriptedService) {
    let (pipeline, service) = (Pipeline::new(), ScriptedService::new(script.iter().copied()));
    let _ = stack().layer(service.clone()).oneshot(request(method, URI)).await;
    (pipeline, service)
}

#[tokio::test(start_paused = true)]
async fn each_attempt_has_a_client_span_with_attributes_of_the_semantic_conventions() {
    let (pipeline, service) = call(&[Status(503), Io(ConnectionReset), Status(200)], "PUT").await;
    let (call, attempts) = (pipeline.call(), pipeline.attempts());
    assert_eq!((&call.span_kind, &call.status), (&SpanKind::Internal, &Status::Unset));
    assert_eq!(attempts.len(), 3);
    for attempt in &attempts {
        assert_eq!(attempt.parent_span_id, call.span_context.span_id());
        assert_eq!(attempt.span_context.trace_id(), call.span_context.trace_id());
        assert_eq!(attempt.name, "PUT");
    }
    let expected = [
        (HTTP_REQUEST_METHOD, Value::from("PUT")),
        (SERVER_ADDRESS, "api.example.com".into()),
        (SERVER_PORT, 8443.into()),
        (URL_FULL, "https://api.example.com:8443/v1/resources".into()),
        (HTTP_REQUEST_RESEND_COUNT, 2.into()),
        (HTTP_RESPONSE_STATUS_CODE, 200.into()),
        (NETWORK_PROTOCOL_VERSION, "1.1".into()),
    ];
    assert_eq!(attributes(&attempts[2]), BTreeMap::from(expected));
    let types = attempts.iter().map(|attempt| attributes(attempt).remove(ERROR_TYPE));
    assert_eq!(types.collect::<Vec<_>>(), [Some("503".into()), Some("reset".into()), None]);
    let statuses: Vec<_> = attempts.iter().map(|attempt| attempt.status.clone()).collect();
    assert_eq!(statuses, [Status::error(""), Status::error(""), Status::Unset]);

    // Each request carries the trace id of the call and the span id of its attempt.
    let seen = service.seen();
    assert_eq!(seen.len(), 3);
    for (seen, attempt) in seen.iter().zip(&attempts) {
        let [version, trace, span, flags] = traceparent(&seen.head);
        assert_eq!((version.as_str(), flags.as_str()), ("00", "01"));
        assert_eq!(trace, attempt.span_context.trace_id().to_string());
        assert_eq!(span, attempt.span_context.span_id().to_string());
        assert!(!seen.head.headers.contains_key("tracestate"));
        assert!(seen.head.headers["traceparent"].is_sensitive());
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_sets_the_span_status_and_a_dropped_call_does_not() {
    let (pipeline, _) = call(&[Status(404)], "GET").await;
    for span in pipeline.spans() {
        assert_eq!(span.status, Status::error(""), "{}", span.name);
    }

    let pipeline = Pipeline::new();
    let mut call = task::spawn(stack().layer(ScriptedService::new([NoResponse])).oneshot(get(URI)));
    assert_pending!(call.poll());
    drop(call);
    let spans = pipeline.spans();
    assert_eq!(spans.len(), 2);
    for span in spans {
        assert_eq!(span.status, Status::Unset, "{}", span.name);
        assert!(!attributes(&span).contains_key(ERROR_TYPE));
    }
}

#[tokio::test(start_paused = true)]
async fn every_attempt_keeps_the_traceparent_and_tracestate_of_the_caller() {
    const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let (_pipeline, service) = (Pipeline::new(), ScriptedService::new([Status(503), Status(200)]));
    let mut request = get(URI);
    request.headers_mut().insert("traceparent", HeaderValue::from_static(TRACEPARENT));
    request.headers_mut().insert("tracestate", HeaderValue::from_static("a=1"));
    stack().layer(service.clone()).oneshot(request).await.unwrap();
    assert_eq!(service.seen().len(), 2);
    for seen in service.seen() {
        assert_eq!(traceparent(&seen.head).join("-"), TRACEPARENT);
        assert_eq!(seen.head.headers["tracestate"], "a=1");
    }
}

#[tokio::test(start_paused = true)]
async fn traceparent_of_an_unsampled_trace_has_no_flags() {
    let (_pipeline, service) =
        (Pipeline::with_sampler(Sampler::AlwaysOff), ScriptedService::new([Status(200)]));
    stack().layer(service.clone()).oneshot(get(URI)).await.unwrap();
    assert_eq!(traceparent(&service.seen()[0].head)[3], "00");
}

#[tokio::test(start_paused = true)]
async fn tracestate_is_sent_only_with_its_traceparent() {
    use opentelemetry::{
        Context,
        trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
    };
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    let (_pipeline, service) = (Pipeline::new(), ScriptedService::new([Status(200)]));
    let state = TraceState::from_key_value([("a", "1"), ("b", "2")]).unwrap();
    let (trace, span) = (TraceId::from(7), SpanId::from(9));
    let remote = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, state);
    let handler = tracing::info_span!("handler");
    handler.set_parent(Context::new().with_remote_span_context(remote)).unwrap();
    stack().layer(service.clone()).oneshot(get(URI)).instrument(handler).await.unwrap();
    assert_eq!(service.seen()[0].head.headers["tracestate"], "a=1,b=2");
    assert_eq!(traceparent(&service.seen()[0].head)[1], trace.to_string());

    // If the caller's request has a `tracestate` but no `traceparent`, the `tracestate` is removed.
    let mut orphan = get(URI);
    orphan.headers_mut().insert("tracestate", HeaderValue::from_static("c=3"));
    stack().layer(service.clone()).oneshot(orphan).await.unwrap();
    assert!(!service.seen()[1].head.headers.contains_key("tracestate"));
}

#[tokio::test(start_paused = true)]
async fn stack_sends_no_trace_context_if_opentelemetry_layer_or_propagation_is_missing() {
    let assert_no_context = |head: &Parts| {
        let names = ["traceparent", "tracestate", "baggage"].map(HeaderName::from_static);
        assert!(names.iter().all(|name| !head.headers.contains_key(name)), "{:?}", head.headers);
    };
    let service = ScriptedService::new([Status(200)]);
    stack().layer(service.clone()).oneshot(get(URI)).await.unwrap();
    {
        let plain = Registry::default().with(LevelFilter::TRACE);
        let _guard = tracing::subscriber::set_default(plain);
        stack().layer(service.clone()).oneshot(get(URI)).await.unwrap();
    }
    let pipeline = Pipeline::new();
    let layers = (RequestIdLayer::new().with_info_spans(), AttemptSpanLayer::new());
    layers.layer(service.clone()).oneshot(get(URI)).await.unwrap();
    assert_eq!((pipeline.attempts().len(), service.seen().len()), (1, 3));
    service.seen().iter().for_each(|seen| assert_no_context(&seen.head));
}
