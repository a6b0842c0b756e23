//! The keys, one valid key for each client and server, and the search for keys in the log.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tower_outbound::{
    ApiKey, BoxError, ExponentialBackoff, Jitter,
    auth::{FreshKey, KeySource, RefreshingKey},
};
use tracing::{Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{Layer, filter::filter_fn, fmt::MakeWriter, layer::SubscriberExt};

use super::{
    history::{History, Link},
    plan::{HEALED, SERVERS},
    rng::Rng,
};

/// Every key contains this text.
pub(crate) const MARK: &str = "k3yOfTheSimulation";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyStatus {
    Valid,
    Revoked,
    /// A key of another client or of another server.
    Foreign,
}

pub(crate) struct Keys {
    seed: u64,
    newest: Vec<AtomicU64>,
}

impl Keys {
    pub(crate) fn new(seed: u64, clients: usize) -> Arc<Self> {
        Arc::new(Self { seed, newest: (0..clients * SERVERS).map(|_| AtomicU64::new(1)).collect() })
    }

    fn newest(&self, link: Link) -> &AtomicU64 {
        &self.newest[link.client * SERVERS + link.server]
    }

    /// Replaces the valid key.
    pub(crate) fn revoke(&self, link: Link) {
        self.newest(link).fetch_add(1, Relaxed);
    }

    fn text(link: Link, number: u64) -> String {
        format!("{MARK}.{}.{}.{number}", link.client, link.server)
    }

    pub(crate) fn status(&self, link: Link, authorization: &str) -> KeyStatus {
        let key = authorization.strip_prefix("Bearer ").unwrap_or_default();
        let newest = self.newest(link).load(Relaxed);
        match (1..=newest).find(|number| Self::text(link, *number) == key) {
            Some(number) if number == newest => KeyStatus::Valid,
            Some(_) => KeyStatus::Revoked,
            None => KeyStatus::Foreign,
        }
    }

    /// A source that takes up to 100 ms for a key, and sometimes fails.
    pub(crate) fn source(self: &Arc<Self>, link: Link, history: &Arc<History>) -> KeySource {
        let (keys, history, refreshes) = (Arc::clone(self), Arc::clone(history), AtomicU64::new(0));
        let provider = move || {
            let (keys, history, number) =
                (Arc::clone(&keys), Arc::clone(&history), refreshes.fetch_add(1, Relaxed));
            async move {
                let mut rng =
                    Rng::new(keys.seed, "key", number << 8 | (link.client << 4 | link.server) as u64);
                let begin = history.now();
                tokio::time::sleep(rng.millis(0, 100)).await;
                let refresh = (link, begin, history.now());
                history.records().refreshes.push(refresh);
                if rng.chance(100) && history.now() < HEALED {
                    history.log(format_args!("{link}: refresh {number} of the key failed"));
                    return Err(BoxError::from("the key store is unavailable"));
                }
                let newest = keys.newest(link).load(Relaxed);
                history.log(format_args!("{link}: refresh {number} returned key {newest}"));
                let key = ApiKey::new(Self::text(link, newest))?;
                Ok(FreshKey::new(key).with_lifetime(rng.millis(1_000, 10_000)))
            }
        };
        let backoff = ExponentialBackoff::new(Duration::from_millis(20), Duration::from_millis(100)).unwrap();
        // The jitter of this backoff has no seed.
        RefreshingKey::new(provider).with_backoff(backoff.with_jitter(Jitter::none())).into()
    }
}

/// Returns a subscriber that searches the log for keys. `shows_log` adds the crate's own log to the history.
pub(crate) fn search_log(history: &Arc<History>, shows_log: bool) -> impl Subscriber + Send + Sync + use<> {
    let layer = tracing_subscriber::fmt::layer()
        .without_time()
        .with_ansi(false)
        .with_writer(Search { history: Arc::clone(history), shows_log })
        .with_filter(filter_fn(|metadata| !metadata.target().starts_with("turmoil")))
        .with_filter(LevelFilter::DEBUG);
    tracing_subscriber::registry().with(layer)
}

#[derive(Clone)]
struct Search {
    history: Arc<History>,
    shows_log: bool,
}

impl MakeWriter<'_> for Search {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl io::Write for Search {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if text.contains(MARK) {
            self.history.violate(format_args!("the log contains a key: {text}"));
        }
        if self.shows_log && text.contains("tower_outbound") {
            self.history.log(text.trim_end());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
