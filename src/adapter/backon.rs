use std::time::Duration;

use ::backon::BackoffBuilder;

use crate::retry::Backoff;

/// Sends a request again after the back-offs that a builder of the `backon` crate makes, and no more where they end.
///
/// Each call gets those of a clone of the builder. The layer's attempts bound them as well: see
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
/// // 1 s, 2 s, 4 s and 8 s, and then no more.
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
/// # Surprises
///
/// - There is no jitter unless the builder was told so, and then it is added: a back-off may be twice the `max_delay`.
/// - With `with_jitter_seed` every call draws the same jitter, and callers who failed together come back together.
/// - `max_times` counts the back-offs and not the attempts: one less.
///
/// # Panics
///
/// Where the builder's back-offs do. Those of `backon` may when they come near to `Duration::MAX` under a
/// `with_total_delay`.
#[derive(Debug, Clone, Copy)]
pub struct FromBackoffBuilder<B> {
    builder: B,
}

impl<B> FromBackoffBuilder<B> {
    /// Of this builder.
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
