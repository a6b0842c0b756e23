use crate::clock::Instant;

/// The state of a limiter at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Permits that are available now. `u32::MAX` if neither a quota nor a server limit bounds them.
    pub available: u32,
    /// Queued requests.
    pub queued: usize,
    /// The end of the current pause, if there is one.
    pub paused_until: Option<Instant>,
    /// Permits granted since the limiter was created.
    pub granted: u64,
    /// Requests refused since the limiter was created.
    pub refused: u64,
    /// Permits that are neither completed nor dropped yet.
    pub in_flight: u64,
}
