//! Tests of `Joint`: requests that take the permits of an account and of one of its parts together.

use super::*;
use tower::util::BoxCloneService;
use tower_outbound::limit::{Amounts, Joint, PermitSource, Scope, ServerSignal, Unit};

/// The part of a request, in its extensions.
#[derive(Clone, Copy)]
struct Part(u32);

fn joint(account: LocalLimiter, part: impl Fn(&u32) -> LocalLimiter + Send + Sync + 'static) -> Joint<u32> {
    let parts = Keyed::new(|head| head.extensions.get().map_or(0, |Part(number)| *number), part);
    Joint::new(account, parts)
}

fn to(part: u32) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(Part(part));
    request
}

/// Waits for the permits of a request to this part.
fn acquire(joint: &Joint<u32>, part: u32, request: &PermitRequest) -> Acquire {
    let head = to(part);
    joint.acquire_for(RequestHead::of(&head), request)
}

/// Returns the largest number of times in any window of this length.
fn most_in_window(times: &[Instant], window: Duration) -> usize {
    let until = |from: Instant| times.partition_point(|at| *at < from + window);
    times.iter().enumerate().map(|(first, from)| until(*from) - first).max().unwrap_or(0)
}

/// The times at which the requests of each part were granted. Each caller always has a request to send.
async fn backlogged(joint: &Joint<u32>, callers: &[u32], duration: Duration) -> BTreeMap<u32, Vec<Instant>> {
    let (start, times) = (Instant::now(), Arc::new(Mutex::new(BTreeMap::<_, Vec<_>>::new())));
    let mut tasks = JoinSet::new();
    for part in callers.iter().copied() {
        let (joint, times) = (joint.clone(), Arc::clone(&times));
        tasks.spawn(async move {
            while start.elapsed() < duration {
                let mut permit = acquire(&joint, part, &PermitRequest::new()).await.unwrap();
                assert!(!permit.is_expired());
                permit.mark_sent(Instant::now());
                times.lock().unwrap().entry(part).or_default().push(Instant::now());
                yield_now().await;
            }
        });
    }
    sleep(duration).await;
    tasks.abort_all();
    std::mem::take(&mut times.lock().unwrap())
}

#[tokio::test(start_paused = true)]
async fn neither_the_account_nor_a_part_exceeds_its_quota_and_both_use_it() {
    let window = millis(1_000);
    // 200 per second for all, and 10 per second for each part. Two windows composed by hand sent 221 in a second, or
    // sent 1.3 per second of a busy part.
    for (account, parts, callers) in [(200, 5, 4), (200, 40, 5), (20, 10, 3), (200, 1, 50)] {
        let joint = joint(LocalLimiter::paced_window(quota(account, 1_000, 1)), |_| {
            LocalLimiter::paced_window(quota(10, 1_000, 1))
        });
        let callers: Vec<_> = (0..parts).flat_map(|part| repeat_n(part, callers)).collect();
        let times = backlogged(&joint, &callers, seconds(30)).await;
        let mut all: Vec<_> = times.values().flatten().copied().collect();
        all.sort_unstable();
        assert!(most_in_window(&all, window) <= account as usize, "{account} {parts}");
        let most = u64::from(account.min(10 * parts)) * 30;
        assert!(all.len() as u64 * 100 >= most * 95, "{account} {parts}: {} of {most}", all.len());
        for (part, times) in &times {
            assert!(most_in_window(times, window) <= 10, "part {part}");
            let share = all.len() / parts as usize;
            assert!(
                times.len() * 100 >= share * 95,
                "{account} {parts}: part {part} got {} of {share}",
                times.len()
            );
        }
        let snapshot = joint.account().snapshot();
        assert_eq!(snapshot.granted, all.len() as u64, "no permit of the account was wasted");
    }
}

#[tokio::test(start_paused = true)]
async fn part_that_may_not_send_delays_no_other_part() {
    let account = LocalLimiter::paced_window(quota(11, 1_000, 10));
    let joint = joint(account.clone(), |_| LocalLimiter::paced_window(quota(1, 60_000, 1)));
    assert!(acquire(&joint, 0, &PermitRequest::new()).await.is_ok());
    let mut blocked: Vec<_> =
        (0..100).map(|_| task::spawn(acquire(&joint, 0, &PermitRequest::new()))).collect();
    blocked.iter_mut().for_each(|waiter| assert_pending!(waiter.poll()));
    let start = Instant::now();
    for part in 1..10 {
        acquire(&joint, part, &PermitRequest::new()).await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!((account.snapshot().granted, account.snapshot().queued), (10, 0));
}

#[tokio::test(start_paused = true)]
async fn request_that_either_limiter_cannot_serve_in_time_is_refused_at_once() {
    for (account, part) in [(1, 1_000), (1_000, 1)] {
        let joint = joint(LocalLimiter::token_bucket(quota(account + 1, 60_000, 1)), move |_| {
            LocalLimiter::token_bucket(quota(part + 1, 60_000, 1))
        });
        acquire(&joint, 0, &PermitRequest::new()).await.unwrap();
        for (request, reason) in [
            (PermitRequest::new().with_max_wait(seconds(59)), Reason::MaxWait),
            (PermitRequest::new().with_deadline(Instant::now() + seconds(59)), Reason::Deadline),
            (costing(2), Reason::TooCostly { largest: 1 }),
        ] {
            let refusal = assert_ready!(task::spawn(acquire(&joint, 0, &request)).poll()).unwrap_err();
            assert_eq!(refusal.reason(), reason);
        }
        let start = Instant::now();
        let request = PermitRequest::new().with_max_wait(seconds(60));
        acquire(&joint, 0, &request).await.unwrap();
        assert_eq!(start.elapsed(), seconds(60));
    }
}

#[tokio::test(start_paused = true)]
async fn key_whose_limiter_is_that_of_the_account_takes_one_permit() {
    let account = LocalLimiter::paced_window(quota(5, 1_000, 4));
    let same = account.clone();
    let joint = joint(account, move |_| same.clone());
    acquire(&joint, 0, &PermitRequest::new()).await.unwrap();
    assert_eq!(joint.account().snapshot().granted, 1);
}

/// Sends one request to part 0 through a layer. Returns how long the account and the part are paused after the
/// response.
async fn pauses_after(response: ScriptedResponse) -> [u64; 2] {
    let joint = joint(LocalLimiter::paced_window(quota(100, 1_000, 99)), |_| {
        LocalLimiter::paced_window(quota(100, 1_000, 99))
    });
    let api = ScriptedService::new([response]);
    let layer = RateLimitLayer::new(joint.clone());
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(Part(0));
    layer.layer(api).oneshot(request).await.unwrap();
    [joint.account().clone(), joint.parts().limiter(&0).unwrap()].map(|limiter| {
        let snapshot = limiter.snapshot();
        assert_eq!((snapshot.granted, snapshot.awaiting_response), (1, 0));
        let pause = snapshot.paused_until.map_or(0, |until| (until - Instant::now()).as_secs());
        let empty = limiter.try_acquire().err().and_then(|refusal| refusal.wait());
        pause.max(empty.map_or(0, |wait| wait.as_secs_f64().round() as u64))
    })
}

#[tokio::test(start_paused = true)]
async fn throttle_pauses_the_scope_that_it_names() {
    let discord =
        [("x-ratelimit-bucket", "abcd1234"), ("x-ratelimit-reset-after", "65"), ("retry-after", "65")];
    let github =
        [("x-ratelimit-limit", "30"), ("x-ratelimit-reset", "300"), ("x-ratelimit-resource", "search")];
    let (with, rows): (fn(&[_], _) -> Vec<_>, _) = (|headers, header| [headers, &[header]].concat(), [65, 0]);
    let [part, account, both] = [[0, rows[0]], [rows[0], 0], [rows[0]; 2]];
    for (status, headers, paused) in [
        (429, with(&with(&discord, ("x-ratelimit-remaining", "0")), ("x-ratelimit-scope", "user")), part),
        (429, with(&discord, ("x-ratelimit-scope", "shared")), part),
        (429, with(&discord, ("x-ratelimit-scope", "global")), account),
        // turn.io names only the bucket.
        (429, with(&discord, ("x-ratelimit-remaining", "0")), part),
        (429, with(&[("retry-after", "65")], ("stripe-rate-limited-reason", "endpoint-rate")), part),
        (429, with(&[("retry-after", "65")], ("stripe-rate-limited-reason", "global-rate")), account),
        (429, with(&[("retry-after", "65")], ("ratelimit-reason", "jira-burst-based")), part),
        (429, with(&[("retry-after", "65")], ("ratelimit-reason", "jira-quota-global-based")), account),
        // The reset of a quota that concerns the account.
        (
            429,
            with(
                &with(&github, ("x-ratelimit-remaining", "0")),
                ("ratelimit-reason", "jira-quota-global-based"),
            ),
            [300, 0],
        ),
        // The quota of most of GitHub's endpoints is that of the account.
        (
            403,
            vec![
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "300"),
                ("x-ratelimit-resource", "core"),
            ],
            [300, 300],
        ),
        // A throttle without a hint.
        (429, vec![("stripe-rate-limited-reason", "endpoint-concurrency")], [0, 1]),
        // An unknown scope may be the account.
        (429, with(&[("retry-after", "65")], ("x-ratelimit-scope", "organization")), both),
        (429, with(&[("retry-after", "65")], ("stripe-rate-limited-reason", "lock-timeout")), both),
        (
            429,
            vec![
                ("ratelimit-reason", "jira-cost-based"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "9"),
                ("retry-after", "65"),
            ],
            both,
        ),
        (429, with(&[("retry-after", "65")], ("ratelimit-reason", "jira-per-issue-on-write")), part),
        // A response that does not state its scope.
        (429, vec![("retry-after", "65")], both),
        (503, vec![("retry-after", "65")], both),
        (403, with(&github, ("x-ratelimit-remaining", "0")), [0, 300]),
        // GitHub's secondary limit concerns the account.
        (403, with(&with(&github, ("x-ratelimit-remaining", "14")), ("retry-after", "60")), [60, 60]),
        (200, with(&github, ("x-ratelimit-remaining", "0")), [0, 0]),
    ] {
        let response = headers.iter().fold(ScriptedResponse::status(status), |response, (name, value)| {
            response.with_header(name, value)
        });
        assert_eq!(pauses_after(response).await, paused, "{status} {headers:?}");
    }
}

/// The account is paused for two hours. Each later request is rejected because of its endpoint.
#[tokio::test(start_paused = true)]
async fn throttled_response_of_an_endpoint_does_not_end_the_long_pause_of_the_account() {
    let account: [fn() -> LocalLimiter; 2] =
        [|| LocalLimiter::adaptive([]), || LocalLimiter::paced_window(quota(1_000, 1_000, 500))];
    for account in account {
        let joint = joint(account(), |_| LocalLimiter::without_quota());
        let throttled = |delay, scope| {
            let response = ScriptedResponse::status(429).with_header("retry-after", delay);
            response.with_header("x-ratelimit-scope", scope)
        };
        let api = ScriptedService::new([throttled("7200", "global"), throttled("5", "user")]);
        let service = RateLimitLayer::new(joint.clone()).layer(api.clone());
        let start = Instant::now();
        for number in 0..7_100 {
            let call = service.clone().oneshot(to(number % 3).map(|()| Body::empty()));
            drop(timeout(millis(10), call).await);
            sleep(millis(990)).await;
        }
        let times: Vec<_> = api.arrivals().times().iter().map(|at| (*at - start).as_secs()).collect();
        assert_eq!(times, [0, 3_600], "one probe for each hour of the pause");
        assert_eq!(joint.account().snapshot().awaiting_response, 0);
    }
}

/// Sends one request to part 0 through a layer, which receives `signal`. Returns the snapshots of the account and the
/// part.
async fn snapshots_after(signal: ServerSignal, limiter: fn() -> LocalLimiter) -> [Snapshot; 2] {
    let joint = joint(limiter(), move |_| limiter());
    let api = tower::service_fn(move |_: Request<()>| {
        let mut response = Response::new(());
        response.extensions_mut().insert(signal);
        ready(Ok::<_, Infallible>(response))
    });
    RateLimitLayer::new(joint.clone()).layer(api).oneshot(to(0)).await.unwrap();
    [joint.account().snapshot(), joint.parts().limiter(&0).unwrap().snapshot()]
}

#[tokio::test(start_paused = true)]
async fn signal_states_the_scope() {
    let throttled = ServerSignal::throttled().with_delay(seconds(9));
    for (signal, paused) in [
        (throttled, [9, 9]),
        (throttled.with_scope(Scope::Endpoint), [0, 9]),
        (throttled.with_scope(Scope::Account), [9, 0]),
    ] {
        let snapshots = snapshots_after(signal, || LocalLimiter::paced_window(quota(100, 1_000, 9))).await;
        let pauses = snapshots
            .map(|snapshot| snapshot.paused_until.map_or(0, |until| (until - Instant::now()).as_secs()));
        assert_eq!(pauses, paused, "{signal:?}");
    }
}

/// Both limiters release the permit, because the server accepted the request.
#[tokio::test(start_paused = true)]
async fn remaining_permits_of_an_endpoint_do_not_limit_the_account() {
    let accepted = ServerSignal::accepted().with_remaining(2, seconds(9));
    for (signal, available) in [
        (accepted, [2, 2]),
        (accepted.with_scope(Scope::Endpoint), [u32::MAX, 2]),
        (accepted.with_scope(Scope::Account), [2, 2]),
    ] {
        let snapshots = snapshots_after(signal, LocalLimiter::without_quota).await;
        assert_eq!(snapshots.each_ref().map(|snapshot| snapshot.available), available, "{signal:?}");
        assert_eq!(snapshots.map(|snapshot| snapshot.awaiting_response), [0, 0]);
    }
}

/// GitHub allows 5,000 requests per hour, and 30 searches per minute.
#[tokio::test(start_paused = true)]
async fn quota_of_a_resource_does_not_pace_the_others() {
    let joint = joint(LocalLimiter::adaptive([]), |_| LocalLimiter::adaptive([]));
    let api = tower::service_fn(|request: Request<()>| {
        let is_search = matches!(request.extensions().get(), Some(Part(1)));
        let (resource, limit, reset) = if is_search { ("search", "30", "60") } else { ("core", "100", "1") };
        let response = Response::builder().header("x-ratelimit-resource", resource);
        let response = response.header("x-ratelimit-limit", limit).header("x-ratelimit-remaining", limit);
        ready(response.header("x-ratelimit-reset", reset).body(()))
    });
    let service = RateLimitLayer::new(joint.clone()).layer(api);
    for part in [0, 1, 0, 1] {
        service.clone().oneshot(to(part)).await.unwrap();
    }
    // Per minute.
    let rate =
        |limiter: &LocalLimiter| limiter.snapshot().learned.map(|learned| (60.0 * learned.rate()).round());
    assert_eq!(rate(joint.account()), Some(5_882.0));
    assert_eq!(rate(&joint.parts().limiter(&0).unwrap()), Some(5_882.0));
    assert_eq!(rate(&joint.parts().limiter(&1).unwrap()), Some(29.0));

    // A single limiter is paced by the quota of the account, because it cannot tell which requests are searches.
    let single = LocalLimiter::adaptive([]);
    let service = RateLimitLayer::new(single.clone()).layer(api);
    for part in [0, 1, 0] {
        service.clone().oneshot(to(part)).await.unwrap();
    }
    assert_eq!(rate(&single), Some(5_882.0));
}

fn endpoints() -> Keyed<bool> {
    let search = quota(1, 9_000, 1);
    Keyed::new(
        |head| head.uri.path().starts_with("/search"),
        move |is_search| {
            if *is_search { LocalLimiter::paced_window(search) } else { LocalLimiter::without_quota() }
        },
    )
}

#[tokio::test(start_paused = true)]
async fn builder_limits_an_account_and_its_endpoints() {
    let builder = preset::currency_rates("https://rates.example.com").unwrap();
    let builder = builder.with_api_key(ApiKey::new("k3y").unwrap()).with_endpoint_limits(endpoints());
    // The order of the setters has no effect.
    let builder = builder.with_quota(Quota::per_second(10).unwrap());
    let service = builder.layer().unwrap().layer(ScriptedService::new([200; 5]));
    let (start, mut at) = (Instant::now(), Vec::new());
    for path in ["/search", "/latest", "/latest", "/search"] {
        let request = Request::get(format!("https://rates.example.com{path}")).body(Body::empty()).unwrap();
        service.clone().oneshot(request).await.unwrap();
        at.push(start.elapsed().as_secs());
    }
    assert_eq!(at, [0, 0, 0, 9]);
    let account: &LocalLimiter = builder.limiter().downcast_ref().unwrap();
    assert_eq!(account.snapshot().granted, 4);
}

#[test]
fn endpoint_limits_need_a_local_limiter() {
    let builder = preset::currency_rates("https://rates.example.com").unwrap();
    let builder = builder.with_api_key(ApiKey::new("k3y").unwrap()).with_limiter(endpoints());
    let error = builder.with_endpoint_limits(endpoints()).layer().unwrap_err();
    assert_eq!(error.field(), "limiter with endpoint limits");
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A request to this part, which costs this many permits and is dropped after this many milliseconds.
    Request {
        part: u32,
        cost: u32,
        patience: Option<u64>,
        priority: Priority,
    },
    /// Pauses the account, or a part, for this many milliseconds.
    Pause {
        part: Option<u32>,
        length: u64,
    },
    Sleep(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let priority = prop::sample::select(&[Priority::Low, Priority::Normal, Priority::High]);
    let patience = prop_oneof![3 => Just(None), 1 => (0_u64..3_000).prop_map(Some)];
    let request = (0_u32..3, 1_u32..3, patience, priority);
    prop_oneof![
        6 => request.prop_map(|(part, cost, patience, priority)| Step::Request { part, cost, patience, priority }),
        1 => (prop::option::of(0_u32..3), 0_u64..2_000).prop_map(|(part, length)| Step::Pause { part, length }),
        3 => (0_u64..1_500).prop_map(Step::Sleep),
    ]
}

/// The times of the grants with their parts and costs, and the ends of the pauses.
#[derive(Default)]
struct Log {
    grants: Vec<(Instant, u32, u32)>,
    paused: BTreeMap<Option<u32>, Instant>,
}

async fn run_script(steps: &[Step]) -> Result<(), TestCaseError> {
    let (of_account, of_part) = (quota(12, 2_000, 3), quota(5, 1_000, 2));
    let joint = joint(LocalLimiter::paced_window(of_account), move |_| LocalLimiter::paced_window(of_part));
    let (log, mut tasks) = (Arc::new(Mutex::new(Log::default())), JoinSet::new());
    for step in steps {
        match *step {
            Step::Request { part, cost, patience, priority } => {
                let (joint, log) = (joint.clone(), Arc::clone(&log));
                tasks.spawn(async move {
                    let acquire = acquire(&joint, part, &costing(cost).with_priority(priority));
                    let granted = match patience {
                        Some(patience) => timeout(millis(patience), acquire).await.ok(),
                        None => Some(acquire.await),
                    };
                    let Some(mut permit) = granted.map(Result::unwrap).filter(|permit| !permit.is_expired())
                    else {
                        return patience.is_some();
                    };
                    permit.mark_sent(Instant::now());
                    let mut log = log.lock().unwrap();
                    let paused =
                        [None, Some(part)].iter().any(|of| log.paused.get(of) > Some(&Instant::now()));
                    log.grants.push((Instant::now(), part, cost));
                    permit.complete(&ResponseInfo::new(StatusCode::OK, &HeaderMap::new()));
                    !paused
                });
            }
            Step::Pause { part, length } => {
                let limiter =
                    part.map_or(joint.account().clone(), |part| joint.parts().limiter(&part).unwrap());
                let end = Instant::now() + millis(length);
                limiter.pause_until(end);
                let mut log = log.lock().unwrap();
                let known = log.paused.entry(part).or_insert(end);
                *known = end.max(*known);
            }
            Step::Sleep(length) => sleep(millis(length)).await,
        }
        yield_now().await;
    }
    // All requests need at most a few seconds for each step.
    let all = timeout(seconds(10 * steps.len() as u64 + 60), tasks.join_all()).await;
    prop_assert!(
        all.is_ok_and(|fine| fine.into_iter().all(|fine| fine)),
        "a request is stuck, or left during a pause"
    );
    let log = log.lock().unwrap();
    for (parts, limit, window) in
        [(vec![0, 1, 2], 12, 2_000), (vec![0], 5, 1_000), (vec![1], 5, 1_000), (vec![2], 5, 1_000)]
    {
        let grants = log.grants.iter().filter(|grant| parts.contains(&grant.1));
        let times: Vec<_> = grants.flat_map(|(at, _, cost)| repeat_n(*at, *cost as usize)).collect();
        prop_assert!(most_in_window(&times, millis(window)) <= limit, "{parts:?}: {times:?}");
    }
    let limiters = (0..3).map(|part| joint.parts().limiter(&part).unwrap()).chain([joint.account().clone()]);
    for snapshot in limiters.map(|limiter| limiter.snapshot()) {
        prop_assert_eq!((snapshot.queued, snapshot.awaiting_response), (0, 0));
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn no_script_exceeds_a_quota_or_loses_a_request(steps in vec(step(), 1..60)) {
        run_paused(run_script(&steps))?;
    }
}

/// The bound of the virtual token counter (OSDI 2024) for requests of one permit: two tenants that always have a
/// request in the queue differ by at most two permits.
#[tokio::test(start_paused = true)]
async fn two_thousand_tenants_below_one_quota_are_all_served_in_turns() {
    const TENANTS: usize = 2_000;
    let account = LocalLimiter::paced_window(Quota::per_second(200).unwrap());
    let own = Quota::per_second(10).unwrap();
    let tenant = |head: RequestHead<'_>| head.uri.path().to_owned();
    let joint = Joint::new(account, Keyed::new(tenant, move |_: &String| LocalLimiter::paced_window(own)));
    let service = RateLimitLayer::new(joint)
        .layer(tower::service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(())))));
    let served = Arc::new(Mutex::new(vec![0_u32; TENANTS]));
    let mut calls = JoinSet::new();
    for tenant in (0..TENANTS).cycle().take(2 * TENANTS) {
        let (service, served) = (service.clone(), Arc::clone(&served));
        calls.spawn(async move {
            loop {
                let request = Request::get(format!("https://api.example.com/{tenant}")).body(()).unwrap();
                service.clone().oneshot(request).await.unwrap();
                served.lock().unwrap()[tenant] += 1;
            }
        });
    }
    for second in 1..=60 {
        sleep(seconds(1)).await;
        let served = served.lock().unwrap();
        let (fewest, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
        assert!(most - fewest <= 2, "{fewest} to {most} after {second} s");
    }
    let served = served.lock().unwrap();
    assert!(served.iter().all(|permits| *permits >= 4), "{:?}", served.iter().min());
    assert!(served.iter().sum::<u32>() >= 60 * 180);
}

/// The bound holds for the requests, whatever they cost or take of another unit.
#[tokio::test(start_paused = true)]
async fn backlogged_parts_get_equal_turns_and_not_equal_amounts() {
    let tokens = Quota::per_second(20_000).unwrap().with_unit(Unit::Tokens).unwrap();
    let taking = |amount| PermitRequest::new().with_amounts(Amounts::of(Unit::Tokens, amount));
    for requests in [[costing(1), costing(10)], [taking(100), taking(1_000)]] {
        let account = LocalLimiter::paced_window([Quota::per_second(200).unwrap(), tokens]);
        let joint = joint(account, |_| LocalLimiter::without_quota());
        let granted = Arc::new(Mutex::new([0_u32; 2]));
        let mut callers = JoinSet::new();
        for part in [0, 1].into_iter().cycle().take(20) {
            let (joint, granted, request) = (joint.clone(), Arc::clone(&granted), requests[part as usize]);
            callers.spawn(async move {
                loop {
                    let mut permit = acquire(&joint, part, &request).await.unwrap();
                    permit.mark_sent(Instant::now());
                    granted.lock().unwrap()[part as usize] += 1;
                    drop(permit);
                }
            });
        }
        // The first caller may take the burst alone, because no other request waits yet.
        sleep(seconds(1)).await;
        let first = *granted.lock().unwrap();
        for second in 1..=60 {
            sleep(seconds(1)).await;
            let turns = *granted.lock().unwrap();
            let [one, other] = [0, 1].map(|part| turns[part] - first[part]);
            assert!(one.abs_diff(other) <= 2, "{one} and {other} after {second} s");
            assert!(one >= 15 * second, "{one} after {second} s");
        }
    }
}

/// A custom limiter that takes the permits of two limiters, one after the other.
#[derive(Clone)]
struct InTurn {
    account: LocalLimiter,
    tenants: Keyed<String>,
    is_account_first: bool,
}

impl SelectLimiter for InTurn {
    fn acquire_for(&self, head: RequestHead<'_>, request: &PermitRequest) -> Acquire {
        let mut both = [self.account.acquire_for(head, request), self.tenants.acquire_for(head, request)];
        if !self.is_account_first {
            both.reverse();
        }
        let [first, second] = both;
        Acquire::new(async move {
            let mut first = first.await?;
            let second = second.await?;
            first.mark_sent(Instant::now());
            Ok(second)
        })
    }
}

/// Drops the response's body, whose type depends on the layers.
fn boxed<S, B>(service: S) -> BoxCloneService<Request<Body>, (), Error>
where
    S: Service<Request<Body>, Response = Response<B>, Error = Error, Future: Send> + Clone + Send + 'static,
    B: 'static,
{
    BoxCloneService::new(service.map_response(drop))
}

/// The guide's page `limits` states the figures: up to 213 requests of the account, and up to 11 of a tenant.
#[tokio::test(start_paused = true)]
async fn two_layers_and_a_custom_limiter_over_two_enforce_only_the_inner_quota() {
    for (is_account_first, is_custom) in [(true, false), (false, false), (true, true), (false, true)] {
        let api = ScriptedService::new([200]);
        let account = LocalLimiter::paced_window(Quota::per_second(200).unwrap());
        let own = Quota::per_second(10).unwrap();
        let tenant = |head: RequestHead<'_>| head.uri.path().to_owned();
        let tenants = Keyed::new(tenant, move |_: &String| LocalLimiter::paced_window(own));
        let service = match (is_custom, is_account_first) {
            (true, _) => {
                boxed(RateLimitLayer::new(InTurn { account, tenants, is_account_first }).layer(api.clone()))
            }
            (false, true) => {
                let inner = RateLimitLayer::new(tenants).layer(api.clone());
                boxed(RateLimitLayer::new(account).layer(inner))
            }
            (false, false) => {
                let inner = RateLimitLayer::new(account).layer(api.clone());
                boxed(RateLimitLayer::new(tenants).layer(inner))
            }
        };
        let callers: Vec<_> = match is_account_first {
            true => (0..40).flat_map(|tenant| repeat_n(tenant, 5)).collect(),
            false => repeat_n(0, 200).chain((1..31).flat_map(|tenant| repeat_n(tenant, 2))).collect(),
        };
        let mut calls = JoinSet::new();
        for tenant in callers {
            let service = service.clone();
            calls.spawn(async move {
                loop {
                    let request = Request::get(format!("https://api.example.com/{tenant}"));
                    service.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
                }
            });
        }
        sleep(seconds(10)).await;
        calls.abort_all();
        let of_account: Vec<_> = api.seen().iter().map(|seen| seen.at).collect();
        let of_first = api.seen().into_iter().filter(|seen| seen.head.uri.path() == "/0");
        let of_first: Vec<_> = of_first.map(|seen| seen.at).collect();
        let most = [of_account, of_first].map(|times| most_in_window(&times, seconds(1)));
        let (of_account, of_first) = if is_account_first { (205..=213, 0..=10) } else { (0..=200, 11..=11) };
        assert!(
            of_account.contains(&most[0]) && of_first.contains(&most[1]),
            "account first: {is_account_first}, custom limiter: {is_custom}: {most:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn request_that_its_part_refuses_does_not_wait_for_the_account() {
    let joint = joint(LocalLimiter::paced_window(quota(9, 100_000, 2)), |_| {
        LocalLimiter::paced_window(quota(100, 1_000, 9))
    });
    acquire(&joint, 0, &costing(2)).await.unwrap();
    let waiter = tokio::spawn(acquire(&joint, 0, &costing(2)));
    sleep(seconds(1)).await;
    let (start, part) = (Instant::now(), joint.parts().limiter(&0).unwrap());
    part.set_quotas([quota(2, 1_000, 1)]);
    assert_eq!(waiter.await.unwrap().unwrap_err().reason(), Reason::TooCostly { largest: 1 });
    assert!(start.elapsed() <= millis(501), "{:?}", start.elapsed());
    assert_eq!((part.snapshot().queued, joint.account().snapshot().queued), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn wait_in_both_queues_is_at_most_the_longest_wait() {
    let joint = joint(LocalLimiter::paced_window(quota(1, 10_000, 1)), |_| {
        LocalLimiter::paced_window(quota(1, 1_000, 1))
    });
    acquire(&joint, 0, &PermitRequest::new()).await.unwrap();
    let start = Instant::now();
    let patient = tokio::spawn(acquire(&joint, 0, &PermitRequest::new().with_max_wait(seconds(10))));
    yield_now().await;
    // Overtakes the first request in the queue of the account.
    let urgent = PermitRequest::new().with_priority(Priority::High);
    let urgent = tokio::spawn(acquire(&joint, 1, &urgent));
    let refusal = patient.await.unwrap().unwrap_err();
    assert!(start.elapsed() <= seconds(2), "{:?}", start.elapsed());
    assert_eq!(refusal.reason(), Reason::MaxWait);
    urgent.await.unwrap().unwrap();
}

/// The caller of the first request of a part no longer polls it.
#[tokio::test(start_paused = true)]
async fn unpolled_request_delays_its_part_by_at_most_a_second() {
    let joint = joint(LocalLimiter::paced_window(quota(10, 1_000, 1)), |_| {
        LocalLimiter::paced_window(quota(10, 1_000, 1))
    });
    acquire(&joint, 0, &PermitRequest::new()).await.unwrap();
    let mut unpolled = Box::pin(acquire(&joint, 0, &PermitRequest::new()));
    assert_pending!(task::spawn(&mut unpolled).poll());
    let start = Instant::now();
    acquire(&joint, 0, &PermitRequest::new()).await.unwrap();
    assert!(start.elapsed() <= millis(1_200), "{:?}", start.elapsed());
    unpolled.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn flood_of_one_part_fills_its_own_queue_and_delays_no_other_part() {
    let joint = joint(LocalLimiter::paced_window(one_per_second()), |_| LocalLimiter::without_quota());
    let bounded = PermitRequest::new().with_max_queue(3);
    let mut calls = JoinSet::new();
    for part in repeat_n(0, 10).chain([1]) {
        let call = acquire(&joint, part, &bounded);
        calls.spawn(async move { (part, call.await.map(drop).map_err(|refusal| refusal.reason())) });
    }
    sleep(millis(1)).await;
    assert_eq!(joint.account().snapshot().queued, 2, "one request of each part");
    let mut outcomes = Vec::new();
    while let Some(outcome) = calls.join_next().await {
        outcomes.push(outcome.unwrap());
    }
    outcomes.retain(|outcome| *outcome != (0, Err(Reason::QueueFull)));
    // One request was granted at once and three were queued. The parts take turns.
    assert_eq!(outcomes, [(0, Ok(())), (0, Ok(())), (1, Ok(())), (0, Ok(())), (0, Ok(()))]);
}

/// The caller is polled more than a second after its turn has come, and before the queue has checked it.
#[tokio::test(start_paused = true)]
async fn request_that_is_polled_late_keeps_its_turn() {
    let joint = joint(LocalLimiter::paced_window(quota(10, 1_000, 1)), |_| {
        LocalLimiter::paced_window(quota(10, 1_000, 1))
    });
    acquire(&joint, 0, &PermitRequest::new()).await.unwrap();
    let mut late = task::spawn(acquire(&joint, 0, &PermitRequest::new()));
    assert_pending!(late.poll());
    sleep(millis(101)).await;
    assert!(late.is_woken());
    // The first poll moves the clock without firing timers.
    assert_pending!(task::spawn(advance(millis(1_001))).poll());
    assert_ready!(late.poll()).unwrap();
}

/// A store whose permits and tokens arrive when the test adds them.
#[derive(Clone, Default)]
struct Store(Arc<Mutex<(u32, u32)>>);

impl Store {
    fn limiter(&self) -> LocalLimiter {
        let tokens = Quota::per_minute(1_000).unwrap().with_unit(Unit::Tokens).unwrap();
        LocalLimiter::from_source(self.clone(), [quota(100, 1_000, 1), tokens])
    }

    fn set(&self, permits: u32, tokens: u32) {
        *self.0.lock().unwrap() = (permits, tokens);
    }

    fn left(&self) -> (u32, u32) {
        *self.0.lock().unwrap()
    }
}

impl PermitSource for Store {
    fn take(&mut self, cost: NonZeroU32, amounts: &Amounts, _: u64) -> bool {
        let (permits, tokens) = &mut *self.0.lock().unwrap();
        let taken = amounts.get(Unit::Tokens);
        let is_free = *permits >= cost.get() && *tokens >= taken;
        if is_free {
            (*permits, *tokens) = (*permits - cost.get(), *tokens - taken);
        }
        is_free
    }

    fn forecast(&self, start: u64, _: u64, _: u32) -> u64 {
        start
    }

    fn available(&self, _: u64) -> u32 {
        self.0.lock().unwrap().0
    }
}

fn taking_100_tokens() -> PermitRequest {
    PermitRequest::new().with_amounts(Amounts::of(Unit::Tokens, 100))
}

#[tokio::test(start_paused = true)]
async fn request_waits_for_a_store_without_taking_the_permits_of_the_other_limiter() {
    for of_account in [true, false] {
        for (at_first, reports_change) in [((0, 0), true), ((0, 100), true), ((5, 0), true), ((5, 0), false)]
        {
            let case = format!("{of_account} {at_first:?} {reports_change}");
            let (store, local) = (Store::default(), LocalLimiter::sliding_window(quota(10, 60_000, 1)));
            let stored = store.limiter();
            let (account, part) =
                if of_account { (stored.clone(), local.clone()) } else { (local.clone(), stored.clone()) };
            let joint = joint(account, move |_| part.clone());
            let mut waiter = task::spawn(acquire(&joint, 0, &taking_100_tokens()));
            assert_pending!(waiter.poll(), "{case}");
            store.set(at_first.0, at_first.1);
            stored.source_changed();
            for _ in 0..30 {
                assert_pending!(waiter.poll(), "{case}");
                advance(millis(100)).await;
                yield_now().await;
            }
            assert_eq!((local.snapshot().granted, store.left()), (0, at_first), "{case}");
            store.set(5, 150);
            if reports_change {
                stored.source_changed();
            }
            timeout(seconds(1), waiter).await.expect(&case).unwrap();
            assert_eq!((local.snapshot().granted, stored.snapshot().granted, store.left()), (1, 1, (4, 50)));
        }
    }
}

/// The store of the account grants a permit that is wasted, because that of the part does not.
#[tokio::test(start_paused = true)]
async fn request_whose_permit_has_expired_stays_in_flight_while_a_store_withholds_its_permits() {
    let (of_account, of_part) = (Store::default(), Store::default());
    let account = of_account.limiter().with_max_in_flight(2).unwrap();
    let part = of_part.limiter();
    let joint = joint(account.clone(), {
        let part = part.clone();
        move |_| part.clone()
    });
    of_account.set(1_000, 100_000);
    of_part.set(1, 100);
    let layer = RateLimitLayer::new(joint).with_estimate(|_| Amounts::of(Unit::Tokens, 100));
    let call = tokio::spawn(layer.layer(ready_after(1_000)).oneshot(to(0)));
    sleep(millis(500)).await;
    of_part.set(5, 0);
    for _ in 0..10 {
        sleep(millis(500)).await;
        assert_eq!(account.snapshot().requests_in_flight, Some(1));
    }
    of_part.set(5, 100);
    part.source_changed();
    drop(timeout(seconds(1), call).await.unwrap().unwrap().unwrap());
    assert_eq!((account.snapshot().requests_in_flight, of_part.left()), (Some(0), (4, 0)));
}

#[tokio::test(start_paused = true)]
async fn request_that_a_store_withholds_is_granted_although_its_limiter_is_read_when_the_tokens_arrive() {
    let (store, account) = (Store::default(), LocalLimiter::sliding_window(quota(10, 60_000, 1)));
    let stored = store.limiter();
    let part = stored.clone();
    let joint = joint(account.clone(), move |_| part.clone());
    store.set(5, 0);
    let withheld = tokio::spawn(acquire(&joint, 0, &taking_100_tokens()));
    // The store is called again every 100 ms.
    sleep(millis(950)).await;
    store.set(5, 100);
    assert_eq!((stored.snapshot().granted, store.left()), (0, (5, 100)));
    timeout(millis(200), withheld).await.unwrap().unwrap().unwrap();
    assert_eq!((account.snapshot().granted, stored.snapshot().granted, store.left()), (1, 1, (4, 0)));
}

#[tokio::test(start_paused = true)]
async fn request_is_granted_after_the_one_before_it_that_a_store_withheld_is_dropped() {
    let (store, account) = (Store::default(), LocalLimiter::sliding_window(quota(10, 60_000, 1)));
    let stored = store.limiter();
    let part = stored.clone();
    let joint = joint(account.clone(), move |_| part.clone());
    store.set(5, 0);
    let mut withheld = task::spawn(acquire(&joint, 0, &taking_100_tokens()));
    assert_pending!(withheld.poll());
    let next = tokio::spawn(acquire(&joint, 0, &PermitRequest::new()));
    sleep(millis(950)).await;
    assert_pending!(withheld.poll());
    drop(withheld);
    timeout(millis(200), next).await.unwrap().unwrap().unwrap();
    assert_eq!((account.snapshot().granted, stored.snapshot().granted, store.left()), (1, 1, (4, 0)));
}

/// The reset of a quota that the server reported begins a slow start of the part, which has no quota.
#[tokio::test(start_paused = true)]
async fn request_after_the_reset_of_a_quota_of_its_part_wastes_no_permit_of_the_account() {
    let account = LocalLimiter::sliding_window(quota(10, 60_000, 1));
    let joint = joint(account.clone(), |_| LocalLimiter::without_quota());
    let headers = [("x-ratelimit-limit", "100"), ("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "2")];
    let response = headers
        .iter()
        .fold(ScriptedResponse::status(200), |response, (name, value)| response.with_header(name, value));
    let service = RateLimitLayer::new(joint.clone()).layer(ScriptedService::new([response]));
    service.oneshot(to(0).map(|()| Body::empty())).await.unwrap();
    sleep(millis(2_010)).await;
    for granted in [5, 9] {
        timeout(seconds(1), acquire(&joint, 0, &costing(4))).await.unwrap().unwrap();
        assert_eq!(account.snapshot().granted, granted);
    }
}
