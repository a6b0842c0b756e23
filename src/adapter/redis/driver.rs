//! The task that asks the store: one for a limiter, one question at a time, only while somebody waits or there is
//! something to tell.

use std::{
    num::NonZeroU32,
    sync::{Arc, atomic::Ordering},
};

use tokio::time;

use super::{asking::Next, question::Fault, shared::Shared};

/// Whoever runs it is the only one.
pub(super) struct Driver {
    shared: Arc<Shared>,
    over: bool,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, over: false }
    }

    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            shared.bell.rung.store(false, Ordering::SeqCst);
            match shared.next() {
                Next::PermitRequest(question) => shared.ask(question).await,
                Next::Wait(until) => {
                    // Whoever joins meanwhile is served with the next question, mostly; news does not wait for it.
                    let _ = time::timeout_at(until, shared.bell.news.notified()).await;
                    shared.queue.tend(|_, _| ());
                }
                Next::Over => {
                    // In one order for all: whoever rings from here on finds nobody running, or is heard.
                    shared.running.store(false, Ordering::SeqCst);
                    let again = shared.bell.rung.load(Ordering::SeqCst);
                    if !again || shared.running.swap(true, Ordering::SeqCst) {
                        self.over = true;
                        return;
                    }
                }
            }
        }
    }
}

impl Drop for Driver {
    /// A runtime that ends in the middle takes the task along: whoever waits elsewhere begins another.
    fn drop(&mut self) {
        if !self.over {
            if std::thread::panicking() {
                self.shared.lose(&Fault("the task that asks has panicked".to_owned()));
            }
            self.shared.running.store(false, Ordering::SeqCst);
            self.shared.bell.ring(NonZeroU32::MAX);
            self.shared.queue.tend(|_, _| ());
        }
    }
}
