//! Tests a failover to a replica while requests are in flight and amounts are counted.

use super::{
    fallback_share::proxy,
    in_flight::wait_until_counted,
    units::{send, settle, taking, token_quota, tokens},
    *,
};

async fn replication(server: &RedisServer) -> String {
    redis::cmd("INFO").arg("replication").query_async(&mut connect(server).await).await.unwrap()
}

/// Waits until the replica has received all writes of its master.
async fn wait_until_replicated(master: &RedisServer, replica: &RedisServer) {
    let offset = |info: &str| {
        info.lines().find_map(|line| line.strip_prefix("master_repl_offset:")).map(str::to_owned)
    };
    let start = Instant::now();
    loop {
        let (sent, received) = (replication(master).await, replication(replica).await);
        if received.contains("master_link_status:up") && offset(&sent) == offset(&received) {
            return;
        }
        assert!(start.elapsed() < HANG_TIMEOUT, "{received}");
        tokio::time::sleep(millis(20)).await;
    }
}

#[tokio::test]
async fn failover_to_a_replica_keeps_requests_in_flight_and_amounts() {
    let (mut master, replica) = (server(), server());
    let mut promoted = connect(&replica).await;
    let mut replica_of = async |host: &str, port: &str| {
        redis::cmd("REPLICAOF").arg(host).arg(port).exec_async(&mut promoted).await.unwrap();
    };
    replica_of("127.0.0.1", &master.port().to_string()).await;
    wait_until_replicated(&master, &replica).await;

    // Stands for the name or the address that a failover moves to the replica.
    let (port, switch) = proxy(master.port()).await;
    let length = millis(4_000);
    let [one, other] = [(); 2].map(|()| {
        let quotas = [quota(1_000, millis(1_000)), token_quota(100, length)];
        let limiter = bucket(&format!("redis://127.0.0.1:{port}/"), "key", quotas).unwrap();
        limiter.with_max_in_flight(2).unwrap().with_in_flight_expiry(millis(3_000)).unwrap()
    });
    let mut held = [send(&one, tokens(30)).await, send(&one, tokens(30)).await];
    let granted = Instant::now();
    settle(&mut held[0], tokens(60));
    wait_until_counted(&replica, "*", &[2]).await;
    // The query of this request follows the settlement.
    take(&one, taking(tokens(1)).with_deadline(Instant::now() + millis(500))).await.unwrap_err();
    wait_until_replicated(&master, &replica).await;
    master.kill().unwrap();
    replica_of("NO", "ONE").await;
    switch.send_replace(replica.port());

    let failed_over = Instant::now();
    while failed_over.elapsed() < millis(2_000) {
        for limiter in [&one, &other] {
            let bounded = taking(tokens(1)).with_deadline(Instant::now() + millis(300));
            take(limiter, bounded).await.unwrap_err();
        }
        tokio::time::sleep(millis(20)).await;
    }
    wait_until_counted(&replica, "*", &[2]).await;
    drop(held);
    wait_until_counted(&replica, "*", &[]).await;
    drop(send(&other, tokens(11)).await);
    assert!(granted.elapsed() >= length, "{:?}", granted.elapsed());
}
