//! What a real OpenTelemetry pipeline makes of the spans, and what of them is on the wire.

use std::{collections::BTreeMap, io::ErrorKind::*};

use crate::support::{
    Scripted::{self, *},
    ScriptedService, get, request,
};
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
    ApiKey, InvalidConfig,
    adapter::trace_context,
    attempt_span::AttemptSpanLayer,
    preset,
    stack::{StackBuilder, StackLayer},
};
use tracing::{Instrument, level_filters::LevelFilter, subscriber::DefaultGuard};
use tracing_subscriber::{Registry, layer::SubscriberExt};

const URI: &str = "https://api.example.com:8443/v1/resources?key=s3cret";

struct Pipeline {
    exporter: InMemorySpanExporter,
    provider: SdkTracerProvider,
    _guard: DefaultGuard,
}

impl Pipeline {
    fn new() -> Self {
        Self::sampled(Sampler::AlwaysOn)
    }

    fn sampled(sampler: Sampler) -> Self {
        let exporter = InMemorySpanExporter::default();
        let provider =
            SdkTracerProvider::builder().with_sampler(sampler).with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = Registry::default().with(LevelFilter::INFO).with(layer);
        Self { exporter, provider, _guard: tracing::subscriber::set_default(subscriber) }
    }

    /// In the order in which they ended.
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
        assert!(calls.next().is_none(), "one call");
        call
    }
}

fn stack() -> StackLayer {
    let traced = AttemptSpanLayer::new().with_propagation(trace_context);
    let preset = preset::currency_rates(URI.split('?').next().unwrap()).unwrap();
    preset.with_api_key(ApiKey::new("k3y").unwrap()).with_attempt_span(traced).layer().unwrap()
}

/// To the letter of the README.
fn shown() -> Result<StackBuilder, InvalidConfig> {
    let attempt = AttemptSpanLayer::new()
        .with_attempt_header(HeaderName::from_static("x-attempt"))
        .with_propagation(trace_context);
    let rates = preset::currency_rates("https://rates.example.com")?.with_attempt_span(attempt);
    Ok(rates)
}

#[tokio::test(start_paused = true)]
async fn the_readmes_attempts_send_their_number_and_their_context() {
    let pipeline = Pipeline::new();
    let probe = ScriptedService::new([Status(503), Status(200)]);
    let rates = shown().unwrap().with_api_key(ApiKey::new("k3y").unwrap()).layer().unwrap();
    rates.layer(probe.clone()).oneshot(get("https://rates.example.com/v1")).await.unwrap();
    drop(pipeline);
    let seen = probe.seen();
    assert_eq!(seen.iter().map(|seen| seen.header("x-attempt")).collect::<Vec<_>>(), [Some("1"), Some("2")]);
    let contexts = [0, 1].map(|at| seen[at].header("traceparent").unwrap());
    assert_ne!(contexts[0], contexts[1]);
}

fn attributes(span: &SpanData) -> BTreeMap<&str, Value> {
    // What tracing-opentelemetry adds tells of the source and the thread.
    let added = ["code.", "thread.", "busy_ns", "idle_ns", "target"];
    let own = span.attributes.iter().map(|pair| (pair.key.as_str(), pair.value.clone()));
    own.filter(|(key, _)| !added.iter().any(|added| key.starts_with(added))).collect()
}

/// The parts of the one `traceparent`: version, trace, span, flags.
fn traceparent(head: &Parts) -> [String; 4] {
    let mut all = head.headers.get_all("traceparent").iter();
    let value = all.next().expect("no traceparent").to_str().unwrap();
    assert!(all.next().is_none() && value.len() == 55, "{value}");
    let parts: Vec<_> = value.split('-').map(str::to_owned).collect();
    parts.try_into().unwrap()
}

async fn call(script: &[Scripted], method: &str) -> (Pipeline, ScriptedService) {
    let (pipeline, probe) = (Pipeline::new(), ScriptedService::new(script.iter().copied()));
    let _ = stack().layer(probe.clone()).oneshot(request(method, URI)).await;
    (pipeline, probe)
}

#[tokio::test(start_paused = true)]
async fn attempts_are_client_spans_in_the_calls_by_the_conventions_names() {
    let (pipeline, probe) = call(&[Status(503), Io(ConnectionReset), Status(200)], "PUT").await;
    let (call, attempts) = (pipeline.call(), pipeline.attempts());
    assert_eq!((&call.span_kind, &call.status), (&SpanKind::Internal, &Status::Unset));
    assert_eq!(attributes(&call)["service"], "currency_rates".into());
    assert_eq!(attributes(&call)["attempts"], 3.into());

    assert_eq!(attempts.len(), 3);
    for attempt in &attempts {
        assert_eq!(attempt.parent_span_id, call.span_context.span_id());
        assert_eq!(attempt.span_context.trace_id(), call.span_context.trace_id());
        assert_eq!(attempt.name, "PUT");
    }
    let always = [
        (HTTP_REQUEST_METHOD, Value::from("PUT")),
        (SERVER_ADDRESS, "api.example.com".into()),
        (SERVER_PORT, 8443.into()),
        (URL_FULL, "https://api.example.com:8443/v1/resources".into()),
    ];
    let own: [&[(&str, Value)]; 3] = [
        &[
            (HTTP_RESPONSE_STATUS_CODE, 503.into()),
            (NETWORK_PROTOCOL_VERSION, "1.1".into()),
            (ERROR_TYPE, "503".into()),
        ],
        &[(HTTP_REQUEST_RESEND_COUNT, 1.into()), (ERROR_TYPE, "reset".into())],
        &[
            (HTTP_REQUEST_RESEND_COUNT, 2.into()),
            (HTTP_RESPONSE_STATUS_CODE, 200.into()),
            (NETWORK_PROTOCOL_VERSION, "1.1".into()),
        ],
    ];
    for (attempt, own) in attempts.iter().zip(own) {
        assert_eq!(attributes(attempt), always.iter().chain(own).cloned().collect::<BTreeMap<_, _>>());
    }
    let statuses: Vec<_> = attempts.iter().map(|attempt| attempt.status.clone()).collect();
    assert_eq!(statuses, [Status::error(""), Status::error(""), Status::Unset]);

    // On the wire: the trace of the call, and the attempt's own span.
    let seen = probe.seen();
    assert_eq!(seen.len(), 3);
    for (seen, attempt) in seen.iter().zip(&attempts) {
        let [version, trace, span, flags] = traceparent(&seen.head);
        assert_eq!((version.as_str(), flags.as_str()), ("00", "01"));
        assert_eq!(trace, attempt.span_context.trace_id().to_string());
        assert_eq!(span, attempt.span_context.span_id().to_string());
        assert!(!seen.head.headers.contains_key("tracestate"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_fails_is_an_error_and_one_that_its_caller_drops_is_none() {
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
async fn the_call_is_part_of_the_callers_own_trace() {
    let (pipeline, probe) = (Pipeline::new(), ScriptedService::new([Status(200)]));
    let handler = tracing::info_span!("handler");
    stack().layer(probe.clone()).oneshot(get(URI)).instrument(handler).await.unwrap();
    let spans = pipeline.spans();
    let handler = spans.iter().find(|span| span.name == "handler").unwrap();
    assert_eq!(pipeline.call().parent_span_id, handler.span_context.span_id());
    assert_eq!(traceparent(&probe.seen()[0].head)[1], handler.span_context.trace_id().to_string());
}

#[tokio::test(start_paused = true)]
async fn a_traceparent_of_the_callers_is_kept_with_its_state_on_every_attempt() {
    const OWN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let (_pipeline, probe) = (Pipeline::new(), ScriptedService::new([Status(503), Status(200)]));
    let mut own = get(URI);
    own.headers_mut().insert("traceparent", HeaderValue::from_static(OWN));
    own.headers_mut().insert("tracestate", HeaderValue::from_static("a=1"));
    stack().layer(probe.clone()).oneshot(own).await.unwrap();
    assert_eq!(probe.seen().len(), 2);
    for seen in probe.seen() {
        assert_eq!(traceparent(&seen.head).join("-"), OWN);
        assert_eq!(seen.head.headers["tracestate"], "a=1");
    }
}

#[tokio::test(start_paused = true)]
async fn a_state_goes_with_its_parent() {
    use opentelemetry::{
        Context,
        trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
    };
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    let (_pipeline, probe) = (Pipeline::new(), ScriptedService::new([Status(200)]));
    let state = TraceState::from_key_value([("a", "1"), ("b", "2")]).unwrap();
    let (trace, span) = (TraceId::from(7), SpanId::from(9));
    let remote = SpanContext::new(trace, span, TraceFlags::SAMPLED, true, state);
    let handler = tracing::info_span!("handler");
    handler.set_parent(Context::new().with_remote_span_context(remote)).unwrap();
    stack().layer(probe.clone()).oneshot(get(URI)).instrument(handler).await.unwrap();
    assert_eq!(probe.seen()[0].head.headers["tracestate"], "a=1,b=2");
    assert_eq!(traceparent(&probe.seen()[0].head)[1], trace.to_string());

    // A state without its parent is nobody's.
    let mut stray = get(URI);
    stray.headers_mut().insert("tracestate", HeaderValue::from_static("c=3"));
    stack().layer(probe.clone()).oneshot(stray).await.unwrap();
    assert!(!probe.seen()[1].head.headers.contains_key("tracestate"));
}

#[tokio::test(start_paused = true)]
async fn a_trace_that_is_not_sampled_says_so() {
    let (_pipeline, probe) = (Pipeline::sampled(Sampler::AlwaysOff), ScriptedService::new([Status(200)]));
    stack().layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    assert_eq!(traceparent(&probe.seen()[0].head)[3], "00");
}

#[tokio::test(start_paused = true)]
async fn without_a_pipeline_or_unasked_nothing_is_sent() {
    let silent = |head: &Parts| {
        let names = ["traceparent", "tracestate", "baggage"].map(HeaderName::from_static);
        assert!(names.iter().all(|name| !head.headers.contains_key(name)), "{:?}", head.headers);
    };
    let probe = ScriptedService::new([Status(200)]);
    stack().layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    {
        let plain = Registry::default().with(LevelFilter::TRACE);
        let _guard = tracing::subscriber::set_default(plain);
        stack().layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    }
    let pipeline = Pipeline::new();
    AttemptSpanLayer::new().layer(probe.clone()).oneshot(get(URI)).await.unwrap();
    assert_eq!((pipeline.attempts().len(), probe.seen().len()), (1, 3));
    probe.seen().iter().for_each(|seen| silent(&seen.head));
}

#[tokio::test(start_paused = true)]
async fn no_key_is_in_what_is_exported() {
    let (pipeline, probe) =
        (Pipeline::new(), ScriptedService::new([Status(503), Io(BrokenPipe), NoResponse]));
    let preset = preset::currency_rates("https://api.example.com").unwrap();
    let preset = preset
        .with_api_key(ApiKey::new("k3y-s3cret").unwrap())
        .with_key_placement("query:key".parse().unwrap());
    let service = preset.layer().unwrap().layer(probe.clone());
    let uri = "https://api.example.com/v1?own=s3cret";
    service.oneshot(get(uri)).await.unwrap_err();
    assert!(probe.seen()[0].head.uri.query().unwrap().contains("k3y-s3cret"));
    assert_eq!(pipeline.attempts().len(), 3);
    assert!(!format!("{:?}", pipeline.spans()).contains("s3cret"));
}
