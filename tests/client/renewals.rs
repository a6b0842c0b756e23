//! Tests the renewal of a permit that has expired while its request waited for a connection.

use std::num::NonZeroU32;

use tower_outbound::limit::{Acquire, Limiter, Permit, PermitIssuer, PermitRequest};

use super::*;

/// Returns a transport whose connections take 40 ms. Under a quota of 1/s, a permit expires after 31 ms.
fn slow_transport() -> tower_outbound::transport::Transport {
    let connector = service_fn(|_: http::Uri| async {
        tokio::time::sleep(Duration::from_millis(40)).await;
        let (client, server) = tokio::io::duplex(1 << 10);
        let respond = hyper::service::service_fn(|_| ready(Ok::<_, Infallible>(reply(200, "ok"))));
        let server = hyper_util::rt::TokioIo::new(server);
        let http1 =
            hyper::server::conn::http1::Builder::new().keep_alive(false).serve_connection(server, respond);
        tokio::spawn(http1);
        Ok::<_, BoxError>(client)
    });
    TransportConfig::new().build_with_connector(connector).unwrap()
}

/// Returns the builder of a stack whose credential replaces the headers from which the key, the cost and the amounts are
/// read.
fn builder() -> StackBuilder {
    let number = |head: tower_outbound::call::RequestHead<'_>, name| {
        head.headers.get(name).and_then(|value| value.to_str().ok()?.parse().ok())
    };
    let builder = StackBuilder::new("http://api.example.com").unwrap().with_plaintext();
    builder
        .with_authorize(|head| {
            for name in ["x-tenant", "x-cost", "x-tokens"] {
                head.headers.remove(name);
            }
            head.headers.insert("authorization", HeaderValue::from_static("Bearer k1"));
            Ok(())
        })
        .with_limit(move |limit| {
            let limit = limit.with_cost(move |head| {
                number(head, "x-cost").and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN)
            });
            limit.with_estimate(move |head| Amounts::of(Unit::Tokens, number(head, "x-tokens").unwrap_or(0)))
        })
}

#[tokio::test(start_paused = true)]
async fn expired_permit_is_renewed_by_the_limiter_of_its_request() {
    let tokens = || Quota::per_hour(1_000).unwrap().with_unit(Unit::Tokens).unwrap();
    for is_joint in [false, true] {
        let limiter = move |_: &Option<HeaderValue>| {
            LocalLimiter::sliding_window([Quota::per_second(2).unwrap(), tokens()])
                .with_max_in_flight(1)
                .unwrap()
        };
        let keyed = Keyed::new(|head| head.headers.get("x-tenant").cloned(), limiter);
        let builder = builder();
        let builder = match is_joint {
            true => builder.with_quota(Quota::per_second(1_000).unwrap()).with_endpoint_limits(keyed.clone()),
            false => builder.with_limiter(keyed.clone()),
        };
        let client = builder.client_with_service(slow_transport()).unwrap();
        for calls in 1..=3 {
            let start = Instant::now();
            let request = client.get("/").header("x-tenant", "acme").header("x-cost", "2");
            assert_eq!(request.header("x-tokens", "10").fetch_text().await.unwrap(), "ok");
            assert!(start.elapsed() >= Duration::from_millis(500), "{:?}", start.elapsed());
            assert_eq!(keyed.len(), 1, "joint: {is_joint}");
            let snapshot = keyed.limiter(&Some(HeaderValue::from_static("acme"))).unwrap().snapshot();
            assert_eq!(snapshot.granted, 4 * calls, "joint: {is_joint}");
            assert_eq!(snapshot.requests_in_flight, Some(0), "joint: {is_joint}");
            assert_eq!(
                snapshot.units[0].available,
                1_000 - 10 * u32::try_from(calls).unwrap(),
                "joint: {is_joint}"
            );
        }
    }
}

/// A limiter whose permits expire during the wait for a connection, and whose issuer does not renew them. It records the
/// cost and the tokens of each request.
#[derive(Debug, Clone, Default)]
struct Unrenewed {
    /// Whether the permits have no amounts.
    is_bare: bool,
    taken: Arc<Mutex<Vec<(u32, u32)>>>,
}

impl Limiter for Unrenewed {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        self.taken.lock().unwrap().push((request.cost().get(), request.amounts().get(Unit::Tokens)));
        let permit = Permit::new(request.cost()).with_issuer(Arc::new(self.clone()));
        Acquire::ready(Ok(if self.is_bare { permit } else { permit.with_amounts(*request.amounts()) }))
    }
}

impl PermitIssuer for Unrenewed {}

#[tokio::test(start_paused = true)]
async fn request_whose_issuer_does_not_renew_permits_keeps_its_cost_and_amounts() {
    // Without the amounts of the permit, those of the changed request count.
    for (is_bare, expected) in [(false, [(5, 1_000), (5, 1_000)]), (true, [(5, 1_000), (5, 0)])] {
        let limiter = Unrenewed { is_bare, ..Unrenewed::default() };
        let client = builder().with_limiter(limiter.clone()).client_with_service(slow_transport()).unwrap();
        let request = client.get("/").header("x-cost", "5").header("x-tokens", "1000");
        assert_eq!(request.fetch_text().await.unwrap(), "ok");
        assert_eq!(*limiter.taken.lock().unwrap(), expected, "bare permits: {is_bare}");
    }
}
