//! Tests one transport that several runtimes use.

use tokio::{
    net::TcpStream,
    runtime::{Builder, Runtime},
};

use super::*;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// The first connection never opens. It is opened by the first runtime, for which the call of the other runtime waits.
#[tokio::test]
async fn call_succeeds_after_the_runtime_that_opens_its_connection_shuts_down() {
    for (settings, transport) in super::versions() {
        let server = Server::quick(settings).await;
        let (address, begun) = (server.address(), Arc::new(Notify::new()));
        let (tries, beginning) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&begun));
        let connector = tower::service_fn(move |_: http::Uri| {
            let (first, beginning) = (tries.fetch_add(1, SeqCst) == 0, Arc::clone(&beginning));
            async move {
                if first {
                    beginning.notify_one();
                    std::future::pending::<()>().await;
                }
                TcpStream::connect(address).await
            }
        });
        let transport = transport.with_connect_timeout(Duration::from_secs(300));
        let transport = transport.build_with_connector(connector).unwrap();
        let client = builder(&server.url()).client_with_service(transport).unwrap();
        let dying = runtime();
        drop(dying.spawn(client.post("/dying").body("{}").send()));
        within(begun.notified()).await;
        let call = tokio::spawn(client.post("/").body("{}").send());
        settle().await;
        dying.shutdown_background();
        let response = within(call).await.unwrap().unwrap();
        assert!(attempts(&response) <= 2, "{}", response.report().unwrap());
        // Over HTTP/1.1, the first call may take the connection that opens for the second one.
        let paths = server.paths();
        assert!(paths == ["/"] || paths == ["/dying", "/"], "{paths:?}");
    }
}

#[tokio::test]
async fn connections_of_a_dead_runtime_are_not_reused() {
    for (settings, transport) in super::versions() {
        let server = Server::quick(settings).await;
        let client = builder(&server.url()).client_with_transport(transport).unwrap();
        for round in 0..3 {
            let (dying, calling) = (runtime(), client.clone());
            let called = dying.spawn(async move { text(calling.post("/").body("{}")).await });
            assert_eq!(within(called).await.unwrap(), "ok", "round {round}");
            tokio::task::spawn_blocking(move || drop(dying)).await.unwrap();
        }
        let response = within(client.post("/").body("{}")).await.unwrap();
        assert_eq!((response.status().as_u16(), attempts(&response)), (200, 1));
        assert_eq!((server.connections(), server.requests()), (4, 4));
    }
}

#[tokio::test]
async fn requests_of_several_runtimes_share_one_http2_connection() {
    let server = Server::quick(Settings::http2()).await;
    let client = builder(&server.url()).client_with_transport(http2()).unwrap();
    assert_eq!(within(text(client.get("/"))).await, "ok");
    for _ in 0..3 {
        let (other, client) = (runtime(), client.clone());
        let call = other.spawn(async move { text(client.get("/")).await });
        assert_eq!(within(call).await.unwrap(), "ok");
        other.shutdown_background();
    }
    assert_eq!(within(text(client.get("/"))).await, "ok");
    assert_eq!((server.connections(), server.requests()), (1, 5));
}

/// If a connection cannot open because its runtime shuts down, the pool opens one for the next waiter.
#[test]
fn runtime_with_thousands_of_waiters_shuts_down_without_stack_overflow() {
    for transport in [TransportConfig::new().with_max_connections(1), TransportConfig::new()] {
        let connector = service_fn(|_: http::Uri| std::future::pending::<io::Result<TcpStream>>());
        let transport = transport.build_with_connector(connector).unwrap();
        let client = builder("http://api.example.com").client_with_service(transport).unwrap();
        let dying = Builder::new_current_thread().enable_all().build().unwrap();
        dying.block_on(async {
            // The tasks that open connections are older than the waiters, and are therefore dropped first.
            for waiters in [256, 3_000] {
                for _ in 0..waiters {
                    drop(tokio::spawn(client.get("/").send()));
                }
                settle().await;
            }
        });
        drop(dying);
    }
}
