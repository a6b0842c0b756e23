//! The task of a key refresh, and its outcome for all waiters.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Weak},
};

use futures_util::{FutureExt, future::Shared};
use tokio::{runtime::Handle, sync::oneshot};

use super::{ApiKey, KeyError};

pub(super) type Outcome = Result<ApiKey, KeyError>;

/// Resolves to the outcome of a refresh, or to an error if the task of the refresh was dropped with its runtime.
pub(super) type Done = Shared<oneshot::Receiver<Outcome>>;

/// A refresh that may still send its outcome.
pub(super) struct Running {
    pub(super) done: Done,
    sender: Weak<oneshot::Sender<Outcome>>,
}

/// A refresh that was not polled yet.
pub(super) struct Started {
    run: Pin<Box<dyn Future<Output = Outcome> + Send>>,
    /// Owned by the task of the refresh, and dropped with that task.
    sender: Arc<oneshot::Sender<Outcome>>,
    runtime: Option<Handle>,
}

/// Creates a refresh that runs in a task on `runtime`. Without a runtime, the first poll must complete it.
pub(super) fn start(
    run: impl Future<Output = Outcome> + Send + 'static,
    runtime: Option<Handle>,
) -> (Running, Started) {
    let (sender, done) = oneshot::channel();
    let sender = Arc::new(sender);
    let running = Running { done: done.shared(), sender: Arc::downgrade(&sender) };
    (running, Started { run: Box::pin(run), sender, runtime })
}

impl Running {
    /// Returns the future of the outcome. Returns `None` if the task was dropped without an outcome.
    pub(super) fn join(&self) -> Option<Done> {
        (self.sender.strong_count() > 0).then(|| self.done.clone())
    }
}

impl Started {
    /// Polls the refresh once. Returns its outcome, or spawns a task that completes the refresh.
    pub(super) fn begin(self) -> Option<Outcome> {
        let Self { mut run, sender, runtime } = self;
        let send = |outcome| Arc::into_inner(sender).map(|sender| sender.send(outcome));
        if let Some(outcome) = run.as_mut().now_or_never() {
            drop(send(outcome.clone()));
            return Some(outcome);
        }
        if let Some(runtime) = runtime {
            drop(runtime.spawn(async { drop(send(run.await)) }));
        }
        None
    }
}
