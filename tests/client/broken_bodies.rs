//! Tests the retry of a request if the body of its response breaks.

use std::io;

use http::request::Parts;
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tower::{
    ServiceBuilder,
    limit::ConcurrencyLimit,
    load_shed::error::Overloaded,
    retry::{Policy, RetryLayer as TowerRetryLayer},
};
use tower_http::trace::TraceLayer;
use tower_outbound::{
    Body,
    body::ReplayBody,
    call::{
        CallContext, RequestHead,
        StopReason::{self, Deadline, Exhausted, NotIdempotent, NotReplayable, NotRetryable, Success},
    },
    client::ResponseError,
    request_id::RequestId,
    retry::{AttemptResult, Budget, Classify, RetryDecision},
    stack::OuterService,
    timeout::BodyIdleTimeoutLayer,
};

use super::*;

const OK: Outcome = Outcome::Response(StatusCode::OK);
const IDLE: Duration = Duration::from_secs(1);

/// How the body of a response breaks.
#[derive(Debug, Clone, Copy)]
enum Break {
    /// The server closes the connection before the end of the `content-length`.
    Length,
    /// The server closes the connection before the last chunk.
    Chunk,
    /// The server resets the HTTP/2 stream.
    Stream,
    /// The server stops sending.
    Stall,
}

const BREAKS: [Break; 4] = [Break::Length, Break::Chunk, Break::Stream, Break::Stall];

impl Break {
    fn reply(self) -> Reply {
        let mut reply = if matches!(self, Self::Stall) { stalled(200) } else { cut_off(200) };
        if matches!(self, Self::Length) {
            reply.headers_mut().insert("content-length", 10.into());
        }
        reply
    }

    /// Starts a server whose first `count` response bodies break. All others are `[1]`.
    async fn server(self, count: usize) -> Server {
        let wire = if matches!(self, Self::Stream) { Wire::Http2 } else { Wire::Http1 };
        Server::start(wire, move |number, _| async move {
            Some(if number <= count { self.reply() } else { reply(200, "[1]") })
        })
        .await
    }

    fn client(self, preset: StackBuilder) -> Client {
        let transport = TransportConfig::new();
        let transport =
            if matches!(self, Self::Stream) { transport.with_http2_prior_knowledge() } else { transport };
        preset.with_body_idle_timeout(IDLE).client_with_transport(transport).unwrap()
    }

    /// Returns the outcome of an attempt whose body breaks.
    fn outcome(self) -> Outcome {
        if matches!(self, Self::Stall) { Outcome::Timeout } else { Outcome::Failed }
    }
}

/// A request that a [`broken`] service has received.
type Received = Arc<Mutex<Vec<(Instant, Parts)>>>;

/// Returns a client over a service that responds with `statuses` in order, and repeats the last status. The bodies of
/// the first `count` responses break after their first chunk.
fn broken(preset: &StackBuilder, count: usize, statuses: &'static [u16]) -> (Client, Received) {
    broken_with(preset, count, move |number| {
        let status = statuses[number.min(statuses.len()) - 1];
        http::Response::builder().status(status)
    })
}

fn broken_with(
    preset: &StackBuilder,
    count: usize,
    head: impl Fn(usize) -> http::response::Builder + Clone + Send + Sync + 'static,
) -> (Client, Received) {
    let received = Received::default();
    let all = Arc::clone(&received);
    let service = tower::service_fn(move |request: Request<ReplayBody<Body>>| {
        let number = {
            let mut all = all.lock().unwrap();
            all.push((Instant::now(), request.into_parts().0));
            all.len()
        };
        let end = if number <= count { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok("1]") };
        let frames =
            [Ok("["), end].map(|data: io::Result<_>| data.map(|data| Frame::data(Bytes::from(data))));
        ready(Ok::<_, Infallible>(head(number).body(StreamBody::new(stream::iter(frames))).unwrap()))
    });
    (preset.client_with_service(service).unwrap(), received)
}

/// Returns a preset for a service in memory.
fn in_memory() -> StackBuilder {
    preset("https://api.example.com")
}

/// Asserts that the error is that of a broken body, and returns its outcomes and stop reason.
fn broken_body(error: &ResponseError) -> (Vec<Outcome>, Option<StopReason>) {
    assert!(error.call().is_none() && error.decode_error().is_none(), "{error:?}");
    assert_eq!((error.status(), error.excerpt()), (Some(StatusCode::OK), ""));
    assert!(error.to_string().starts_with("the response's body could not be read, status 200 OK"), "{error}");
    let report = error.report().unwrap();
    (outcomes(report), report.stop_reason())
}

#[tokio::test]
async fn reading_the_body_retries_a_get_whose_body_breaks() {
    let cases =
        BREAKS.into_iter().flat_map(|broken| [(broken, "bytes"), (broken, "text"), (broken, "fetch_text")]);
    join_all(cases.map(|(broken, method)| async move {
        let server = broken.server(1).await;
        let get = broken.client(preset(&server.url())).get("/v1?q=1").header("x-own", "kept");
        if method == "fetch_text" {
            assert_eq!(within(get.fetch_text()).await.unwrap(), "[1]");
        } else {
            let response = within(get).await.unwrap();
            let report = report(&response).clone();
            assert_eq!((outcomes(&report), report.stop_reason()), (vec![OK], Some(Success)));
            let text = match method {
                "bytes" => within(response.bytes()).await.unwrap(),
                _ => within(response.text()).await.unwrap().into(),
            };
            assert_eq!(text, "[1]", "{broken:?}");
            assert_eq!(
                (outcomes(&report), report.stop_reason()),
                (vec![broken.outcome(), OK], Some(Success))
            );
        }
        let seen = server.seen();
        assert_eq!(seen.len(), 2, "{broken:?} {method}");
        assert_eq!((&seen[0].headers, seen[0].path_and_query()), (&seen[1].headers, "/v1?q=1"));
        assert_eq!(
            (seen[0].header("x-request-id").unwrap().len(), seen[1].header("x-own")),
            (36, Some("kept"))
        );
        // A broken body ends the connection in HTTP/1, but only its stream in HTTP/2.
        assert_eq!(server.connections(), if matches!(broken, Break::Stream) { 1 } else { 2 });
    }))
    .await;
}

#[tokio::test]
async fn broken_body_of_a_post_is_an_error_after_one_request() {
    join_all(BREAKS.map(|broken| async move {
        let server = broken.server(1).await;
        let post = broken.client(preset(&server.url())).post("/v1").body("once");
        let error = within(post.fetch_text()).await.unwrap_err();
        assert_eq!(broken_body(&error), (vec![broken.outcome()], Some(NotIdempotent)));
        assert_eq!(error.is_timeout(), matches!(broken, Break::Stall));
        let source = std::error::Error::source(&error).unwrap();
        match broken {
            Break::Stall => assert_eq!(source.to_string(), "response body stalled for 1s"),
            _ => assert!(source.is::<hyper::Error>(), "the source is the error of the body: {source:?}"),
        }
        assert_eq!(server.seen().len(), 1, "{broken:?}");
    }))
    .await;
}

#[tokio::test]
async fn idempotent_post_is_retried_with_the_same_body_after_its_body_broke() {
    type Change = fn(StackBuilder) -> StackBuilder;
    let unchanged: Change = |preset| preset;
    let by_rule: Change = |preset| preset.with_idempotent(|head| head.method == Method::POST);
    let by_key: Change =
        |preset| preset.with_retry(quick_retry().with_honoured_idempotency_key(IdempotencyKey::quoted()));
    let declare: fn(RequestBuilder) -> RequestBuilder = RequestBuilder::idempotent;
    let key: fn(RequestBuilder) -> RequestBuilder = |post| post.header("idempotency-key", "mine");
    for (change, request) in
        [(unchanged, declare), (by_rule, |post| post), (by_key, |post| post), (by_key, key)]
    {
        let server = Break::Length.server(2).await;
        let client = change(preset(&server.url())).client().unwrap();
        let post = request(client.post("/v1").body("same").extension(7_u8));
        assert_eq!(within(post.fetch_text()).await.unwrap(), "[1]");
        let seen = server.seen();
        assert_eq!(seen.len(), 3);
        for seen in &seen {
            assert_eq!((&seen.body[..], &seen.method), (&b"same"[..], &Method::POST));
            assert_eq!(seen.headers, server.seen()[0].headers, "also the request id and the idempotency key");
        }
    }
}

#[tokio::test]
async fn request_whose_body_is_not_in_memory_is_not_retried_after_its_body_broke() {
    let streamed =
        || Body::new(StreamBody::new(stream::iter([io::Result::Ok(Frame::data(Bytes::from("four")))])));
    let limited = quick_retry().with_replay_limit(3);
    for (retry, body, length) in [
        (quick_retry(), streamed(), None),
        (quick_retry(), streamed(), Some("4")),
        (limited, Body::from("four"), None),
    ] {
        let server = Break::Chunk.server(1).await;
        let client = preset(&server.url()).with_retry(retry).client().unwrap();
        let put = client.put("/v1").body(body);
        let put = if let Some(length) = length { put.header("content-length", length) } else { put };
        let error = within(put.fetch_text()).await.unwrap_err();
        assert_eq!(broken_body(&error), (vec![Outcome::Failed], Some(NotReplayable)));
        assert_eq!(server.seen().len(), 1);
    }
}

/// Such a layer loses the call, so another run of the stack would be a new call.
#[tokio::test(start_paused = true)]
async fn broken_body_is_not_retried_behind_a_layer_that_drops_the_extensions() {
    let fresh = layer_fn(|inner: OuterService| {
        inner.map_request(|request: Request<Body>| {
            let (head, body) = request.into_parts();
            let mut fresh = Request::new(body);
            (*fresh.method_mut(), *fresh.uri_mut(), *fresh.headers_mut()) =
                (head.method, head.uri, head.headers);
            fresh
        })
    });
    let (client, received) = broken(&in_memory().with_outer_layer(fresh), 1, &[200]);
    client.post("/v1").body("once").fetch_text().await.unwrap_err();
    client.get("/v1").fetch_text().await.unwrap();
    assert_eq!(received.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn broken_body_is_not_retried_after_a_redirect() {
    let key = quick_retry().with_honoured_idempotency_key(IdempotencyKey::bare());
    for (status, preserve, retry) in
        [(303, false, quick_retry()), (303, true, quick_retry()), (307, true, key)]
    {
        let layer = FollowRedirectLayer::new().preserve_extensions(preserve);
        let builder = in_memory().with_retry(retry).with_outer_layer(layer);
        let (client, received) = broken_with(&builder, 2, move |number| {
            let head = http::Response::builder();
            if number == 1 { head.status(status).header("location", "/new") } else { head }
        });
        let error = client.post("/old").fetch_text().await.unwrap_err();
        assert_eq!(broken_body(&error).0, [OK]);
        assert_eq!(received.lock().unwrap().len(), 2, "{status} {preserve}");
    }
}

/// Adds an outer layer that numbers its requests in a header, unless they have the header.
fn numbered(builder: StackBuilder, name: &'static str) -> StackBuilder {
    let count = Arc::new(AtomicUsize::new(0));
    builder.with_outer_layer(layer_fn(move |inner: OuterService| {
        let count = Arc::clone(&count);
        inner.map_request(move |mut request: Request<Body>| {
            let number = HeaderValue::from(count.fetch_add(1, Relaxed));
            request.headers_mut().entry(name).or_insert(number);
            request
        })
    }))
}

#[tokio::test(start_paused = true)]
async fn retry_of_a_broken_body_sends_the_headers_that_outer_layers_have_added() {
    let honoured = quick_retry().with_honoured_idempotency_key(IdempotencyKey::bare());
    let by_rule = in_memory().with_idempotent(|head| head.headers.contains_key("idempotency-key"));
    for (builder, method) in [
        (in_memory().with_retry(honoured), Method::POST),
        (by_rule, Method::POST),
        (in_memory(), Method::GET),
    ] {
        let builder = numbered(numbered(builder, "idempotency-key"), "x-request-id");
        let (client, received) = broken(&builder, 1, &[200]);
        let response = client.request(method.clone(), "/v1").body("once").await.unwrap();
        let report = report(&response).clone();
        assert_eq!(response.text().await.unwrap(), "[1]", "{method}");
        for name in ["idempotency-key", "x-request-id"] {
            let received = received.lock().unwrap();
            let sent: Vec<_> = received.iter().map(|(_, head)| head.headers[name].clone()).collect();
            assert_eq!(sent, ["0"; 2], "{method} {name}");
        }
        assert_eq!((report.request_id().unwrap(), report.attempt_count()), ("0".parse().unwrap(), 2));
    }
}

/// Resends a request without a body after each error.
#[derive(Clone)]
struct Resend;

impl Policy<Request<Body>, http::Response<Body>, Error> for Resend {
    type Future = std::future::Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<Body>,
        result: &mut Result<http::Response<Body>, Error>,
    ) -> Option<Self::Future> {
        result.is_err().then(|| ready(()))
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        let copy = request.body().is_end_stream().then(|| request.method().clone());
        copy.map(|method| {
            let mut copy = Request::new(Body::empty());
            (*copy.method_mut(), *copy.uri_mut()) = (method, request.uri().clone());
            *copy.extensions_mut() = request.extensions().clone();
            copy
        })
    }
}

/// The client does not keep a streamed body, so the layer must not receive the request without its body.
#[tokio::test(start_paused = true)]
async fn outer_retry_layer_does_not_resend_a_streamed_request_without_its_body() {
    let (client, received) = broken(&in_memory().with_outer_layer(TowerRetryLayer::new(Resend)), 1, &[200]);
    let streamed = || StreamBody::new(stream::iter([io::Result::Ok(Frame::data(Bytes::from("four")))]));
    let error = client.put("/v1").body_with(move || Body::new(streamed())).fetch_text().await.unwrap_err();
    assert_eq!(broken_body(&error), (vec![Outcome::Failed], Some(NotReplayable)));
    assert_eq!(received.lock().unwrap().len(), 1);
}

/// A retry without the layer would return the body as the server sent it.
#[tokio::test(start_paused = true)]
async fn broken_body_is_not_retried_behind_a_layer_that_changes_the_body() {
    let upper =
        |body: Body| body.map_frame(|frame| frame.map_data(|data| Bytes::from(data.to_ascii_uppercase())));
    let changed = move |response: http::Response<Body>| response.map(upper);
    let boxed = move |response: http::Response<Body>| response.map(|body| Body::new(upper(body)));
    for builder in [
        in_memory().with_outer_layer(ServiceBuilder::new().map_response(changed)),
        in_memory().with_outer_layer(ServiceBuilder::new().map_response(boxed)),
        in_memory().with_outer_layer(TraceLayer::new_for_http()),
    ] {
        let (client, received) = broken(&builder, 1, &[200]);
        let error = client.get("/v1").fetch_text().await.unwrap_err();
        assert_eq!(broken_body(&error).0, [OK]);
        assert_eq!(client.get("/v1").fetch_text().await.unwrap(), "[1]");
        assert_eq!(received.lock().unwrap().len(), 2);
    }
}

/// The retry would not pass the layer, so that the idle timeout would not limit the body of the next response.
#[tokio::test]
async fn body_that_stalls_longer_than_the_idle_timeout_of_an_outer_layer_is_not_retried() {
    let server = Break::Stall.server(1).await;
    let builder = preset(&server.url()).with_outer_layer(BodyIdleTimeoutLayer::new(IDLE).unwrap());
    let error = within(builder.client().unwrap().get("/v1").fetch_text()).await.unwrap_err();
    assert_eq!((error.is_timeout(), broken_body(&error).0), (true, vec![OK]));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn retry_of_a_broken_body_does_not_wait_in_an_outer_layer() {
    let second = Duration::from_secs(1);
    let slots = Arc::new(Semaphore::new(1));
    let outer = Arc::clone(&slots);
    let layer =
        layer_fn(move |inner: OuterService| ConcurrencyLimit::with_semaphore(inner, Arc::clone(&outer)));
    let builder = in_memory().with_total_timeout(second * 5).with_outer_layer(layer);
    for method in [Method::GET, Method::POST] {
        let (client, received) = broken(&builder, 1, &[200]);
        let response = client.request(method.clone(), "/v1").body("x").await.unwrap();
        let (_busy, start) = (slots.acquire().await.unwrap(), Instant::now());
        let result = response.text().await;
        assert!(start.elapsed() < second, "{method} {:?}", start.elapsed());
        match result {
            Ok(text) => assert_eq!((text.as_str(), received.lock().unwrap().len()), ("[1]", 2)),
            Err(error) => assert_eq!(broken_body(&error), (vec![Outcome::Failed], Some(NotIdempotent))),
        }
        assert_eq!(received.lock().unwrap().len(), if method == Method::GET { 2 } else { 1 });
    }
    // The deadline of the call still limits the retry.
    let stalled = ScriptedResponse::status(200).with_body("[").with_body_stalled();
    let builder = builder.with_body_idle_timeout(second * 3);
    let client = builder.client_with_service(ScriptedService::new([stalled])).unwrap();
    let start = Instant::now();
    let error = client.get("/v1").fetch_text().await.unwrap_err();
    assert_eq!((start.elapsed(), error.is_timeout()), (second * 5, true));
    let report = error.report().unwrap();
    assert_eq!((report.attempt_count(), report.stop_reason()), (2, Some(Deadline)));
}

#[tokio::test]
async fn streamed_body_is_not_retried() {
    join_all(BREAKS.map(|broken| async move {
        let server = broken.server(1).await;
        let response = within(broken.client(preset(&server.url())).get("/")).await.unwrap().into_http();
        assert!(within(response.into_body().bytes_up_to(1024)).await.is_err());
        assert_eq!(server.seen().len(), 1);
    }))
    .await;
}

/// Retries nothing.
struct Never;

impl Classify for Never {
    fn classify(&self, _: RequestHead<'_>, _: &AttemptResult<'_>) -> RetryDecision {
        RetryDecision::NotRetryable
    }
}

#[tokio::test(start_paused = true)]
async fn retries_of_broken_bodies_stop_at_each_limit_of_the_retry_layer() {
    let budget = Budget::new().with_capacity(20).unwrap();
    let many = || quick_retry().with_max_attempts(99).unwrap();
    for (retry, own, requests, stop) in [
        (quick_retry(), RetryOverride::new(), 3, Exhausted),
        (quick_retry(), RetryOverride::new().with_max_attempts(2).unwrap(), 2, Exhausted),
        (quick_retry(), RetryOverride::new().without_retries(), 1, Exhausted),
        (quick_retry().with_max_attempts(1).unwrap(), RetryOverride::new(), 1, Exhausted),
        // The credit of 20 pays for one retry of 14, although each retry succeeds up to its response headers.
        (many().with_budget(budget.clone()), RetryOverride::new(), 2, StopReason::Budget),
        (many().with_custom_backoff(|| [Duration::ZERO; 3].into_iter()), RetryOverride::new(), 4, Exhausted),
        (quick_retry().with_classify(Never), RetryOverride::new(), 1, NotRetryable),
    ] {
        let (client, received) = broken(&in_memory().with_retry(retry), 99, &[200]);
        let error = client.get("/v1").extension(own).fetch_text().await.unwrap_err();
        assert_eq!(broken_body(&error), (vec![Outcome::Failed; requests], Some(stop)));
        assert_eq!(received.lock().unwrap().len(), requests);
    }
    assert!(budget.left() < 14, "{budget:?}");
}

#[tokio::test(start_paused = true)]
async fn response_headers_forbid_or_delay_the_retry_of_a_broken_body() {
    let with_header =
        |name, value| broken_with(&in_memory(), 1, move |_| http::Response::builder().header(name, value));
    let (client, received) = with_header("x-should-retry", "false");
    let error = client.get("/v1").fetch_text().await.unwrap_err();
    assert_eq!(broken_body(&error), (vec![Outcome::Failed], Some(NotRetryable)));
    assert_eq!(received.lock().unwrap().len(), 1);

    let (client, received) = with_header("retry-after", "7");
    assert_eq!(client.get("/v1").fetch_text().await.unwrap(), "[1]");
    let received = received.lock().unwrap();
    assert!(received[1].0 - received[0].0 >= Duration::from_secs(7));
}

#[tokio::test(start_paused = true)]
async fn rule_sees_the_headers_and_the_error_of_a_response_whose_body_broke() {
    let retry = RetryLayer::new().with_classify(Never).retry_if(|request, attempt| {
        assert_eq!((request.extensions.get(), attempt.extension()), (Some(&7_u8), Some(&8_u16)));
        assert_eq!(attempt.header("x-marked").unwrap(), "1");
        attempt.status().is_none() && attempt.error.is_some_and(|error| error.kind() == ErrorKind::Reset)
    });
    let marked = |_| http::Response::builder().header("x-marked", "1").extension(8_u16);
    let (client, received) = broken_with(&in_memory().with_retry(retry), 1, marked);
    // The first decision sees a response, and only the second one an error.
    assert_eq!(client.get("/v1").extension(7_u8).fetch_text().await.unwrap(), "[1]");
    assert_eq!(received.lock().unwrap().len(), 2);
}

/// The resend with the new key does not count as an attempt.
#[tokio::test(start_paused = true)]
async fn call_with_a_broken_body_is_resent_once_with_the_new_key_after_a_401() {
    let number = AtomicUsize::new(0);
    let keys = RefreshingKey::new(move || {
        let key = ApiKey::new(format!("k3y-{}", number.fetch_add(1, Relaxed)));
        ready(key.map(FreshKey::new).map_err(BoxError::from))
    });
    let retry = quick_retry().with_max_attempts(2).unwrap();
    let (client, received) = broken(&in_memory().with_keys(keys).with_retry(retry), 99, &[200, 401, 200]);
    let error = client.get("/v1").fetch_text().await.unwrap_err();
    let unauthorized = Outcome::Response(StatusCode::UNAUTHORIZED);
    let expected = vec![Outcome::Failed, unauthorized, Outcome::Failed];
    assert_eq!(broken_body(&error), (expected, Some(Exhausted)));
    let received = received.lock().unwrap();
    let keys: Vec<_> = received.iter().map(|(_, head)| &head.headers["authorization"]).collect();
    assert_eq!(keys, ["Bearer k3y-0", "Bearer k3y-0", "Bearer k3y-1"]);
}

#[cfg(feature = "json")]
#[tokio::test(start_paused = true)]
async fn body_that_is_too_large_or_not_json_is_not_retried() {
    for (body, is_too_large) in [(vec![b' '; Response::MAX_BODY + 1], true), (b"{".to_vec(), false)] {
        let service = ScriptedService::new([ScriptedResponse::status(200).with_body(body)]);
        let client = in_memory().client_with_service(service.clone()).unwrap();
        let error = client.get("/v1").fetch_json::<u8>().await.unwrap_err();
        assert_eq!((error.is_too_large(), error.decode_error().is_none()), (is_too_large, is_too_large));
        assert_eq!((service.calls(), outcomes(error.report().unwrap())), (1, vec![OK]));
    }
}

#[tokio::test(start_paused = true)]
async fn report_has_no_stop_reason_while_a_broken_body_is_retried() {
    let stalled = ScriptedResponse::status(200).with_body("[").with_body_stalled();
    let service = ScriptedService::new([stalled, ScriptedResponse::never()]);
    let client = in_memory().with_body_idle_timeout(IDLE).client_with_service(service.clone()).unwrap();
    let response = client.get("/v1").await.unwrap();
    let report = report(&response).clone();
    assert_eq!(report.stop_reason(), Some(Success));
    assert!(tokio::time::timeout(IDLE * 2, response.text()).await.is_err());
    assert_eq!((service.calls(), report.attempt_count(), report.stop_reason()), (2, 2, None));
}

#[tokio::test(start_paused = true)]
async fn broken_body_is_not_retried_after_the_deadline() {
    // The backoff would end after the deadline.
    let second = Duration::from_secs(1);
    let backoff = ExponentialBackoff::new(second, second).unwrap().with_jitter(Jitter::none());
    let preset = in_memory().with_retry(RetryLayer::new().with_backoff(backoff));
    let (client, received) = broken(&preset, 1, &[200]);
    let start = Instant::now();
    let error = client.get("/v1").timeout(second / 2).fetch_text().await.unwrap_err();
    assert_eq!(broken_body(&error), (vec![Outcome::Failed], Some(Deadline)));
    assert_eq!((received.lock().unwrap().len(), start.elapsed()), (1, Duration::ZERO));

    // The deadline passes while the body is read, or during the second attempt.
    let stalled = ScriptedResponse::status(200).with_body("[").with_body_stalled();
    for (script, attempts, is_body) in
        [(vec![stalled.clone()], 1, true), (vec![stalled, ScriptedResponse::never()], 2, false)]
    {
        let preset = in_memory().with_total_timeout(second * 5);
        let preset = if is_body { preset } else { preset.with_body_idle_timeout(second) };
        let service = ScriptedService::new(script);
        let client = preset.client_with_service(service.clone()).unwrap();
        let start = Instant::now();
        let error = client.get("/v1").fetch_text().await.unwrap_err();
        assert_eq!((start.elapsed().as_secs(), error.is_timeout()), (5, true));
        assert_eq!(outcomes(error.report().unwrap()), vec![Outcome::Timeout; attempts]);
        assert_eq!(error.report().unwrap().stop_reason(), Some(Deadline));
        assert_eq!((error.call().is_none(), service.calls()), (is_body, attempts));
        assert!(error.may_have_been_processed());
    }
}

#[tokio::test(start_paused = true)]
async fn retry_of_a_broken_body_waits_for_a_permit() {
    let quota = Quota::new(1, Duration::from_secs(10)).unwrap().without_margin();
    let preset = in_memory().with_limiter(LocalLimiter::sliding_window(quota));
    let (client, received) = broken(&preset, 1, &[200]);
    let response = client.get("/v1").await.unwrap();
    let report = report(&response).clone();
    assert_eq!(response.text().await.unwrap(), "[1]");
    assert!(report.queued() > Duration::from_secs(9), "{report}");
    let received = received.lock().unwrap();
    assert!(received[1].0 - received[0].0 >= Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn body_of_an_error_status_is_not_retried() {
    let (client, received) = broken(&in_memory(), 99, &[404]);
    let error = client.get("/v1").await.unwrap().text().await.unwrap_err();
    assert_eq!((error.status().unwrap().as_u16(), error.call().is_none()), (404, true));
    let error = client.get("/v1").fetch_text().await.unwrap_err();
    assert_eq!((error.status().unwrap().as_u16(), error.excerpt()), (404, "["));
    assert_eq!(received.lock().unwrap().len(), 2);
}

/// The caller has seen the first status, so the body of another status must not take the place of the body.
#[tokio::test(start_paused = true)]
async fn retry_of_a_broken_body_returns_an_error_for_a_status_other_than_2xx() {
    let (client, received) = broken(&in_memory(), 1, &[200, 404]);
    let error = client.get("/v1").await.unwrap().bytes().await.unwrap_err();
    assert_eq!((error.status().unwrap().as_u16(), error.excerpt()), (404, "[1]"));
    assert!(error.to_string().starts_with("the response is not a success, status 404"), "{error}");
    assert_eq!(
        outcomes(error.report().unwrap()),
        [Outcome::Failed, Outcome::Response(StatusCode::NOT_FOUND)]
    );

    let (client, _) = broken(&in_memory(), 1, &[201, 503, 200]);
    assert_eq!(client.put("/v1").fetch_text().await.unwrap(), "[1]");
    assert_eq!(received.lock().unwrap().len(), 2);
}

/// The server has responded, so no error of the body proves that it did not process the request.
#[tokio::test(start_paused = true)]
async fn post_is_not_retried_whatever_the_error_of_its_broken_body_states() {
    let refused = || io::Error::from(io::ErrorKind::ConnectionRefused).into();
    let limited = async || {
        let quota = Quota::new(1, Duration::from_secs(10)).unwrap();
        let limiter = LocalLimiter::sliding_window(quota);
        limiter.acquire().await.unwrap();
        let client =
            in_memory().with_limiter(limiter).client_with_service(ScriptedService::new([200])).unwrap();
        BoxError::from(client.get("/").timeout(Duration::from_secs(1)).await.unwrap_err())
    };
    let errors: [BoxError; 4] =
        [refused(), DeliveryError::not_sent("x").into(), Overloaded::new().into(), limited().await];
    for error in errors {
        let (calls, error) = (Arc::new(AtomicUsize::new(0)), Mutex::new(Some(error)));
        let body = move || {
            Body::new(StreamBody::new(stream::iter(error.lock().unwrap().take().map(Err::<Frame<Bytes>, _>))))
        };
        let (counted, body) = (Arc::clone(&calls), Arc::new(body));
        let service = tower::service_fn(move |_: Request<_>| {
            counted.fetch_add(1, Relaxed);
            ready(Ok::<_, Infallible>(http::Response::new(body())))
        });
        let client = in_memory().client_with_service(service).unwrap();
        let error = client.post("/v1").fetch_text().await.unwrap_err();
        assert_eq!(broken_body(&error), (vec![Outcome::Failed], Some(NotIdempotent)), "{error:?}");
        assert_eq!(calls.load(Relaxed), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn retry_of_a_broken_body_continues_the_call() {
    let (client, received) = broken(&in_memory(), 2, &[200]);
    let deadline = tower_outbound::call::Deadline::after(Duration::from_secs(9));
    for get in [client.get("/v1"), client.get("/v1").extension(RequestId("mine".parse().unwrap()))] {
        received.lock().unwrap().clear();
        let response = get.extension(7_u8).extension(deadline).await.unwrap();
        let report = report(&response).clone();
        assert_eq!(response.text().await.unwrap(), "[1]");
        assert_eq!(outcomes(&report), [Outcome::Failed, Outcome::Failed, OK]);
        let attempts = report.attempts();
        assert_eq!(attempts.iter().map(|attempt| attempt.number).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(attempts.is_sorted_by_key(|attempt| attempt.started) && attempts[1].delay.is_some());
        for (_, head) in received.lock().unwrap().iter() {
            assert_eq!(head.headers["x-request-id"], report.request_id().unwrap());
            assert_eq!(head.extensions.get(), Some(&7_u8));
            assert_eq!(head.extensions.get::<CallContext>().unwrap().deadline(), Some(deadline.0));
        }
    }
}
