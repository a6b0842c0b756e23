//! Tests faults of the store: the store is slow, rejects queries, restarts, loses data or becomes a replica. No request
//! hangs, and no window exceeds its quota.

use std::error::Error as _;

use super::*;

fn bucket(server: &RedisServer) -> RedisLimiter {
    super::bucket(&server.url(), "key", [quota(100, millis(500))]).unwrap()
}

#[tokio::test]
async fn redis_limiter_refuses_requests_while_the_store_is_down() {
    let mut server = server();
    let limiter = bucket(&server);
    assert_eq!(limiter.store(), Store::NotQueried);
    take(&limiter, request(1, None)).await.unwrap();
    assert_eq!(limiter.store(), Store::Shared);

    server.kill().unwrap();
    let refusal = take(&limiter, request(1, None)).await.unwrap_err();
    assert_eq!(refusal.reason(), Reason::Unavailable);
    assert!(refusal.wait().is_some_and(|wait| wait <= Duration::from_secs(1)), "{refusal}");
    assert!(
        refusal.to_string().starts_with("the limiter's store is unavailable (required wait: "),
        "{refusal}"
    );
    // Depending on when the server closes the connection, the query or the next connection fails.
    assert!(refusal.source().is_some_and(|cause| !cause.to_string().is_empty()), "{refusal:?}");
    assert_eq!(limiter.store(), Store::Refusing);
    assert_eq!(limiter.snapshot().queued, 0);

    server.restart().unwrap();
    wait_for_recovery(&limiter, request(1, None)).await;
}

/// Another program has written a value under a key of the limiter. The refusal states what the key contains, and the
/// limiter recovers when the key is deleted.
#[tokio::test]
async fn refusal_states_which_key_contains_a_foreign_value() {
    let server = server();
    let mut connection = connect(&server).await;
    for (make, suffix, write, found, expected) in [
        (super::bucket as Make, ":bucket", &["SET", "s3cret"][..], "string", "hash"),
        (window, ":window", &["SADD", "s3cret"], "set", "hash"),
        (window, ":window:500000.0", &["SET", "s3cret"], "string", "list"),
    ] {
        let limiter = make(&server.url(), "orders", vec![quota(100, millis(500))]).unwrap();
        take(&limiter, request(1, None)).await.unwrap();
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
        let key = keys.into_iter().find(|key| key.ends_with(suffix)).unwrap();
        redis::cmd("DEL").arg(&key).exec_async(&mut connection).await.unwrap();
        redis::cmd(write[0]).arg(&key).arg(write[1]).exec_async(&mut connection).await.unwrap();

        let refusal = take(&limiter, request(1, None)).await.unwrap_err();
        assert_eq!(refusal.reason(), Reason::Unavailable);
        let cause = refusal.source().unwrap().to_string();
        assert_eq!(cause, format!("the key `{key}` contains a {found}, expected a {expected}"));
        // While the limiter waits for its next query, each refusal has the same cause.
        let again = take(&limiter, request(1, None)).await.unwrap_err();
        assert_eq!(again.source().unwrap().to_string(), cause);

        redis::cmd("DEL").arg(&key).exec_async(&mut connection).await.unwrap();
        wait_for_recovery(&limiter, request(1, None)).await;
    }
}

/// The restart deletes the server's record of the first process's grants, and the second process does not know these
/// grants.
#[tokio::test]
async fn restart_of_the_store_within_a_window_grants_no_second_quota() {
    let run = async |make: Make| {
        let mut server = server();
        let quota = with_margin(50, millis(1_500)).with_burst(40).unwrap();
        let mut arrivals = Arrivals::new();
        let first = make(&server.url(), "key", vec![quota]).unwrap();
        for _ in 0..30 {
            arrivals.extend([take(&first, request(1, None)).await.unwrap()]);
        }
        server.restart().unwrap();
        let second = make(&server.url(), "key", vec![quota]).unwrap();
        // The first limiter sends no further query.
        take_continuously_into(&[second], 4, millis(2_500), &arrivals).await;
        arrivals.assert_within(quota);
    };
    tokio::join!(run(super::bucket), run(window));
}

/// The server starts with an older state, such as a snapshot on its disk, and the second process does not know the
/// grants since then.
#[tokio::test]
async fn restart_of_the_store_with_an_older_state_grants_no_second_quota() {
    let run = async |make: Make| {
        let mut server = server();
        let quota = with_margin(50, millis(4_000)).with_burst(40).unwrap();
        let mut arrivals = Arrivals::new();
        let first = make(&server.url(), "key", vec![quota]).unwrap();
        take(&first, request(1, None)).await.unwrap();
        tokio::time::sleep(millis(2_500)).await;
        let mut connection = connect(&server).await;
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
        let mut state = Vec::new();
        for key in keys {
            let value: Vec<u8> = redis::cmd("DUMP").arg(&key).query_async(&mut connection).await.unwrap();
            state.push((key, value));
        }
        for _ in 0..30 {
            arrivals.extend([take(&first, request(1, None)).await.unwrap()]);
        }
        server.restart().unwrap();
        let mut connection = connect(&server).await;
        for (key, value) in state {
            redis::cmd("RESTORE").arg(key).arg(0).arg(value).exec_async(&mut connection).await.unwrap();
        }
        let second = make(&server.url(), "key", vec![quota]).unwrap();
        take_continuously_into(&[second], 4, millis(3_500), &arrivals).await;
        arrivals.assert_within(quota);
    };
    tokio::join!(run(super::bucket), run(window));
}

/// After the flush, only the process remembers the previous grants. The process must therefore detect the flush.
#[tokio::test]
async fn flush_of_the_store_grants_no_second_quota() {
    let server = server();
    let quota = with_margin(30, millis(1_000));
    let limiter = window(&server.url(), "key", [quota]).unwrap();
    // After this permit and a pause of 2.5 s, the store has run for longer than a window.
    take(&limiter, request(1, None)).await.unwrap();
    tokio::time::sleep(millis(2_500)).await;
    let mut arrivals = Arrivals::new();
    for round in 0..60 {
        if round == 20 {
            let mut connection = connect(&server).await;
            redis::cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
        }
        arrivals.extend([take(&limiter, request(1, None)).await.unwrap()]);
    }
    arrivals.assert_within(quota);
}

#[tokio::test]
async fn redis_limiter_works_without_permission_to_load_scripts() {
    let server = server();
    let mut connection = connect(&server).await;
    redis::cmd("ACL").arg(&["SETUSER", "default", "-script"]).exec_async(&mut connection).await.unwrap();
    let limiter = bucket(&server);
    for _ in 0..3 {
        take(&limiter, request(1, None)).await.unwrap();
    }
    assert_eq!((limiter.store(), limiter.snapshot().refused), (Store::Shared, 0));
}

#[tokio::test]
async fn redis_limiter_waits_at_most_its_timeout_for_a_suspended_store() {
    let server = server();
    let limiter = bucket(&server).with_timeout(millis(1_500)).unwrap();
    take(&limiter, request(1, None)).await.unwrap();
    signal(&server, "-STOP");
    let start = Instant::now();
    let mut all: JoinSet<_> = (0..5)
        .map(|_| {
            let limiter = limiter.clone();
            async move { take(&limiter, request(1, None)).await }
        })
        .collect();
    while let Some(outcome) = all.join_next().await {
        assert_eq!(outcome.unwrap().unwrap_err().reason(), Reason::Unavailable);
    }
    // All waiters share one query, which times out after 1.5 s. Five successive queries would take 7.5 s.
    assert!(start.elapsed() >= millis(1_490) && start.elapsed() < millis(7_400), "{:?}", start.elapsed());
    signal(&server, "-CONT");
    wait_for_recovery(&limiter, request(1, None)).await;
}

#[tokio::test]
async fn redis_limiter_recovers_after_the_store_was_out_of_memory() {
    let server = server();
    let limiter = bucket(&server);
    take(&limiter, request(1, None)).await.unwrap();
    let mut connection = connect(&server).await;
    let mut set = async |memory: &str| {
        redis::cmd("CONFIG")
            .arg("SET")
            .arg("maxmemory")
            .arg(memory)
            .exec_async(&mut connection)
            .await
            .unwrap();
    };
    set("1").await;
    assert_eq!(take(&limiter, request(1, None)).await.unwrap_err().reason(), Reason::Unavailable);
    set("0").await;
    wait_for_recovery(&limiter, request(1, None)).await;
}

#[tokio::test]
async fn redis_limiter_grants_permits_only_with_the_right_password() {
    let server = RedisServer::start(&["--requirepass", "hunter2"]).unwrap();
    let at = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port());
    let make = |url: &str| super::bucket(url, "key", [quota(100, millis(500))]).unwrap();
    take(&make(&at("hunter2")), request(1, None)).await.unwrap();
    let wrong = make(&at("hunter3"));
    assert_eq!(take(&wrong, request(1, None)).await.unwrap_err().reason(), Reason::Unavailable);
}

/// The task that queries the store ends when its runtime ends. The next request starts a new task.
#[test]
fn redis_limiter_works_in_a_second_runtime_after_the_first_has_ended() {
    let server = server();
    let limiter = bucket(&server);
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    first.block_on(async {
        let _ = tokio::time::timeout(millis(1), limiter.acquire_with(&request(1, None))).await;
    });
    drop(first);
    runtime().block_on(take(&limiter, request(1, None))).unwrap();
}

/// A connection of a runtime works only while this runtime is driven.
#[test]
fn redis_limiter_works_in_two_runtimes_that_are_driven_in_turn() {
    let server = server();
    let limiter = bucket(&server);
    let runtimes =
        [(); 2].map(|()| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
    for _ in 0..3 {
        for runtime in &runtimes {
            runtime.block_on(async {
                take(&limiter, request(1, None)).await.unwrap();
                // The task that queries the store and the one that serves waiters end. The connection's task remains.
                let metrics = tokio::runtime::Handle::current().metrics();
                wait_until("the tasks have ended", || metrics.num_alive_tasks() == 1).await;
            });
        }
    }
    let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let statistics: String = redis::cmd("INFO").arg("stats").query(&mut connection).unwrap();
    // Each runtime has opened one connection, and this test another one.
    assert!(statistics.contains("total_connections_received:3\r\n"), "{statistics}");
}

/// A Redis server that is short of memory evicts single keys, such as the log or the state of a limiter.
#[tokio::test]
async fn eviction_of_one_key_from_the_store_grants_no_second_quota() {
    let run = async |logs: bool| {
        let server = server();
        let quota = with_margin(10, millis(500));
        let make = || window(&server.url(), "key", [quota]).unwrap();
        let (first, second) = (make(), make());
        take(&first, request(1, None)).await.unwrap();
        let mut connection = connect(&server).await;
        let keys: Vec<String> = redis::cmd("Keys").arg("*").query_async(&mut connection).await.unwrap();
        for key in keys.iter().filter(|key| key.ends_with(":window") != logs) {
            redis::cmd("DEL").arg(key).exec_async(&mut connection).await.unwrap();
        }
        let (arrivals, _) = take_continuously(&[second], 4, millis(2_500)).await;
        assert!(arrivals.times().len() >= 10, "{}", arrivals.times().len());
        arrivals.assert_within(quota);
    };
    tokio::join!(run(false), run(true));
}
