//! Tests that processes use their fallback shares of the quota while the store does not reply.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::*;

#[tokio::test]
async fn processes_use_their_fallback_shares_while_the_store_is_down() {
    use_shares_during_an_outage(|server| server.kill().unwrap(), |server| server.restart().unwrap()).await;
}

/// A suspended server keeps its data. The first process that reconnects finds the grants from before the suspension.
#[tokio::test]
async fn processes_use_their_fallback_shares_while_the_store_is_suspended() {
    use_shares_during_an_outage(|server| signal(server, "-STOP"), |server| signal(server, "-CONT")).await;
}

/// Sets half of the quota as the fallback share. The timeout of 1.5 s is long enough for a busy machine. The
/// waits in these tests depend on that timeout.
fn with_half_as_share(limiter: Result<RedisLimiter, InvalidConfig>) -> RedisLimiter {
    limiter.unwrap().with_timeout(millis(1_500)).unwrap().with_fallback_share(2).unwrap()
}

/// Waits until `arrivals` contains `count` more arrivals.
async fn wait_for_arrivals(description: &str, arrivals: &Arrivals, count: usize) {
    let before = arrivals.times().len();
    wait_until(description, || arrivals.times().len() >= before + count).await;
}

async fn use_shares_during_an_outage(stop: impl Fn(&mut RedisServer), resume: impl Fn(&mut RedisServer)) {
    let run = async |make: Make| {
        let (mut server, shared) = (server(), with_margin(100, millis(500)));
        let make = || with_half_as_share(make(&server.url(), "key", vec![shared]));
        let (limiters, arrivals) = ([make(), make()], Arrivals::new());
        let running = tokio::spawn({
            let (limiters, arrivals) = (limiters.clone(), arrivals.clone());
            async move { take_continuously_into(&limiters, 4, HANG_TIMEOUT, &arrivals).await }
        });
        let all_are = |store| limiters.iter().all(|limiter| limiter.store() == store);
        wait_for_arrivals("arrivals for two windows of the store", &arrivals, 150).await;
        stop(&mut server);
        wait_until("both limiters use their shares", || all_are(Store::Fallback)).await;
        wait_for_arrivals("arrivals for two windows of the shares", &arrivals, 150).await;
        assert!(limiters.iter().any(|limiter| limiter.store() == Store::Fallback));
        resume(&mut server);
        wait_until("both limiters use the store", || all_are(Store::Shared)).await;
        wait_for_arrivals("arrivals for two windows of the store", &arrivals, 150).await;
        running.abort();
        arrivals.assert_within(shared);
    };
    tokio::join!(run(bucket), run(window));
}

/// Starts a proxy to the server. Sending another port connects the proxy to that server, and sending 0 disconnects it.
pub(super) async fn proxy(port: u16) -> (u16, watch::Sender<u16>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let own = listener.local_addr().unwrap().port();
    let (switch, target) = watch::channel(port);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut target = target.clone();
            tokio::spawn(async move {
                let port = *target.borrow_and_update();
                if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => {}
                        _ = target.changed() => {}
                    }
                }
            });
        }
    });
    (own, switch)
}

/// A second process keeps querying the store, so the store does not detect an outage.
#[tokio::test]
async fn reconnected_process_reports_its_used_fallback_share_to_the_store() {
    let server = server();
    let (port, switch) = proxy(server.port()).await;
    let quota = with_margin(60, millis(1_000));
    let make = |url: &str| with_half_as_share(window(url, "key", [quota]));
    let (other, disconnected) = (make(&server.url()), make(&format!("redis://127.0.0.1:{port}/")));
    take(&disconnected, request(1, None)).await.unwrap();
    let other_task = tokio::spawn({
        let other = other.clone();
        async move {
            loop {
                let _ = take(&other, request(1, None)).await;
                tokio::time::sleep(millis(60)).await;
            }
        }
    });
    switch.send_replace(0);
    tokio::time::sleep(millis(1_500)).await;
    let arrivals = Arrivals::new();
    let running = tokio::spawn({
        let (disconnected, arrivals) = (disconnected.clone(), arrivals.clone());
        async move {
            take_continuously_into(std::slice::from_ref(&disconnected), 4, HANG_TIMEOUT, &arrivals).await
        }
    });
    // The disconnected process can use its complete fallback share of 30 permits.
    wait_for_arrivals("the share", &arrivals, 30).await;
    assert_eq!(disconnected.store(), Store::Fallback);
    switch.send_replace(server.port());
    wait_until("the limiter uses the store", || disconnected.store() == Store::Shared).await;
    tokio::time::sleep(millis(2_000)).await;
    running.abort();
    other_task.abort();
    arrivals.assert_within(quota);
}

/// Requests permits concurrently, and records the grants within the time `length`.
async fn take_concurrently(limiter: &RedisLimiter, requests: usize, length: Duration, arrivals: &Arrivals) {
    let mut all = JoinSet::new();
    for _ in 0..requests {
        let (limiter, mut arrivals) = (limiter.clone(), arrivals.clone());
        all.spawn(async move { arrivals.extend(take(&limiter, request(1, None)).await) });
    }
    tokio::time::sleep(length).await;
}

/// The store grants permits before they become valid. Other processes may still hold such permits when the store stops.
#[tokio::test]
async fn fallback_share_starts_after_the_last_permits_of_the_store_expire() {
    let mut server = server();
    let quota = with_margin(10, millis(1_000));
    let [one, other] = [(); 2].map(|()| with_half_as_share(window(&server.url(), "key", [quota])));
    tokio::time::sleep(millis(2_800)).await;
    let mut arrivals = Arrivals::new();
    // Takes all permits of a window. The times below are measured from the last of these permits, so that the machine's
    // speed does not matter.
    for _ in 0..10 {
        arrivals.extend([take(&one, request(1, None)).await.unwrap()]);
    }
    // These requests wait for the next window. The store grants the permits of these requests before the store stops.
    let waiting = tokio::spawn({
        let (other, arrivals) = (other.clone(), arrivals.clone());
        async move { take_concurrently(&other, 10, millis(4_500), &arrivals).await }
    });
    // The next window starts after 1,290 ms. The store may grant the permits of that window 250 ms early.
    tokio::time::sleep(millis(1_185)).await;
    server.kill().unwrap();
    take_concurrently(&one, 5, millis(3_200), &arrivals).await;
    waiting.await.unwrap();
    assert!(arrivals.times().len() > 10, "{}", arrivals.times().len());
    arrivals.assert_within(quota);
}
