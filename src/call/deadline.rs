use std::time::Duration;

use http::Extensions;

use super::CallContext;
use crate::clock::{self, Instant};

/// The time by which a call must have its answer's head, put into the request's extensions: the rest of the time that
/// the caller has itself, say.
///
/// The layers that keep a deadline take the earliest. Without a [`TimeoutLayer`](crate::timeout::TimeoutLayer) in the
/// stack it bounds the waits, but cuts off no attempt that is under way.
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
    /// The earlier of the call's deadline and the one in its extensions.
    pub(crate) fn of(call: Option<&CallContext>, extensions: &Extensions) -> Option<Instant> {
        let own = extensions.get().map(|Self(deadline)| *deadline);
        call.and_then(CallContext::deadline).into_iter().chain(own).min()
    }

    /// So long from now on.
    pub fn after(left: Duration) -> Self {
        Self(clock::after(clock::now(), left))
    }
}
