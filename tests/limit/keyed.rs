//! A limiter for each key.

use std::{convert::Infallible, time::Duration};

use http::{Request, Response};
use tower::ServiceExt;
use tower_layer::Layer;
use tower_outbound::{
    Quota,
    limit::{Keyed, RateLimitLayer, SlidingWindow, TokenBucket},
};

#[tokio::test(start_paused = true)]
async fn each_key_has_its_own_quota_and_idle_keys_are_removed() {
    let quota = Quota::new(11, Duration::from_secs(10)).unwrap().with_burst(1).unwrap().without_margin();
    let keyed = Keyed::with_max_keys(
        16,
        |head| head.uri.host().unwrap_or_default().to_owned(),
        move |_: &String| TokenBucket::new(quota),
    );
    let layer = RateLimitLayer::new(keyed.clone()).with_max_wait(Duration::ZERO);
    let service =
        layer.layer(tower::service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) }));
    let to = |host: usize| Request::get(format!("https://host-{host}.example/")).body(()).unwrap();
    service.clone().oneshot(to(0)).await.unwrap();
    assert!(service.clone().oneshot(to(0)).await.unwrap_err().is_rate_limited(), "its permit is spent");

    // Keys in use are never removed, so a shard that is full of them refuses new keys.
    let mut refused = 0;
    for host in 1..200 {
        refused += usize::from(service.clone().oneshot(to(host)).await.is_err());
    }
    assert!(refused >= 199 - 16, "{refused}");
    assert!(keyed.len() <= 16);
    assert!(service.clone().oneshot(to(0)).await.is_err(), "the permit of the first key is still spent");

    // A second later all keys are idle, and new keys replace them.
    tokio::time::advance(Duration::from_secs(1)).await;
    for host in 1_000..1_010 {
        service.clone().oneshot(to(host)).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(keyed.len() <= 16);
}

#[tokio::test(start_paused = true)]
async fn removes_idle_keys_even_if_there_is_room() {
    let quota = Quota::per_second(10).unwrap().without_margin();
    let keyed = Keyed::new(|_| 0, move |_: &u32| TokenBucket::new(quota));
    for key in 0..10_000 {
        keyed.limiter(&key).unwrap().try_acquire().unwrap();
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    // A permit is refilled after a ninth of a second: eleven keys are in use, and some idle keys are not checked yet.
    assert!(keyed.len() < 500, "{}", keyed.len());
}

#[tokio::test(start_paused = true)]
async fn a_key_is_in_use_until_all_its_quotas_are_fully_available() {
    let quotas = [Quota::per_second(10).unwrap(), Quota::per_minute(20).unwrap()];
    let windows = Keyed::new(|_| 0, move |_: &u32| SlidingWindow::all_of(quotas));
    let mut granted = 0;
    for second in 0..59 {
        granted += (0..10).filter(|_| windows.limiter(&0).unwrap().try_acquire().is_ok()).count();
        for other in 0..50 {
            let _ = windows.limiter(&(1 + 50 * second + other));
        }
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(granted, 20);
}

#[tokio::test(start_paused = true)]
async fn allows_any_maximum_of_keys() {
    let quota = Quota::per_second(10).unwrap().without_margin();
    let keyed = Keyed::with_max_keys(usize::MAX, |_| 0, move |_: &u32| TokenBucket::new(quota));
    assert!((0..1_000).all(|key| keyed.limiter(&key).is_ok()));
}
