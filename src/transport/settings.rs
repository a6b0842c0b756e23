use std::{fmt, time::Duration};

#[cfg(feature = "serde")]
use crate::config::text::Text;

/// The settings of the connections to one origin.
#[derive(Debug)]
pub(super) struct PoolSettings {
    pub(super) version: Version,
    pub(super) idle_timeout: Duration,
    pub(super) max_connections: usize,
    /// The interval of HTTP/2 pings, and the time for the response to a ping.
    pub(super) pings: Option<(Duration, Duration)>,
    pub(super) pings_while_idle: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub(super) enum Version {
    Negotiated,
    Http1,
    Http2,
}

/// The interval of a keep-alive, or `None` if it is off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct KeepAlive(pub(super) Option<Duration>);

impl fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(interval) => interval.fmt(f),
            None => f.write_str("off"),
        }
    }
}

#[cfg(feature = "serde")]
crate::config::text::text! {
    KeepAlive, "a duration such as `20s`, or `off`",
        |text: &str| match text {
            "off" => Ok(KeepAlive(None)),
            text => <Duration as Text>::read(text).map(|interval| KeepAlive(Some(interval))),
        },
        |keep_alive: &KeepAlive| keep_alive.0.as_ref().map_or("off".to_owned(), Text::write);
}
