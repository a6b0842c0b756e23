//! Processes use their shares of the quota while the store does not reply.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::*;

#[tokio::test]
async fn processes_use_their_shares_while_the_store_is_down() {
    shares(|server| server.kill().unwrap(), |server| server.restart().unwrap()).await;
}

/// The stopped server keeps its data, so the first process that is back finds the earlier grants.
#[tokio::test]
async fn processes_use_their_shares_while_the_store_is_stopped() {
    shares(|server| signal(server, "-STOP"), |server| signal(server, "-CONT")).await;
}

/// A limiter whose share is half of the quota. The timeout of 1.5 s is long enough for a busy machine. The times that
/// depend on it are longer, too.
fn halved(limiter: Result<RedisLimiter, InvalidConfig>) -> RedisLimiter {
    limiter.unwrap().with_timeout(millis(1_500)).unwrap().with_fallback_share(2).unwrap()
}

/// Waits until the record has this many more arrivals.
async fn more(what: &str, arrivals: &Arrivals, count: usize) {
    let before = arrivals.times().len();
    until(what, || arrivals.times().len() >= before + count).await;
}

async fn shares(lose: impl Fn(&mut RedisServer), bring_back: impl Fn(&mut RedisServer)) {
    let mut server = server();
    let shared = with_margin(100, millis(500));
    for make in [bucket, window] {
        let make = || halved(make(&server.url(), "key", vec![shared]));
        let (limiters, arrivals) = ([make(), make()], Arrivals::new());
        let running = tokio::spawn({
            let (limiters, arrivals) = (limiters.clone(), arrivals.clone());
            async move { greedily(&limiters, 4, HANGS, &arrivals).await }
        });
        let are = |store| limiters.iter().all(|limiter| limiter.store() == store);
        more("two windows of the store", &arrivals, 150).await;
        lose(&mut server);
        until("both without the store", || are(Store::Fallback)).await;
        more("two windows of the shares", &arrivals, 150).await;
        assert!(limiters.iter().any(|limiter| limiter.store() == Store::Fallback));
        bring_back(&mut server);
        until("both back", || are(Store::Shared)).await;
        more("two windows of the store", &arrivals, 150).await;
        running.abort();
        arrivals.assert_within(shared);
    }
}

/// A proxy to the server that can be disconnected.
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

/// The other process continues, so the store does not detect an outage.
#[tokio::test]
async fn reports_the_use_of_a_share_after_reconnecting() {
    let server = server();
    let (port, switch) = cable(server.port()).await;
    let quota = with_margin(60, millis(1_000));
    let make = |url: &str| halved(window(url, "key", [quota]));
    let (other, cut) = (make(&server.url()), make(&format!("redis://127.0.0.1:{port}/")));
    take(&cut, ask(1, None)).await.unwrap();
    let ends = tokio::spawn({
        let other = other.clone();
        async move {
            loop {
                let _ = take(&other, ask(1, None)).await;
                tokio::time::sleep(millis(60)).await;
            }
        }
    });
    switch.send_replace(false);
    tokio::time::sleep(millis(1_500)).await;
    let arrivals = Arrivals::new();
    let running = tokio::spawn({
        let (cut, arrivals) = (cut.clone(), arrivals.clone());
        async move { greedily(std::slice::from_ref(&cut), 4, HANGS, &arrivals).await }
    });
    // The whole share, immediately.
    more("the share", &arrivals, 30).await;
    assert_eq!(cut.store(), Store::Fallback);
    switch.send_replace(true);
    until("the store", || cut.store() == Store::Shared).await;
    tokio::time::sleep(millis(2_000)).await;
    running.abort();
    ends.abort();
    arrivals.assert_within(quota);
}

/// Sends concurrent requests, and records the ones that are granted within this time.
async fn rush(limiter: &RedisLimiter, requests: usize, length: Duration, arrivals: &Arrivals) {
    let mut all = JoinSet::new();
    for _ in 0..requests {
        let (limiter, mut arrivals) = (limiter.clone(), arrivals.clone());
        all.spawn(async move { arrivals.extend(take(&limiter, ask(1, None)).await) });
    }
    tokio::time::sleep(length).await;
}

/// Ten per second.
fn paired() -> Quota {
    with_margin(10, millis(1_000))
}

fn pair(server: &RedisServer) -> [RedisLimiter; 2] {
    [(); 2].map(|()| halved(window(&server.url(), "key", [paired()])))
}

/// The other process no longer accounts for that share.
#[tokio::test]
async fn an_idle_process_does_not_use_its_share_after_the_outage() {
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
    let back = Instant::now();
    // The store is queried only while a request waits.
    while busy.store() != Store::Shared || back.elapsed() < millis(4_000) {
        assert!(back.elapsed() < HANGS, "{busy:?}");
        let _ = take(&busy, ask(1, Some(millis(10)))).await;
        tokio::time::sleep(millis(200)).await;
    }
    tokio::time::sleep(millis(1_400)).await;
    let mut arrivals = Arrivals::new();
    for _ in 0..10 {
        arrivals.extend([take(&busy, ask(1, None)).await.unwrap()]);
    }
    rush(&idle, 5, millis(300), &arrivals).await;
    arrivals.assert_within(paired());
}

/// When the store is lost, other processes hold permits for later moments.
#[tokio::test]
async fn a_share_starts_after_the_last_permits_of_the_store_expired() {
    let mut server = server();
    let [one, other] = pair(&server);
    tokio::time::sleep(millis(2_800)).await;
    let mut arrivals = Arrivals::new();
    // Fills a window. The times below count from the last of these permits, so the machine's speed does not matter.
    for _ in 0..10 {
        arrivals.extend([take(&one, ask(1, None)).await.unwrap()]);
    }
    // These requests wait for the next window. The store grants its permits before it is lost.
    let waiting = tokio::spawn({
        let (other, arrivals) = (other.clone(), arrivals.clone());
        async move { rush(&other, 10, millis(4_500), &arrivals).await }
    });
    // The next window starts after 1,290 ms, and the store grants its permits up to a quarter of a second before.
    tokio::time::sleep(millis(1_185)).await;
    server.kill().unwrap();
    rush(&one, 5, millis(3_200), &arrivals).await;
    waiting.await.unwrap();
    assert!(arrivals.times().len() > 10, "{}", arrivals.times().len());
    arrivals.assert_within(paired());
}
