//! Every public type, with a key in it or near it where it can be: none of them shows it. A type that is added to the
//! crate has to be added here.

use std::{
    cell::RefCell,
    fmt, fs,
    num::NonZeroU32,
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header::AUTHORIZATION};
use http_body::Body as _;
use http_body_util::{BodyExt, Full};
use tokio_test::task;
use tower::{Layer, Service, ServiceExt};
use tower_outbound::{
    ApiKey, Body, BoxError, Quota,
    attempt_span::AttemptSpanLayer,
    auth::*,
    body::{BodyTooLarge, ReplayBody},
    call::{CallContext, Deadline, DelayReason, Delivery, KeyReplaced, RequestHead, StopReason},
    client::Transport,
    error::{DeliveryError, Reason, Refusal},
    limit::{
        AnyLimiter, Keyed, Limiter, PermitCost, PermitRequest, RateLimitLayer, ResponseInfo, SlidingWindow,
        TokenBucket,
    },
    request_id::{RequestId, RequestIdLayer},
    retry::{self, DefaultClassifier, IdempotencyKey, RetryDecision, RetryLayer, RetryOverride},
    test_util,
    timeout::{BodyIdleTimeoutLayer, TimeoutConfig, TimeoutLayer},
};

#[cfg(any(feature = "otel", feature = "redis", feature = "reqwest"))]
use tower_outbound::adapter;

use super::{
    probe::{Content, Scripted, ScriptedService, get, secs},
    *,
};

const URI: &str = "https://host/v1";

/// The room and the name of each type that was looked at, and of each whose `Display` was.
#[derive(Default)]
struct Seen {
    types: RefCell<BTreeSet<String>>,
    displays: RefCell<BTreeSet<String>>,
}

/// Types that callers cannot name. The `Debug` of the services and futures around them shows them.
const INNER: [&str; 2] = ["error::MaybeRejected", "stack::DefaultHeaders"];

/// `auth::ApiKey` of `tower_outbound::auth::key::ApiKey`, whatever it is generic over.
fn name_of<T: ?Sized>(_: &T) -> String {
    let name = std::any::type_name::<T>();
    let path = name.split('<').next().unwrap();
    let room = path.split("::").nth(1).unwrap();
    format!("{room}::{}", path.rsplit("::").next().unwrap())
}

/// A client whose `Debug` tells what it was given, but for the URI; answers 401, or nothing.
#[derive(Debug, Clone)]
struct Telling {
    answers: bool,
}

struct Told<B> {
    request: Request<B>,
    answers: bool,
}

impl<B> Service<Request<B>> for Telling {
    type Response = Response<Content>;
    type Error = BoxError;
    type Future = Told<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Told<B> {
        Told { request, answers: self.answers }
    }
}

impl<B> Future for Told<B> {
    type Output = Result<Response<Content>, BoxError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.answers {
            return Poll::Pending;
        }
        Poll::Ready(Ok(Response::builder().status(401).body(Content::default())?))
    }
}

impl<B> Debug for Told<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Told").field(self.request.headers()).field(self.request.extensions()).finish()
    }
}

impl Seen {
    #[track_caller]
    fn debug<T: Debug>(&self, value: &T) {
        hidden(value);
        self.types.borrow_mut().insert(name_of(value));
    }

    #[track_caller]
    fn both<T: Debug + Display>(&self, value: &T) {
        self.debug(value);
        unsaid(value);
        self.displays.borrow_mut().insert(name_of(value));
    }

    #[track_caller]
    fn error<T: StdError + 'static>(&self, value: &T) {
        self.both(value);
        chain(value);
    }

    /// The layer, its service, the future of a call that runs, with the key in its request, and what comes of it.
    fn layer<L, S, R>(&self, layer: L)
    where
        L: Layer<Telling, Service = S> + Debug,
        S: Service<Request<Content>, Response = Response<R>, Error: Into<BoxError> + Debug> + Clone + Debug,
        S::Future: Debug,
        R: Debug,
    {
        self.debug(&layer);
        let request = || {
            let mut request = get(&format!("{URI}?api_key=redacted"));
            request.headers_mut().insert(AUTHORIZATION, key().header_value());
            request
        };
        for answers in [false, true] {
            let mut service = layer.layer(Telling { answers });
            self.debug(&service);
            let Poll::Ready(ready) = task::spawn(service.ready()).poll() else { panic!("it waits") };
            let future = ready.unwrap().call(request());
            self.debug(&future);
            let mut future = task::spawn(future);
            match future.poll() {
                Poll::Ready(Ok(response)) => answered(&response),
                Poll::Ready(Err(error)) => chain(&*error.into()),
                Poll::Pending => hidden(&future),
            }
        }
    }
}

#[test]
fn no_public_type_shows_it_and_none_is_missing() {
    let seen = Seen::default();
    // What is made in one room is shown in others, too: by room only for who reads it.
    paused(async {
        auth(&seen).await;
        layers(&seen);
        calls_and_errors(&seen).await;
        bodies(&seen);
        rules(&seen);
        test_kit(&seen).await;
        adapters(&seen);
        config(&seen);
    });
    #[cfg(feature = "reqwest")]
    live(over_reqwest(&seen));

    let (types, displays) = declared();
    assert!(types.len() > 80 && displays.len() > 6, "{types:?} {displays:?}");
    let missing: Vec<_> = types.difference(&seen.types.borrow()).cloned().collect();
    assert!(missing.is_empty(), "public types that were not looked at: {missing:?}");
    let missing: Vec<_> = displays.difference(&seen.displays.borrow()).cloned().collect();
    assert!(missing.is_empty(), "of these `Display` was not looked at: {missing:?}");
}

async fn auth(seen: &Seen) {
    let origin = || Origin::parse(URI).unwrap();
    seen.debug(&key());
    seen.debug(&AppCredentials::new("app", key(), key()).unwrap());
    seen.debug(&FreshKey::new(key()));
    seen.debug(&provided());
    seen.both(&origin());
    seen.debug(&KeyReplaced);

    let failing = KeySource::from(RefreshingKey::new(|| async {
        Err::<FreshKey, _>(ApiKey::new(format!("{KEY} ")).unwrap_err())
    }));
    seen.error(&failing.current().await.unwrap_err());
    for placement in ["bearer", "header:x-api-key", "basic:ann", "query:api_key"] {
        let placement: KeyPlacement = placement.parse().unwrap();
        seen.both(&placement);
        for keys in [KeySource::from(key()), provided().into(), failing.clone()] {
            seen.debug(&keys);
            if let Ok(current) = keys.current().await {
                seen.debug(&current);
            }
            let layer = AuthLayer::new(keys, origin()).unwrap().with_placement(placement.clone());
            seen.layer(layer.clone());
            // Again, with the key that the first service has fetched.
            seen.layer(layer);
        }
    }
    let own = key();
    let hook = move |head: &mut http::request::Parts| {
        head.headers.insert("x-key", own.header_value());
        Ok(())
    };
    seen.layer(AuthLayer::from_fn(hook, origin()).unwrap());

    /// Holds its key while it signs.
    struct Signer(ApiKey);
    impl Sign for Signer {
        fn sign<'a>(&'a self, head: &'a mut http::request::Parts, _: Option<&'a Bytes>) -> Signing<'a> {
            Box::pin(async move {
                head.headers.insert("x-signed", self.0.header_value());
                Ok(())
            })
        }
    }
    seen.layer(SignLayer::new(Signer(key()), origin()).unwrap());
}

fn layers(seen: &Seen) {
    let quota = Quota::per_minute(1_000).unwrap();
    let bucket = TokenBucket::new(quota);
    seen.both(&quota);
    seen.debug(&bucket);
    seen.debug(&bucket.snapshot());
    seen.debug(&SlidingWindow::new(quota));
    seen.debug(&bucket.acquire_with(&PermitRequest::new()));
    seen.debug(&bucket.try_acquire().unwrap());
    let any = AnyLimiter::new(bucket.clone());
    seen.debug(&any);
    seen.layer(RateLimitLayer::new(any));
    seen.debug(&PermitRequest::new());
    seen.debug(&PermitCost(NonZeroU32::MIN));
    // The key of the service as the key of the table.
    let keyed = || {
        Keyed::new(
            |head| head.headers[AUTHORIZATION].to_str().unwrap().to_owned(),
            move |_: &String| TokenBucket::new(quota),
        )
    };
    seen.debug(&keyed());
    seen.debug(&AnyLimiter::new(keyed()));
    seen.layer(RateLimitLayer::new(keyed()));
    seen.layer(RateLimitLayer::new(bucket));
    let headers = HeaderMap::from_iter([
        (HeaderName::from_static("ratelimit"), HeaderValue::from_static(r#""burst";r=50;t=30"#)),
        (HeaderName::from_static("x-echo"), key().header_value()),
    ]);
    let response = ResponseInfo::new(StatusCode::OK, &headers);
    seen.debug(&response);
    seen.debug(&response.remaining()[0]);
    let mut request = get(URI);
    request.headers_mut().insert(AUTHORIZATION, key().header_value());
    seen.debug(&RequestHead::of(&request));

    seen.layer(RequestIdLayer::new());
    seen.debug(&RequestId(HeaderValue::from_static("mine")));
    seen.layer(retry::RetryLayer::new());
    seen.layer(AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt")));
    seen.layer(TimeoutLayer::total(secs(60)).unwrap());
    seen.layer(TimeoutLayer::per_attempt(secs(60)).unwrap());
    seen.layer(BodyIdleTimeoutLayer::new(secs(60)).unwrap());

    for place in PLACES {
        let preset = preset(URI, place);
        seen.debug(&preset);
        let layer = preset.layer().unwrap();
        seen.debug(&layer);
        seen.layer(layer);
        let client = super::preset(SITE, place).client().unwrap();
        seen.debug(&client);
    }
    let credentials = AppCredentials::new("app", key(), key()).unwrap();
    let own = preset(URI, Place::Bearer).with_authorize(move |head| {
        head.headers.insert("x-key", credentials.key().header_value());
        Ok(())
    });
    seen.debug(&own);
    seen.layer(own.layer().unwrap());
    seen.debug(&Transport::new());
}

async fn calls_and_errors(seen: &Seen) {
    let probe = ScriptedService::new([Scripted::Status(503), Scripted::Status(401)]);
    let service = preset(URI, Place::Bearer).layer().unwrap().layer(probe.clone());
    let response = service.oneshot(get(URI)).await.unwrap();
    let report = Report::from_response(&response).unwrap();
    seen.both(report);
    let attempts = report.attempts();
    seen.debug(&attempts[0]);
    seen.debug(&attempts[0].outcome.unwrap());
    seen.debug(probe.seen()[0].head.extensions.get::<CallContext>().unwrap());
    seen.debug(response.body());
    seen.debug(&Deadline::after(secs(1)));
    seen.debug(&DelayReason::Requested);
    seen.debug(&StopReason::Success);

    let error = preset(SITE, Place::Bearer).client().unwrap().get("//").await.unwrap_err();
    seen.error(&error);
    seen.both(&error.kind());
    #[cfg(feature = "json")]
    seen.error(&preset(SITE, Place::Bearer).client().unwrap().get_json::<()>("//").await.unwrap_err());
    // The key in the response headers, and in the error's request.
    let names = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&names);
    let layer = RetryLayer::new().retry_if(move |_, attempt| {
        hidden(attempt);
        noted.lock().unwrap().push(name_of(attempt));
        false
    });
    let probe = ScriptedService::new([
        Scripted::Headers(503, &[("authorization", KEY)]),
        Scripted::Refused,
        Scripted::Status(200),
    ]);
    layer.layer(probe).oneshot(get(URI)).await.unwrap();
    assert_eq!(names.lock().unwrap().len(), 3);
    seen.types.borrow_mut().extend(names.lock().unwrap().drain(..));
    seen.error(&ApiKey::new(format!("{KEY}\n")).unwrap_err());
    seen.error(&Refusal::new(Reason::Deadline, secs(1)));
    seen.error(&DeliveryError::not_sent("no free connection"));
    seen.debug(&Reason::Deadline);
}

fn bodies(seen: &Seen) {
    seen.debug(&Body::from(KEY));
    let mut body = ReplayBody::new(Full::<Bytes>::from(KEY));
    seen.debug(&body);
    let mut frame = task::spawn(body.frame());
    assert!(frame.poll().is_ready());
    drop(frame);
    seen.debug(&body);
    assert!(body.is_end_stream());
    let mut collect = task::spawn(Body::from(KEY).collect(1));
    let Poll::Ready(Err(error)) = collect.poll() else { panic!("it is longer") };
    seen.error(error.downcast_ref::<BodyTooLarge>().unwrap());
}

fn rules(seen: &Seen) {
    seen.debug(&retry::Grpc::new());
    seen.debug(&retry::GrpcCode::UNAVAILABLE);
    let budget = retry::Budget::new();
    seen.debug(&budget);
    seen.debug(&ExponentialBackoff::throttled());
    seen.both(&Jitter::none());
    seen.debug(&Delivery::NotSent);
    seen.debug(&RetryDecision::Transient);
    seen.debug(&RetryOverride::new());
    seen.debug(&IdempotencyKey::bare());
    seen.debug(&DefaultClassifier);
    // A rule that knows the key.
    let own = key();
    let known = move |head: RequestHead<'_>| head.headers.get(AUTHORIZATION) == Some(&own.header_value());
    seen.debug(&RetryLayer::new().never_on(StatusCode::CONFLICT).retry_if(move |head, _| known(head)));
}

/// With the key where the service under test gets it: in a header, at a server not marked as a secret, and in the query.
async fn test_kit(seen: &Seen) {
    let plain = HeaderValue::from_bytes(key().header_value().as_bytes()).unwrap();
    let answer = test_util::ScriptedResponse::status(200).with_header("x-echo", KEY).with_body(KEY);
    seen.debug(&answer);
    let service = ScriptedService::new([answer]);
    seen.debug(&service);
    for place in PLACES {
        let stack = preset(URI, place).layer().unwrap().layer(service.clone());
        let mut request = get(URI);
        request.headers_mut().insert("x-plain", plain.clone());
        stack.oneshot(request).await.unwrap();
        seen.debug(service.seen().last().unwrap());
    }
    seen.debug(&service);
    let arrivals = service.arrivals();
    seen.debug(&arrivals);
    seen.debug(&test_util::Arrival::from(arrivals.times()[0]));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = std::thread::spawn(move || runtime.block_on(test_util::ScriptedServer::start(service)));
    seen.debug(&server.join().unwrap().unwrap());
}

fn adapters(seen: &Seen) {
    let _ = seen;
    #[cfg(feature = "otel")]
    {
        seen.layer(AttemptSpanLayer::new().with_propagation(adapter::trace_context));
    }
    #[cfg(feature = "redis")]
    {
        let quota = [Quota::per_second(10).unwrap()];
        let url = format!(
            "redis://me:{}@localhost",
            percent_encoding::utf8_percent_encode(KEY, percent_encoding::NON_ALPHANUMERIC)
        );
        let limiter = adapter::RedisLimiter::token_bucket(&url, KEY, quota).unwrap();
        seen.debug(&limiter.store());
        seen.debug(&limiter);
        let wrong = url.replace("redis://", "http://");
        chain(&adapter::RedisLimiter::token_bucket(&wrong, KEY, quota).unwrap_err());
    }
}

#[cfg(feature = "reqwest")]
async fn over_reqwest(seen: &Seen) {
    let service = adapter::Reqwest::new(reqwest::Client::builder()).unwrap();
    seen.debug(&service);
    let server = statuses(Wire::Http1, [200, 401]).await;
    for place in PLACES {
        let stack = preset(&server.url(), place).layer().unwrap().layer(service.clone());
        hidden(&stack);
        let request = || get(&format!("{}/v1/resources", server.url()));
        answered(&stack.clone().oneshot(request()).await.unwrap());
    }
    // Without the layers, with the key in the query: as they hand it down.
    let encoded = percent_encoding::utf8_percent_encode(KEY, percent_encoding::NON_ALPHANUMERIC);
    let uri = format!("{}/?api_key={encoded}", server.url());
    let call = service.clone().call(get(&uri));
    seen.debug(call.await.unwrap().body());
    let gone = uri.replace(&server.url(), "http://127.0.0.1:1");
    chain(&service.oneshot(get(&gone)).await.unwrap_err());
}

fn config(seen: &Seen) {
    seen.debug(&TimeoutConfig::default());
    seen.both(&"header:x-api-key".parse::<KeyPlacement>().unwrap());
    #[cfg(feature = "serde")]
    {
        use tower_outbound::{limit::RateLimitConfig, preset::StackConfig, stack::StackBuilder};

        seen.debug(&RateLimitConfig::default());
        let file = |field: &str, value: serde_json::Value| {
            let mut file =
                serde_json::json!({ "base_url": URI, "retry": { "honoured_idempotency_key": {} } });
            file[field] = value;
            serde_json::from_value::<StackConfig>(file)
        };
        let service = file("api_key", KEY.into()).unwrap();
        seen.debug(&service);
        unsaid(&serde_json::to_string(&service).unwrap());
        hidden(&StackBuilder::from_config(&service).unwrap());
        seen.layer(service.layer().unwrap());

        // A key in the place of something else, and a key that cannot be used.
        for (field, value) in [
            ("key_placement", format!("basic:ann:{KEY}")),
            ("key_placement", KEY.to_owned()),
            ("base_url", format!("https://me:{KEY}@host/")),
        ] {
            let read = file(field, value.into()).unwrap();
            hidden(&read);
            unsaid(&serde_json::to_string(&read).unwrap());
            seen.error(&read.layer().unwrap_err());
        }
        for bad in [format!("{KEY} "), format!("{KEY}\n"), format!("\u{fc}{KEY}")] {
            let read = file("api_key", bad.into()).unwrap();
            hidden(&read);
            chain(&read.layer().unwrap_err());
        }
        for value in [serde_json::json!([KEY]), serde_json::json!({ KEY: 1 })] {
            let read = file("api_key", value).unwrap();
            hidden(&read);
            chain(&read.layer().unwrap_err());
        }
    }
}

/// Adapters that are switched off are not there to be looked at.
fn is_on(name: &str) -> bool {
    match name {
        "preset::StackConfig" | "limit::RateLimitConfig" => cfg!(feature = "serde"),
        "client::JsonError" => cfg!(feature = "json"),
        "adapter::Reqwest" => cfg!(feature = "reqwest"),
        "adapter::RedisLimiter" | "adapter::Store" => {
            cfg!(feature = "redis")
        }
        // Public by name in rooms that are closed: what limiters are made of, which nobody can hold or show.
        "limit::Buckets" | "limit::Bucket" | "limit::Logs" => false,
        _ => true,
    }
}

/// The public types of `src` and those of them that have a `Display`, read off its text.
fn declared() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut types, mut displays) = (BTreeSet::new(), BTreeSet::new());
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let root = folders[0].clone();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let room = path.strip_prefix(&root).unwrap().components().next().unwrap();
            let room = Path::new(&room).file_stem().unwrap().to_str().unwrap().to_owned();
            let named = |rest: &str| {
                let name = rest.split(|char: char| !char.is_alphanumeric() && char != '_').next();
                format!("{room}::{}", name.unwrap())
            };
            for line in fs::read_to_string(&path).unwrap().lines().map(str::trim) {
                for kind in ["pub struct ", "pub enum ", "pub union "] {
                    types.extend(line.strip_prefix(kind).map(named));
                }
                displays.extend(line.split_once("fmt::Display for ").map(|(_, rest)| named(rest)));
            }
        }
    }
    types.retain(|name| is_on(name) && !INNER.contains(&name.as_str()));
    displays.retain(|name| types.contains(name));
    (types, displays)
}
