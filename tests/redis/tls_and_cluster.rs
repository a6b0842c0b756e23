//! Tests a Redis limiter with a redis-server that uses TLS, and with a cluster of two nodes.

use std::{fs, process::Command};

use super::{
    in_flight::EXPIRY,
    units::{send, settle, token_quota, tokens},
    *,
};
use tower_outbound::limit::Unit;

/// An environment variable selects the trusted certificates. A running process cannot change its environment safely, so
/// this test starts child processes.
#[test]
fn redis_limiter_uses_a_tls_server_only_with_a_trusted_certificate() {
    let directory = std::env::temp_dir().join(format!("tower-outbound-redis-tls-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let path = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    fs::write(path("cert.pem"), generated.cert.pem()).unwrap();
    fs::write(path("key.pem"), generated.signing_key.serialize_pem()).unwrap();
    let (cert, key) = (path("cert.pem"), path("key.pem"));
    let server = RedisServer::start(&[
        "--port",
        "0",
        "--tls-port",
        "{port}",
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &cert,
        "--tls-auth-clients",
        "no",
        "--requirepass",
        "hunter2",
    ])
    .unwrap();

    for (trusted, outcome) in [(cert.as_str(), "granted"), ("/dev/null", "refused")] {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tls_and_cluster::child_process_takes_one_permit", "--ignored", "--nocapture"])
            .env("TEST_REDIS_URL", format!("rediss://:hunter2@localhost:{}", server.port()))
            .env("SSL_CERT_FILE", trusted)
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&child.stdout);
        assert!(stdout.contains(outcome), "{trusted}: {stdout} {}", String::from_utf8_lossy(&child.stderr));
    }
    fs::remove_dir_all(&directory).unwrap();
}

#[tokio::test]
#[ignore = "child process that another test starts"]
async fn child_process_takes_one_permit() {
    let url = std::env::var("TEST_REDIS_URL").unwrap();
    let limiter = bucket(&url, "key", [quota(100, millis(500))]).unwrap();
    match take(&limiter, request(1, None)).await {
        Ok(_) => println!("granted"),
        Err(refusal) => println!("refused: {refusal}"),
    }
}

/// Starts a cluster of two nodes, each of which stores half of the slots.
async fn start_cluster() -> [RedisServer; 2] {
    let node = || {
        let bus = redis_server::free_port().unwrap();
        let server =
            RedisServer::start(&["--cluster-enabled", "yes", "--cluster-port", &bus.to_string()]).unwrap();
        (server, bus)
    };
    let (one, other) = (node(), node());
    for ((node, _), (first, last)) in [(&one, ("0", "8191")), (&other, ("8192", "16383"))] {
        let mut connection = connect(node).await;
        redis::cmd("CLUSTER")
            .arg("ADDSLOTSRANGE")
            .arg(first)
            .arg(last)
            .exec_async(&mut connection)
            .await
            .unwrap();
    }
    let mut connection = connect(&one.0).await;
    let mut meet = redis::cmd("CLUSTER");
    meet.arg("MEET").arg("127.0.0.1").arg(other.0.port()).arg(other.1);
    meet.exec_async(&mut connection).await.unwrap();
    for node in [&one.0, &other.0] {
        let mut connection = connect(node).await;
        let mut ready = false;
        for _ in 0..1_200 {
            let info: String = redis::cmd("CLUSTER").arg("INFO").query_async(&mut connection).await.unwrap();
            ready = info.contains("cluster_state:ok");
            if ready {
                break;
            }
            tokio::time::sleep(millis(50)).await;
        }
        assert!(ready, "the redis cluster did not start in time");
    }
    [one.0, other.0]
}

/// Each quota is stored on one of the two nodes. The node without that quota redirects the query.
#[tokio::test]
async fn redis_limiter_reaches_the_right_cluster_node_through_any_node() {
    let [one, other] = start_cluster().await;
    for number in 0..8 {
        for make in [bucket, window] {
            let quotas = || vec![quota(100, millis(1_000)), quota(300, millis(2_000))];
            let limiter = make(&one.url(), &format!("key {number}"), quotas()).unwrap();
            for _ in 0..3 {
                take(&limiter, request(1, None)).await.unwrap();
            }
            assert_eq!(limiter.snapshot().refused, 0);
        }
    }
    for number in 0..8 {
        for make in [bucket, window] {
            let points = Quota::bucket(100, 50, millis(1_000)).unwrap().with_unit(Unit::Points).unwrap();
            let quotas = vec![quota(100, millis(1_000)), token_quota(1_000, millis(1_000)), points];
            let limiter = make(&one.url(), &format!("units {number}"), quotas).unwrap();
            let limiter = limiter.with_max_in_flight(1).unwrap().with_in_flight_expiry(EXPIRY).unwrap();
            for _ in 0..3 {
                let mut permit = send(&limiter, tokens(500).with(Unit::Points, 10)).await;
                settle(&mut permit, tokens(10).with(Unit::Points, 1));
            }
            assert_eq!((limiter.snapshot().refused, limiter.store()), (0, Store::Shared));
        }
    }
    // If no query was redirected, the test proves nothing.
    for node in [&one, &other] {
        let keys: u64 = redis::cmd("DBSIZE").query_async(&mut connect(node).await).await.unwrap();
        assert!(keys > 0);
    }
}
