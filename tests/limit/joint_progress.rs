//! No call waits while its permits are available, although tasks are polled late and permits expire.

use std::future::poll_fn;

use super::*;
use tower_outbound::limit::Joint;

#[derive(Debug, Clone, Copy)]
enum Rule {
    TokenBucket,
    PacedWindow,
    Adaptive,
    AdaptiveWithoutQuota,
}

/// The permits per second, the burst, the margin, the rule, and the limit of requests in flight with the hold after a
/// cancellation. All times are in milliseconds.
type Limits = (u32, u32, u64, Rule, Option<(u32, u64)>);

fn limits() -> impl Strategy<Value = Limits> {
    let in_flight = prop::option::of((1_u32..4, prop::sample::select(&[0, 300])));
    let rule = prop_oneof![
        2 => Just(Rule::TokenBucket),
        2 => Just(Rule::PacedWindow),
        1 => Just(Rule::Adaptive),
        1 => Just(Rule::AdaptiveWithoutQuota),
    ];
    (5_u32..30, 1_u32..4, prop::sample::select(&[0, 200]), rule, in_flight)
}

fn limiter((limit, burst, margin, rule, in_flight): Limits) -> LocalLimiter {
    let quota = Quota::per_second(limit).unwrap().with_burst(burst).unwrap().with_margin(millis(margin));
    let quota = quota.unwrap();
    let limiter = match rule {
        Rule::TokenBucket => LocalLimiter::token_bucket(quota),
        Rule::PacedWindow => LocalLimiter::paced_window(quota),
        Rule::Adaptive => LocalLimiter::adaptive(quota),
        Rule::AdaptiveWithoutQuota => LocalLimiter::adaptive([]),
    };
    let Some((max, hold)) = in_flight else { return limiter };
    limiter.with_max_in_flight(max).unwrap().with_hold_after_cancel(millis(hold))
}

#[derive(Debug, Clone)]
struct Call {
    starts_at: u64,
    part: bool,
    priority: Priority,
    response_after: u64,
    status: u16,
    cancelled_after: Option<u64>,
}

prop_compose! {
    fn call()(
        starts_at in 0_u64..500,
        part: bool,
        priority in prop::sample::select(&[Priority::Normal, Priority::Normal, Priority::Low, Priority::High]),
        response_after in 0_u64..400,
        status in prop_oneof![14 => Just(200), 1 => Just(429)],
        cancelled_after in prop::option::weighted(0.15, 0_u64..1_000),
    ) -> Call {
        Call { starts_at, part, priority, response_after, status, cancelled_after }
    }
}

/// How many polls begin on time before the next one begins late, and by how many milliseconds it is late.
type LatePolls = Arc<Mutex<VecDeque<(u32, u64)>>>;

/// Moves the clock if the next poll begins late. No timer fires meanwhile.
fn delay_poll(late: &LatePolls) {
    let mut late = late.lock().unwrap();
    match late.front_mut() {
        Some((on_time @ 1.., _)) => *on_time -= 1,
        Some((_, by)) => {
            assert_pending!(task::spawn(advance(millis(*by))).poll());
            late.pop_front();
        }
        None => {}
    }
}

/// Sends the calls through a layer with this limiter to a server with a few connections.
async fn send_all(
    limiter: impl SelectLimiter + Clone + Send + Sync + 'static,
    (calls, connections, late): (&[Call], usize, LatePolls),
) -> Result<(), TestCaseError> {
    let api = tower::service_fn(|request: Request<()>| async move {
        let call: &Call = request.extensions().get().unwrap();
        sleep(millis(call.response_after)).await;
        Response::builder().status(call.status).header("retry-after", "1").body(())
    });
    let service = RateLimitLayer::new(limiter).layer(ConcurrencyLimit::new(api, connections));
    let mut tasks = JoinSet::new();
    for call in calls.iter().cloned() {
        let (service, late) = (service.clone(), Arc::clone(&late));
        tasks.spawn(async move {
            sleep(millis(call.starts_at)).await;
            let mut request = Request::new(());
            request.extensions_mut().insert(call.priority);
            request.extensions_mut().insert(call.clone());
            let mut response = Box::pin(service.oneshot(request));
            let polled_late = poll_fn(|cx| {
                delay_poll(&late);
                response.as_mut().poll(cx)
            });
            let ended = timeout(call.cancelled_after.map_or(seconds(10_000), millis), polled_late).await;
            ended.map_or(call.cancelled_after.is_some(), |response| response.is_ok())
        });
    }
    loop {
        // Together, a permit, a connection, an absent waiter, a pause and two lost probes take less than 30 s.
        let late: u64 = late.lock().unwrap().iter().map(|(_, by)| *by).sum();
        match timeout(millis(30_000 + late), tasks.join_next()).await {
            Ok(Some(is_fine)) => prop_assert!(is_fine.unwrap(), "a call has failed"),
            Ok(None) => return Ok(()),
            Err(_) => prop_assert!(false, "{} calls wait for permits that are available", tasks.len()),
        }
    }
}

proptest! {
    #![proptest_config(cases(100))]

    #[test]
    fn some_call_ends_every_few_seconds_until_all_have_ended(
        [account, part] in [limits(), limits()],
        calls in vec(call(), 1..25),
        connections in 1_usize..4,
        late in vec((0_u32..20, 20_u64..2_000), 0..10),
    ) {
        let late = || Arc::new(Mutex::new(VecDeque::from(late.clone())));
        run_paused(send_all(limiter(part), (&calls, connections, late())))?;
        let part_of = |head: RequestHead<'_>| head.extensions.get().is_some_and(|call: &Call| call.part);
        let parts = Keyed::new(part_of, move |_: &bool| limiter(part));
        run_paused(send_all(Joint::new(limiter(account), parts), (&calls, connections, late())))?;
    }
}
