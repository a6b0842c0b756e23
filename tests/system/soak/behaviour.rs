//! The server's behaviour for each request: correct responses, errors, faults of the connection and invalid data.

use std::{fmt::Write as _, io, sync::atomic::Ordering::Relaxed, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tower_outbound::BoxError;

use super::{
    history::Arrival,
    key_store::KeyStatus,
    rng::Rng,
    server::{ApiServer, ConnectionFaults},
};

type ServerResponse = Response<UnsyncBoxBody<Bytes, io::Error>>;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Behaviour {
    Success,
    /// A 200 response after up to 300 ms.
    SlowSuccess,
    ErrorStatus,
    /// A 503 response that requests a delay in milliseconds.
    Unavailable,
    /// A 429 response that requests a delay of one second.
    Throttled,
    /// A 429 response that requests a delay of at least 30 years.
    ThrottledForYears,
    /// A 200 response whose headers report that no permits remain for one second.
    NoPermitsLeft,
    ExtremeHeaders,
    NoResponse,
    ConnectionReset,
    Garbage,
    TruncatedBody,
    StalledBody,
    RefusedStream,
    RetryRequested,
}

/// The behaviours, each with its relative frequency.
const BEHAVIOURS: &[(u64, Behaviour)] = &[
    (600, Behaviour::Success),
    (70, Behaviour::SlowSuccess),
    (60, Behaviour::ErrorStatus),
    (5, Behaviour::Unavailable),
    (1, Behaviour::Throttled),
    (2, Behaviour::ThrottledForYears),
    (2, Behaviour::NoPermitsLeft),
    (40, Behaviour::ExtremeHeaders),
    (20, Behaviour::NoResponse),
    (30, Behaviour::ConnectionReset),
    (25, Behaviour::Garbage),
    (30, Behaviour::TruncatedBody),
    (15, Behaviour::StalledBody),
    (20, Behaviour::RefusedStream),
    (15, Behaviour::RetryRequested),
];

/// Parses a header with a number.
fn number<T: std::str::FromStr>(headers: &HeaderMap, name: &str) -> Option<T> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Returns the key from any place where one of the APIs expects it.
fn key(request: &Request<Incoming>) -> Option<&str> {
    let bearer =
        request.headers().get("authorization").and_then(|it| it.to_str().ok()?.strip_prefix("Bearer "));
    let header = request.headers().get("x-api-key").and_then(|it| it.to_str().ok());
    let query =
        request.uri().query().and_then(|query| query.split('&').find_map(|it| it.strip_prefix("key=")));
    bearer.or(header).or(query)
}

/// Records the request, and responds with a random behaviour. In the recovery phase, the behaviour is always `Success`.
pub(crate) async fn respond(
    request: Request<Incoming>,
    server: ApiServer,
    faults: ConnectionFaults,
) -> Result<ServerResponse, BoxError> {
    let history = &server.history;
    let Some(call) = number::<u64>(request.headers(), "x-call") else {
        history.add_violation(format!("API {}: a request without the headers of this test", server.api));
        return Ok(empty(400));
    };
    let key_status = key(&request).map(|key| server.keys.status(key));
    if matches!(key_status, None | Some(KeyStatus::Foreign)) {
        history.add_violation(format!("API {}: a missing or foreign key: {key_status:?}", server.api));
    }
    let attempt: u64 = number(request.headers(), "x-attempt").unwrap_or(0);
    let mut rng = Rng::new(server.seed, "request", call << 8 | attempt);
    let behaviour =
        if history.is_recovering() { Behaviour::Success } else { rng.choose_weighted(BEHAVIOURS) };
    let is_key_revoked = key_status == Some(KeyStatus::Revoked);
    let is_unprocessed =
        matches!(behaviour, Behaviour::RefusedStream | Behaviour::Throttled | Behaviour::ThrottledForYears);
    history.arrivals.lock().unwrap().push(Arrival {
        api: server.api,
        call,
        method: request.method().clone(),
        idempotency_key: request
            .headers()
            .get("idempotency-key")
            .map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned()),
        may_be_processed: !is_key_revoked && !is_unprocessed,
    });
    if is_key_revoked {
        history.count_server_action("revoked key rejected");
        return Ok(empty(401));
    }
    history.count_server_action(&format!("{behaviour:?}"));
    if request.method() != Method::GET && rng.chance(900) {
        let _ = tokio::time::timeout(Duration::from_secs(1), request.into_body().collect()).await;
    }
    if !history.is_recovering() {
        tokio::time::sleep(rng.millis(0, 15)).await;
    }
    Ok(match behaviour {
        Behaviour::Success => response(200, rng.below(8_000) as usize),
        Behaviour::SlowSuccess => {
            tokio::time::sleep(rng.millis(50, 300)).await;
            response(200, 100)
        }
        Behaviour::ErrorStatus => empty(rng.choose(&[500, 502, 503, 504, 408, 404])),
        Behaviour::Unavailable => {
            with_header(empty(503), "retry-after-ms", &rng.millis(150, 400).as_millis().to_string())
        }
        Behaviour::Throttled => with_header(empty(429), "retry-after", "1"),
        Behaviour::ThrottledForYears => {
            let value =
                rng.choose(&["999999999999999999999999", "946080000", "Fri, 31 Dec 9999 23:59:59 GMT"]);
            with_header(empty(429), "retry-after", value)
        }
        Behaviour::NoPermitsLeft => with_header(empty(200), "ratelimit", "\"soak\";r=0;t=1"),
        Behaviour::ExtremeHeaders => extreme_headers(&mut rng),
        // This delay is longer than the attempt timeout.
        Behaviour::NoResponse => {
            tokio::time::sleep(Duration::from_secs(2)).await;
            empty(200)
        }
        Behaviour::ConnectionReset => {
            faults.reset.store(true, Relaxed);
            return Err("reset".into());
        }
        Behaviour::Garbage => {
            faults.corrupt.store(true, Relaxed);
            empty(200)
        }
        Behaviour::TruncatedBody => {
            let rest = stream::once(async { Err(io::Error::other("truncated")) });
            with_body_start(rest)
        }
        Behaviour::StalledBody => with_body_start(stream::pending()),
        Behaviour::RefusedStream => return Err(h2::Error::from(h2::Reason::REFUSED_STREAM).into()),
        Behaviour::RetryRequested => with_header(empty(409), "x-should-retry", "true"),
    })
}

fn response(status: u16, length: usize) -> ServerResponse {
    let body = Full::new(Bytes::from(vec![b'x'; length])).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

fn empty(status: u16) -> ServerResponse {
    response(status, 0)
}

/// Returns a 200 whose body has one chunk, followed by `rest`.
fn with_body_start(
    rest: impl futures_util::Stream<Item = io::Result<Frame<Bytes>>> + Send + 'static,
) -> ServerResponse {
    let first = stream::once(async { Ok(Frame::data(Bytes::from_static(b"a part"))) });
    Response::new(UnsyncBoxBody::new(StreamBody::new(first.chain(rest))))
}

fn with_header(mut response: ServerResponse, name: &'static str, value: &str) -> ServerResponse {
    response.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
    response
}

/// Returns a response with very long headers, very many headers, or header values that are out of range.
fn extreme_headers(rng: &mut Rng) -> ServerResponse {
    match rng.below(5) {
        0 => {
            let mut list = String::new();
            for number in 0..1000 {
                let _ = write!(list, "\"p{number}\";r={};t=1, ", 1_000_000 + number);
            }
            with_header(empty(200), "ratelimit", list.trim_end_matches(", "))
        }
        1 => with_header(empty(rng.choose(&[200, 503])), "x-request-id", &"i".repeat(64 << 10)),
        2 => (0..60).fold(empty(200), |response, number| {
            with_header(response, "set-cookie", &format!("c{number}={}", "x".repeat(100)))
        }),
        3 => with_header(
            with_header(empty(200), "date", "Fri, 31 Dec 9999 23:59:59 GMT"),
            "x-ratelimit-reset",
            "18446744073709551615",
        ),
        // In a response with status 200, `Retry-After` requests no delay.
        _ => with_header(empty(200), "retry-after", "99999999999999999999"),
    }
}
