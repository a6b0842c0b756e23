use std::time::Duration;

use http::Response;

use super::refusal;
use crate::{
    clock::{self, Instant},
    error::{Error, InvalidConfig},
    policy::ExponentialBackoff,
    random::Random,
};

/// The waits between the connections of what is meant to stay connected: a WebSocket, a stream of events.
///
/// Each connection is one call, which the [`RetryLayer`](super::RetryLayer) sees to; this is for what comes after it:
/// the connection that drops, and the call that failed for good.
///
/// # Default
///
/// The back-off [`throttled`](ExponentialBackoff::throttled), 1 s doubled up to 20 s, half of each wait left to chance,
/// also before the first one: a server that goes down drops all its connections at once. A connection that held for
/// 60 s, three times the longest wait, was a stable one: the waits begin anew after it.
///
/// # Cancellation
///
/// [`wait`](Self::wait) counts the loss when it is first polled; dropped half way, it has waited so far.
///
/// # What is asked for again
///
/// The call that opens the connection has its own attempts; where it fails all the same, [`refused`](Self::refused) reads
/// its answer, and [`failed`](Self::failed) its error. They give a wait where a later call may succeed, and nothing where
/// it would come to the same:
///
/// | | |
/// |---|---|
/// | 408, 425, 429, 5xx | asked again, for as long as it takes |
/// | any other status, such as 401, 404, or a 200 where 101 was asked for | not |
/// | what the server says in `x-should-retry` on a 4xx or 5xx | goes before its status |
/// | no connection, a connection that broke, a timeout, a refusal by the limiter, a key provider that failed | asked again |
/// | a certificate that is not trusted, a request that can't be sent, a credential that may not go there, a cost over the quota | not |
///
/// # What the server asks for
///
/// It is never undercut: a wait is at least as long as the `Retry-After` of the answer, read as the retry layer reads it,
/// or [`Error::retry_after`], with jitter only added to it. The back-off's cap is the cap of its own waits and does not
/// shorten this one, nor does anything else: what was asked for, a day say, is in the wait that is handed to you, and
/// where it is longer than you would wait, don't. What is known from elsewhere, such as a message of the connection that
/// says when to come back, goes to [`lost_asking`](Self::lost_asking).
///
/// ```
/// use std::time::Duration;
/// use http::StatusCode;
/// use tower_outbound::{Body, Client, Error, retry::Reconnect};
///
/// # #[cfg(feature = "test-util")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use tower_outbound::{ApiKey, preset, test_util::{Answer, ScriptedService}};
/// # let script = [101, 404].map(|status| Answer::from(status));
/// # let client = preset::realtime_messaging("http://127.0.0.1")?.with_api_key(ApiKey::new("s3cret")?);
/// # let client = client.client_with_service(ScriptedService::new(script))?;
/// let mut reconnect = Reconnect::new();
/// # reconnect = reconnect.with_backoff(tower_outbound::ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(2))?);
/// loop {
///     let opening = http::Request::get("/socket").header("upgrade", "websocket").body(Body::empty())?;
///     let again = match client.request(opening).await {
///         Ok(answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => {
///             reconnect.connected();
///             // ... until it drops ...
///             Some(reconnect.lost())
///         }
///         Ok(answer) => reconnect.refused(&answer),
///         Err(error) => reconnect.failed(&error),
///     };
///     // Not opened, and not to be opened: say so.
///     let Some(wait) = again else { break };
///     tokio::time::sleep(wait).await;
/// }
/// assert_eq!(reconnect.losses(), 1);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "test-util"))]
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct Reconnect {
    backoff: ExponentialBackoff,
    stable_after: Duration,
    random: Random,
    losses: u32,
    connected: Option<Instant>,
}

impl Reconnect {
    /// What is called stable by default.
    pub const DEFAULT_STABLE_AFTER: Duration = Duration::from_secs(60);

    /// The defaults.
    pub fn new() -> Self {
        Self {
            backoff: ExponentialBackoff::throttled(),
            stable_after: Self::DEFAULT_STABLE_AFTER,
            random: Random::from_entropy(),
            losses: 0,
            connected: None,
        }
    }

    /// Waits by this back-off.
    pub fn with_backoff(mut self, backoff: ExponentialBackoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Begins anew after a connection that held for so long.
    ///
    /// # Errors
    ///
    /// When it is zero: a server that accepts and drops at once would be called again and again by the first wait.
    pub fn with_stable_after(mut self, stable_after: Duration) -> Result<Self, InvalidConfig> {
        if stable_after.is_zero() {
            return Err(InvalidConfig::new("stable after", format!("{stable_after:?}"), "more than zero"));
        }
        self.stable_after = stable_after;
        Ok(self)
    }

    /// Draws the jitter from this seed, for a test.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.random = Random::seeded(seed);
        self
    }

    /// A connection stands, from now on.
    pub fn connected(&mut self) {
        self.connected = Some(clock::now());
    }

    /// The connection is lost, or there was none: how long to wait before the next one.
    pub fn lost(&mut self) -> Duration {
        self.lost_asking(Duration::ZERO)
    }

    /// The same where there is to be none before `at_least` has passed. A longer back-off is kept; a shorter one gives way
    /// to `at_least` and a part of chance on top, up to the back-off's jitter, so that those who were told the same moment
    /// do not all come at it.
    pub fn lost_asking(&mut self, at_least: Duration) -> Duration {
        let held = self.connected.take().map(|since| since.elapsed());
        if held.is_some_and(|held| held >= self.stable_after) {
            self.losses = 0;
        }
        let (loss, random) = (self.losses, self.random.next());
        self.losses = self.losses.saturating_add(1);
        let own = self.backoff.delay(loss, random);
        if at_least > own { at_least.saturating_add(self.backoff.spread(loss, random)) } else { own }
    }

    /// The answer to the call was another than the connection: how long to wait before the next call, or none where that
    /// [would get the same](Self#what-is-asked-for-again), and nothing was counted.
    pub fn refused<B>(&mut self, answer: &Response<B>) -> Option<Duration> {
        refusal::of_answer(answer).map(|at_least| self.lost_asking(at_least))
    }

    /// The call failed without an answer: how long to wait before the next one, or none where that
    /// [would fail the same way](Self#what-is-asked-for-again), and nothing was counted.
    pub fn failed(&mut self, error: &Error) -> Option<Duration> {
        refusal::of_error(error).map(|at_least| self.lost_asking(at_least))
    }

    /// The connection is lost, or there was none: waits before the next one.
    pub async fn wait(&mut self) {
        let wait = self.lost();
        tokio::time::sleep(wait).await;
    }

    /// How many connections in a row were lost, or not made, without a stable one between them.
    pub fn losses(&self) -> u32 {
        self.losses
    }
}

impl Default for Reconnect {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::time::advance;

    use super::*;
    use crate::policy::Jitter;

    fn exact() -> Reconnect {
        let backoff = ExponentialBackoff::throttled().with_jitter(Jitter::none());
        Reconnect::new().with_backoff(backoff)
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[tokio::test(start_paused = true)]
    async fn the_waits_double_up_to_the_cap_and_begin_anew_after_a_stable_while() {
        let mut reconnect = exact();
        let mut waits = Vec::new();
        for _ in 0..7 {
            let start = clock::now();
            reconnect.wait().await;
            waits.push(start.elapsed().as_secs());
        }
        assert_eq!((waits, reconnect.losses()), (vec![1, 2, 4, 8, 16, 20, 20], 7));

        reconnect.connected();
        advance(secs(60) - Duration::from_millis(1)).await;
        assert_eq!(reconnect.lost(), secs(20), "accepted and dropped is no better than refused");
        reconnect.connected();
        advance(secs(60)).await;
        assert_eq!((reconnect.lost(), reconnect.lost()), (secs(1), secs(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_last_connection_counts() {
        let mut reconnect = exact();
        reconnect.connected();
        advance(secs(120)).await;
        assert_eq!(reconnect.lost(), secs(1));
        advance(secs(120)).await;
        assert_eq!(reconnect.lost(), secs(2), "not connected is not stable");
    }

    #[test]
    fn a_seed_draws_the_same_waits_again_and_another_one_others() {
        let waits = |seed| {
            let mut reconnect = Reconnect::new().with_seed(seed);
            [(); 8].map(|()| reconnect.lost())
        };
        assert_eq!(waits(7), waits(7));
        assert_ne!(waits(7), waits(8));
    }

    #[test]
    fn what_is_asked_for_changes_a_wait_only_when_it_is_longer() {
        for seed in 0..100 {
            let own = Reconnect::new().with_seed(seed).lost();
            let asking = |asked| Reconnect::new().with_seed(seed).lost_asking(asked);
            assert_eq!(asking(own), own, "{seed}");
            assert!(asking(own + Duration::from_nanos(1)) > own, "{seed}");
        }
    }

    #[test]
    fn an_answer_that_passes_is_a_loss_and_one_that_would_come_again_is_the_end() {
        let mut reconnect = exact();
        let answer = |status: u16, after: &str| {
            Response::builder().status(status).header("retry-after", after).body(()).unwrap()
        };
        assert_eq!((reconnect.refused(&answer(403, "7")), reconnect.losses()), (None, 0));
        let wait = reconnect.refused(&answer(503, "7")).unwrap();
        assert_eq!((wait, reconnect.losses()), (secs(7), 1));
        assert_eq!(reconnect.refused(&answer(503, "1")), Some(secs(2)));
    }

    #[test]
    fn nothing_is_stable_at_once() {
        let error = Reconnect::new().with_stable_after(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("stable after") && error.contains("0ns"), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_asked_for_is_never_undercut(seed: u64, asked in prop::collection::vec(0..40_000_u64, 1..20)) {
            let mut reconnect = Reconnect::new().with_seed(seed);
            for (loss, asked) in (0..).zip(asked.into_iter().map(Duration::from_millis)) {
                let ceiling = ExponentialBackoff::throttled().ceiling(loss);
                let wait = reconnect.lost_asking(asked);
                prop_assert!(wait >= asked.max(ceiling / 2), "{wait:?} after {asked:?}");
                prop_assert!(wait <= (asked + ceiling / 2).max(ceiling), "{wait:?} after {asked:?}");
            }
        }

        #[test]
        fn every_wait_is_within_the_bounds_of_its_loss(seed: u64, losses in 1..100_u32) {
            let mut reconnect = Reconnect::new().with_seed(seed);
            for loss in 0..losses {
                let ceiling = ExponentialBackoff::throttled().ceiling(loss);
                let wait = reconnect.lost();
                prop_assert!(wait >= ceiling / 2 && wait <= ceiling, "{wait:?} after {loss}");
            }
        }
    }
}
