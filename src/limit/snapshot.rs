use crate::clock::Instant;

/// How a limiter stands at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Permits that could be taken at once. `u32::MAX` when no quota and no word of the server bounds them.
    pub available: u32,
    /// Requests that wait.
    pub queued: usize,
    /// The end of the pause that the server has asked for.
    pub paused_until: Option<Instant>,
    /// Permits granted since the limiter was made.
    pub granted: u64,
    /// Requests refused since the limiter was made.
    pub refused: u64,
    /// Permits whose requests have not been answered yet. Counted by the layer: permits taken by hand stay in
    /// here.
    pub in_flight: u64,
}
