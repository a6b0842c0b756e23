//! Each process with its share of the quota while the store does not answer.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::*;

fn half() -> Fallback {
    Fallback::Share(NonZeroU32::new(2).unwrap())
}

#[tokio::test]
async fn without_a_store_each_keeps_to_its_share_and_no_window_is_broken() {
    shares(|server| server.kill().unwrap(), |server| server.restart().unwrap()).await;
}

/// Nothing is forgotten, and whoever comes back first finds all that it left.
#[tokio::test]
async fn while_a_store_stands_still_each_keeps_to_its_share_and_no_window_is_broken() {
    shares(|server| signal(server, "-STOP"), |server| signal(server, "-CONT")).await;
}

async fn shares(lose: impl Fn(&mut RedisServer), bring_back: impl Fn(&mut RedisServer)) {
    let mut server = server();
    let shared = quota(100, millis(500)).with_guard(millis(10)).unwrap();
    for make in [RedisLimiter::token_bucket, RedisLimiter::sliding_window] {
        let make = || make(&server.url(), "key", vec![shared]).unwrap().with_fallback(half()).unwrap();
        let limiters = [make(), make()];
        let running = tokio::spawn({
            let limiters = limiters.clone();
            async move { greedy(&limiters, 4, millis(4_500)).await }
        });
        tokio::time::sleep(millis(1_500)).await;
        lose(&mut server);
        tokio::time::sleep(millis(1_200)).await;
        assert!(limiters.iter().all(|limiter| limiter.snapshot().store == Some(Store::Fallback)));
        bring_back(&mut server);
        let (arrivals, shares) = running.await.unwrap();
        assert!(limiters.iter().all(|limiter| limiter.snapshot().store == Some(Store::Shared)));
        arrivals.assert_within(quota(100, millis(500)));
        // Six windows of the nine, at nine tenths: what it costs to begin with nothing, twice.
        assert!(arrivals.count() > 300, "{} {shares:?}", arrivals.count());
    }
}

/// A way to the server that can be cut.
async fn cable(port: u16) -> (u16, watch::Sender<bool>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let own = listener.local_addr().unwrap().port();
    let (switch, on) = watch::channel(true);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut on = on.clone();
            tokio::spawn(async move {
                let whole = *on.borrow_and_update();
                if let (true, Ok(mut server)) = (whole, TcpStream::connect(("127.0.0.1", port)).await) {
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = on.changed() => {}
                    }
                }
            });
        }
    });
    (own, switch)
}

/// The others go on meanwhile, so that the store can't take it for an outage of its own.
#[tokio::test]
async fn what_one_process_used_without_the_store_is_told_when_it_is_back() {
    let server = server();
    let (port, switch) = cable(server.port()).await;
    let make = |url: &str| {
        let limiter = RedisLimiter::sliding_window(url, "key", [quota(60, millis(1_000))]).unwrap();
        limiter.with_hold(millis(100)).unwrap().with_fallback(half()).unwrap()
    };
    let (other, cut) = (make(&server.url()), make(&format!("redis://127.0.0.1:{port}/")));
    take(&cut, ask(1, None)).await.unwrap();
    let ends = tokio::spawn({
        let other = other.clone();
        async move {
            while take(&other, ask(1, None)).await.is_ok() {
                tokio::time::sleep(millis(60)).await;
            }
        }
    });
    switch.send_replace(false);
    tokio::time::sleep(millis(1_500)).await;
    // All that its share has, at once.
    let used = greedy(std::slice::from_ref(&cut), 4, millis(1_300)).await.0;
    assert_eq!(cut.snapshot().store, Some(Store::Fallback));
    assert!(used.count() >= 30, "{}", used.count());
    switch.send_replace(true);
    let later = greedy(std::slice::from_ref(&cut), 4, millis(1_500)).await.0;
    assert_eq!(cut.snapshot().store, Some(Store::Shared));
    ends.abort();
    let all: Vec<_> = [used.times(), later.times()].concat();
    Arrivals::from_iter(all).assert_within(quota(60, millis(1_000)));
}

/// So many at once, or as many as there are within that time.
async fn rush(limiter: &RedisLimiter, requests: usize, length: Duration, arrivals: &Arrivals) {
    let mut all = JoinSet::new();
    for _ in 0..requests {
        let (limiter, arrivals) = (limiter.clone(), arrivals.clone());
        all.spawn(async move {
            if take(&limiter, ask(1, None)).await.is_ok() {
                arrivals.note();
            }
        });
    }
    tokio::time::sleep(length).await;
}

fn pair(server: &RedisServer) -> [RedisLimiter; 2] {
    let quotas = || [quota(10, millis(1_000))];
    [(); 2].map(|()| {
        RedisLimiter::sliding_window(&server.url(), "key", quotas()).unwrap().with_fallback(half()).unwrap()
    })
}

/// It is long gone from the others' reckoning.
#[tokio::test]
async fn a_share_that_lay_idle_is_not_spent_any_more() {
    let mut server = server();
    let [busy, idle] = pair(&server);
    for limiter in [&busy, &idle] {
        take(limiter, ask(1, None)).await.unwrap();
    }
    server.kill().unwrap();
    for limiter in [&busy, &idle] {
        take(limiter, ask(1, Some(millis(100)))).await.unwrap_err();
    }
    server.restart().unwrap();
    for _ in 0..20 {
        let _ = take(&busy, ask(1, Some(millis(10)))).await;
        tokio::time::sleep(millis(200)).await;
    }
    assert_eq!(busy.snapshot().store, Some(Store::Shared));
    tokio::time::sleep(millis(1_100)).await;
    let arrivals = Arrivals::new();
    for _ in 0..10 {
        take(&busy, ask(1, None)).await.unwrap();
        arrivals.note();
    }
    rush(&idle, 5, millis(300), &arrivals).await;
    arrivals.assert_within(quota(10, millis(1_000)));
}

/// When the store is lost, others hold permits for moments that are still to come.
#[tokio::test]
async fn a_share_begins_when_the_last_permits_of_the_store_are_used() {
    let mut server = server();
    let [one, other] = pair(&server);
    tokio::time::sleep(millis(2_300)).await;
    let arrivals = Arrivals::new();
    // A window that is full, whatever the machine's speed: a clock that starts at the last of them.
    for _ in 0..10 {
        take(&one, ask(1, None)).await.unwrap();
        arrivals.note();
    }
    // They wait for the next window, and are told of its permits before the store is lost.
    let waiting = tokio::spawn({
        let (other, arrivals) = (other.clone(), arrivals.clone());
        async move { rush(&other, 10, millis(2_300), &arrivals).await }
    });
    tokio::time::sleep(millis(965)).await;
    server.kill().unwrap();
    rush(&one, 5, millis(1_300), &arrivals).await;
    waiting.await.unwrap();
    assert!(arrivals.count() > 10, "{}", arrivals.count());
    arrivals.assert_within(quota(10, millis(1_000)));
}
