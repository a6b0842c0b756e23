//! The ten promises of the README, each held by one test of the whole preset stack on paused time.

use crate::support::capture;
use std::{
    collections::HashSet,
    error::Error as StdError,
    future::Future,
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::time::Instant;
use tower::{BoxError, ServiceExt, util::BoxCloneSyncService};
use tower_layer::Layer;
use tower_outbound::{
    ApiKey, Body, Error, Quota, Report,
    auth::{FreshKey, RefreshingKey},
    body::{IdleBody, ReplayBody},
    call::{Outcome, StopReason},
    preset,
    retry::{IdempotencyKey, RetryLayer},
    stack::StackBuilder,
    test_util::Arrivals,
};

const KEY: &str = "s3cret-k3y";

/// What reached the service under the stack, and when.
#[derive(Default)]
struct Seen {
    arrivals: Mutex<Vec<Instant>>,
    ids: Mutex<Vec<String>>,
    bodies: Mutex<Vec<Bytes>>,
}

impl Seen {
    fn count(&self) -> usize {
        self.arrivals.lock().unwrap().len()
    }

    fn arrivals(&self) -> Vec<Instant> {
        self.arrivals.lock().unwrap().clone()
    }
}

type Stack = BoxCloneSyncService<Request<Full<Bytes>>, Response<IdleBody<Body>>, Error>;

/// The preset's stack over a service that notes each request and answers by its number, from 0.
fn stack<F, Fut>(preset: &StackBuilder, answer: F) -> (Stack, Arc<Seen>)
where
    F: Fn(usize, Request<()>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Response<Body>, BoxError>> + Send + 'static,
{
    let seen = Arc::new(Seen::default());
    let noted = Arc::clone(&seen);
    let service = tower::service_fn(move |request: Request<ReplayBody<Full<Bytes>>>| {
        let (noted, answer) = (Arc::clone(&noted), answer.clone());
        async move {
            let (head, body) = request.into_parts();
            let number = {
                let mut arrivals = noted.arrivals.lock().unwrap();
                arrivals.push(Instant::now());
                arrivals.len() - 1
            };
            if let Some(id) = head.headers.get("x-request-id") {
                noted.ids.lock().unwrap().push(id.to_str().unwrap().to_owned());
            }
            let body = body.collect().await?.to_bytes();
            noted.bodies.lock().unwrap().push(body);
            answer(number, Request::from_parts(head, ())).await
        }
    });
    (BoxCloneSyncService::new(preset.layer().unwrap().layer(service)), seen)
}

fn rates() -> StackBuilder {
    preset::currency_rates("https://rates.example.com").unwrap().with_api_key(ApiKey::new(KEY).unwrap())
}

fn realtime() -> StackBuilder {
    preset::realtime_messaging("https://push.example.com").unwrap().with_api_key(ApiKey::new(KEY).unwrap())
}

fn request(method: Method, url: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::builder().method(method).uri(url).body(Full::from(body)).unwrap()
}

fn get() -> Request<Full<Bytes>> {
    request(Method::GET, "https://rates.example.com/v1/resources", "")
}

fn answer(status: u16) -> Result<Response<Body>, BoxError> {
    Ok(Response::builder().status(status).body(Body::empty())?)
}

fn answer_asking(status: u16, seconds: u64) -> Result<Response<Body>, BoxError> {
    Ok(Response::builder().status(status).header("retry-after", seconds).body(Body::empty())?)
}

#[tokio::test(start_paused = true)]
async fn promise_1_window() {
    let preset = rates().with_total_timeout(Duration::from_secs(600));
    let (service, seen) = stack(&preset, |_, _| async { answer(200) });
    let start = Instant::now();
    let calls: Vec<_> = (0..350).map(|_| tokio::spawn(service.clone().oneshot(get()))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(seen.count(), 350);
    seen.arrivals().into_iter().collect::<Arrivals>().assert_within(Quota::per_minute(100).unwrap());
    // And the quota is used: 10 at once, then 90 in each 61 s.
    let expected = Duration::from_secs_f64(340.0 * 61.0 / 90.0);
    assert!(start.elapsed() < expected + Duration::from_millis(10), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn promise_2_order() {
    let preset = rates().with_total_timeout(Duration::from_secs(3600));
    let order = Arc::new(Mutex::new(Vec::new()));
    let arrived = Arc::clone(&order);
    let (service, _) = stack(&preset, move |_, request| {
        arrived.lock().unwrap().push(request.uri().query().unwrap().parse::<u32>().unwrap());
        async { answer(200) }
    });
    let mut calls = Vec::new();
    for number in 0..500 {
        let url = format!("https://rates.example.com/v1/resources?{number}");
        calls.push(tokio::spawn(service.clone().oneshot(request(Method::GET, &url, ""))));
        // Newcomers keep coming while others wait.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(*order.lock().unwrap(), (0..500).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn promise_3_cancel() {
    let quota = Quota::new(11, Duration::from_secs(10)).unwrap().with_burst(1).unwrap().without_margin();
    let (service, seen) = stack(&rates().with_quota(quota), |_, _| async { answer(200) });
    let start = Instant::now();
    service.clone().oneshot(get()).await.unwrap();

    // Nine stand in line, one a second to come; the first, a middle one and the last give up.
    let calls: Vec<_> = (0..9).map(|_| tokio::spawn(service.clone().oneshot(get()))).collect();
    tokio::time::sleep(Duration::from_millis(500)).await;
    for given_up in [0, 4, 8] {
        calls[given_up].abort();
    }
    let mut done = 0;
    for call in calls {
        done += usize::from(call.await.is_ok_and(|result| result.is_ok()));
    }
    assert_eq!((done, seen.count()), (6, 7), "who gave up has sent nothing");
    // Six permits after the first take six seconds: none was spent on those who left.
    assert!(start.elapsed() < Duration::from_millis(6_020), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn promise_4_never_early() {
    let (service, seen) = stack(&realtime(), |number, _| async move {
        match number {
            0 => answer_asking(429, 7),
            _ => answer(200),
        }
    });
    let url = "https://push.example.com/";
    let told = tokio::spawn(service.clone().oneshot(request(Method::GET, url, "")));
    tokio::time::sleep(Duration::from_millis(1)).await;
    let others: Vec<_> =
        (0..20).map(|_| tokio::spawn(service.clone().oneshot(request(Method::GET, url, "")))).collect();
    for call in others.into_iter().chain([told]) {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    let arrivals = seen.arrivals();
    assert_eq!(arrivals.len(), 22);
    for at in &arrivals[1..] {
        assert!(*at - arrivals[0] >= Duration::from_secs(7), "one left after {:?}", *at - arrivals[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn another_origins_answer_stops_nobody() {
    let (service, seen) = stack(&realtime(), |number, _| async move {
        match number {
            0 => answer_asking(503, 3600),
            _ => answer(200),
        }
    });
    let foreign = service.clone().oneshot(request(Method::GET, "https://evil.test/", "")).await.unwrap();
    assert_eq!(foreign.status(), 503);
    let start = Instant::now();
    service.oneshot(request(Method::GET, "https://push.example.com/", "")).await.unwrap();
    assert_eq!((seen.count(), start.elapsed()), (2, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn promise_5_never_twice() {
    let url = "https://push.example.com/";
    type Fail = fn() -> Result<Response<Body>, BoxError>;
    let failures: [(&str, Fail); 3] = [
        ("503", || answer(503)),
        ("429", || answer(429)),
        ("reset", || Err(io::Error::from(io::ErrorKind::ConnectionReset).into())),
    ];
    for (name, fail) in failures {
        for method in [Method::POST, Method::PATCH] {
            let (service, seen) = stack(&realtime(), move |_, _| async move { fail() });
            let result = service.oneshot(request(method.clone(), url, "pay")).await;
            let report = match &result {
                Ok(response) => response.extensions().get::<Report>(),
                Err(error) => error.report(),
            };
            assert_eq!(report.unwrap().stop_reason(), Some(StopReason::NotIdempotent), "{method} {name}");
            assert_eq!(seen.count(), 1, "{method} {name}");
        }
        let (service, seen) = stack(&realtime(), move |_, _| async move { fail() });
        let _ = service.oneshot(request(Method::PUT, url, "same")).await;
        assert_eq!(seen.count(), 3, "PUT {name}");
        assert!(seen.bodies.lock().unwrap().iter().all(|body| body == "same"));
    }
    // A rule of one's own can't overrule it, and only who says that the server honours a key gets it repeated.
    let eager = RetryLayer::new().retry_if(|_, _| true);
    let (service, seen) = stack(&realtime().with_retry(eager), |_, _| async { answer(503) });
    service.oneshot(request(Method::POST, url, "pay")).await.unwrap();
    assert_eq!(seen.count(), 1);
    let honoured = RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare());
    let (service, seen) = stack(&realtime().with_retry(honoured), |_, _| async { answer(503) });
    service.oneshot(request(Method::POST, url, "pay")).await.unwrap();
    assert_eq!(seen.count(), 3);

    // A 401 says that it was not processed: once more when the key is replaced, and never twice more.
    let rotating = || {
        let given = AtomicUsize::new(0);
        realtime().with_keys(RefreshingKey::new(move || {
            let key = ApiKey::new(format!("{KEY}-{}", given.fetch_add(1, Ordering::Relaxed)));
            async { Ok::<_, BoxError>(FreshKey::new(key?)) }
        }))
    };
    for then in [200, 401, 503] {
        let (service, seen) =
            stack(&rotating(), move |number, _| async move { answer(if number == 0 { 401 } else { then }) });
        let response = service.oneshot(request(Method::POST, url, "pay")).await.unwrap();
        assert_eq!((response.status().as_u16(), seen.count()), (then, 2));
        assert!(seen.bodies.lock().unwrap().iter().all(|body| body == "pay"));
    }
    let (service, seen) = stack(&realtime(), |_, _| async { answer(401) });
    service.oneshot(request(Method::POST, url, "pay")).await.unwrap();
    assert_eq!(seen.count(), 1, "and not with a key that stays the same");

    // Nothing of a request reached a server that refused the connection.
    let (service, seen) = stack(&realtime(), |number, _| async move {
        match number {
            0 => Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            _ => answer(200),
        }
    });
    assert_eq!(service.oneshot(request(Method::POST, url, "pay")).await.unwrap().status(), 200);
    assert_eq!(seen.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn promise_6_key() {
    let (log, _guard) = capture::Capture::all();

    // Where it goes: to its own origin, by the header or by the query.
    let carries = |request: &Request<()>| {
        request.headers().contains_key("authorization")
            || request.uri().query().is_some_and(|q| q.contains(KEY))
    };
    let mut shown = String::new();
    for preset in [rates(), rates().with_key_placement("query:access_key".parse().unwrap())] {
        for (url, expected) in [
            ("https://rates.example.com/v1/resources", true),
            ("https://RATES.example.com:443/v1", true),
            ("http://rates.example.com/v1", false),
            ("https://rates.example.com:8443/v1", false),
            ("https://evil.test/v1", false),
        ] {
            let (service, _) = stack(&preset, move |_, request| {
                assert_eq!(carries(&request), expected, "{}", request.uri().host().unwrap());
                async { answer(200) }
            });
            let response = service.oneshot(request(Method::GET, url, "")).await.unwrap();
            shown += &format!("{response:?}");
        }

        // Nowhere else: answers, failures, timeouts, and what Debug and Display make of them.
        for failure in 0..4 {
            let (service, _) = stack(&preset, move |_, request| async move {
                match failure {
                    0 => answer(401),
                    1 => answer_asking(503, 1),
                    2 => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
                    _ => {
                        tokio::time::sleep(Duration::from_secs(100)).await;
                        drop(request);
                        answer(200)
                    }
                }
            });
            match service.oneshot(get()).await {
                Ok(response) => shown += &format!("{response:?}"),
                Err(error) => {
                    shown += &format!("{error} {error:?}");
                    let mut cause = error.source();
                    while let Some(error) = cause {
                        shown += &format!("{error} {error:?}");
                        cause = error.source();
                    }
                }
            }
        }
        shown += &format!("{preset:?} {:?}", preset.layer().unwrap());
        #[cfg(feature = "client")]
        {
            shown += &format!("{:?}", preset.client());
        }
    }
    let log = log.text();
    assert!(log.contains("call failed") && log.contains("attempt ended"), "the log was captured");
    assert!(!log.contains(KEY), "{log}");
    assert!(!shown.contains(KEY), "{shown}");

    let plain = preset::currency_rates("http://rates.example.com").unwrap();
    let error = plain.with_api_key(ApiKey::new(KEY).unwrap()).layer().unwrap_err();
    assert!(error.to_string().starts_with("invalid origin `http://rates.example.com:80`"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn promise_7_deadline() {
    // A spent limiter: the eleventh would wait for 678 ms, the hundredth for more than a minute.
    let preset = rates().with_total_timeout(Duration::from_secs(30));
    let (service, seen) = stack(&preset, |_, _| async { answer(200) });
    let calls: Vec<_> = (0..100).map(|_| tokio::spawn(service.clone().oneshot(get()))).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    let error = service.oneshot(get()).await.unwrap_err();
    assert_eq!(start.elapsed(), Duration::ZERO, "refused at once");
    assert!(error.is_rate_limited());
    assert!(error.retry_after().unwrap() > Duration::from_secs(30), "{:?}", error.retry_after());
    let mut done = 0;
    for call in calls {
        done += usize::from(call.await.unwrap().is_ok());
    }
    assert_eq!(done, seen.count());
    assert_eq!(done, 10 + 44, "10 at once, and one each 677.8 ms for 30 s");

    // A stalled service: attempts and back-offs end with the deadline, and the report says what was done.
    let preset = realtime().with_total_timeout(Duration::from_secs(25));
    let (service, seen) = stack(&preset, |_, _| async {
        std::future::pending::<()>().await;
        answer(200)
    });
    let start = Instant::now();
    let error = service.oneshot(request(Method::GET, "https://push.example.com/", "")).await.unwrap_err();
    assert!(error.is_deadline(), "{error:?}");
    assert!(start.elapsed() <= Duration::from_millis(25_001), "{:?}", start.elapsed());
    let attempts = error.report().unwrap().attempts();
    assert_eq!((attempts.len(), seen.count()), (3, 3));
    assert_eq!(attempts[0].outcome, Some(Outcome::Timeout));

    // A pause that ends after the deadline is not slept into: the answer is handed over with the ask in it.
    let (service, seen) = stack(&preset, |_, _| async { answer_asking(503, 40) });
    let start = Instant::now();
    let response = service.oneshot(request(Method::GET, "https://push.example.com/", "")).await.unwrap();
    assert_eq!((response.status().as_u16(), start.elapsed(), seen.count()), (503, Duration::ZERO, 1));
    assert_eq!(response.headers()["retry-after"], "40");
    let report = Report::from_response(&response).unwrap();
    assert_eq!(report.stop_reason(), Some(StopReason::Deadline));
    let needed = report.retry_after().expect("the wait that did not fit");
    assert!(needed >= Duration::from_secs(40) && needed < Duration::from_secs(41), "{needed:?}");

    // Nor is a back-off that does not fit, after a failure.
    let preset = realtime().with_total_timeout(Duration::from_millis(10));
    let (service, _) = stack(&preset.with_attempt_timeout(Duration::from_millis(5)), |_, _| async {
        Err(io::Error::from(io::ErrorKind::ConnectionReset).into())
    });
    let error = service.oneshot(request(Method::GET, "https://push.example.com/", "")).await.unwrap_err();
    let needed = error.retry_after().expect("the back-off that did not fit");
    assert!((50..=100).contains(&needed.as_millis()), "{needed:?}");
}

#[tokio::test(start_paused = true)]
async fn promise_8_bounded() {
    // The queue.
    let preset = rates().with_limit(|limit| limit.with_max_queue(5));
    let (service, _) = stack(&preset, |_, _| async { answer(200) });
    let calls: Vec<_> = (0..15).map(|_| tokio::spawn(service.clone().oneshot(get()))).collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let error = service.oneshot(get()).await.unwrap_err();
    assert!(error.is_rate_limited() && error.source().unwrap().to_string().contains("queue is full"));
    for call in calls {
        call.await.unwrap().unwrap();
    }

    // The replay buffer.
    let preset = realtime().with_retry(RetryLayer::new().with_replay_limit(3));
    let (service, seen) = stack(&preset, |_, _| async { answer(503) });
    let response = service.oneshot(request(Method::PUT, "https://push.example.com/", "long")).await.unwrap();
    assert_eq!(response.extensions().get::<Report>().unwrap().stop_reason(), Some(StopReason::NotReplayable));
    assert_eq!(seen.count(), 1);

    // What is read of a failed answer.
    let read = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&read);
    let (service, _) = stack(&realtime(), move |number, _| {
        let counted = Arc::clone(&counted);
        async move {
            if number > 0 {
                return answer(200);
            }
            let endless = futures_util::stream::repeat_with(move || {
                counted.fetch_add(1024, Ordering::Relaxed);
                Ok::<_, io::Error>(http_body::Frame::data(Bytes::from_static(&[0; 1024])))
            });
            let body = Body::new(http_body_util::StreamBody::new(endless));
            Ok(Response::builder().status(503).body(body)?)
        }
    });
    let response = service.oneshot(request(Method::GET, "https://push.example.com/", "")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(read.load(Ordering::Relaxed) <= 66 * 1024, "{read:?}");
}

#[tokio::test(start_paused = true)]
async fn promise_9_accounted() {
    let (service, seen) = stack(&realtime(), |number, _| async move {
        let status = if number < 2 { 503 } else { 200 };
        let id = format!("srv-{number}");
        Ok(Response::builder().status(status).header("request-id", id).body(Body::empty())?)
    });
    let url = "https://push.example.com/";
    let response = service.oneshot(request(Method::GET, url, "")).await.unwrap();
    let report = response.extensions().get::<Report>().unwrap();
    let ids: HashSet<_> = seen.ids.lock().unwrap().drain(..).collect();
    assert_eq!(ids.len(), 1, "one id for all attempts");
    assert!(ids.contains(report.request_id().unwrap().to_str().unwrap()));
    assert_eq!(report.server_request_id().unwrap(), "srv-2");
    let told: Vec<_> =
        report.attempts().iter().map(|a| (a.number, a.outcome.unwrap(), a.delay.is_some())).collect();
    let answered = |status: u16| Outcome::Response(status.try_into().unwrap());
    assert_eq!(told, [(1, answered(503), true), (2, answered(503), true), (3, answered(200), false)]);
    assert_eq!(report.stop_reason(), Some(StopReason::Success));

    let (service, seen) =
        stack(&realtime(), |_, _| async { Err(io::Error::from(io::ErrorKind::BrokenPipe).into()) });
    let error = service.oneshot(request(Method::GET, url, "")).await.unwrap_err();
    let report = error.report().unwrap();
    assert_eq!(error.request_id().unwrap(), seen.ids.lock().unwrap()[0].as_str());
    assert_eq!(report.attempt_count(), 3);
    assert!(report.attempts().iter().all(|attempt| attempt.outcome == Some(Outcome::Failed)));
    assert_eq!(report.stop_reason(), Some(StopReason::Exhausted));
    assert!(error.source().unwrap().downcast_ref::<io::Error>().is_some());

    // And a span for each attempt, inside that of the call: each line of the client's tells where it is.
    let (log, _guard) = capture::Capture::all();
    let (service, _) = stack(&realtime(), |number, _| async move {
        tracing::info!("client {number}");
        answer(503)
    });
    service.oneshot(request(Method::GET, url, "")).await.unwrap();
    let told: Vec<_> = log.lines().into_iter().filter(|line| line.message.starts_with("client ")).collect();
    assert_eq!(told.len(), 3);
    for (number, line) in told.iter().enumerate() {
        let resent = log.span(line.span.unwrap()).fields.get("http.request.resend_count").cloned();
        let expected = (number > 0).then(|| number.to_string());
        assert_eq!((line.message.clone(), resent), (format!("client {number}"), expected), "{line:?}");
        assert_eq!(line.scope, ["call", "attempt"]);
    }
}

#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "the real clock, to see that no real time passes")]
async fn promise_10_time() {
    let real = std::time::Instant::now();
    // An hour of limiting,
    let preset = rates().with_total_timeout(Duration::from_secs(7200));
    let (service, _) = stack(&preset, |_, _| async { answer(200) });
    let start = Instant::now();
    let calls: Vec<_> = (0..5321).map(|_| tokio::spawn(service.clone().oneshot(get()))).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!(start.elapsed().as_secs(), 5311 * 61 / 90, "5311 intervals of 61/90 s after the burst of 10");

    // a date in a header, a minute after the answer's own,
    let preset = realtime().with_total_timeout(Duration::from_secs(300));
    let (service, seen) = stack(&preset, |number, _| async move {
        let (date, later) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:50:37 GMT");
        match number {
            0 => Ok(Response::builder()
                .status(503)
                .header("date", date)
                .header("retry-after", later)
                .body(Body::empty())?),
            _ => answer(200),
        }
    });
    let url = "https://push.example.com/";
    assert_eq!(service.oneshot(request(Method::GET, url, "")).await.unwrap().status(), 200);
    let pause = seen.arrivals()[1] - seen.arrivals()[0];
    assert!((60_000..60_100).contains(&pause.as_millis()), "{pause:?}");

    // and all of it in no time.
    assert!(real.elapsed() < Duration::from_secs(20), "{:?}", real.elapsed());
}
