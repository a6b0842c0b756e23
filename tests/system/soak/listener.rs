//! Hears all that the clients' threads tell at TRACE, of every crate, and looks for keys in it as it is told; counts the
//! spans and lines of the calls.

use std::{
    cell::Cell,
    fmt::{self, Write as _},
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::leaks::search::Search;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
    level_filters::LevelFilter,
    span,
};
use tracing_subscriber::{
    Registry,
    layer::{Context, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use super::{keys, ledger::write};

static SEARCH: LazyLock<Search> = LazyLock::new(|| Search::new(&keys::text(0, 0)));
static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());

pub(crate) static OPENED: AtomicU64 = AtomicU64::new(0);
pub(crate) static CLOSED: AtomicU64 = AtomicU64::new(0);
pub(crate) static LINES: AtomicU64 = AtomicU64::new(0);
pub(crate) static RECORDS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HEARS: Cell<bool> = const { Cell::new(false) };
}

/// From here on this thread is heard. The servers' threads are not: they have the keys by right.
pub(crate) fn hear() {
    HEARS.set(true);
}

pub(crate) fn install() {
    Registry::default().with(LevelFilter::TRACE).with(Listener).init();
}

/// What was found since the last time.
pub(crate) fn found() -> Vec<String> {
    std::mem::take(&mut *FOUND.lock().unwrap())
}

pub(crate) fn search(what: &str, text: impl FnOnce() -> String) {
    write(|| {
        if let Some(found) = SEARCH.find(&text()) {
            FOUND.lock().unwrap().push(format!("a key in {what}, {found}"));
        }
    });
}

struct Listener;

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.0, " {}={value}", field.name());
    }
}

fn heard(target: &str, record: impl FnOnce(&mut Text)) {
    if HEARS.get() {
        RECORDS.fetch_add(1, Relaxed);
        search(target, || {
            let mut text = Text::default();
            record(&mut text);
            text.0
        });
    }
}

fn is_call(metadata: &tracing::Metadata<'_>) -> bool {
    metadata.target() == "tower_outbound::call"
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for Listener {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        if is_call(attributes.metadata()) {
            OPENED.fetch_add(1, Relaxed);
        }
        heard(attributes.metadata().target(), |text| attributes.record(text));
    }

    fn on_record(&self, _: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        heard("a span", |text| values.record(text));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if is_call(event.metadata()) {
            LINES.fetch_add(1, Relaxed);
        }
        heard(event.metadata().target(), |text| event.record(text));
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        if context.span(&id).is_some_and(|span| is_call(span.metadata())) {
            CLOSED.fetch_add(1, Relaxed);
        }
    }
}
