//! A tracing layer that searches for keys in every span and event of the callers' threads, at level TRACE and from all
//! crates. The layer also counts the spans and events of calls.

use std::{
    cell::Cell,
    fmt::{self, Write as _},
    sync::{
        LazyLock, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::support::key_search::Search;
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

use super::{history::uncounted, key_store};

static SEARCH: LazyLock<Search> = LazyLock::new(|| Search::new(&key_store::key_text(0, 0)));
static FINDINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The number of call spans that were opened.
pub(crate) static SPANS_OPENED: AtomicU64 = AtomicU64::new(0);
pub(crate) static SPANS_CLOSED: AtomicU64 = AtomicU64::new(0);
/// The number of log events about the end of a call.
pub(crate) static CALL_EVENTS: AtomicU64 = AtomicU64::new(0);
/// The number of searched spans, span updates and events.
pub(crate) static RECORDS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(false) };
}

/// Enables the search on the current thread. The threads of servers are not searched, because servers have the keys.
pub(crate) fn enable_on_this_thread() {
    ENABLED.set(true);
}

/// Installs the layer as the global subscriber.
pub(crate) fn install() {
    Registry::default().with(LevelFilter::TRACE).with(LogScanner).init();
}

/// Removes and returns the keys that were found so far, each with the place where the search found it.
pub(crate) fn take_findings() -> Vec<String> {
    std::mem::take(&mut *FINDINGS.lock().unwrap())
}

/// Searches `text` for keys. `place` describes its origin.
pub(crate) fn search(place: &str, text: impl FnOnce() -> String) {
    uncounted(|| {
        if let Some(found) = SEARCH.find(&text()) {
            FINDINGS.lock().unwrap().push(format!("a key in {place}, {found}"));
        }
    });
}

struct LogScanner;

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

fn search_record(target: &str, record: impl FnOnce(&mut Text)) {
    if ENABLED.get() {
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

impl<S: Subscriber + for<'a> LookupSpan<'a>> tracing_subscriber::Layer<S> for LogScanner {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        if is_call(attributes.metadata()) {
            SPANS_OPENED.fetch_add(1, Relaxed);
        }
        search_record(attributes.metadata().target(), |text| attributes.record(text));
    }

    fn on_record(&self, _: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        search_record("a span", |text| values.record(text));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if is_call(event.metadata()) {
            CALL_EVENTS.fetch_add(1, Relaxed);
        }
        search_record(event.metadata().target(), |text| event.record(text));
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        if context.span(&id).is_some_and(|span| is_call(span.metadata())) {
            SPANS_CLOSED.fetch_add(1, Relaxed);
        }
    }
}
