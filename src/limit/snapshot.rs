use crate::clock::Instant;

/// The state of a limiter at one point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The number of available permits. `u32::MAX` if neither a quota nor a server limit applies.
    pub available: u32,
    /// The number of queued requests.
    pub queued: usize,
    /// The end of the current pause. `None` if the limiter is not paused.
    pub paused_until: Option<Instant>,
    /// The number of permits granted since the limiter was created.
    pub granted: u64,
    /// The number of requests refused since the limiter was created.
    pub refused: u64,
    /// The number of granted permits whose requests are neither completed nor dropped.
    pub in_flight: u64,
}
