//! Captures spans and log events, with their declared fields and recorded values.
#![allow(dead_code, reason = "each test binary uses some of these items")]

#[path = "dispatchers.rs"]
mod dispatchers;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};
use tracing_subscriber::{
    Registry,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

pub(crate) use self::dispatchers::keep_dispatchers;

pub(crate) const OURS: &str = "tower_outbound";

/// A row of the documented log schema. The columns are `span` or `event`, target, level, name or message, and declared
/// fields.
pub(crate) type Row = (&'static str, String, String, String, BTreeSet<String>);

#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) name: &'static str,
    /// The index of the parent span, for [`Capture::span`].
    pub(crate) parent: Option<usize>,
    /// The last recorded value of each field.
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) opened: Instant,
    pub(crate) closed: Option<Instant>,
}

/// A log event.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) target: String,
    pub(crate) level: Level,
    pub(crate) message: String,
    /// The fields other than `message`.
    pub(crate) fields: BTreeMap<String, String>,
    /// The names of the enclosing spans, outermost first.
    pub(crate) scope: Vec<&'static str>,
    /// The index of the innermost enclosing span, for [`Capture::span`].
    pub(crate) span: Option<usize>,
}

#[derive(Default)]
struct Captured {
    spans: Vec<Span>,
    lines: Vec<Line>,
    rows: BTreeSet<Row>,
    /// The texts of all spans, all events, and all values that spans recorded after their creation.
    records: Vec<String>,
}

/// A layer that stores every span and event. All clones of the layer share the stored data.
#[derive(Clone, Default)]
pub(crate) struct Capture(Arc<Mutex<Captured>>);

/// The index of a span in [`Captured::spans`], stored in the span's extensions.
struct SpanIndex(usize);

#[derive(Default)]
struct Fields(Vec<(String, String)>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name().to_owned(), format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.push((field.name().to_owned(), value.to_owned()));
    }
}

impl Fields {
    fn to_text(&self, kind: &str, metadata: &Metadata<'_>) -> String {
        let mut record = format!("{kind} {} {} {}", metadata.level(), metadata.target(), metadata.name());
        for (name, value) in &self.0 {
            record.push_str(&format!(" {name}={value}"));
        }
        record
    }
}

impl Capture {
    /// Captures the spans and events of this thread at `level`. Dropping the guard restores the previous subscriber.
    pub(crate) fn at(level: LevelFilter) -> (Self, tracing::subscriber::DefaultGuard) {
        keep_dispatchers();
        let (capture, subscriber) = Self::subscriber(level);
        (capture, tracing::subscriber::set_default(subscriber))
    }

    /// Captures the spans and events of this thread at TRACE.
    pub(crate) fn all() -> (Self, tracing::subscriber::DefaultGuard) {
        Self::at(LevelFilter::TRACE)
    }

    /// Returns a subscriber that the caller installs, for example for the whole process.
    pub(crate) fn subscriber(level: LevelFilter) -> (Self, impl Subscriber + Send + Sync) {
        let capture = Self::default();
        let subscriber = Registry::default().with(level).with(capture.clone());
        (capture, subscriber)
    }

    pub(crate) fn spans(&self, name: &str) -> Vec<Span> {
        self.captured().spans.iter().filter(|span| span.name == name).cloned().collect()
    }

    /// Returns the names of the spans that are still open.
    pub(crate) fn open_spans(&self) -> Vec<&'static str> {
        self.captured().spans.iter().filter(|span| span.closed.is_none()).map(|span| span.name).collect()
    }

    pub(crate) fn span(&self, at: usize) -> Span {
        self.captured().spans[at].clone()
    }

    /// Returns the events of every crate.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.captured().lines.clone()
    }

    /// Returns the events of this crate.
    pub(crate) fn ours(&self) -> Vec<Line> {
        self.captured().lines.iter().filter(|line| line.target.starts_with(OURS)).cloned().collect()
    }

    /// Returns the events whose target is `target`.
    pub(crate) fn of(&self, target: &str) -> Vec<Line> {
        self.captured().lines.iter().filter(|line| line.target == target).cloned().collect()
    }

    /// Returns the schema rows of this crate's spans and events.
    pub(crate) fn rows(&self) -> BTreeSet<Row> {
        self.captured().rows.clone()
    }

    /// Returns every span, event and recorded value of every crate, including values that were later replaced.
    pub(crate) fn text(&self) -> String {
        self.captured().records.join("\n")
    }

    /// Removes and returns all records.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.captured()).records
    }

    /// Adds a record of text that tracing did not emit, such as a panic message.
    pub(crate) fn add(&self, record: String) {
        self.captured().records.push(record);
    }

    // A poisoned lock is safe to use: a test cannot fail in the middle of an update under the lock.
    fn captured(&self) -> MutexGuard<'_, Captured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn row(&self, kind: &'static str, metadata: &Metadata<'_>, name: &str) {
        if metadata.target().starts_with(OURS) {
            let fields = metadata.fields().iter().map(|field| field.name().to_owned());
            let fields = fields.filter(|field| field != "message").collect();
            let level = metadata.level().as_str().to_lowercase();
            let row = (kind, metadata.target().to_owned(), level, name.to_owned(), fields);
            self.captured().rows.insert(row);
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for Capture {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let metadata = attributes.metadata();
        self.row("span", metadata, metadata.name());
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let record = fields.to_text("span", metadata);
        let span = context.span(id).unwrap();
        let parent = span.parent().and_then(|parent| parent.extensions().get().map(|SpanIndex(at)| *at));
        let fields = fields.0.into_iter().collect();
        let (opened, closed) = (Instant::now(), None);
        let mut captured = self.captured();
        span.extensions_mut().insert(SpanIndex(captured.spans.len()));
        captured.spans.push(Span { name: metadata.name(), parent, fields, opened, closed });
        captured.records.push(record);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let mut fields = Fields::default();
        values.record(&mut fields);
        let record = fields.to_text("record", span.metadata());
        let mut captured = self.captured();
        captured.records.push(record);
        if let Some(span) = span.extensions().get().and_then(|SpanIndex(at)| captured.spans.get_mut(*at)) {
            span.fields.extend(fields.0);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let record = fields.to_text("event", metadata);
        let mut fields: BTreeMap<_, _> = fields.0.into_iter().collect();
        let message = fields.remove("message").unwrap_or_default();
        self.row("event", metadata, &message);
        let scope = context.event_scope(event).into_iter().flat_map(|scope| scope.from_root());
        let scope = scope.map(|span| span.name()).collect();
        let span = context.event_span(event);
        let span = span.and_then(|span| span.extensions().get().map(|SpanIndex(at)| *at));
        let (target, level) = (metadata.target().to_owned(), *metadata.level());
        let mut captured = self.captured();
        captured.records.push(record);
        captured.lines.push(Line { target, level, message, fields, scope, span });
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        let mut captured = self.captured();
        if let Some(span) = span.extensions().get().and_then(|SpanIndex(at)| captured.spans.get_mut(*at)) {
            span.closed = Some(Instant::now());
        }
    }
}
