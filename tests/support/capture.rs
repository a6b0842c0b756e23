//! What a subscriber hears: spans and events, with what each declares and what it was given.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use tokio::time::Instant;
use tracing::{
    Dispatch, Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
    subscriber::NoSubscriber,
};
use tracing_subscriber::{
    Registry,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

pub(crate) const OURS: &str = "tower_outbound";

/// A row of the contract: span or event, target, level, name, declared fields.
pub(crate) type Row = (&'static str, String, String, String, BTreeSet<String>);

#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) name: &'static str,
    pub(crate) parent: Option<usize>,
    /// The last value of each.
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) opened: Instant,
    pub(crate) closed: Option<Instant>,
}

#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) target: String,
    pub(crate) level: Level,
    pub(crate) message: String,
    /// All but the message.
    pub(crate) fields: BTreeMap<String, String>,
    /// The names of the spans that it is in, outermost first.
    pub(crate) scope: Vec<&'static str>,
    /// The innermost of them.
    pub(crate) span: Option<usize>,
}

#[derive(Default)]
struct Heard {
    spans: Vec<Span>,
    lines: Vec<Line>,
    rows: BTreeSet<Row>,
    records: Vec<String>,
}

/// KeepsBody what is heard. All clones share it.
#[derive(Clone, Default)]
pub(crate) struct Capture(Arc<Mutex<Heard>>);

/// Where in [`Heard`] a span stands.
struct At(usize);

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
    fn record(&self, what: &str, metadata: &Metadata<'_>) -> String {
        let mut record = format!("{what} {} {} {}", metadata.level(), metadata.target(), metadata.name());
        for (name, value) in &self.0 {
            record.push_str(&format!(" {name}={value}"));
        }
        record
    }
}

impl Capture {
    /// Hears this thread. The guard puts the log back as it was.
    pub(crate) fn at(level: LevelFilter) -> (Self, tracing::subscriber::DefaultGuard) {
        // Where there is one subscriber alone, the first thread that comes to an event decides for all, by its own: the
        // thread of another test has none, and nobody would hear that event any more.
        static ANOTHER: OnceLock<Dispatch> = OnceLock::new();
        ANOTHER.get_or_init(|| Dispatch::new(NoSubscriber::new()));
        let (capture, subscriber) = Self::subscriber(level);
        (capture, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn all() -> (Self, tracing::subscriber::DefaultGuard) {
        Self::at(LevelFilter::TRACE)
    }

    /// A subscriber for the whole process, say.
    pub(crate) fn subscriber(level: LevelFilter) -> (Self, impl Subscriber + Send + Sync) {
        let capture = Self::default();
        let subscriber = Registry::default().with(level).with(capture.clone());
        (capture, subscriber)
    }

    pub(crate) fn spans(&self, name: &str) -> Vec<Span> {
        self.heard().spans.iter().filter(|span| span.name == name).cloned().collect()
    }

    /// The names of those that are not closed.
    pub(crate) fn open_spans(&self) -> Vec<&'static str> {
        self.heard().spans.iter().filter(|span| span.closed.is_none()).map(|span| span.name).collect()
    }

    pub(crate) fn span(&self, at: usize) -> Span {
        self.heard().spans[at].clone()
    }

    /// Of every crate.
    pub(crate) fn lines(&self) -> Vec<Line> {
        self.heard().lines.clone()
    }

    pub(crate) fn ours(&self) -> Vec<Line> {
        self.heard().lines.iter().filter(|line| line.target.starts_with(OURS)).cloned().collect()
    }

    pub(crate) fn of(&self, target: &str) -> Vec<Line> {
        self.heard().lines.iter().filter(|line| line.target == target).cloned().collect()
    }

    /// Of this crate alone.
    pub(crate) fn rows(&self) -> BTreeSet<Row> {
        self.heard().rows.clone()
    }

    /// Each thing that was ever said, of every crate: level, target, name, and the values as they were given, also
    /// those that later ones have replaced.
    pub(crate) fn text(&self) -> String {
        self.heard().records.join("\n")
    }

    /// As [`text`](Self::text), record by record, and forgets it.
    pub(crate) fn take(&self) -> Vec<String> {
        let heard = std::mem::take(&mut *self.heard());
        heard.records
    }

    /// Something that is heard in another way, such as a panic's message.
    pub(crate) fn add(&self, record: String) {
        self.heard().records.push(record);
    }

    /// A test that fails while it holds the lock leaves whole records behind.
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn row(&self, kind: &'static str, metadata: &Metadata<'_>, name: &str) {
        if metadata.target().starts_with(OURS) {
            let fields = metadata.fields().iter().map(|field| field.name().to_owned());
            let fields = fields.filter(|field| field != "message").collect();
            let level = metadata.level().as_str().to_lowercase();
            let row = (kind, metadata.target().to_owned(), level, name.to_owned(), fields);
            self.heard().rows.insert(row);
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for Capture {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let metadata = attributes.metadata();
        self.row("span", metadata, metadata.name());
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let record = fields.record("span", metadata);
        let span = context.span(id).unwrap();
        let parent = span.parent().and_then(|parent| parent.extensions().get().map(|At(at)| *at));
        let fields = fields.0.into_iter().collect();
        let (opened, closed) = (Instant::now(), None);
        let mut heard = self.heard();
        span.extensions_mut().insert(At(heard.spans.len()));
        heard.spans.push(Span { name: metadata.name(), parent, fields, opened, closed });
        heard.records.push(record);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        let mut fields = Fields::default();
        values.record(&mut fields);
        let record = fields.record("record", span.metadata());
        let mut heard = self.heard();
        heard.records.push(record);
        if let Some(span) = span.extensions().get().and_then(|At(at)| heard.spans.get_mut(*at)) {
            span.fields.extend(fields.0);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let record = fields.record("event", metadata);
        let mut fields: BTreeMap<_, _> = fields.0.into_iter().collect();
        let message = fields.remove("message").unwrap_or_default();
        self.row("event", metadata, &message);
        let scope = context.event_scope(event).into_iter().flat_map(|scope| scope.from_root());
        let scope = scope.map(|span| span.name()).collect();
        let span = context.event_span(event);
        let span = span.and_then(|span| span.extensions().get().map(|At(at)| *at));
        let (target, level) = (metadata.target().to_owned(), *metadata.level());
        let mut heard = self.heard();
        heard.records.push(record);
        heard.lines.push(Line { target, level, message, fields, scope, span });
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        let mut heard = self.heard();
        if let Some(span) = span.extensions().get().and_then(|At(at)| heard.spans.get_mut(*at)) {
            span.closed = Some(Instant::now());
        }
    }
}
