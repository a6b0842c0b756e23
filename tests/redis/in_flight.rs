//! Tests the limit of requests in flight that processes share.

use std::{
    env,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};
use tower_outbound::limit::Permit;

use super::*;

/// How long the store counts the requests of a process that sends no query. A server that has just started admits no
/// request for the same time.
pub(super) const EXPIRY: Duration = Duration::from_secs(3);

fn limited(url: &str, name: &str, max: u32) -> RedisLimiter {
    let limiter = bucket(url, name, [quota(100_000, millis(1_000))]).unwrap();
    let limiter = limiter.with_namespace(name).unwrap().with_max_in_flight(max).unwrap();
    limiter.with_in_flight_expiry(EXPIRY).unwrap()
}

async fn acquire(limiter: &RedisLimiter) -> Permit<'static> {
    let acquire = limiter.acquire_with(&request(1, None));
    tokio::time::timeout(HANG_TIMEOUT, acquire).await.expect("the limiter hangs").unwrap()
}

/// Returns the requests that the store counts in this namespace, for each limiter.
async fn counted(server: &RedisServer, namespace: &str) -> Vec<u32> {
    let mut connection = connect(server).await;
    let pattern = format!("{namespace}:*:flight");
    let keys: Vec<String> = redis::cmd("KEYS").arg(pattern).query_async(&mut connection).await.unwrap();
    let Some(key) = keys.first() else { return Vec::new() };
    let entries: Vec<String> = redis::cmd("HVALS").arg(key).query_async(&mut connection).await.unwrap();
    let mut counts: Vec<u32> =
        entries.iter().map(|entry| entry.split(':').next().unwrap().parse().unwrap()).collect();
    counts.retain(|count| *count > 0);
    counts.sort_unstable();
    counts
}

pub(super) async fn wait_until_counted(server: &RedisServer, namespace: &str, expected: &[u32]) {
    let end = Instant::now() + HANG_TIMEOUT;
    loop {
        let counts = counted(server, namespace).await;
        if counts == expected {
            return;
        }
        assert!(Instant::now() < end, "the store counts {counts:?}, expected {expected:?}");
        tokio::time::sleep(millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn limiters_never_exceed_their_common_limit_of_requests_in_flight() {
    let server = shared_server();
    let max = 5;
    let limiters = [(); 2].map(|()| limited(&server.url(), "common", max));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let served = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let mut calls = JoinSet::new();
    for number in 0..400_u64 {
        let (limiter, served) = (limiters[number as usize % 2].clone(), served[number as usize % 2].clone());
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        calls.spawn(async move {
            let acquire = limiter.acquire_with(&request(1, None));
            // Each fifth call is dropped while it waits or right after.
            let wait = if number % 5 == 0 { millis(1_000 + number * 3) } else { HANG_TIMEOUT };
            let Ok(permit) = tokio::time::timeout(wait, acquire).await else { return };
            let mut permit = permit.unwrap();
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            permit.mark_sent(Instant::now());
            tokio::time::sleep(millis(number % 7)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            served.fetch_add(1, Ordering::SeqCst);
        });
    }
    let start = Instant::now();
    while let Some(call) = calls.join_next().await {
        call.unwrap();
    }
    let served = served.map(|served| served.load(Ordering::SeqCst));
    println!("{served:?} served in {:?}", start.elapsed());
    assert_eq!(most.load(Ordering::SeqCst), max as usize, "the limit was not reached, or exceeded");
    assert!(served.iter().all(|served| *served >= 160), "{served:?}");
    wait_until_counted(server, "common", &[]).await;
}

#[tokio::test]
async fn end_of_a_request_admits_a_waiter_of_the_same_process_at_once() {
    let limiter = limited(&shared_server().url(), "waiter", 1);
    let permit = acquire(&limiter).await;
    let waiter = tokio::spawn({
        let limiter = limiter.clone();
        async move {
            acquire(&limiter).await;
            Instant::now()
        }
    });
    // The waiter then queries every 250 ms.
    tokio::time::sleep(millis(3_000)).await;
    let mut waits = Vec::new();
    let ended = Instant::now();
    drop(permit);
    waits.push(waiter.await.unwrap() - ended);
    for _ in 0..4 {
        let permit = acquire(&limiter).await;
        let ended = Instant::now();
        drop(permit);
        acquire(&limiter).await;
        waits.push(ended.elapsed());
    }
    assert!(waits.iter().min().unwrap() < &millis(100), "{waits:?}");
}

#[tokio::test]
async fn processes_with_many_waiters_take_turns() {
    let limiters = [(); 3].map(|()| limited(&shared_server().url(), "turns", 1));
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut calls = JoinSet::new();
    for call in 0..60 {
        let (limiter, order) = (limiters[call % 3].clone(), Arc::clone(&order));
        calls.spawn(async move {
            let _permit = acquire(&limiter).await;
            order.lock().unwrap().push(call % 3);
            tokio::time::sleep(millis(2)).await;
        });
    }
    calls.join_all().await;
    let order = order.lock().unwrap();
    // A busy machine may delay a process for more than a second, so that it loses its turn.
    let others = |number: usize| order.iter().take(30).filter(|limiter| **limiter != number).count();
    assert!((0..3).all(|number| others(number) <= 24), "{order:?}");
}

#[tokio::test]
async fn request_in_flight_counts_beyond_the_expiry_until_it_ends() {
    let [one, other] = [(); 2].map(|()| limited(&shared_server().url(), "beyond", 1));
    let permit = acquire(&one).await;
    let waiting = tokio::time::timeout(EXPIRY * 3, other.acquire_with(&request(1, None)));
    assert!(waiting.await.is_err(), "two requests were in flight");
    drop(permit);
    acquire(&other).await;
}

#[tokio::test]
async fn dropped_waiters_and_unused_permits_do_not_count() {
    let server = shared_server();
    let limiter = limited(&server.url(), "dropped", 2);
    let first = acquire(&limiter).await;
    let second = acquire(&limiter).await;
    let mut queued = tokio_test::task::spawn(limiter.acquire_with(&request(1, None)));
    tokio_test::assert_pending!(queued.poll());
    wait_until_counted(server, "dropped", &[2]).await;
    drop(second);
    // The limiter grants the permit, but nothing polls the waiter.
    until_woken(&queued).await;
    drop(queued);
    wait_until_counted(server, "dropped", &[1]).await;
    let mut queued = [(); 3].map(|()| tokio_test::task::spawn(limiter.acquire_with(&request(1, None))));
    for waiter in &mut queued {
        tokio_test::assert_pending!(waiter.poll());
    }
    drop(queued);
    wait_until_counted(server, "dropped", &[1]).await;
    drop(first);
    wait_until_counted(server, "dropped", &[]).await;
}

#[tokio::test]
#[ignore = "child process that another test starts"]
async fn child_process_keeps_requests_in_flight() {
    let limiter = limited(&env::var("STORE_URL").unwrap(), "killed", 2);
    let _permits = [acquire(&limiter).await, acquire(&limiter).await];
    println!("in flight");
    tokio::time::sleep(HANG_TIMEOUT * 10).await;
}

async fn start_child(server: &RedisServer) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([
        "--exact",
        "in_flight::child_process_keeps_requests_in_flight",
        "--ignored",
        "--nocapture",
    ]);
    command.env("STORE_URL", server.url()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while !lines.next_line().await.unwrap().expect("the child has ended").contains("in flight") {}
    child
}

#[tokio::test]
async fn requests_of_a_killed_process_count_until_they_expire() {
    let server = shared_server();
    let limiter = limited(&server.url(), "killed", 2);
    let mut child = start_child(server).await;
    // The requests of a running process do not expire.
    tokio::time::sleep(EXPIRY * 2).await;
    assert_eq!(counted(server, "killed").await, [2]);
    child.kill().await.unwrap();
    let killed = Instant::now();
    let _permits = [acquire(&limiter).await, acquire(&limiter).await];
    let waited = killed.elapsed();
    // The child reported its requests at most a third of the expiry before its end.
    assert!(waited >= EXPIRY / 3, "{waited:?}");
    assert!(waited <= EXPIRY + millis(2_000), "{waited:?}");
}

#[tokio::test]
async fn store_that_lost_its_memory_admits_no_request_until_the_processes_have_reported() {
    let server = server();
    let limiters = [(); 3].map(|()| limited(&server.url(), "lost", 2));
    let permits = [acquire(&limiters[0]).await, acquire(&limiters[1]).await];
    let mut connection = connect(&server).await;
    for command in ["FLUSHALL", "DEL"] {
        match command {
            "DEL" => {
                let keys: Vec<String> =
                    redis::cmd("KEYS").arg("*:flight").query_async(&mut connection).await.unwrap();
                redis::cmd("DEL").arg(keys).exec_async(&mut connection).await.unwrap();
            }
            _ => redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap(),
        }
        // This process finds that the store does not count its request, and the other one may not have reported yet.
        for limiter in [&limiters[0], &limiters[2]] {
            let beyond = take(limiter, request(1, None).with_deadline(Instant::now() + EXPIRY / 4)).await;
            assert!(beyond.is_err(), "three requests were in flight after {command}");
        }
        wait_until_counted(&server, "lost", &[1, 1]).await;
    }
    drop(permits);
    acquire(&limiters[2]).await;
}

#[tokio::test]
async fn processes_divide_the_limit_of_requests_in_flight_while_the_store_is_down() {
    let mut server = server();
    let make = || limited(&server.url(), "divided", 4).with_timeout(millis(1_500)).unwrap();
    let limiters = [(); 2].map(|()| make().with_fallback_share(2).unwrap());
    let first = acquire(&limiters[0]).await;
    server.kill().unwrap();
    let mut permits = vec![first];
    for limiter in &limiters {
        let _ = tokio::time::timeout(millis(500), limiter.acquire_with(&request(1, None))).await;
        wait_until("the limiter uses its share", || limiter.store() == Store::Fallback).await;
        while limiter.snapshot().requests_in_flight != Some(2) {
            permits.push(acquire(limiter).await);
        }
        let beyond = take(limiter, request(1, None).with_deadline(Instant::now() + millis(100))).await;
        assert_eq!(beyond.unwrap_err().max_in_flight(), Some(2));
    }
    server.restart().unwrap();
    wait_until_counted(&server, "divided", &[2, 2]).await;
    let beyond = take(&limiters[0], request(1, None).with_deadline(Instant::now() + EXPIRY * 2)).await;
    assert_eq!(beyond.unwrap_err().max_in_flight(), Some(4));
    permits.truncate(3);
    acquire(&limiters[1]).await;
}

/// The bucket refills a permit every 14 ms, so fewer than ten within the waiters' `max_wait`. But it is full.
#[tokio::test]
async fn waiters_of_a_full_bucket_are_not_refused_while_the_limit_is_reached() {
    let limiter = bucket(&shared_server().url(), "full", [quota(100, millis(1_000))]).unwrap();
    let limiter = limiter.with_max_in_flight(1).unwrap().with_in_flight_expiry(EXPIRY).unwrap();
    let _permit = acquire(&limiter).await;
    tokio::time::sleep(millis(300)).await;
    let mut waiters = JoinSet::new();
    for number in 0..10 {
        let limiter = limiter.clone();
        waiters.spawn(async move { take(&limiter, request(1, Some(millis(60)))).await });
        // The store replies to the query of the first waiter before the other waiters arrive.
        if number == 0 {
            tokio::time::sleep(millis(30)).await;
        }
    }
    let first = tokio::time::timeout(millis(500), waiters.join_next()).await;
    assert!(first.is_err(), "{first:?}");
}
