use std::time::Duration;

use crate::clock::{self, Instant};

/// The time by which the response headers of a call must arrive, put into the request's extensions.
///
/// The layers use the earliest deadline that they find. Without a [`TimeoutLayer`](crate::timeout::TimeoutLayer) in the
/// stack, it bounds the waits, but does not cancel a running attempt.
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::call::Deadline;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Deadline::after(Duration::from_secs(3)));
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(pub Instant);

impl Deadline {
    /// Returns the deadline this long from now.
    pub fn after(left: Duration) -> Self {
        Self(clock::after(clock::now(), left))
    }
}
