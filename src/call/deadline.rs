use std::time::Duration;

use crate::clock::{self, Instant};

/// The time by which the response headers of a call must arrive. The caller inserts it into the request's extensions.
///
/// If there are several deadlines, the layers use the earliest. A deadline never extends the total timeout. A deadline
/// always bounds the wait for the limiter and the delay before a retry. It cancels a running attempt only if the stack
/// contains a [`TimeoutLayer`](crate::timeout::TimeoutLayer).
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

/// The time limit that the caller of a client has set for a request. It replaces the total timeout of the stack.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestTimeout(pub(crate) Instant);

impl Deadline {
    /// Returns the deadline that is `left` from now.
    pub fn after(left: Duration) -> Self {
        Self(clock::after(clock::now(), left))
    }
}
