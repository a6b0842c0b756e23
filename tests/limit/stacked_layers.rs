//! Tests that two rate limit layers in one stack exceed one of their quotas, and that a `Joint` exceeds neither.

use super::*;
use tower::util::BoxCloneService;
use tower_outbound::limit::Joint;

/// The tenant of a request, in its extensions.
#[derive(Clone, Copy)]
struct Tenant(u32);

enum Order {
    AccountOutside,
    TenantOutside,
    Joint,
}

/// The arrivals of 10 s at a server. The account has 200 requests per second and each tenant 10. Each caller always has
/// a request to send.
async fn arrivals(order: Order, callers: impl IntoIterator<Item = u32>) -> BTreeMap<u32, Vec<Instant>> {
    let account = LocalLimiter::paced_window(Quota::per_second(200).unwrap());
    let own = Quota::per_second(10).unwrap();
    let tenants = Keyed::new(
        |head| head.extensions.get::<Tenant>().map_or(0, |tenant| tenant.0),
        move |_| LocalLimiter::paced_window(own),
    );
    let arrived = Arc::new(Mutex::new(BTreeMap::<u32, Vec<Instant>>::new()));
    let server = {
        let arrived = Arc::clone(&arrived);
        tower::service_fn(move |request: Request<()>| {
            let Tenant(tenant) = *request.extensions().get().unwrap();
            arrived.lock().unwrap().entry(tenant).or_default().push(Instant::now());
            ready(Ok::<_, Infallible>(Response::new(())))
        })
    };
    let (account, tenants, both) = (
        RateLimitLayer::new(account.clone()),
        RateLimitLayer::new(tenants.clone()),
        RateLimitLayer::new(Joint::new(account, tenants)),
    );
    let mut calls = JoinSet::new();
    let without_count = |response: Response<InFlightBody<()>>| response.map(InFlightBody::into_inner);
    let service = match order {
        Order::AccountOutside => BoxCloneService::new(
            account.layer(tenants.layer(server).map_response(without_count)).map_response(drop),
        ),
        Order::TenantOutside => BoxCloneService::new(
            tenants.layer(account.layer(server).map_response(without_count)).map_response(drop),
        ),
        Order::Joint => BoxCloneService::new(both.layer(server).map_response(drop)),
    };
    for tenant in callers {
        let service = service.clone();
        calls.spawn(async move {
            loop {
                let mut request = Request::new(());
                request.extensions_mut().insert(Tenant(tenant));
                service.clone().oneshot(request).await.unwrap();
            }
        });
    }
    sleep(seconds(10)).await;
    calls.abort_all();
    std::mem::take(&mut arrived.lock().unwrap())
}

fn most_in_a_second(times: impl Iterator<Item = Instant>) -> usize {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    let until = |from: Instant| times.partition_point(|at| *at < from + seconds(1));
    times.iter().enumerate().map(|(first, from)| until(*from) - first).max().unwrap_or(0)
}

#[tokio::test(start_paused = true)]
async fn two_layers_enforce_only_the_inner_quota_and_a_joint_limiter_enforces_both() {
    let (even, busy) = (
        || (0..40).flat_map(|tenant| repeat_n(tenant, 5)),
        || repeat_n(0, 200).chain((1..31).flat_map(|tenant| repeat_n(tenant, 2))),
    );
    let most = |times: &BTreeMap<u32, Vec<Instant>>| {
        let of_account = most_in_a_second(times.values().flatten().copied());
        (of_account, times.values().map(|times| most_in_a_second(times.iter().copied())).max().unwrap())
    };
    let (of_account, of_tenant) = most(&arrivals(Order::AccountOutside, even()).await);
    // The guide states the figures of two layers, which exceed the outer quota: 213 and 11.
    assert!(of_account > 200 && of_tenant <= 10, "{of_account} {of_tenant}");
    let (of_account, of_tenant) = most(&arrivals(Order::TenantOutside, busy()).await);
    assert!(of_account <= 200 && of_tenant > 10, "{of_account} {of_tenant}");
    for times in [arrivals(Order::Joint, even()).await, arrivals(Order::Joint, busy()).await] {
        let (of_account, of_tenant) = most(&times);
        assert!(of_account <= 200 && of_tenant <= 10, "{of_account} {of_tenant}");
        assert!(times.values().map(Vec::len).sum::<usize>() >= 10 * 180);
    }
}
