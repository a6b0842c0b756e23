use std::time::Duration;

use ::backon::BackoffBuilder;

use crate::retry::Backoff;

/// Retries after the delays of a builder of the `backon` crate. The call ends when they end.
///
/// Each call builds its own delays. The layer's number of attempts limits them, too: see
/// [the surprises](crate::adapter#surprises).
///
/// ```
/// use std::time::Duration;
///
/// use backon::ExponentialBuilder;
/// use http_body_util::Empty;
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_outbound::{adapter::FromBackoffBuilder, retry::RetryLayer};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// // 1 s, 2 s, 4 s and 8 s, then the failure is returned.
/// let builder = ExponentialBuilder::new().with_max_times(4);
/// let layer =
///     RetryLayer::new().with_max_attempts(u32::MAX)?.with_custom_backoff(FromBackoffBuilder::new(builder));
/// let service = ServiceBuilder::new().layer(layer).service_fn(|_| async {
///     http::Response::builder().status(503).body(Empty::<bytes::Bytes>::new())
/// });
///
/// let start = tokio::time::Instant::now();
/// service.oneshot(http::Request::new(Empty::<bytes::Bytes>::new())).await?;
/// assert_eq!(start.elapsed(), Duration::from_secs(1 + 2 + 4 + 8));
/// # Ok(())
/// # }
/// ```
///
/// # Notes
///
/// - There is no jitter by default. With jitter a delay may be twice the `max_delay`, because `backon` adds it.
/// - With `with_jitter_seed` every call draws the same jitter, so that callers that failed together retry together.
/// - `max_times` counts the delays. There is one more attempt.
///
/// # Panics
///
/// Panics if the delays of the builder do. Those of `backon` may, if they are close to `Duration::MAX` and
/// `with_total_delay` is set.
#[derive(Debug, Clone, Copy)]
pub struct FromBackoffBuilder<B> {
    builder: B,
}

impl<B> FromBackoffBuilder<B> {
    /// Adapts a builder.
    pub const fn new(builder: B) -> Self {
        Self { builder }
    }
}

impl<B> Backoff for FromBackoffBuilder<B>
where
    B: BackoffBuilder<Backoff: 'static> + Clone,
{
    fn delays(&self) -> Box<dyn Iterator<Item = Duration> + Send> {
        Box::new(self.builder.clone().build())
    }
}
