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
    /// How the store stands that other processes share the quota through; none for a limiter in this process.
    pub store: Option<Store>,
}

/// How a limiter stands with the store through which it shares its quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Store {
    /// Not asked yet.
    Unasked,
    /// It answers: the quota is shared.
    Shared,
    /// It does not answer, and a share of the quota is kept to in this process.
    Fallback,
    /// It does not answer, and requests are refused.
    Refusing,
}

impl Store {
    /// The state in one word, as it stands in the log.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Unasked => "unasked",
            Self::Shared => "shared",
            Self::Fallback => "fallback",
            Self::Refusing => "refusing",
        }
    }
}
