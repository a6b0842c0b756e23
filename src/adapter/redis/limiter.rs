use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use super::{
    connection::{Connection, parse},
    fallback::parts,
    inner::Inner,
    permits::Store,
    protocol::{Kind, MOST, News},
    settings::Settings,
};
use crate::{
    clock::Instant,
    config::InvalidConfig,
    limit::{Acquire, Limiter, PermitIssuer, PermitRequest, Snapshot},
    policy::Quota,
};

/// A limiter whose quota is shared by all processes that name it alike, through Redis or Valkey.
///
/// ```no_run
/// use tower_outbound::{BoxError, adapter::RedisLimiter, preset};
///
/// # async fn run(key: &str) -> Result<(), BoxError> {
/// let rates = preset::currency_rates("https://rates.example.com")?;
/// let limiter = RedisLimiter::token_bucket("rediss://:password@redis.internal:6379", key, rates.quotas().to_vec())?
///     .with_fallback_share(4)?;
/// let client = rates.with_limiter(limiter.clone()).client()?;
/// let answer = client.get("/v1/resources").await?;
/// println!("{} {:?}", answer.status(), limiter.store());
/// # Ok(())
/// # }
/// ```
///
/// # How it decides
///
/// Requests wait in the same FIFO queue as with any other limiter. If no permit is in hand, a task queries the server, one
/// query at a time, for as many permits as the waiters need. A script decides in one round trip, by the server's clock. It
/// grants each permit for a moment, up to 100 ms ahead, so that processes are served in the order of their queries. A
/// process that gets fewer permits than it needs learns when to query again. Without a waiter no query is sent.
///
/// The window holds across all processes. A permit counts from the moment for which the store granted it, and expires
/// [`hold`](Self::with_lease) later. Every window is longer by `hold` and by the quota's margin. The margin covers
/// delays after the grant: late polls, an inner service that is not ready, and the network.
///
/// Server limits apply to all processes. A process reports a requested delay to the store at once, and remaining
/// permits with its next query. It subtracts its own requests in flight from these, because the server may not have
/// counted them yet.
///
/// # Cost
///
/// - Part of the quota: the sustained rate is (limit − burst) / (window + margin + hold), and limit / (window + margin +
///   hold) for the sliding window.
/// - A round trip for the requests that wait together. With a [lease](Self::with_lease), one for many later requests.
/// - On the server a hash of about 250 bytes for each name, and for a sliding window about 12 bytes for each request of
///   the limit. Each key expires two windows after its last use.
/// - About 30 µs of the server's processor for each query of a bucket, and 60 µs for a window. One core serves about
///   30,000 and 16,000 queries per second: with a lease of 100, a million and half a million permits. Measured by
///   `benches/limiter.rs` on two shared cores.
///
/// # Failures of the server
///
/// | event | effect |
/// |---|---|
/// | slow or silent | the query fails after its [timeout](Self::with_timeout) |
/// | rejects connections, is full, a replica, or still loading | the query fails immediately |
/// | the connection was lost | the query is sent again over a new connection, within the same timeout |
/// | another node of a cluster has the name | the query follows it; all keys of a name are in one slot |
/// | a query has failed | requests are refused, or use a [share](Self::with_fallback_share), and another query is sent every 50 to 250 ms while there are requests |
/// | replies always later than `hold` | the third consecutive late reply counts as a failure |
/// | restarted, with any persistence | everything counts as spent at its start |
/// | lost its memory, by a flush or a failover | everything counts as spent when a process queries that remembers more grants than the server. A partial loss is detected only until the server has granted as many permits again |
/// | evicted the log or the state of a window alone | everything counts as spent now |
/// | clock set back, or forward | set back, everything counts as spent now. Set forward, grants count as older than they are |
/// | the script is gone | it is sent again |
///
/// [`store`](Self::store) returns the current state. The log and the metrics report when the store is lost and back.
///
/// # Notes
///
/// - A server that has been up for less than a window counts as one that lost its memory: the first requests wait until a
///   window after its start. So does the first use of each name if the server's user may not call `INFO`.
/// - After an outage in which processes used their [shares](Self::with_fallback_share), the server grants nothing until
///   all of them must be back, half a second by default. It then grants nothing for a window, as after a restart.
/// - If only some processes cannot reach the server, their shares are in addition to the grants of the others: at most 1/n
///   of the quota for each such process. Do not use a share if that is too much.
/// - A process that uses its share refuses a request that costs more than the share can grant.
/// - If the server stopped without a restart, it treats the first process that queries again, and has not used a share, as
///   any other. The permits of that process are in addition to the others' shares.
/// - If few processes query, a process whose query failed delays all of them by a window when it is back.
/// - All processes must use the same quotas, margins, hold and share, because each decides by its own settings. A
///   token bucket and a sliding window of the same name do not share a quota.
/// - A request whose permits take longer than 100 ms to refill may wait long, or for ever, if other processes take them
///   one by one. In its own process it keeps its position in the queue.
/// - A process that knows of a pause obeys it, even if another resumes.
/// - `max_wait` bounds the wait for the quota, not the query that forecasts it. The deadline bounds both.
/// - During a query, deadlines are checked every 10 ms.
/// - A wait needs a tokio runtime with time and I/O. A runtime that ends drops its query, but no permits. A runtime that
///   lives but is not driven blocks the waiters that query through it.
/// - In Redis Cluster it follows the node that has its slot. It does not query Sentinel for the master's address.
/// - It uses the server's clock. On paused time the query times out before the reply can arrive, so tests need an
///   in-process limiter.
///
/// # Scale
///
/// A name is stored on one node, which runs one script at a time, so a name is limited to the speed of one core. Different
/// names spread over the nodes of a cluster. For one name that exceeds a node, divide the quota over several names, such as a quarter each to four
/// names, and give each process one of them. Or use leases, which divide the number of queries by their size.
///
/// # Default
///
/// - A query takes at most 250 ms, connecting included.
/// - A permit expires a fiftieth of the shortest window after its moment, at least 5 ms and at most 250 ms. Every
///   window is longer by this time, in addition to the quota's margin.
/// - No [lease](Self::with_lease): permits are queried when a request waits for them.
/// - While the server does not reply, requests are refused.
/// - The namespace is `tower-outbound`.
///
/// # Clone
///
/// Clones share the queue, the connection and the permits in hand.
///
/// # Cancellation
///
/// Dropping a queued request spends nothing. A permit that was fetched for it serves the next one, or expires.
#[derive(Clone)]
pub struct RedisLimiter {
    inner: Arc<Inner>,
}

impl RedisLimiter {
    /// Spreads requests over the window, as a [`TokenBucket`](crate::limit::TokenBucket) does in one process.
    ///
    /// `name` identifies the quota, such as the API key. All limiters of one name share it, in one namespace of one server.
    /// The server sees only a hash of the name. Processes with different quotas each enforce their own.
    ///
    /// Nothing is sent before the first request.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is not one of Redis, needs TLS without the feature `rustls`, or there is no quota.
    pub fn token_bucket(
        url: &str,
        name: &str,
        quotas: impl IntoIterator<Item = Quota>,
    ) -> Result<Self, InvalidConfig> {
        Self::new(url, name, Kind::TokenBucket, quotas.into_iter().collect())
    }

    /// Grants the whole quota in any pattern, as a [`SlidingWindow`](crate::limit::SlidingWindow) does in one process.
    /// Otherwise like [`token_bucket`](Self::token_bucket).
    ///
    /// # Errors
    ///
    /// Returns an error as [`token_bucket`](Self::token_bucket) does.
    pub fn sliding_window(
        url: &str,
        name: &str,
        quotas: impl IntoIterator<Item = Quota>,
    ) -> Result<Self, InvalidConfig> {
        Self::new(url, name, Kind::SlidingWindow, quotas.into_iter().collect())
    }

    fn new(url: &str, name: &str, kind: Kind, quotas: Vec<Quota>) -> Result<Self, InvalidConfig> {
        Settings::new(parse(url)?, name, kind, quotas).map(Self::build)
    }

    /// Creates a new limiter, because settings apply before the first request.
    fn build(settings: Settings) -> Self {
        let settings = Arc::new(settings);
        let store = Box::new(Connection::new(Arc::clone(&settings)));
        Self { inner: Inner::new(store, settings) }
    }

    fn with(&self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = Settings::clone(&self.inner.settings);
        change(&mut settings);
        Self::build(settings)
    }

    /// Sets the prefix of the keys. Returns an independent limiter, as every setter does.
    ///
    /// # Errors
    ///
    /// Returns an error if it is empty or contains a brace, which a cluster reads as the part that selects the slot.
    pub fn with_namespace(self, namespace: &str) -> Result<Self, InvalidConfig> {
        if namespace.is_empty() || namespace.contains(['{', '}']) {
            return Err(InvalidConfig::new("namespace", namespace.to_owned(), "a name without braces"));
        }
        Ok(self.with(|settings| settings.namespace = namespace.to_owned()))
    }

    /// Fetches up to `permits` with one query, ahead of requests, and holds each for up to `hold` after its moment. Fetches
    /// fewer if they were not used up. Unused permits expire. Default: 1 permit, and a fiftieth of the shortest window, at
    /// least 5 ms and at most 250 ms.
    ///
    /// A server with a round trip longer than `hold` grants nothing in time, which counts as a failure.
    ///
    /// A busy process sends one query for many requests. In return every window is longer by `hold`: 1 s costs 1.6 % of 100
    /// per minute, 100 ms costs 9 % of 200 per second. Other processes cannot use a held permit.
    ///
    /// # Errors
    ///
    /// Returns an error if `permits` is 0 or more than 1,000, the most of one query, or `hold` is zero or longer than the
    /// shortest window.
    pub fn with_lease(self, permits: u32, hold: Duration) -> Result<Self, InvalidConfig> {
        if !(1..=MOST).contains(&permits) {
            return Err(InvalidConfig::new("lease permits", permits.to_string(), format!("1 to {MOST}")));
        }
        let shortest = self.inner.settings.shortest();
        if hold.is_zero() || hold > shortest {
            let expected = format!("more than zero and at most the shortest window, {shortest:?}");
            return Err(InvalidConfig::new("hold", format!("{hold:?}"), expected));
        }
        Ok(self.with(|settings| (settings.lease, settings.hold) = (permits, hold)))
    }

    /// Limits the time of a query, including connecting. Default: 250 ms.
    ///
    /// # Errors
    ///
    /// Returns an error if it is zero.
    pub fn with_timeout(self, timeout: Duration) -> Result<Self, InvalidConfig> {
        if timeout.is_zero() {
            return Err(InvalidConfig::new("timeout", "0ns", "more than zero"));
        }
        Ok(self.with(|settings| settings.timeout = timeout))
    }

    /// Uses a share of every quota while the server does not reply, as one of `processes`. Default: refuses every request
    /// immediately with [`Reason::Unavailable`](crate::error::Reason::Unavailable).
    ///
    /// Starts with nothing available, because the last requests of the other processes are unknown.
    ///
    /// # Errors
    ///
    /// Returns an error if `processes` is 0, or if a quota's limit, or a token bucket's burst, is less than one permit for
    /// each process.
    pub fn with_fallback_share(self, processes: u32) -> Result<Self, InvalidConfig> {
        let Settings { kind, quotas, .. } = &*self.inner.settings;
        let share = parts(processes, *kind, quotas)?;
        Ok(self.with(|settings| settings.share = Some(share)))
    }

    /// Returns the state of this process. `available` counts the permits in hand.
    pub fn snapshot(&self) -> Snapshot {
        self.inner.queue.snapshot()
    }

    /// Returns whether the server replies, and what this process does otherwise.
    pub fn store(&self) -> Store {
        self.inner.queue.inspect(|permits, _, _| permits.store)
    }

    /// Grants nothing before `until`, in any process. The others learn of it with their next query. Extends a pause and never
    /// shortens it.
    pub fn pause_until(&self, until: Instant) {
        self.inner.pause_until(until);
    }

    /// Lifts the pause and discards the remaining permits that the service reported, here and in the store. A process that
    /// knows of the pause still obeys it.
    pub fn resume(&self) {
        self.inner.queue.resume();
        self.inner.report(|news, _| *news = News { resume: true, ..News::default() });
    }
}

#[cfg(test)]
impl RedisLimiter {
    /// Replaces the store, for tests.
    pub(super) fn asking(self, store: Box<dyn super::protocol::Decide>) -> Self {
        Self { inner: Inner::new(store, Arc::clone(&self.inner.settings)) }
    }
}

impl Limiter for RedisLimiter {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        let inner = Arc::clone(&self.inner);
        let mut acquire = Acquire::queued(Arc::clone(&inner.queue), *request);
        Acquire::new(poll_fn(move |cx| {
            let outcome = Pin::new(&mut acquire).poll(cx);
            inner.start();
            let issuer = || Arc::clone(&inner) as Arc<dyn PermitIssuer>;
            outcome.map_ok(|permit| permit.with_issuer(issuer()))
        }))
    }
}

/// Shows neither the name nor the credentials.
impl fmt::Debug for RedisLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLimiter")
            .field("server", &self.inner.settings.info.addr().to_string())
            .field("quotas", &self.inner.settings.quotas)
            .field("share", &self.inner.settings.share)
            .field("snapshot", &self.snapshot())
            .finish_non_exhaustive()
    }
}
