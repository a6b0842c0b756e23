use std::time::Duration;

use crate::{
    clock::{self, Instant},
    error::InvalidConfig,
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
/// # What the server asks for
///
/// It is not known here. A limiter below keeps to it, for all who share it; without one, or where a call was given up
/// because the server asked for too long, wait for what [`Error::retry_after`](crate::Error::retry_after) says, when that
/// is longer than [`lost`](Self::lost).
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::{BoxError, retry::Reconnect};
/// # async fn connect(times: u32) -> Result<(), BoxError> { if times == 1 { Err("refused".into()) } else { Ok(()) } }
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), BoxError> {
/// let mut reconnect = Reconnect::new();
/// # let mut times = 0;
/// loop {
///     # times += 1;
///     # if times > 3 { break }
///     if let Ok(connection) = connect(times).await {
///         reconnect.connected();
///         // ... until it drops ...
///     }
///     reconnect.wait().await;
/// }
/// assert_eq!(reconnect.losses(), 3);
/// # Ok(())
/// # }
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
        let held = self.connected.take().map(|since| since.elapsed());
        if held.is_some_and(|held| held >= self.stable_after) {
            self.losses = 0;
        }
        let wait = self.backoff.delay(self.losses, self.random.next());
        self.losses = self.losses.saturating_add(1);
        wait
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
    fn nothing_is_stable_at_once() {
        let error = Reconnect::new().with_stable_after(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("stable after") && error.contains("0ns"), "{error}");
    }

    proptest! {
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
