//! Tests of key refreshes in runtimes that shut down, are not driven or are blocked by the key provider. Nothing polls
//! the tasks and timers of a runtime that is not driven.

use std::sync::OnceLock;

use tokio::{
    task::yield_now,
    time::{advance, sleep, timeout},
};
use tower_outbound::auth::KeyError;

use super::*;

pub(super) fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

fn real_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
}

type Current = BoxFuture<'static, Result<ApiKey, KeyError>>;

/// Creates futures that wait for the current key, and polls each once in `runtime`.
fn waiters(runtime: &tokio::runtime::Runtime, keys: &KeySource, count: usize) -> Vec<Current> {
    let wait = |_| {
        let keys = keys.clone();
        async move { keys.current().await }.boxed()
    };
    let mut waiters: Vec<Current> = (0..count).map(wait).collect();
    runtime.block_on(async {
        for waiter in &mut waiters {
            assert!(futures_util::poll!(waiter).is_pending());
        }
    });
    waiters
}

#[test]
fn waiters_of_another_runtime_restart_a_key_refresh_whose_runtime_was_shut_down() {
    let script = &[Fetch::Hangs, Fetch::Hangs, Fetch::Lasting];
    let (provider, fetches) = key_provider(Duration::ZERO, script);
    let keys = KeySource::from(provider);
    let (first, second, third) = (real_runtime(), real_runtime(), real_runtime());
    let leader = waiters(&first, &keys, 1);
    let (seconds, thirds) = (waiters(&second, &keys, 5), waiters(&third, &keys, 5));
    assert_eq!(fetches.count(), 1);
    drop((first, leader));
    // A waiter of the second runtime starts the second fetch, and that runtime is also shut down.
    let mut seconds = futures_util::future::join_all(seconds);
    second.block_on(async { assert!(futures_util::poll!(&mut seconds).is_pending()) });
    assert_eq!(fetches.count(), 2, "five waiters share one refresh");
    drop(second);
    let found = third.block_on(futures_util::future::join_all(thirds));
    let found = found.into_iter().chain(third.block_on(seconds));
    assert!(found.map(Result::unwrap).all(|key| key.expose() == "key-3"));
    assert_eq!((fetches.count(), keys.last_error().is_none()), (3, true));
}

#[test]
fn waiter_of_another_runtime_restarts_a_key_refresh_whose_runtime_is_not_driven() {
    let (provider, fetches) = key_provider(secs(4), &[Fetch::Hangs, Fetch::Lasting]);
    let keys = KeySource::from(provider);
    let (idle, driven) = (paused_runtime(), paused_runtime());
    let [mut first, mut second] = [&idle, &driven].map(|runtime| waiters(runtime, &keys, 1).remove(0));
    // A refresh has 10 s, and is lost 1 s later.
    assert!(driven.block_on(async { timeout(secs(12), &mut second).await }).is_err());
    assert_eq!(fetches.count(), 2);
    // The first fetch fails when its runtime is driven again. The second one has replaced it.
    assert!(idle.block_on(async { timeout(millis(10_500), &mut first).await }).is_err());
    assert!(keys.last_error().is_none());
    for (runtime, waiter) in [(driven, second), (idle, first)] {
        assert_eq!(runtime.block_on(waiter).unwrap().expose(), "key-2");
    }
    assert_eq!((fetches.count(), keys.last_error().is_none()), (2, true));
}

/// The runtime is driven only during a call. The early refresh begins with the second call, and the key expires before
/// the third call.
#[test]
fn key_refresh_whose_runtime_was_idle_starts_again_and_begins_no_backoff() {
    // The task of the refresh is polled before the third call, or after it.
    for yields in [4, 0] {
        let (provider, _) = key_provider(millis(100), &[Fetch::Expiring(100)]);
        let (keys, runtime) = (KeySource::from(provider), paused_runtime());
        let call_after = |idle| {
            runtime.block_on(async {
                // The clock advances, but no task is polled.
                assert!(advance(idle).now_or_never().is_none());
                for _ in 0..yields {
                    yield_now().await;
                }
                let current = keys.current().await;
                // Polls the task once.
                yield_now().await;
                current
            })
        };
        let first = call_after(Duration::ZERO).unwrap();
        assert_eq!(call_after(secs(80)).unwrap(), first);
        assert_ne!(call_after(secs(30)).unwrap(), first, "the first key has expired");
        assert!(keys.last_error().is_none());
    }
}

#[test]
fn key_refresh_fails_in_a_runtime_that_has_no_timer_or_was_shut_down() {
    let no_timer = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ended = real_runtime();
    let handle = ended.handle().clone();
    drop(ended);
    for handle in [no_timer.handle(), &handle] {
        let _entered = handle.enter();
        let keys = KeySource::from(key_provider(Duration::ZERO, &[Fetch::Hangs]).0);
        let error = keys.current().now_or_never().unwrap().unwrap_err();
        assert!(error.to_string().contains("has no timer or was shut down"), "{error}");
    }
}

#[test]
fn key_of_a_replaced_refresh_is_used_if_it_arrives_first() {
    let (provider, fetches) = key_provider(secs(4), &[Fetch::Lasting, Fetch::Hangs]);
    let keys = KeySource::from(provider);
    let (idle, driven) = (paused_runtime(), paused_runtime());
    let [first, mut second] = [&idle, &driven].map(|runtime| waiters(runtime, &keys, 1).remove(0));
    assert!(driven.block_on(async { timeout(secs(12), &mut second).await }).is_err());
    assert_eq!(idle.block_on(first).unwrap().expose(), "key-1");
    driven.block_on(async {
        assert_eq!(keys.current().now_or_never().unwrap().unwrap().expose(), "key-1");
        assert_eq!(second.await.unwrap().expose(), "key-1", "the failure of the second fetch does not count");
    });
    assert_eq!((fetches.count(), keys.last_error().is_none()), (2, true));
}

#[test]
fn older_key_of_a_replaced_refresh_is_not_used() {
    let (provider, fetches) = key_provider(secs(4), &[Fetch::Lasting]);
    let keys = KeySource::from(provider);
    let (idle, driven) = (paused_runtime(), paused_runtime());
    let [first, second] = [&idle, &driven].map(|runtime| waiters(runtime, &keys, 1).remove(0));
    assert_eq!(driven.block_on(second).unwrap().expose(), "key-2");
    assert_eq!(idle.block_on(first).unwrap().expose(), "key-2");
    idle.block_on(async { sleep(secs(5)).await });
    assert_eq!(idle.block_on(keys.current()).unwrap().expose(), "key-2");
    assert_eq!(fetches.count(), 2);
}

#[test]
fn waiter_restarts_a_key_refresh_after_a_move_out_of_the_runtime_that_is_not_driven() {
    let (provider, fetches) = key_provider(secs(4), &[Fetch::Lasting]);
    let keys = KeySource::from(provider);
    let (idle, driven) = (paused_runtime(), paused_runtime());
    let moved = waiters(&idle, &keys, 1).remove(0);
    let key = driven
        .block_on(async { timeout(secs(60), moved).await })
        .expect("the waiter has a timer of its new runtime");
    assert_eq!((key.unwrap().expose(), fetches.count()), ("key-2", 2));
}

#[tokio::test(start_paused = true)]
async fn provider_that_blocks_its_thread_longer_than_the_timeout_fails_once() {
    let fetches = FetchCount(Arc::default());
    let counter = fetches.clone();
    let keys = KeySource::from(RefreshingKey::new(move || {
        counter.0.fetch_add(1, Ordering::Relaxed);
        async {
            // As if the thread was blocked: the clock advances, but no task is polled.
            assert!(advance(secs(12)).now_or_never().is_none());
            sleep(millis(5)).await;
            Ok::<_, BoxError>(FreshKey::new(key()))
        }
    }));
    let error = timeout(secs(60), keys.current()).await.expect("the refresh ends").unwrap_err();
    assert!(error.to_string().contains("gave no key within 10s"), "{error}");
    assert_eq!((error.retry_in().is_some(), fetches.count()), (true, 1), "a backoff begins");
}

/// As on another thread, a second request asks for the key while the provider blocks the thread of the refresh.
#[tokio::test(start_paused = true)]
async fn key_refresh_is_not_replaced_while_its_provider_blocks_a_thread() {
    let fetches = FetchCount(Arc::default());
    let (counter, shared) = (fetches.clone(), Arc::new(OnceLock::<KeySource>::new()));
    let waiting = Arc::clone(&shared);
    let keys = KeySource::from(RefreshingKey::new(move || {
        let other = waiting.get().cloned().filter(|_| counter.0.fetch_add(1, Ordering::Relaxed) == 0);
        async move {
            assert!(advance(secs(12)).now_or_never().is_none());
            assert!(other.is_none_or(|keys| keys.current().now_or_never().is_none()));
            Ok::<_, BoxError>(FreshKey::new(key()))
        }
    }));
    shared.get_or_init(|| keys.clone());
    keys.current().await.unwrap();
    assert_eq!(fetches.count(), 1);
}

/// The refresh has 10 s from the first poll of its task, which is late because the thread is busy.
#[tokio::test(start_paused = true)]
async fn key_refresh_whose_first_poll_is_late_is_not_replaced() {
    let (provider, fetches) = key_provider(millis(9_900), &[Fetch::Expiring(50)]);
    let keys = KeySource::from(provider);
    keys.current().await.unwrap();
    // The early refresh starts after 40 s. The first key has expired when this refresh is 11.2 s old.
    sleep(millis(30_100)).await;
    assert_eq!(keys.current().await.unwrap().expose(), "key-1");
    assert!(advance(millis(1_500)).now_or_never().is_none());
    yield_now().await;
    sleep(millis(9_700)).await;
    assert_eq!(keys.current().await.unwrap().expose(), "key-2");
    assert_eq!(fetches.count(), 2);
}

#[test]
fn delay_that_a_provider_requests_is_kept_if_its_runtime_was_idle() {
    let (keys, calls, fetches) = keys_of_vault(millis(1), &[Fetch::Fails]);
    let runtime = paused_runtime();
    let waiter = waiters(&runtime, &keys, 1).remove(0);
    runtime.block_on(async {
        // Polls the task of the refresh once.
        yield_now().await;
        assert!(advance(secs(12)).now_or_never().is_none());
        for _ in 0..4 {
            yield_now().await;
        }
        assert_eq!(waiter.await.unwrap_err().retry_in(), Some(secs(60)));
    });
    assert_eq!((calls.count(), fetches.count()), (1, 1));
}
