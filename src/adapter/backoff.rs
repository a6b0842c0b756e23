use std::iter;

use ::backoff::backoff::Backoff as Policy;

use crate::retry::Backoff;

/// Uses a policy of the `backoff` crate for the retry delays. The call is not retried again when the policy returns
/// `None`.
///
/// Each call uses its own clone of the policy, and resets that clone first. The retry layer's maximum number of
/// attempts also applies: see [the notes](crate::adapter#notes).
///
/// ```
/// use std::time::Duration;
///
/// use backoff::ExponentialBackoffBuilder;
/// use http_body_util::Empty;
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_outbound::{Report, adapter::from_backoff, retry::RetryLayer};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let policy = ExponentialBackoffBuilder::new()
///     .with_initial_interval(Duration::from_millis(200))
///     .with_max_elapsed_time(None)
///     .build();
/// let layer = RetryLayer::new().with_max_attempts(5)?.with_custom_backoff(from_backoff(policy));
/// let service = ServiceBuilder::new().layer(layer).service_fn(|_| async {
///     http::Response::builder().status(503).body(Empty::<bytes::Bytes>::new())
/// });
///
/// let response = service.oneshot(http::Request::new(Empty::<bytes::Bytes>::new())).await?;
/// assert_eq!(Report::from_response(&response).map(Report::attempt_count), Some(5));
/// # Ok(())
/// # }
/// ```
///
/// # Notes
///
/// - The policy's `max_elapsed_time` is 15 minutes by default, and counts from the first failure of a call. It is
///   measured by the clock of the standard library, which ignores tokio's paused time. A `backoff::Clock` that returns
///   `tokio::time::Instant::now().into_std()` follows tokio's clock.
/// - The jitter of the policy can also lengthen a delay. With a `randomization_factor` of 0.5, a delay is at most 1.5
///   times the `max_interval`.
/// - `Constant`, `Zero` and `Stop` of the `backoff` crate are not `Clone`. Use a closure instead of these policies,
///   because a closure also implements [`Backoff`]: `|| std::iter::repeat(Duration::from_secs(1))`.
///
/// # Panics
///
/// Panics if the policy panics. `backoff::ExponentialBackoff` may panic if its intervals are close to `Duration::MAX`.
pub fn from_backoff<B>(policy: B) -> impl Backoff + Clone
where
    B: Policy + Clone + Send + Sync + 'static,
{
    move || {
        let mut policy = policy.clone();
        policy.reset();
        iter::from_fn(move || policy.next_backoff())
    }
}
