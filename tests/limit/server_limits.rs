//! The limiter's ear: what a server says of its limits in an answer, through the layer, on paused time.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    num::NonZeroU32,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use crate::support::cases::cases;
use http::{Request, Response};
use proptest::prelude::*;
use tokio::{
    task::{JoinHandle, JoinSet},
    time::Instant,
};
use tokio_test::{assert_pending, assert_ready_ok, task};
use tower::{ServiceBuilder, ServiceExt, util::BoxCloneSyncService};
use tower_layer::Layer;
use tower_outbound::{
    ApiKey, BoxError, Error, Quota, Report,
    body::ReplayBody,
    limit::{
        Limiter, PermitCost, PermitRequest, RateLimitLayer, ResponseInfo, SlidingWindow, Snapshot,
        TokenBucket,
    },
    preset,
    timeout::TimeoutLayer,
};

/// Both strategies have the same ear.
trait Strategy: Limiter + Send + Sync + 'static {
    fn of(quota: Quota) -> Self;
    fn unlimited() -> Self;
    fn snapshot(&self) -> Snapshot;
    fn pause(&self, length: Duration);
}

macro_rules! strategy {
    ($limiter:ident) => {
        impl Strategy for $limiter {
            fn of(quota: Quota) -> Self {
                Self::new(quota)
            }
            fn unlimited() -> Self {
                Self::unlimited()
            }
            fn snapshot(&self) -> Snapshot {
                self.snapshot()
            }
            fn pause(&self, length: Duration) {
                self.pause_until(tokio::time::Instant::now() + length);
            }
        }
    };
}
strategy!(TokenBucket);
strategy!(SlidingWindow);

/// A test for each strategy.
macro_rules! for_both {
    ($($name:ident,)*) => {$(
        mod $name {
            #[tokio::test(start_paused = true)]
            async fn token_bucket() {
                super::$name::<super::TokenBucket>().await;
            }

            #[tokio::test(start_paused = true)]
            async fn sliding_window() {
                super::$name::<super::SlidingWindow>().await;
            }
        }
    )*};
}

for_both! {
    every_form_on_a_200_lets_go_what_is_left_and_no_more,
    a_moment_is_read_by_our_own_clock_where_the_server_tells_none,
    an_unmetered_limiter_lives_by_the_servers_word_alone,
    without_a_quota_a_pause_ends_with_few_and_not_with_all,
    without_a_quota_each_window_of_the_server_is_used_to_the_full,
    without_a_quota_what_waits_for_more_than_is_left_leaves_by_and_by_too,
    a_server_that_counts_down_is_believed_and_not_counted_twice,
    a_lower_word_lowers_what_is_left,
    an_answer_that_is_late_or_out_of_order_raises_nothing,
    requests_in_flight_are_taken_off_what_is_left,
    an_answered_request_of_a_higher_cost_is_not_in_flight_any_more,
    what_is_left_is_spent_by_cost_and_in_order,
    policies_hold_side_by_side,
    a_policy_of_little_is_heard_beside_many_of_much,
    after_its_time_a_word_is_forgotten_and_the_next_one_counts,
    retry_after_is_only_ever_extended,
    retry_after_pauses_all_callers_after_429_503_and_529_only,
    all_who_share_the_limiter_see_it_and_nobody_else,
    waiters_leave_a_pause_in_order_and_by_the_quota,
    a_pause_and_its_end_wake_nobody_who_can_not_go,
    who_can_not_meet_the_deadline_any_more_is_refused_when_the_pause_comes,
    who_stands_too_far_back_for_the_deadline_is_refused_when_the_pause_comes,
    who_stands_behind_what_is_left_is_refused_when_the_word_comes,
    a_newcomer_that_fits_behind_what_is_left_is_let_in,
    a_cached_answer_says_nothing,
    a_field_of_a_thousand_members_is_read_and_harmless,
    a_thousand_policies_in_turn_are_harmless,
    a_call_is_in_flight_until_it_is_answered_fails_or_is_dropped,
}

/// A service that gives its answers in order of arrival, each after its own time, and notes when each request
/// came. Without an answer left it says 200 and nothing else, at once.
struct Server {
    start: Instant,
    answers: Mutex<VecDeque<(Duration, Response<()>)>>,
    arrivals: Mutex<Vec<Instant>>,
}

type Service = BoxCloneSyncService<Request<()>, Response<()>, Error>;
type Call = JoinHandle<Result<Response<()>, Error>>;

impl Server {
    fn start() -> Arc<Self> {
        let (start, answers, arrivals) = (Instant::now(), Mutex::default(), Mutex::default());
        Arc::new(Self { start, answers, arrivals })
    }

    /// The answer to the next request that has none yet.
    fn will_say(&self, after: f64, response: Response<()>) {
        self.answers.lock().unwrap().push_back((Duration::from_secs_f64(after), response));
    }

    async fn serve(&self) -> Result<Response<()>, BoxError> {
        self.arrivals.lock().unwrap().push(Instant::now());
        let answer = self.answers.lock().unwrap().pop_front();
        let Some((after, response)) = answer else { return Ok(Response::new(())) };
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        if response.status() == 999 { Err(io::Error::other("reset").into()) } else { Ok(response) }
    }

    fn behind<L: Limiter + Send + Sync + 'static>(self: &Arc<Self>, layer: &RateLimitLayer<L>) -> Service {
        let server = Arc::clone(self);
        let inner = tower::service_fn(move |_: Request<()>| {
            let server = Arc::clone(&server);
            async move { server.serve().await }
        });
        BoxCloneSyncService::new(layer.layer(inner))
    }

    /// One call before the others, so that its answer is known.
    async fn says(&self, service: &Service, response: Response<()>) {
        self.will_say(0.0, response);
        service.clone().oneshot(Request::new(())).await.unwrap();
        self.arrivals.lock().unwrap().pop();
    }

    /// Seconds since the start at which the requests came.
    #[track_caller]
    fn assert_arrivals(&self, expected: impl AsRef<[f64]>) {
        let arrivals = self.arrivals.lock().unwrap();
        let arrivals: Vec<_> = arrivals.iter().map(|at| (*at - self.start).as_secs_f64()).collect();
        let expected = expected.as_ref();
        // Tokio's timer rounds up to the millisecond; nothing is early.
        let fits = |(at, due): (&f64, &f64)| (*due..=due + 0.002).contains(at);
        let same = arrivals.len() == expected.len() && arrivals.iter().zip(expected).all(fits);
        assert!(same, "requests came at {arrivals:?}, expected {expected:?}");
    }
}

/// So many at each of these moments.
fn times(groups: &[(usize, f64)]) -> Vec<f64> {
    groups.iter().flat_map(|(count, at)| std::iter::repeat_n(*at, *count)).collect()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A quota that stands in nobody's way.
fn wide<L: Strategy>() -> L {
    L::of(Quota::per_second(1_000).unwrap().with_burst(500).unwrap().without_margin())
}

/// One a second, whatever the strategy.
fn narrow<L: Strategy>() -> L {
    L::of(Quota::per_second(1).unwrap().without_margin())
}

fn response(status: u16, headers: &[(&str, &str)]) -> Response<()> {
    let builder = Response::builder().status(status);
    headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value)).body(()).unwrap()
}

/// A 200 of draft-10.
fn left(left: u64, reset_after: u64) -> Response<()> {
    response(200, &[("ratelimit", &format!(r#""default";r={left};t={reset_after}"#))])
}

/// Calls that begin now, in this order, and have got as far as they can without time going by.
async fn call(service: &Service, count: usize) -> Vec<Call> {
    let calls = (0..count).map(|_| tokio::spawn(service.clone().oneshot(Request::new(())))).collect();
    settle().await;
    calls
}

async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

async fn all_answered(calls: Vec<Call>) {
    for call in calls {
        call.await.unwrap().unwrap();
    }
}

fn costing(cost: u32) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(PermitCost(NonZeroU32::new(cost).unwrap()));
    request
}

async fn every_form_on_a_200_lets_go_what_is_left_and_no_more<L: Strategy>() {
    for left in [0, 3] {
        let (date, moment) = ("Tue, 20 Aug 2013 14:50:41 GMT", (1_377_010_241 + 5).to_string());
        let left = left.to_string();
        let (draft_10, named) =
            (format!(r#""default";r={left};t=5"#), format!(r#""burst";r=900;t=1, "day";r={left};t=5"#));
        let (windowed, draft_07) =
            (format!(r#""default";r={left}"#), format!("limit=10, remaining={left}, reset=5"));
        let forms: [&[(&str, &str)]; 7] = [
            &[("ratelimit", &draft_10)],
            &[("ratelimit", &named)],
            &[("ratelimit", &windowed), ("ratelimit-policy", r#""default";q=10;w=5"#)],
            &[("ratelimit", &draft_07)],
            &[("ratelimit-limit", "10"), ("ratelimit-remaining", &left), ("ratelimit-reset", "5")],
            &[("x-ratelimit-limit", "10"), ("x-ratelimit-remaining", &left), ("x-ratelimit-reset", "5")],
            &[("date", date), ("x-ratelimit-remaining", &left), ("x-ratelimit-reset", &moment)],
        ];
        let left: usize = left.parse().unwrap();
        for form in forms {
            let server = Server::start();
            let service = server.behind(&RateLimitLayer::new(wide::<L>()));
            server.says(&service, response(200, form)).await;
            all_answered(call(&service, 10).await).await;
            server.assert_arrivals(times(&[(left, 0.0), (10 - left, 5.0)]));
        }
    }
}

async fn a_moment_is_read_by_our_own_clock_where_the_server_tells_none<L: Strategy>() {
    let server = Server::start();
    let service = server.behind(&RateLimitLayer::new(wide::<L>()));
    // Whole seconds: the moment lies up to one of them nearer.
    let moment = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs() + 5;
    let headers = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", &moment.to_string())];
    server.says(&service, response(200, &headers)).await;
    all_answered(call(&service, 1).await).await;
    let waited = server.start.elapsed();
    assert!(waited > seconds(3) && waited <= Duration::from_millis(5_002), "{waited:?}");
}

async fn an_unmetered_limiter_lives_by_the_servers_word_alone<L: Strategy>() {
    let (server, limiter) = (Server::start(), L::unlimited());
    let service = server.behind(&RateLimitLayer::new(limiter.clone()));
    all_answered(call(&service, 1_000).await).await;
    server.assert_arrivals(times(&[(1_000, 0.0)]));
    server.says(&service, left(2, 5)).await;
    assert_eq!(limiter.snapshot().available, 2);
    all_answered(call(&service, 6).await).await;
    // As many as it had left are welcome again, and within 100 ms twice as many.
    let led_out = [times(&[(1_002, 0.0), (2, 5.0)]), vec![5.05, 5.1]].concat();
    server.assert_arrivals(&led_out);
    tokio::time::sleep(seconds(2)).await;
    all_answered(call(&service, 1_000).await).await;
    server.assert_arrivals([led_out, times(&[(1_000, 7.1)])].concat());
    assert_eq!((limiter.snapshot().available, limiter.snapshot().queued), (u32::MAX, 0));
}

async fn without_a_quota_a_pause_ends_with_few_and_not_with_all<L: Strategy>() {
    let (server, limiter) = (Server::start(), L::unlimited());
    let service = server.behind(&RateLimitLayer::new(limiter.clone()));
    server.says(&service, response(429, &[("retry-after", "5")])).await;
    let waiting = call(&service, 1_000).await;
    // Still too many: the server says so to the first three that leave, 120 ms after each came.
    for _ in 0..3 {
        server.will_say(0.12, response(429, &[("retry-after", "5")]));
    }
    all_answered(waiting).await;
    let mut arrivals = server.arrivals.lock().unwrap();
    assert!(*arrivals.last().unwrap() - server.start < Duration::from_secs_f64(16.34), "and then all");
    arrivals.truncate(8);
    drop(arrivals);
    server.assert_arrivals([5.0, 5.1, 10.22, 10.32, 15.34, 15.44, 15.49, 15.54]);
}

async fn without_a_quota_each_window_of_the_server_is_used_to_the_full<L: Strategy>() {
    let limiter = L::unlimited();
    let (start, sent, over) =
        (Instant::now(), Arc::<Mutex<Vec<u64>>>::default(), Arc::<Mutex<u64>>::default());
    // 100 in each second of the clock, as every answer says.
    let inner = {
        let (sent, over) = (Arc::clone(&sent), Arc::clone(&over));
        tower::service_fn(move |_: Request<()>| {
            let second = start.elapsed().as_secs();
            sent.lock().unwrap().push(second);
            let used = sent.lock().unwrap().iter().rev().take_while(|at| **at == second).count() as u64;
            *over.lock().unwrap() += u64::from(used > 100);
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok::<_, Infallible>(left(100_u64.saturating_sub(used), 1))
            }
        })
    };
    let service = RateLimitLayer::new(limiter).layer(inner);
    let looping = (0..64).map(|_| {
        let service = service.clone();
        async move {
            while start.elapsed() < seconds(20) {
                service.clone().oneshot(Request::new(())).await.unwrap();
            }
        }
    });
    futures_util::future::join_all(looping).await;
    let sent = sent.lock().unwrap().len();
    assert!((1_900..=2_100).contains(&sent) && *over.lock().unwrap() == 0, "{sent} of 2000");
}

async fn without_a_quota_what_waits_for_more_than_is_left_leaves_by_and_by_too<L: Strategy>() {
    let (server, limiter) = (Server::start(), L::unlimited());
    let service = server.behind(&RateLimitLayer::new(limiter.clone()));
    server.says(&service, left(1, 10)).await;
    let calls: Vec<_> = (0..4).map(|_| tokio::spawn(service.clone().oneshot(costing(2)))).collect();
    settle().await;
    let patient = RateLimitLayer::new(limiter).with_max_wait(seconds(10) + Duration::from_millis(350));
    let last = tokio::spawn(server.behind(&patient).oneshot(costing(2)));
    all_answered(calls).await;
    last.await.unwrap().unwrap();
    // The first of five times two permits: 1 welcome at once, doubled by 100 ms.
    server.assert_arrivals([10.1, 10.2, 10.25, 10.3, 10.325]);
}

async fn a_server_that_counts_down_is_believed_and_not_counted_twice<L: Strategy>() {
    let server = Server::start();
    let service = server.behind(&RateLimitLayer::new(wide::<L>()));
    for (left_over, reset_after) in [(3, 5), (2, 4), (1, 3), (0, 2)] {
        server.will_say(0.0, left(left_over, reset_after));
        service.clone().oneshot(Request::new(())).await.unwrap();
        tokio::time::advance(seconds(1)).await;
    }
    service.oneshot(Request::new(())).await.unwrap();
    server.assert_arrivals([0.0, 1.0, 2.0, 3.0, 5.0]);
}

async fn a_lower_word_lowers_what_is_left<L: Strategy>() {
    // Somebody else spends of the same quota.
    let server = Server::start();
    let service = server.behind(&RateLimitLayer::new(wide::<L>()));
    server.says(&service, left(50, 5)).await;
    server.says(&service, left(2, 5)).await;
    all_answered(call(&service, 10).await).await;
    server.assert_arrivals(times(&[(2, 0.0), (8, 5.0)]));
}

async fn an_answer_that_is_late_or_out_of_order_raises_nothing<L: Strategy>() {
    let server = Server::start();
    let service = server.behind(&RateLimitLayer::new(wide::<L>()));
    // The first that was sent is the last to be answered, with what was left when it arrived.
    server.will_say(3.0, left(9, 10));
    server.will_say(1.0, left(8, 10));
    server.will_say(1.0, left(2, 10));
    let first = call(&service, 3).await;
    tokio::time::sleep(seconds(4)).await;
    // Two are left, of which one may be what the first has spent.
    let rest = call(&service, 5).await;
    all_answered(first).await;
    all_answered(rest).await;
    server.assert_arrivals(times(&[(3, 0.0), (1, 4.0), (4, 11.0)]));
}

async fn requests_in_flight_are_taken_off_what_is_left<L: Strategy>() {
    let server = Server::start();
    let service = server.behind(&RateLimitLayer::new(wide::<L>()));
    server.will_say(1.0, left(5, 10));
    (0..3).for_each(|_| server.will_say(3.0, response(200, &[])));
    let first = call(&service, 4).await;
    tokio::time::sleep(seconds(2)).await;
    let rest = call(&service, 10).await;
    all_answered(first).await;
    all_answered(rest).await;
    server.assert_arrivals(times(&[(4, 0.0), (2, 2.0), (8, 11.0)]));
}

async fn an_answered_request_of_a_higher_cost_is_not_in_flight_any_more<L: Strategy>() {
    let server = Server::start();
    let service = server.behind(&RateLimitLayer::new(wide::<L>()));
    server.will_say(0.0, left(10, 5));
    service.clone().oneshot(costing(5)).await.unwrap();
    for _ in 0..3 {
        service.clone().oneshot(costing(5)).await.unwrap();
    }
    // Ten were left, so two of five.
    server.assert_arrivals([0.0, 0.0, 0.0, 5.0]);
}

async fn what_is_left_is_spent_by_cost_and_in_order<L: Strategy>() {
    let server = Server::start();
    let service = server.behind(&RateLimitLayer::new(wide::<L>()));
    server.says(&service, left(7, 5)).await;
    let mut calls = Vec::new();
    // The second doesn't fit in what is left then, and the third does not overtake it.
    for cost in [5, 5, 1] {
        calls.push(tokio::spawn(service.clone().oneshot(costing(cost))));
    }
    settle().await;
    server.assert_arrivals([0.0]);
    all_answered(calls).await;
    server.assert_arrivals([0.0, 5.0, 5.0]);
}

async fn policies_hold_side_by_side<L: Strategy>() {
    let (server, limiter) = (Server::start(), wide::<L>());
    let service = server.behind(&RateLimitLayer::new(limiter.clone()));
    let both = [("ratelimit", r#""second";r=1;t=2, "day";r=3;t=10"#)];
    server.says(&service, response(200, &both)).await;
    all_answered(call(&service, 6).await).await;
    server.assert_arrivals(times(&[(1, 0.0), (2, 2.0), (3, 10.0)]));

    // A refusal tells of the one that holds the longest.
    server.says(&service, response(200, &[("ratelimit", r#""second";r=0;t=2, "day";r=0;t=10"#)])).await;
    let shed = server.behind(&RateLimitLayer::new(limiter).with_max_wait(Duration::ZERO));
    let error = shed.oneshot(Request::new(())).await.unwrap_err();
    assert_eq!(error.retry_after().map(|wait| wait.as_secs()), Some(10));
}

async fn a_policy_of_little_is_heard_beside_many_of_much<L: Strategy>() {
    let server = Server::start();
    let service = server.behind(&RateLimitLayer::new(wide::<L>()));
    // Such as a policy for each path. What is kept in mind is bounded, and what binds must be among it.
    for path in 0..20 {
        let field = format!(r#""path-{path}";r=100000;t=86400"#);
        server.says(&service, response(200, &[("ratelimit", &field)])).await;
    }
    server.says(&service, left(1, 5)).await;
    all_answered(call(&service, 3).await).await;
    server.assert_arrivals([0.0, 5.0, 5.0]);
}

async fn after_its_time_a_word_is_forgotten_and_the_next_one_counts<L: Strategy>() {
    let (server, limiter) = (Server::start(), wide::<L>());
    let service = server.behind(&RateLimitLayer::new(limiter.clone()));
    server.says(&service, left(0, 2)).await;
    assert_eq!(limiter.snapshot().available, 0);
    tokio::time::advance(seconds(2)).await;
    assert!(limiter.snapshot().available >= 500, "{:?}", limiter.snapshot());
    all_answered(call(&service, 100).await).await;
    server.says(&service, left(1, 2)).await;
    all_answered(call(&service, 3).await).await;
    server.assert_arrivals(times(&[(101, 2.0), (2, 4.0)]));
}

async fn retry_after_is_only_ever_extended<L: Strategy>() {
    let (server, limiter) = (Server::start(), wide::<L>());
    let service = server.behind(&RateLimitLayer::new(limiter.clone()));
    type Asked<'a> = (f64, u16, &'a [(&'a str, &'a str)], u64);
    let asks: [Asked<'_>; 5] = [
        (1.0, 429, &[("retry-after", "5")], 6),
        (2.0, 503, &[("retry-after", "1")], 6),
        (3.0, 429, &[("retry-after", "10")], 13),
        (4.0, 429, &[("retry-after", "0")], 13),
        // Retry-After goes before what more comes at `t`.
        (5.0, 429, &[("retry-after", "11"), ("ratelimit", r#""default";r=5;t=1"#)], 16),
    ];
    for (after, status, headers, _) in asks {
        server.will_say(after, response(status, headers));
    }
    let mut calls = call(&service, asks.len()).await;
    for (at, _, _, until) in asks {
        tokio::time::sleep_until(server.start + Duration::from_secs_f64(at + 0.5)).await;
        let paused = limiter.snapshot().paused_until.expect("a pause") - server.start;
        assert!(
            paused >= seconds(until) && paused <= seconds(until) + Duration::from_millis(2),
            "{paused:?}"
        );
        calls.extend(call(&service, 2).await);
    }
    all_answered(calls).await;
    server.assert_arrivals(times(&[(5, 0.0), (10, 16.0)]));
    assert_eq!(limiter.snapshot().paused_until, None);
}

/// With any other status, such as a CDN's 522, `Retry-After` delays only the call that received it.
async fn retry_after_pauses_all_callers_after_429_503_and_529_only<L: Strategy>() {
    for (status, pauses) in [
        (429, true),
        (503, true),
        (529, true),
        (500, false),
        (502, false),
        (504, false),
        (520, false),
        (521, false),
        (522, false),
        (523, false),
        (524, false),
        (530, false),
    ] {
        for (name, value) in [("retry-after", "1.2, 3"), ("retry-after-ms", "2999.9, 7")] {
            let server = Server::start();
            let layer = RateLimitLayer::new(wide::<L>());
            let service = server.behind(&layer);
            server.says(&service, response(status, &[(name, value)])).await;
            all_answered(call(&service, 1).await).await;
            server.assert_arrivals([if pauses { 3.0 } else { 0.0 }]);
        }
    }
}

async fn all_who_share_the_limiter_see_it_and_nobody_else<L: Strategy>() {
    for ask in [left(0, 5), response(429, &[("retry-after", "5")])] {
        let (server, limiter) = (Server::start(), wide::<L>());
        let layer = RateLimitLayer::new(limiter.clone());
        let told = server.behind(&layer);
        let other_server = Server::start();
        let sharers = [
            told.clone(),
            server.behind(&layer),
            server.behind(&layer.clone()),
            server.behind(&RateLimitLayer::new(limiter.clone()).with_max_queue(7)),
            other_server.behind(&RateLimitLayer::new(limiter.clone())),
        ];
        let stranger = Server::start();
        let apart = stranger.behind(&RateLimitLayer::new(wide::<L>()));
        server.says(&told, ask).await;
        let by_hand = tokio::spawn(limiter.acquire_with(&PermitRequest::new()));
        let mut calls = Vec::new();
        for service in sharers.iter().chain([&apart]) {
            calls.extend(call(service, 1).await);
        }
        all_answered(calls).await;
        by_hand.await.unwrap().unwrap();
        server.assert_arrivals(times(&[(4, 5.0)]));
        other_server.assert_arrivals([5.0]);
        stranger.assert_arrivals([0.0]);
    }
}

async fn waiters_leave_a_pause_in_order_and_by_the_quota<L: Strategy>() {
    let (server, limiter) = (Server::start(), narrow::<L>());
    let service = server.behind(&RateLimitLayer::new(limiter.clone()));
    server.will_say(1.0, response(429, &[("retry-after", "10")]));
    let first = call(&service, 1).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = (0..20)
        .map(|number| {
            let (service, order) = (service.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                service.oneshot(Request::new(())).await.unwrap();
                order.lock().unwrap().push(number);
            })
        })
        .collect();
    settle().await;
    all_answered(first).await;
    for waiter in waiters {
        waiter.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    // One went in the same moment as the answer came, or none: a second had gone by.
    let arrivals = server.arrivals.lock().unwrap().clone();
    let after: Vec<_> = arrivals.into_iter().filter(|at| *at - server.start > seconds(2)).collect();
    assert!(after.len() >= 19 && after[0] - server.start >= seconds(11), "{after:?}");
    assert!(after.windows(2).all(|pair| pair[1] - pair[0] >= seconds(1)), "{after:?}");
}

async fn a_pause_and_its_end_wake_nobody_who_can_not_go<L: Strategy>() {
    let limiter = narrow::<L>();
    limiter.acquire_with(&PermitRequest::new()).await.unwrap();
    let mut line: Vec<_> =
        (0..50).map(|_| task::spawn(limiter.acquire_with(&PermitRequest::new()))).collect();
    for wait in &mut line {
        assert_pending!(wait.poll());
    }
    limiter.pause(seconds(10));
    assert!(!line.iter().skip(1).any(task::Spawn::is_woken), "the pause has woken some behind the head");
    for _ in 0..3 {
        tokio::time::advance(seconds(3)).await;
        if line[0].is_woken() {
            assert_pending!(line[0].poll());
        }
        assert!(!line.iter().skip(1).any(task::Spawn::is_woken));
    }
    tokio::time::advance(Duration::from_millis(1_002)).await;
    assert!(line[0].is_woken());
    assert_ready_ok!(line[0].poll());
    let woken: Vec<_> = (1..line.len()).filter(|number| line[*number].is_woken()).collect();
    assert_eq!(woken, [1], "the next head, to arm its timer");
}

/// At which second a call ended, and if it was by a refusal, the seconds of wait that it told.
type End = (f64, Option<f64>);

/// How waiters with these deadlines end, in a line of one a second, when this answer comes half a second after
/// they did.
async fn ends<L: Strategy>(answer: Response<()>, deadlines: &[u64]) -> Vec<End> {
    let server = Server::start();
    let service = server.behind(&RateLimitLayer::new(narrow::<L>()));
    server.will_say(0.5, answer);
    let told = call(&service, 1).await;
    let mut waiting = Vec::new();
    for deadline in deadlines {
        waiting.push(end(&server, &service, *deadline));
        settle().await;
    }
    all_answered(told).await;
    let mut ends = Vec::new();
    for wait in waiting {
        ends.push(wait.await.unwrap());
    }
    ends
}

fn end(server: &Server, service: &Service, deadline: u64) -> JoinHandle<End> {
    let (start, total) = (server.start, TimeoutLayer::total(seconds(deadline)).unwrap());
    let service = total.layer(service.clone());
    tokio::spawn(async move {
        let outcome = service.oneshot(Request::new(())).await;
        let told = outcome.err().map(|error| {
            assert!(error.is_rate_limited(), "{error:#} at {:?}", start.elapsed());
            error.retry_after().expect("the wait").as_secs_f64()
        });
        // In halves, since a timer rounds up to the millisecond.
        ((start.elapsed().as_secs_f64() * 2.0).floor() / 2.0, told)
    })
}

/// The same moment, and a wait that is the expected one but for the nanoseconds of the quota's rounding.
#[track_caller]
fn assert_ends(ends: &[End], expected: &[End]) {
    let same = |((at, told), (due, wait)): (&End, &End)| match (told, wait) {
        (Some(told), Some(wait)) => at == due && (told - wait).abs() < 0.003,
        (None, None) => at == due,
        _ => false,
    };
    assert!(
        ends.len() == expected.len() && ends.iter().zip(expected).all(same),
        "they ended (at, refused with)\n{ends:?}, expected\n{expected:?}"
    );
}

async fn who_can_not_meet_the_deadline_any_more_is_refused_when_the_pause_comes<L: Strategy>() {
    // Each has a place in the line that is far better than its deadline, but for the pause.
    let pause = response(429, &[("retry-after", "10")]);
    let ends = ends::<L>(pause, &[3, 60, 10, 60]).await;
    let kept = |at| (at, None);
    assert!(ends[0].1.is_some_and(|wait| wait >= 9.999), "{ends:?}");
    assert!(ends[2].1.is_some_and(|wait| wait >= 9.999), "{ends:?}");
    assert_eq!((ends[0].0, ends[2].0), (0.5, 0.5), "at once and not at the deadline: {ends:?}");
    assert_ends(&[ends[1], ends[3]], &[kept(10.5), kept(11.5)]);
}

async fn who_stands_too_far_back_for_the_deadline_is_refused_when_the_pause_comes<L: Strategy>() {
    // The pause ends at 10.5, then one goes a second.
    let pause = response(429, &[("retry-after", "10")]);
    let ends = ends::<L>(pause, &[12, 12, 12, 60]).await;
    assert_ends(&ends, &[(10.5, None), (11.5, None), (0.5, Some(12.0)), (12.5, None)]);
}

async fn who_stands_behind_what_is_left_is_refused_when_the_word_comes<L: Strategy>() {
    // One is left, for the first; of the others one goes at 60.5, and whoever is behind it at 61.5.
    let ends = ends::<L>(left(1, 60), &[10, 10, 90, 10]).await;
    assert_ends(&ends, &[(1.0, None), (0.5, Some(60.0)), (60.5, None), (0.5, Some(61.0))]);
}

async fn a_newcomer_that_fits_behind_what_is_left_is_let_in<L: Strategy>() {
    let server = Server::start();
    let service = server.behind(&RateLimitLayer::new(narrow::<L>()));
    server.says(&service, left(3, 60)).await;
    // Three go at 1, 2 and 3; the fourth at 60, when there are more, the fifth at 61, the sixth at 62.
    let mut waiting = Vec::new();
    for deadline in [90, 90, 90, 90, 62, 61] {
        waiting.push(end(&server, &service, deadline));
        settle().await;
    }
    let mut ends = Vec::new();
    for wait in waiting {
        ends.push(wait.await.unwrap());
    }
    let kept = |at| (at, None);
    assert_ends(&ends, &[kept(1.0), kept(2.0), kept(3.0), kept(60.0), kept(61.0), (0.0, Some(62.0))]);
}

async fn a_cached_answer_says_nothing<L: Strategy>() {
    for (age, waits) in [("0", true), ("1", false), ("86400", false)] {
        for field in [("ratelimit", r#""default";r=0;t=5"#), ("x-ratelimit-remaining", "0")] {
            let server = Server::start();
            let service = server.behind(&RateLimitLayer::new(wide::<L>()));
            server.says(&service, response(200, &[("age", age), field, ("x-ratelimit-reset", "5")])).await;
            all_answered(call(&service, 2).await).await;
            server.assert_arrivals(times(&[(2, if waits { 5.0 } else { 0.0 })]));
        }
    }
}

async fn a_field_of_a_thousand_members_is_read_and_harmless<L: Strategy>() {
    let real = std::thread::spawn(Instant::now).join().unwrap();
    let mut members: Vec<_> = (0..1_000).map(|number| format!(r#""p{number}";r=5000;t=86400"#)).collect();
    members[777] = r#""tight";r=2;t=5"#.to_owned();
    let (list, numbers) = (members.join(", "), vec!["7"; 1_000].join(","));
    let fields: [(&str, &str, usize); 4] = [
        ("ratelimit", &list, 2),
        // Malformed as a whole, at its very end.
        ("ratelimit", &format!("{list}, ;"), 100),
        // A reset is missing for each of them.
        ("x-ratelimit-remaining", &numbers, 100),
        ("ratelimit", &"x".repeat(60_000), 100),
    ];
    for (name, value, go) in fields {
        let (server, limiter) = (Server::start(), wide::<L>());
        let service = server.behind(&RateLimitLayer::new(limiter.clone()));
        server.says(&service, response(200, &[(name, value)])).await;
        all_answered(call(&service, 100).await).await;
        server.assert_arrivals(times(&[(go, 0.0), (100 - go, 5.0)]));
    }
    let took = std::thread::spawn(Instant::now).join().unwrap() - real;
    assert!(took < seconds(5), "{took:?}");
}

async fn a_thousand_policies_in_turn_are_harmless<L: Strategy>() {
    let server = Server::start();
    let service = server.behind(&RateLimitLayer::new(wide::<L>()));
    for number in 0..1_000 {
        let field = format!(r#""p{number}";r={};t=1"#, 2_000 + number);
        server.says(&service, response(200, &[("ratelimit", &field)])).await;
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    all_answered(call(&service, 100).await).await;
    server.assert_arrivals(times(&[(100, 10.0)]));
}

async fn a_call_is_in_flight_until_it_is_answered_fails_or_is_dropped<L: Strategy>() {
    let (server, limiter) = (Server::start(), wide::<L>());
    let service = server.behind(&RateLimitLayer::new(limiter.clone()));
    let in_flight = || limiter.snapshot().in_flight;

    server.will_say(1.0, response(500, &[]));
    server.will_say(2.0, response(999, &[])); // fails
    server.will_say(3_600.0, response(200, &[]));
    let mut calls: Vec<_> = [1, 3, 7].map(|cost| tokio::spawn(service.clone().oneshot(costing(cost)))).into();
    settle().await;
    assert_eq!(in_flight(), 11);
    let dropped = calls.pop().unwrap();
    let failing = calls.pop().unwrap();
    calls.pop().unwrap().await.unwrap().unwrap();
    assert_eq!(in_flight(), 10);
    failing.await.unwrap().unwrap_err();
    assert_eq!(in_flight(), 7);
    dropped.abort();
    settle().await;
    assert_eq!(in_flight(), 0, "dropped");

    // The server may count the failed one and the dropped one when it has given its next answer.
    server.says(&service, left(12, 5)).await;
    assert_eq!(limiter.snapshot().available, 2);
    tokio::time::advance(seconds(11)).await;

    // Who was dropped while it waited, or was refused, was never in flight.
    server.says(&service, left(0, 5)).await;
    let waiting = call(&service, 3).await;
    assert_eq!((in_flight(), limiter.snapshot().queued), (0, 3));
    waiting.iter().for_each(JoinHandle::abort);
    settle().await;
    let shed = server.behind(&RateLimitLayer::new(limiter.clone()).with_max_wait(Duration::ZERO));
    assert!(shed.oneshot(Request::new(())).await.unwrap_err().is_rate_limited());
    assert_eq!((in_flight(), limiter.snapshot().queued), (0, 0));

    // And so the next word is not lowered by any of them.
    tokio::time::advance(seconds(5)).await;
    server.says(&service, left(2, 5)).await;
    assert_eq!((in_flight(), limiter.snapshot().available), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn every_preset_listens() {
    let presets = [
        preset::currency_rates("https://rates.example.com"),
        preset::email_delivery("https://mail.example.com"),
        preset::realtime_messaging("https://push.example.com"),
    ];
    for preset in presets {
        let preset = preset.unwrap().with_api_key(ApiKey::new("k3y").unwrap());
        let server = Server::start();
        let inner = {
            let server = Arc::clone(&server);
            tower::service_fn(move |_: Request<ReplayBody<tower_outbound::Body>>| {
                let server = Arc::clone(&server);
                async move { server.serve().await.map(|answer| answer.map(|()| tower_outbound::Body::empty())) }
            })
        };
        let service = ServiceBuilder::new().layer(preset.layer().unwrap()).service(inner);
        server.will_say(0.0, left(0, 7));
        for _ in 0..2 {
            let uri = preset.base_url().clone();
            let request = Request::get(uri).body(tower_outbound::Body::empty()).unwrap();
            let response = service.clone().oneshot(request).await.unwrap();
            assert!(Report::from_response(&response).is_some());
        }
        server.assert_arrivals([0.0, 7.0]);
    }
}

/// A server of `limit` a window, which tells what is left in every answer; requests and answers are under way
/// for these times.
fn journeys() -> impl proptest::strategy::Strategy<Value = Vec<(u64, u64, u64)>> {
    prop::collection::vec((0..300_u64, 0..800_u64, 0..800_u64), 1..60)
}

proptest! {
    #![proptest_config(cases(300))]

    /// However requests and answers overtake one another, once the server has said what is left no more than
    /// that arrive before it has more.
    #[test]
    fn never_more_than_the_server_says_remain(
        limit in 1..40_u64, unknowing in 1..10_usize, journeys in journeys(), unmetered: bool,
    ) {
        const WINDOW: u64 = 30;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let arrived = runtime.unwrap().block_on(async {
            let limiter = if unmetered { TokenBucket::unlimited() } else { wide() };
            let start = Instant::now();
            let arrived = Arc::new(Mutex::new(0_u64));
            let service = {
                let arrived = Arc::clone(&arrived);
                RateLimitLayer::new(limiter).layer(tower::service_fn(move |request: Request<()>| {
                    let arrived = Arc::clone(&arrived);
                    async move {
                        let (there, back) = *request.extensions().get::<(Duration, Duration)>().unwrap();
                        tokio::time::sleep(there).await;
                        let answer = {
                            let mut arrived = arrived.lock().unwrap();
                            let gone = start.elapsed().as_secs();
                            if gone < WINDOW {
                                *arrived += 1;
                            }
                            left(limit.saturating_sub(*arrived), WINDOW.saturating_sub(gone))
                        };
                        tokio::time::sleep(back).await;
                        Ok::<_, Error>(answer)
                    }
                }))
            };
            let call = |there, back| {
                let mut request = Request::new(());
                request.extensions_mut().insert((Duration::from_millis(there), Duration::from_millis(back)));
                service.clone().oneshot(request)
            };
            // Some before anything is known; the others when the first of these has been answered.
            let mut journeys = journeys.into_iter();
            let mut calls = JoinSet::new();
            for (_, there, back) in journeys.by_ref().take(unknowing.min(limit as usize)) {
                calls.spawn(call(there, back));
            }
            calls.join_next().await.unwrap().unwrap().unwrap();
            for (gap, there, back) in journeys {
                tokio::time::sleep(Duration::from_millis(gap.saturating_sub(200))).await;
                calls.spawn(call(there, back));
            }
            while let Some(call) = calls.join_next().await {
                call.unwrap().unwrap();
            }
            *arrived.lock().unwrap()
        });
        prop_assert!(arrived <= limit, "{} of {}", arrived, limit);
    }
}

#[tokio::test(start_paused = true)]
async fn a_longer_word_of_as_little_holds_for_longer() {
    let limiter = TokenBucket::unlimited();
    // The permits of requests whose responses arrive one by one.
    let mut permits: Vec<_> = (0..13).map(|_| limiter.try_acquire_owned().unwrap()).collect();
    let mut hear = |value: &'static str| {
        let header = (http::HeaderName::from_static("ratelimit"), http::HeaderValue::from_static(value));
        let headers = http::HeaderMap::from_iter([header]);
        permits.pop().unwrap().complete(&ResponseInfo::new(http::StatusCode::OK, &headers));
    };
    hear("\"q\";r=0;t=1");
    hear("\"q\";r=0;t=60");
    tokio::time::advance(Duration::from_millis(1_001)).await;
    assert!(limiter.try_acquire().is_err());
    // Words that are over take up no room.
    for policy in ["\"a\";r=5;t=1", "\"b\";r=5;t=1", "\"c\";r=5;t=1", "\"d\";r=5;t=1", "\"e\";r=5;t=1"] {
        hear(policy);
    }
    for policy in ["\"f\";r=5;t=1", "\"g\";r=5;t=1", "\"h\";r=5;t=1", "\"i\";r=5;t=1", "\"j\";r=5;t=1"] {
        hear(policy);
    }
    tokio::time::advance(Duration::from_secs(59)).await;
    hear("\"new\";r=0;t=60");
    assert!(limiter.try_acquire().is_err());
}
