use std::{fmt, future::poll_fn, num::NonZeroU32, pin::Pin, sync::Arc};

use super::{
    connection::{Connection, parse},
    inner::Inner,
    permits::Store,
    settings::Settings,
};
use crate::{
    clock::Instant,
    config::InvalidConfig,
    limit::{Acquire, Limiter, PermitIssuer, PermitRequest, Snapshot, core::Rule},
    policy::Quota,
};

/// A limiter whose quota several processes share through Redis or Valkey. The processes use the same name for the
/// quota.
///
/// ```no_run
/// use tower_outbound::{BoxError, adapter::RedisLimiter, preset};
///
/// # async fn run(key: &str) -> Result<(), BoxError> {
/// let rates = preset::currency_rates("https://rates.example.com")?;
/// let limiter = RedisLimiter::token_bucket("rediss://:password@redis.internal:6379", key, rates.quotas().to_vec())?
///     .with_fallback_share(4)?;
/// let client = rates.with_limiter(limiter.clone()).client()?;
/// let response = client.get("/v1/resources").await?;
/// println!("{} {:?}", response.status(), limiter.store());
/// # Ok(())
/// # }
/// ```
///
/// # How it decides
///
/// Requests wait in a FIFO queue in the process, as with every other limiter. If no permit is available in the process,
/// a task queries the server for as many permits as the waiters need. The task sends one query at a time. A script on
/// the server decides in one round trip, by the server's clock. It grants permits up to 100 ms before they may be used,
/// so that processes are served in the order of their queries. If a process gets fewer permits than it needs, the reply
/// states when to query again. Permits are queried only if a request waits.
///
/// The quota holds in every window across all processes. Each permit has a start time, from which it may be used and
/// counts towards the quota. It expires [`hold`](Self::with_lease) later. The script therefore makes every window
/// longer by `hold` and by the quota's margin. The margin covers delays after the grant: late polls, an inner service
/// that is not ready, and the network.
///
/// Server limits apply to all processes. A process reports a requested delay to the store immediately, and remaining
/// permits with its next query. It first subtracts its own requests in flight from the remaining permits, because the
/// service may not have counted these requests yet.
///
/// # Tokens and other units
///
/// A quota may count [another unit](Quota::with_unit), such as tokens. A request takes its permits and its
/// [`Amounts`](crate::limit::Amounts) together or not at all, and is [settled](crate::limit::Settlement) as with a
/// [`LocalLimiter`](crate::limit::LocalLimiter).
///
/// - In any window, the amounts of all processes exceed the limit at most by the excess that had not reached the store
///   at the grant of the window's last request.
/// - A settlement is a query that no request waits for. An excess is sent until the store replies, so it counts twice
///   if only the reply was lost. A returned amount is sent once. If its query fails, the estimate counts.
/// - The store counts each amount up to 1/128 of the window longer.
/// - If a process crashes, its estimates count until they leave the window.
/// - A window of a unit has no burst: its limit is available at any time of the window, as with a
///   [sliding window](crate::limit::LocalLimiter::sliding_window).
/// - A [bucket](Quota::bucket) of a unit is settled as with a `LocalLimiter`. An estimate
///   above its capacity counts as the capacity in each quota of the unit, and an actual amount as at most ten times the
///   capacity. A returned amount is up to 4 % of the capacity smaller than necessary.
/// - While amounts delay a waiter, its process queries the store at least every 300 ms, because another process may
///   return amounts. A request that is refused because of its `max_wait` starts no query before the forecast time.
/// - [`Snapshot::units`] has the available amounts of the last reply. Token headers of accepted responses do not apply.
///
/// # Cost
///
/// - Quota: the sustained rate of a token bucket is (limit − burst) / (window + margin + hold). For a sliding window,
///   it is limit / (window + margin + hold).
/// - Latency: one round trip for all requests that wait together. With a [lease](Self::with_lease), the same round trip
///   also serves later requests.
/// - Memory of the server: about 250 bytes for each name. A sliding window adds about 12 bytes for each permit of its
///   limit. Each key expires two windows after its last use.
/// - A [bucket](Quota::bucket) sustains the rate of the service. Its burst is the capacity minus the permits that the
///   bucket refills during the margin and the hold.
/// - Processor time of the server: about 30 µs for each query of a token bucket, and 60 µs for each query of a sliding
///   window. One core therefore serves about 30,000 queries per second of a bucket, or 16,000 of a window. With a lease
///   of 100 permits, one core grants about a million permits per second from a bucket, or half a million from a window.
///   `benches/limiter.rs` measured this on two shared cores. A limit of requests in flight adds about 15 µs to a query,
///   and 2 µs for each process that has requests in flight or waits. A quota of tokens adds about 15 % to a query of a
///   bucket, or 70 % if the window contains requests in each 1/128 of it. `redis-benchmark` measured 75 to 87 µs
///   without tokens on two busy cores. Tokens added 10 µs with few requests in the window, and 40 to 65 µs with many.
/// - With a quota in another unit, each request takes one query, and up to one for its settlement. The log of the quota
///   takes up to 4 KB of the server's memory.
///
/// # Failures of the server
///
/// | event | effect |
/// |---|---|
/// | is slow or does not reply | the query fails after its [timeout](Self::with_timeout) |
/// | rejects connections, is full, is a replica, or is still loading | the query fails immediately |
/// | the connection was lost | the query is resent over a new connection, within the same timeout |
/// | another node of a cluster stores the name | the query is redirected to that node. All keys of a name are in one slot |
/// | a query has failed | requests are refused, or use a [share](Self::with_fallback_share), and another query is sent every 50 to 250 ms while there are requests |
/// | the replies always take longer than `hold` | the third consecutive late reply counts as a failure |
/// | restarted, with any persistence | the entire quota counts as spent at the time of the restart |
/// | lost its memory, by a flush or a failover | a process detects the loss with its next query if it remembers more grants than the server. The entire quota then counts as spent. A partial loss is detected only until the server has granted as many permits as it lost |
/// | lost its memory, with a [limit of requests in flight](Self::with_max_in_flight) | a process with requests in flight detects the loss with its next query. Until the first such query, other processes may exceed the limit |
/// | evicted only the log or only the state of a window | the entire quota counts as spent at the next query |
/// | its clock was set back or forward | set back: the entire quota counts as spent at the next query. Set forward: grants and requests in flight count as older than they are |
/// | the server does not have the script | the script is resent |
/// | another program has written a value of another type under a key of the limiter | the query fails immediately |
///
/// The [`Refusal`](crate::error::Refusal) of a request states the failure of the last query as its `source()`.
/// [`store`](Self::store) returns the current state of the store. The log and the metrics report when the store is lost
/// and when it recovers.
///
/// # Notes
///
/// - A server that started less than a window ago may have lost its memory. The first requests therefore wait until a
///   window has passed since the start. If the Redis user may not call `INFO`, the first requests for each name wait in
///   the same way.
/// - After an outage in which processes used their [shares](Self::with_fallback_share), the server grants nothing for
///   half a second by default. By then all processes have returned to the server. The server then grants nothing for
///   one more window, as after a restart.
/// - If only some processes cannot reach the server, they use their shares in addition to the grants of the server.
///   Each of these processes adds at most its share to the quota. Do not configure a share if that is too much.
/// - A process that uses its share refuses a request that costs more than the share can grant. An estimate above the
///   share counts as the share. The process checks a waiter that only a unit delays after each failed query.
/// - After an outage, amounts that were taken from a share are not returned, and the store counts only their excess.
/// - The server may stop replying for a while and continue without a restart. The first process that then queries the
///   server may receive permits immediately, if that process has not used a share. These permits add to the shares that
///   other processes have used.
/// - If few processes send queries, a single failed query can delay all processes by a window. This window starts when
///   the process of the failed query returns to the server.
/// - All processes must use the same quotas, margins, hold, share and limit of requests in flight, because each query
///   applies the settings of its process. With different quotas, a loss of the server's memory may go unnoticed. A token
///   bucket and a sliding window of the same name do not share a quota.
/// - A request for several permits or a large amount may wait long, or forever. This happens if they take longer than
///   100 ms to refill and other processes take them in smaller parts. Within its own process it keeps its position in
///   the queue.
/// - A process that has learned of a pause waits until the pause ends, even if another process calls
///   [`resume`](Self::resume).
/// - `max_wait` limits the wait for the quota, but not the query that forecasts this wait. The deadline limits both.
/// - During a query, deadlines are checked every 10 ms.
/// - A request that waits needs a tokio runtime with time and I/O. If a runtime shuts down, its query is dropped, but
///   no permits are lost. A waiter of another runtime sends a new query within a second. Each waiter that is not polled
///   may delay this query by one more second. A runtime that exists but is not driven blocks the waiters that depend on
///   its query.
/// - Each runtime that sends queries has a connection of its own. The limiter keeps the connections of the 64 runtimes
///   that queried last. Another runtime connects again for its next query.
/// - In Redis Cluster, queries follow redirections to the node that stores the slot. The limiter does not query
///   Sentinel for the master's address.
/// - The limiter uses the server's clock. If a test pauses tokio's time, a query times out before its reply can arrive.
///   Such a test needs an in-process limiter.
///
/// # Scale
///
/// Each name is stored on one node, which runs one script at a time, so each name is limited to the speed of one core.
/// Different names are distributed over the nodes of a cluster. If one name is too much load for a node, divide its
/// quota among several names, for example a quarter for each of four names. Assign each process to one name.
/// Alternatively use leases: a lease of 100 permits divides the number of queries by up to 100.
///
/// # Default
///
/// - A query takes at most 250 ms, including connecting.
/// - The time from a permit's start to its expiry, `hold`, is 1/50 of the shortest window, limited to 5 to 250 ms.
///   Every window is longer by `hold`, in addition to the quota's margin.
/// - Without a [lease](Self::with_lease), permits are queried only when a request waits for them.
/// - While the server does not reply, requests are refused.
/// - The number of requests in flight is not limited.
/// - The namespace is `tower-outbound`.
///
/// # Clone
///
/// All clones of a limiter share the queue, the connections, the fetched permits and the requests in flight.
///
/// # Cancellation
///
/// Dropping a queued request spends nothing. A permit that was fetched for it is used by the next request, or expires.
/// Its amounts are returned, and the store no longer counts the request as in flight.
#[derive(Clone)]
pub struct RedisLimiter {
    pub(super) inner: Arc<Inner>,
}

impl RedisLimiter {
    /// Creates a limiter that spreads requests over the window, like an in-process
    /// [token bucket](crate::limit::LocalLimiter::token_bucket). Grants the permits of a [bucket](Quota::bucket) at the
    /// rate of the service.
    ///
    /// `name` identifies the quota. It can be the API key, for example. All limiters with the same name and namespace
    /// on one server share the quota. The server receives only a hash of the name. All processes must use the same
    /// quotas for a name. Otherwise each process enforces only its own, and a loss of the server's memory may go
    /// unnoticed.
    ///
    /// The limiter connects to the server for its first query, not when it is created.
    ///
    /// # Errors
    ///
    /// Returns an error if `url` is not a Redis URL, if the URL needs TLS but the feature `rustls` is disabled, or if
    /// `quotas` is empty.
    pub fn token_bucket(
        url: &str,
        name: &str,
        quotas: impl IntoIterator<Item = Quota>,
    ) -> Result<Self, InvalidConfig> {
        Self::new(url, name, Rule::TokenBucket, quotas.into_iter().collect())
    }

    /// Creates a limiter whose entire quota may be used at any time of the window, like an in-process
    /// [sliding window](crate::limit::LocalLimiter::sliding_window). A [bucket](Quota::bucket) stays a bucket. See
    /// [`token_bucket`](Self::token_bucket) for the parameters.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`token_bucket`](Self::token_bucket).
    pub fn sliding_window(
        url: &str,
        name: &str,
        quotas: impl IntoIterator<Item = Quota>,
    ) -> Result<Self, InvalidConfig> {
        Self::new(url, name, Rule::SlidingWindow, quotas.into_iter().collect())
    }

    fn new(url: &str, name: &str, rule: Rule, quotas: Vec<Quota>) -> Result<Self, InvalidConfig> {
        Settings::new(parse(url)?, name, rule, quotas).map(Self::build)
    }

    /// Creates a limiter with these settings. Every setter creates a new limiter, because settings must not change
    /// after the first request.
    pub(super) fn build(settings: Settings) -> Self {
        let settings = Arc::new(settings);
        let store = Box::new(Connection::new(Arc::clone(&settings)));
        Self { inner: Inner::new(store, settings) }
    }

    /// Returns the state of the limiter in this process. `available` counts the permits that this process has fetched.
    pub fn snapshot(&self) -> Snapshot {
        self.inner.limiter.snapshot()
    }

    /// Returns the state of the store as this process knows it. If the server does not reply, the state shows whether
    /// this process uses its share or refuses requests.
    pub fn store(&self) -> Store {
        self.inner.inspect(|permits, _| permits.store())
    }

    /// Grants nothing before `until`, in all processes. Other processes learn of the pause with their next query. Can
    /// extend an earlier pause, but never shortens it.
    pub fn pause_until(&self, until: Instant) {
        self.inner.pause_until(until);
    }

    /// Lifts the pause in this process and in the store. Also discards the remaining permits that the service reported.
    /// Other processes that have learned of the pause still wait for its end. A pause that another process has reported
    /// since this call remains, even if this call reaches the store later. If the store has not yet confirmed a pause of
    /// this process, only a pause that was reported at least 10 s later remains, and none if the store has not replied
    /// to any query of this process.
    pub fn resume(&self) {
        self.inner.resume();
    }
}

impl Limiter for RedisLimiter {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        let mut waiter = Waiter { inner: Arc::clone(&self.inner), is_waiting: false };
        let (acquire, cost, amounts) =
            (self.inner.limiter.acquire_with(request), request.cost(), *request.amounts());
        Acquire::new(async move {
            // Dropped before `waiter`, so that its permits have been returned by then.
            let mut acquire = acquire;
            poll_fn(|cx| {
                let outcome = Pin::new(&mut acquire).poll(cx);
                waiter.polled(cost, outcome.is_pending());
                outcome
            })
            .await
            .map(|permit| {
                let issuer = Arc::clone(&waiter.inner) as Arc<dyn PermitIssuer>;
                permit.with_issuer(issuer).with_amounts(amounts)
            })
        })
    }
}

/// Reports to the store if a queued request is dropped, because the store may have admitted it or counted its amounts.
struct Waiter {
    inner: Arc<Inner>,
    is_waiting: bool,
}

impl Waiter {
    fn polled(&mut self, cost: NonZeroU32, is_pending: bool) {
        self.is_waiting = is_pending;
        // While the limit of requests in flight is reached, or the last reply forecasts a wait for another unit, the
        // limiter requests no permits.
        if is_pending && self.inner.settings.is_queried_early() {
            self.inner.inspect(|permits, _| permits.request_query(cost));
        }
        self.inner.start();
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.is_waiting && self.inner.settings.is_queried_early() {
            self.inner.query_now();
        }
    }
}

/// Omits the quota's name and the server's credentials.
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
