//! What a subscriber hears of the crate, spans and events, with what each declares and what it was given.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, Mutex},
};

use tokio::time::Instant;
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};
use tracing_subscriber::{
    Registry,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
};

/// A row of the contract: span or event, target, level, name, declared fields.
pub(crate) type Row = (&'static str, String, String, String, BTreeSet<String>);

#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) name: &'static str,
    pub(crate) parent: Option<usize>,
    pub(crate) fields: BTreeMap<String, String>,
    pub(crate) opened: Instant,
    pub(crate) closed: Option<Instant>,
}

#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) target: String,
    pub(crate) message: String,
    pub(crate) fields: BTreeMap<String, String>,
    /// The names of the spans that it is in, outermost first.
    pub(crate) scope: Vec<&'static str>,
}

#[derive(Debug, Default)]
struct Heard {
    spans: Vec<Span>,
    lines: Vec<Line>,
    rows: BTreeSet<Row>,
}

#[derive(Clone, Default)]
pub(crate) struct Capture(Arc<Mutex<Heard>>);

/// Where in [`Heard`] a span stands.
struct At(usize);

struct Fields<'a>(&'a mut BTreeMap<String, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl Capture {
    /// The guard puts the log back as it was.
    pub(crate) fn at(level: LevelFilter) -> (Self, tracing::subscriber::DefaultGuard) {
        let capture = Self::default();
        let subscriber = Registry::default().with(level).with(capture.clone());
        (capture, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn all() -> (Self, tracing::subscriber::DefaultGuard) {
        Self::at(LevelFilter::TRACE)
    }

    pub(crate) fn spans(&self, name: &str) -> Vec<Span> {
        self.0.lock().unwrap().spans.iter().filter(|span| span.name == name).cloned().collect()
    }

    pub(crate) fn span(&self, at: usize) -> Span {
        self.0.lock().unwrap().spans[at].clone()
    }

    pub(crate) fn lines(&self) -> Vec<Line> {
        self.0.lock().unwrap().lines.clone()
    }

    pub(crate) fn rows(&self) -> BTreeSet<Row> {
        self.0.lock().unwrap().rows.clone()
    }

    pub(crate) fn shown(&self) -> String {
        format!("{:?}", self.0.lock().unwrap())
    }

    fn row(&self, kind: &'static str, metadata: &Metadata<'_>, name: &str) {
        if metadata.target().starts_with("tower_outbound") {
            let fields = metadata.fields().iter().map(|field| field.name().to_owned());
            let fields = fields.filter(|field| field != "message").collect();
            let level = metadata.level().as_str().to_lowercase();
            let row = (kind, metadata.target().to_owned(), level, name.to_owned(), fields);
            self.0.lock().unwrap().rows.insert(row);
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for Capture {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        let metadata = attributes.metadata();
        self.row("span", metadata, metadata.name());
        let mut fields = BTreeMap::new();
        attributes.record(&mut Fields(&mut fields));
        let span = context.span(id).unwrap();
        let parent = span.parent().and_then(|parent| parent.extensions().get().map(|At(at)| *at));
        let (opened, closed) = (Instant::now(), None);
        let spans = &mut self.0.lock().unwrap().spans;
        span.extensions_mut().insert(At(spans.len()));
        spans.push(Span { name: metadata.name(), parent, fields, opened, closed });
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        if let Some(At(at)) = span.extensions().get() {
            values.record(&mut Fields(&mut self.0.lock().unwrap().spans[*at].fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = BTreeMap::new();
        event.record(&mut Fields(&mut fields));
        let message = fields.remove("message").unwrap_or_default();
        self.row("event", event.metadata(), &message);
        let scope = context.event_scope(event).into_iter().flat_map(|scope| scope.from_root());
        let scope = scope.map(|span| span.name()).collect();
        let target = event.metadata().target().to_owned();
        self.0.lock().unwrap().lines.push(Line { target, message, fields, scope });
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        if let Some(At(at)) = span.extensions().get() {
            self.0.lock().unwrap().spans[*at].closed = Some(Instant::now());
        }
    }
}
