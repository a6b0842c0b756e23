use std::sync::OnceLock;

use tracing::{Dispatch, subscriber::NoSubscriber};

/// Creates two dispatchers that exist until the process ends. With fewer than two, the first thread that reaches a
/// callsite determines whether tracing enables the callsite for all threads, and a test thread without a subscriber
/// would disable it. Call this first in each test of a program in which one test reads the log.
pub(crate) fn keep_dispatchers() {
    static DISPATCHERS: OnceLock<[Dispatch; 2]> = OnceLock::new();
    DISPATCHERS.get_or_init(|| [(); 2].map(|()| Dispatch::new(NoSubscriber::new())));
}
