//! Runs the program of the page about tenants.

use std::time::Duration;

use program::{Tenant, messages};
use tokio::{sync::mpsc, task::JoinSet, time::timeout};
use tower_outbound::{
    ApiKey, Client, Error, Quota,
    client::Response,
    test_util::{ScriptedResponse, ScriptedServer, ScriptedService},
};

mod program {
    use std::sync::Arc;

    use http::{HeaderValue, header::AUTHORIZATION};
    use tower_outbound::{
        ApiKey, Client, InvalidConfig, Quota,
        limit::{Keyed, LocalLimiter},
    };

    /// The tenant of a request.
    #[derive(Clone)]
    pub struct Tenant {
        pub name: Arc<str>,
        pub key: ApiKey,
    }

    /// The limiters of the tenants, by name. `None` is the limiter of requests without a tenant.
    pub type Tenants = Keyed<Option<Arc<str>>>;

    /// Creates one client for all tenants, and their limiters. `total` limits all together, and `each` each of them.
    pub fn messages(base_url: &str, total: Quota, each: Quota) -> Result<(Client, Tenants), InvalidConfig> {
        let tenants = Keyed::new(
            |head| head.extensions.get().map(|tenant: &Tenant| Arc::clone(&tenant.name)),
            move |_| LocalLimiter::paced_window(each).with_max_in_flight(4).expect("4 is not zero"),
        );
        let client = Client::builder(base_url)?
            .with_authorize(|head| {
                let tenant: &Tenant = head.extensions.get().ok_or("the request has no tenant")?;
                let mut value = HeaderValue::try_from(format!("Bearer {}", tenant.key.expose()))?;
                value.set_sensitive(true);
                head.headers.insert(AUTHORIZATION, value);
                Ok(())
            })
            .with_quota(total)
            .with_endpoint_limits(tenants.clone())
            .client()?;
        Ok((client, tenants))
    }
}

fn tenant(name: &str) -> Tenant {
    Tenant { name: name.into(), key: ApiKey::new(format!("key-of-{name}")).unwrap() }
}

async fn send(client: &Client, tenant: &Tenant) -> Result<Response, Error> {
    client.post("/messages").extension(tenant.clone()).body("{}").await
}

/// A quota that admits `burst` requests in the test. The next permit needs more time than the deadline of a call.
fn hourly(burst: u32) -> Quota {
    Quota::per_hour(burst + 1).unwrap().with_burst(burst).unwrap()
}

#[tokio::test]
async fn each_request_has_the_key_of_its_tenant_and_one_without_a_tenant_is_not_sent() {
    let service = ScriptedService::new([200]);
    let server = ScriptedServer::start(service.clone()).await.unwrap();
    let (client, _) = messages(&server.url(), hourly(30), hourly(30)).unwrap();
    for name in ["ann", "bob"] {
        assert_eq!(send(&client, &tenant(name)).await.unwrap().status(), 200);
    }
    let error = client.post("/messages").body("{}").await.unwrap_err();
    assert!(error.is_auth(), "{error:?}");
    let (once, _) = messages(&server.url(), hourly(1), hourly(1)).unwrap();
    once.post("/messages").body("{}").await.unwrap_err();
    assert!(send(&once, &tenant("ann")).await.is_err(), "the request without a tenant took the permit");
    let seen = service.seen();
    let keys: Vec<_> = seen.iter().map(|seen| seen.header("authorization").unwrap()).collect();
    assert_eq!(keys, ["Bearer key-of-ann", "Bearer key-of-bob"]);
}

#[tokio::test]
async fn quota_of_a_tenant_and_the_quota_of_all_hold_at_once() {
    let service = ScriptedService::new([200]);
    let server = ScriptedServer::start(service.clone()).await.unwrap();
    let (client, tenants) = messages(&server.url(), hourly(3), hourly(2)).unwrap();
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(tenant);
    let refused = |result: Result<Response, Error>| result.unwrap_err().is_rate_limited();
    for _ in 0..2 {
        send(&client, &ann).await.unwrap();
    }
    // The refused request takes no permit of all tenants, so that one remains.
    assert!(refused(send(&client, &ann).await));
    send(&client, &bob).await.unwrap();
    assert!(refused(send(&client, &bob).await));
    assert!(refused(send(&client, &eve).await));
    assert_eq!(service.calls(), 3);
    let granted = ["ann", "bob", "eve"].map(|name| {
        let limiter = tenants.limiter(&Some(name.into())).unwrap();
        limiter.snapshot().granted
    });
    assert_eq!(granted, [2, 1, 0]);
}

#[tokio::test]
async fn slow_tenant_has_four_requests_in_flight_and_delays_no_other_tenant() {
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let service = ScriptedService::from_fn(move |seen| match seen.header("authorization") {
        Some("Bearer key-of-slow") => {
            arrived.send(()).unwrap();
            ScriptedResponse::never()
        }
        _ => 200.into(),
    });
    let server = ScriptedServer::start(service.clone()).await.unwrap();
    let (client, _) = messages(&server.url(), hourly(30), hourly(30)).unwrap();
    let mut calls = JoinSet::new();
    for _ in 0..10 {
        let client = client.clone();
        calls.spawn(async move { send(&client, &tenant("slow")).await });
    }
    for _ in 0..4 {
        timeout(Duration::from_secs(20), arrivals.recv()).await.unwrap().unwrap();
    }
    for _ in 0..10 {
        send(&client, &tenant("quick")).await.unwrap();
    }
    assert_eq!(service.calls(), 14);
    calls.shutdown().await;
}
