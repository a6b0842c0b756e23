use crate::clock::Instant;

/// The state of a limiter at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Permits that are available now. `u32::MAX` if neither a quota nor a server limit bounds them.
    pub available: u32,
    /// Queued requests.
    pub queued: usize,
    /// The end of the pause that the server requested.
    pub paused_until: Option<Instant>,
    /// Permits granted since the limiter was created.
    pub granted: u64,
    /// Requests refused since the limiter was created.
    pub refused: u64,
    /// Permits whose requests are not over: neither completed nor dropped.
    pub in_flight: u64,
}
