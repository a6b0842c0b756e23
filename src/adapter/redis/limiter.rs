use std::{fmt, sync::Arc, time::Duration};

use super::{
    acquire::RedisAcquire,
    connection::Connection,
    fallback::Fallback,
    inner::Inner,
    permits::Store,
    protocol::{Decide, Kind, MOST, Terms},
    settings::{DEFAULT_TIMEOUT, Settings},
};
use crate::{
    clock::Instant,
    error::InvalidConfig,
    limit::{Limiter, PermitRequest, Snapshot},
    policy::Quota,
};

/// A limiter whose quota is shared by all processes that name it alike, through Redis or Valkey.
///
/// ```no_run
/// use std::num::NonZeroU32;
/// use tower_outbound::{BoxError, adapter::{Fallback, RedisLimiter}, preset};
///
/// # async fn run(key: &str) -> Result<(), BoxError> {
/// let rates = preset::currency_rates("https://rates.example.com")?;
/// let limiter = RedisLimiter::token_bucket("rediss://:password@redis.internal:6379", key, rates.quotas().to_vec())?
///     .with_fallback(Fallback::Share(NonZeroU32::new(4).ok_or("not zero")?))?;
/// let client = rates.with_limiter(limiter.clone()).client()?;
/// let answer = client.get("/v1/resources").await?;
/// println!("{} {:?}", answer.status(), limiter.store());
/// # Ok(())
/// # }
/// ```
///
/// # How it decides
///
/// A request waits in the same line as before any other limiter, first come, first served. When there is no permit in
/// hand a task asks the server, one question at a time, for as many as are waited for. A script decides, in one round
/// trip, by the server's clock alone, and gives each permit with the moment from which it may be used, up to a tenth of
/// a second ahead: so within that time processes are served in the order in which they ask, and whoever gets less than it
/// wants is told when to come back. Nobody asks while nobody waits.
///
/// The window holds across all processes. A permit counts from the moment for which the store granted it, and expires
/// [`hold`](Self::with_hold) later. Every window is longer by `hold` and by the quota's margin. The margin covers
/// delays after the grant: late polls, an inner service that is not ready, and the network.
///
/// Server limits apply to all processes. A process reports a requested delay to the store at once, and remaining
/// permits with its next question. It subtracts its own requests in flight from these, because the server may not have
/// counted them yet.
///
/// # What it costs
///
/// - Part of the quota: the sustained rate is (limit − burst) / (window + margin + hold), and limit / (window + margin +
///   hold) for the sliding window.
/// - A round trip for the requests that wait together. With a [lease](Self::with_lease) one for many that come later.
/// - In the server a hash of some 250 bytes for each name, and for a sliding window some 12 bytes for each request of the
///   limit. Each key ends by itself, two windows after its last use.
/// - Of the server's processor some 30 µs a question for a bucket and 60 µs for a window, so that one core serves some
///   30,000 and 16,000 a second; with a lease of 100 those are a million permits and half a million. Measured by
///   `benches/limiter.rs`, on two shared cores.
///
/// # When the server does not answer
///
/// | what happens | what it does |
/// |---|---|
/// | slow, or silent | a question fails after its [timeout](Self::with_timeout) |
/// | refuses, full, a replica, still loading | a question fails at once |
/// | the connection was lost | one more try over a new one, within the same timeout |
/// | another node of a cluster has the name | it is asked there; all keys of a name are in one slot |
/// | a question has failed | [`Fallback`], and another question every 50 to 250 ms while there are requests |
/// | always later than `hold` | the third answer in turn counts as a failure |
/// | restarted, with whatever it kept | all is taken for spent at its start |
/// | it forgot, by a flush or a failover | all is taken for spent now, when the first process asks that remembers more; of a part, not once others have been granted as much again |
/// | it dropped the log or the state of a window alone | all is taken for spent now |
/// | its clock was set back | all is taken for spent now. Set forward, it takes grants for older than they are |
/// | the script is gone | it is sent again |
///
/// [`Snapshot::store`](Snapshot) says which holds; the log and the metrics tell when the store is lost and back.
///
/// # Surprises
///
/// - A server that has been up for less than a window is taken for one that has forgotten: the first requests wait until
///   a window after its start. So does every name's first use where the server's user may not call `INFO`.
/// - When processes that kept to their [shares](Fallback::Share) come back after an outage, nothing is given before the
///   last of them must be back, half a second by default, and then for a window as after a restart. Where only one of them
///   could not reach the server, its share was on top of what the others got: at most 1/n of the quota for each such
///   process. Where that is too much, refuse. A request that costs more than a share can ever give is refused meanwhile.
/// - A server that stood still, and did not restart, can't tell the first process that asks again, and has not kept to a share,
///   from any other: what that one gets is on top of the others' shares. And where few ask, one process whose question
///   fails costs all of them a window when it is back.
/// - All processes must use the same quotas, margins, hold and fallback, because each decides by its own settings. A
///   token bucket and a sliding window of the same name do not share a quota.
/// - A request that costs so many permits that they take longer to refill than a tenth of a second may wait for long, or
///   for ever, where other processes take them one by one. In its own process it has its place in the line.
/// - A process that has heard of a pause keeps to it, even if another resumes.
/// - What `max_wait` bounds is the wait for the quota, and not the question that finds it out; the deadline bounds both.
/// - While a question is under way deadlines are kept to within 10 ms.
/// - Waiting needs a tokio runtime with time and I/O. A runtime that ends takes its question along, and nobody's permits;
///   one that lives but is not driven keeps all waiting who asked through it.
/// - In Redis Cluster it follows the node that has its slot; through Sentinel it does not ask for the master's address.
/// - It runs on the server's clock. In a test on paused time the question's timeout is over before the answer can come:
///   test with a limiter in the process there.
///
/// # Past one server
///
/// A name lives on one node and one script runs on it at a time, so that a name can't be faster than one core; many names
/// spread over a cluster. For one name that is too much for a node, divide the quota over several names by hand, such as
/// a quarter each to four names, and give each process one of them; or take leases, which divide the questions by their size.
///
/// # Default
///
/// - A question to the server takes 250 ms at the most, connecting included.
/// - A permit expires a fiftieth of the shortest window after its moment, at least 5 ms and at most 250 ms. Every
///   window is longer by this time, in addition to the quota's margin.
/// - No [lease](Self::with_lease): permits are asked for when somebody waits for them.
/// - While the server does not answer, requests are [refused](Fallback::Refuse).
/// - The namespace is `tower-outbound`.
///
/// # Clone
///
/// Clones share the line, the connection and the permits in hand.
///
/// # Cancellation
///
/// A waiting request that is dropped spends nothing; what was fetched for it serves the next, or is lost when its time
/// is over.
#[derive(Clone)]
pub struct RedisLimiter {
    settings: Arc<Settings>,
    inner: Arc<Inner>,
}

impl RedisLimiter {
    /// Each question to the server takes at most so long by default: longer than a server in the same place ever
    /// takes, and a call's deadline has room for several.
    pub const DEFAULT_TIMEOUT: Duration = DEFAULT_TIMEOUT;

    /// Spreads the requests over the window, as a [`TokenBucket`](crate::limit::TokenBucket) does in one process.
    ///
    /// `name` is what the quota belongs to, such as the API key: all who give the same name, in the same namespace of
    /// the same server, share it. It goes to the server as a hash alone. Processes that disagree about the quota each
    /// count by their own.
    ///
    /// Nothing is sent before the first request.
    ///
    /// # Errors
    ///
    /// When the URL is none of Redis's, TLS is asked for without the feature `rustls`, or no quota is given.
    pub fn token_bucket(
        url: &str,
        name: &str,
        quotas: impl IntoIterator<Item = Quota>,
    ) -> Result<Self, InvalidConfig> {
        Self::new(url, name, Kind::TokenBucket, quotas.into_iter().collect())
    }

    /// Lets the whole quota go at once, as a [`SlidingWindow`](crate::limit::SlidingWindow) does in one process.
    /// Otherwise like [`token_bucket`](Self::token_bucket).
    ///
    /// # Errors
    ///
    /// Like those of `token_bucket`.
    pub fn sliding_window(
        url: &str,
        name: &str,
        quotas: impl IntoIterator<Item = Quota>,
    ) -> Result<Self, InvalidConfig> {
        Self::new(url, name, Kind::SlidingWindow, quotas.into_iter().collect())
    }

    fn new(url: &str, name: &str, kind: Kind, quotas: Vec<Quota>) -> Result<Self, InvalidConfig> {
        Self::build(Settings::new(url, name, kind, quotas)?)
    }

    /// Another limiter, with nothing known: what is set is set before the first request.
    fn build(settings: Settings) -> Result<Self, InvalidConfig> {
        let (info, tag) = (settings.info.clone(), settings.tag());
        Self::over(settings, |terms| Box::new(Connection::new(info, &tag, terms)))
    }

    fn over(settings: Settings, store: impl FnOnce(Terms) -> Box<dyn Decide>) -> Result<Self, InvalidConfig> {
        let (plan, terms) = settings.plan()?;
        let inner = Inner::new(store(terms), &settings.quotas, plan);
        Ok(Self { settings: Arc::new(settings), inner })
    }

    fn with(self, change: impl FnOnce(&mut Settings)) -> Result<Self, InvalidConfig> {
        let mut settings = Settings::clone(&self.settings);
        change(&mut settings);
        Self::build(settings)
    }

    /// Keeps everything under another first part of the keys' names. A limiter of its own from here on, as after every
    /// setter.
    ///
    /// # Errors
    ///
    /// When it is empty or has a brace in it, which a cluster reads as the part that places the key.
    pub fn with_namespace(self, namespace: &str) -> Result<Self, InvalidConfig> {
        if namespace.is_empty() || namespace.contains(['{', '}']) {
            return Err(InvalidConfig::new("namespace", namespace.to_owned(), "a name without braces"));
        }
        self.with(|settings| settings.namespace = namespace.to_owned())
    }

    /// Takes up to `permits` with one question, ahead of who asks for them, and holds each for up to `hold` after its
    /// time; it takes fewer where they were not used up. What is not used by then is lost.
    ///
    /// A busy process asks the server once for many requests. The price is the part of the quota that `hold` is of the
    /// window: every window is longer by it. Of 100 per minute a `hold` of 1 s costs 1.6 %, of 200 per second one of
    /// 100 ms costs 9 %; and a permit that is held here is not there for the others meanwhile.
    ///
    /// # Errors
    ///
    /// When `permits` is 0 or more than 1,000, the most that one question gives, or `hold` is zero or longer than the
    /// shortest window.
    pub fn with_lease(self, permits: u32, hold: Duration) -> Result<Self, InvalidConfig> {
        if !(1..=MOST).contains(&permits) {
            return Err(InvalidConfig::new("lease permits", permits.to_string(), format!("1 to {MOST}")));
        }
        self.with_hold(hold)?.with(|settings| settings.lease = permits)
    }

    /// Holds a permit for up to so long after its time: a fiftieth of the shortest window by default, at least 5 ms
    /// and at most 250 ms. A server that is further away than that grants nothing in time, which counts as a fault.
    ///
    /// # Errors
    ///
    /// When it is zero or longer than the shortest window.
    pub fn with_hold(self, hold: Duration) -> Result<Self, InvalidConfig> {
        let shortest = self.settings.shortest();
        if hold.is_zero() || hold > shortest {
            let expected = format!("more than zero and at most the shortest window, {shortest:?}");
            return Err(InvalidConfig::new("hold", format!("{hold:?}"), expected));
        }
        self.with(|settings| settings.hold = hold)
    }

    /// Takes a question for failed after so long, connecting included. [250 ms](Self::DEFAULT_TIMEOUT) by default.
    ///
    /// # Errors
    ///
    /// When it is zero.
    pub fn with_timeout(self, timeout: Duration) -> Result<Self, InvalidConfig> {
        if timeout.is_zero() {
            return Err(InvalidConfig::new("timeout", "0ns", "more than zero"));
        }
        self.with(|settings| settings.timeout = timeout)
    }

    /// Does this while the server does not answer. [`Fallback::Refuse`] by default.
    ///
    /// # Errors
    ///
    /// When a quota's limit, or of a token bucket its burst, is less than one request for each of so many processes.
    pub fn with_fallback(self, fallback: Fallback) -> Result<Self, InvalidConfig> {
        self.with(|settings| settings.fallback = fallback)
    }

    /// The quotas that are shared.
    pub fn quotas(&self) -> &[Quota] {
        &self.settings.quotas
    }

    /// How this process stands: `available` are the permits in hand, and `store` says whether the server answers.
    pub fn snapshot(&self) -> Snapshot {
        self.inner.queue.snapshot()
    }

    /// Returns whether the server replies, and what this process does otherwise.
    pub fn store(&self) -> Store {
        self.inner.queue.inspect(|permits, _, _| permits.store())
    }

    /// Grants nothing before `until`, in any process: the others learn of it with their next question. A pause is only
    /// ever extended.
    pub fn pause_until(&self, until: Instant) {
        self.inner.pause_until(until);
    }

    /// Lifts the pause and forgets what the service said is left, here and in the store. A process that has learned of
    /// the pause before keeps to it.
    pub fn resume(&self) {
        self.inner.resume();
    }
}

#[cfg(test)]
impl RedisLimiter {
    /// The same before another store.
    pub(super) fn asking(self, store: Box<dyn Decide>) -> Self {
        Self::over(Settings::clone(&self.settings), |_| store).unwrap()
    }
}

impl Limiter for RedisLimiter {
    type Acquire = RedisAcquire;

    fn acquire_with(&self, request: &PermitRequest) -> RedisAcquire {
        RedisAcquire::new(Arc::clone(&self.inner), *request)
    }
}

/// Neither the name nor the credentials.
impl fmt::Debug for RedisLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLimiter")
            .field("server", &self.settings.info.addr().to_string())
            .field("quotas", &self.settings.quotas)
            .field("fallback", &self.settings.fallback)
            .field("snapshot", &self.snapshot())
            .finish_non_exhaustive()
    }
}
