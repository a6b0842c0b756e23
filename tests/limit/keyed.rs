//! Tests of `Keyed`: a separate limiter for each key, and the removal of idle keys.

use super::*;
use tower_outbound::limit::{Amounts, Unit};

/// Creates a limiter for each key. No key is computed from a request.
fn keyed(make: impl Fn(&u32) -> LocalLimiter + Send + Sync + 'static) -> Keyed<u32> {
    Keyed::new(|_| 0, make)
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_gives_each_key_its_own_quota_and_removes_no_key_in_use() {
    let keyed = Keyed::with_max_keys(
        16,
        |head| head.uri.host().unwrap_or_default().to_owned(),
        |_: &String| LocalLimiter::token_bucket(one_per_second()),
    );
    let service = RateLimitLayer::new(keyed.clone()).with_max_wait(seconds(0)).layer(ok_service());
    let call = |host: usize| {
        let request = Request::get(format!("https://host-{host}.example/")).body(()).unwrap();
        service.clone().oneshot(request)
    };
    call(0).await.unwrap();
    assert!(call(0).await.unwrap_err().is_rate_limited(), "the only permit of the first key is spent");

    // Keys in use are never removed. If all keys are in use, new ones are refused.
    for host in 1..200 {
        assert_eq!(call(host).await.is_ok(), host < 16, "{host}");
    }
    assert_eq!(keyed.len(), 16);
    assert!(call(0).await.is_err(), "the only permit of the first key is still spent");
}

/// Limiters of a `Keyed` with the same quota share a clock.
#[tokio::test(start_paused = true)]
async fn keyed_limiter_refills_each_key_from_its_creation() {
    let kinds: [fn(Quota) -> LocalLimiter; 3] =
        [LocalLimiter::token_bucket, LocalLimiter::sliding_window, LocalLimiter::paced_window];
    let kinds = kinds.map(|make| keyed(move |_| make(one_per_second()).with_initial_burst(0)));
    let mut first = None;
    for (start, keys) in [(0, 0..50), (250, 50..100)] {
        advance(millis(start)).await;
        for key in keys {
            let limiters = kinds.each_ref().map(|kind| kind.limiter(&key).unwrap());
            let waits = limiters.each_ref().map(|limiter| limiter.try_acquire().unwrap_err().wait());
            assert_eq!(waits, *first.get_or_insert(waits), "key {key}");
            assert_eq!((limiters[0].snapshot().granted, limiters[0].snapshot().refused), (0, 1));
        }
    }
    advance(millis(750)).await;
    for key in 0..100 {
        assert_eq!(kinds[0].limiter(&key).unwrap().try_acquire().is_ok(), key < 50, "key {key}");
    }
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_keeps_the_quota_and_state_of_each_new_limiter() {
    let spent = LocalLimiter::token_bucket(one_per_second());
    spent.try_acquire().unwrap();
    let keyed = keyed(move |key| match key % 4 {
        1 => LocalLimiter::token_bucket(Quota::per_second(100).unwrap().with_burst(5).unwrap()),
        3 => spent.clone(),
        number => {
            let bucket = LocalLimiter::token_bucket(one_per_second());
            if number == 2 {
                bucket.pause_until(Instant::now() + seconds(5));
            }
            bucket
        }
    });
    for key in 0..200 {
        advance(millis(1)).await;
        let bucket = keyed.limiter(&key).unwrap();
        let granted = std::iter::from_fn(|| bucket.try_acquire().ok().map(drop)).count();
        assert_eq!(granted, [1, 5, 0, 0][key as usize % 4], "key {key}");
        let paused_until = (key % 4 == 2).then(|| Instant::now() + seconds(5));
        assert_eq!(bucket.snapshot().paused_until, paused_until, "key {key}");
    }
}

/// The reason why a key is in use.
#[derive(Debug, Clone, Copy, PartialEq)]
enum InUse {
    /// The spent permit of the key is not refilled yet.
    Spent,
    /// A request of the key was dropped after it was sent, and may still reach the server.
    Unconfirmed,
    /// The same, and the limiter counts the request as in flight for a minute.
    Held,
    /// The limiter of the key is paused.
    Paused,
    /// The test holds a clone of the key's limiter.
    Cloned,
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_keeps_a_key_until_the_key_is_idle() {
    let kinds: [fn() -> LocalLimiter; 4] = [
        || LocalLimiter::token_bucket(one_per_second()),
        || LocalLimiter::token_bucket([one_per_second(); 2]),
        || LocalLimiter::sliding_window(quota(1, 1_000, 1)),
        || LocalLimiter::sliding_window([quota(1, 1_000, 1); 2]),
    ];
    let states = [
        (InUse::Spent, 1_001),
        (InUse::Unconfirmed, 10_101),
        (InUse::Held, 60_001),
        (InUse::Paused, 60_001),
        (InUse::Cloned, 100_200),
    ];
    for (kind, (in_use, idle_after)) in kinds.iter().flat_map(|kind| states.map(|state| (*kind, state))) {
        let make = move |_: &u32| match in_use {
            InUse::Held => kind().with_max_in_flight(1).unwrap().with_hold_after_cancel(seconds(60)),
            _ => kind(),
        };
        let keyed = Keyed::with_max_keys(16, |_| 0, make);
        // Adds 499 other keys. The limiter removes key 0 to make room for them if key 0 is idle.
        let is_kept = || {
            (1..500).for_each(|other| drop(keyed.limiter(&other)));
            keyed.limiter(&0).is_ok_and(|limiter| limiter.snapshot().granted == 1)
        };
        let limiter = keyed.limiter(&0).unwrap();
        let mut permit = limiter.try_acquire_owned().unwrap();
        match in_use {
            InUse::Unconfirmed | InUse::Held => permit.mark_sent(Instant::now()),
            InUse::Paused => limiter.pause_until(Instant::now() + millis(60_000)),
            InUse::Spent | InUse::Cloned => {}
        }
        drop(permit);
        let _clone = (in_use == InUse::Cloned).then_some(limiter);
        advance(millis(idle_after - 200)).await;
        assert!(is_kept(), "key 0 was removed although it is in use: {in_use:?}");
        advance(millis(200)).await;
        assert_eq!(is_kept(), in_use == InUse::Cloned, "after the state {in_use:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_keeps_a_key_until_its_bucket_of_points_is_full() {
    let points = Quota::bucket(1_000, 50, seconds(1)).unwrap().with_unit(Unit::Points).unwrap();
    let keyed = Keyed::with_max_keys(16, |_| 0, move |_: &u32| LocalLimiter::paced_window(points));
    let request = PermitRequest::new().with_amounts(Amounts::of(Unit::Points, 900));
    let mut permit = keyed.limiter(&0).unwrap().acquire_with(&request).await.unwrap();
    permit.mark_sent(Instant::now());
    drop(permit);
    for (wait, is_kept) in [(17_900, true), (200, false)] {
        advance(millis(wait)).await;
        (1..500).for_each(|other| drop(keyed.limiter(&other)));
        assert_eq!(keyed.limiter(&0).is_ok_and(|limiter| limiter.snapshot().granted == 1), is_kept);
    }
}

#[tokio::test(start_paused = true)]
async fn keyed_limiter_keeps_a_key_whose_quota_was_changed() {
    let two = || quota(2, 1_000, 1);
    // `make` may change the quota of a new limiter itself.
    let made_with_other_quota = move |_: &u32| {
        let limiter = LocalLimiter::sliding_window(one_per_second());
        limiter.set_quotas(two());
        limiter
    };
    for keyed in [keyed(move |_| LocalLimiter::sliding_window(two())), keyed(made_with_other_quota)] {
        let available = || keyed.limiter(&0).unwrap().snapshot().available;
        let add_other_keys =
            |first: u32| (first..first + 500).for_each(|key| drop(keyed.limiter(&key).unwrap()));
        for limit in [1, 5] {
            keyed.limiter(&0).unwrap().set_quotas(quota(limit, 1_000, 1));
            advance(seconds(2)).await;
            add_other_keys(limit * 1_000);
            assert_eq!(available(), limit);
            assert!(keyed.len() < 500, "the other keys are removed: {}", keyed.len());
        }
    }
}

/// As in the guide: the shared quota changes, and then that of each known key.
#[tokio::test(start_paused = true)]
async fn keyed_limiter_removes_idle_keys_after_the_quota_of_all_keys_was_changed() {
    for limit in [10, 20] {
        let shared = Arc::new(Mutex::new(Quota::per_second(10).unwrap()));
        let read = Arc::clone(&shared);
        let make = move |_: &u32| LocalLimiter::paced_window(*read.lock().unwrap());
        let keyed = Keyed::with_max_keys(1_600, |_| 0, make);
        // Most shards are full.
        let known: Vec<_> = (0..1_700)
            .filter(|key| keyed.limiter(key).is_ok_and(|limiter| limiter.try_acquire().is_ok()))
            .collect();
        assert!(known.len() > 1_500, "{}", known.len());
        let new_quota = Quota::per_second(limit).unwrap();
        *shared.lock().unwrap() = new_quota;
        known.iter().for_each(|key| keyed.limiter(key).unwrap().set_quotas(new_quota));
        let own = &known[..50];
        own.iter().for_each(|key| keyed.limiter(key).unwrap().set_quotas(one_per_second()));
        advance(seconds(86_400)).await;
        let refused = (10_000..11_000).filter(|key| keyed.limiter(key).is_err()).count();
        assert_eq!(refused, 0, "new keys that were refused");
        let kept = own.iter().filter(|key| keyed.limiter(key).unwrap().snapshot().available == 1).count();
        assert_eq!(kept, 50, "keys with quotas of their own that were kept");
    }
}

#[tokio::test(start_paused = true)]
async fn new_key_compares_the_quotas_of_one_key_if_that_key_leaves_room() {
    let (limit, made) = (Arc::new(AtomicUsize::new(10)), Arc::new(AtomicUsize::new(0)));
    let per_second = |limit: &AtomicUsize| Quota::per_second(limit.load(Relaxed) as u32).unwrap();
    let (read, count) = (Arc::clone(&limit), Arc::clone(&made));
    let make = move |_: &u32| {
        count.fetch_add(1, Relaxed);
        LocalLimiter::paced_window(per_second(&read))
    };
    let keyed = Keyed::with_max_keys(32, |_| 0, make);
    let limiters: Vec<_> = (0..32).map(|key| keyed.limiter(&key).unwrap()).collect();
    limit.store(20, Relaxed);
    limiters.into_iter().for_each(|limiter| limiter.set_quotas(per_second(&limit)));
    advance(seconds(60)).await;
    let before = made.load(Relaxed);
    keyed.limiter(&32).unwrap();
    assert_eq!((keyed.len(), made.load(Relaxed) - before), (32, 2));
}

#[test]
fn keyed_limiter_holds_no_lock_while_it_makes_a_limiter() {
    const NEW: u32 = 1_000_000;
    let ((enters, entered), (leave, left)) = (mpsc::channel(), mpsc::channel());
    let (gate, quota) = (Mutex::new((enters, left)), one_per_second());
    let keyed = keyed(move |key| {
        if *key >= NEW {
            let (enters, left) = &*gate.lock().unwrap();
            enters.send(()).unwrap();
            left.recv().unwrap();
        }
        LocalLimiter::token_bucket(quota)
    });
    // Keys of all shards.
    (0..64).for_each(|key| drop(keyed.limiter(&key).unwrap()));
    let adding = [keyed.clone(), keyed.clone()]
        .map(|keyed| std::thread::spawn(move || keyed.limiter(&NEW).unwrap().try_acquire().is_ok()));
    entered.recv_timeout(seconds(60)).unwrap();
    let (found, all) = mpsc::channel();
    let other = keyed.clone();
    std::thread::spawn(move || {
        (0..64).for_each(|key| drop(other.limiter(&key).unwrap()));
        found.send(()).unwrap();
    });
    let has_found = all.recv_timeout(seconds(10));
    (0..2).for_each(|_| leave.send(()).unwrap());
    // Both threads get the same limiter.
    let granted = adding.map(|adding| adding.join().unwrap());
    assert_eq!(granted.iter().filter(|granted| **granted).count(), 1);
    has_found.expect("known keys are found meanwhile");
}
