//! Reports each panic as a violation, including that of a detached task, which tokio returns to no caller.

use std::{cell::RefCell, panic, sync::Once};

thread_local! {
    /// The panics of the run on this thread.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Records the panics of all threads from now on.
pub(crate) fn record() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let next = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.with_borrow_mut(|panics| panics.push(info.to_string()));
            next(info);
        }));
    });
}

/// Returns the panics of this thread since the last call.
pub(crate) fn take() -> Vec<String> {
    PANICS.take()
}

#[tokio::test]
async fn panic_of_a_detached_task_is_recorded() {
    record();
    let task = tokio::spawn(async { panic!("a task panics in this test") });
    while !task.is_finished() {
        tokio::task::yield_now().await;
    }
    drop(task);
    assert!(matches!(&take()[..], [text] if text.contains("a task panics in this test")));
}
