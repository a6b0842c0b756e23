//! Tests clients that call hostile servers. The tests check the caller's result and the memory that the client uses.
//!
//! Every case sends requests through the client of a preset with its default settings. Cases that would last as long as
//! the preset's attempt timeout of 10 s have a shorter timeout. The servers write raw bytes in their own threads. The
//! allocations of the client's thread are therefore exactly those of the client: connection, buffers, call and report.
//!
//! The tables show the largest amount of memory that was in use at one time. To print the figures, run
//! `cargo test --features json --test system hostile:: -- --nocapture --test-threads 1`. Figures of optimised builds
//! differ by some 10 KiB. A plain call uses 54 KiB over HTTP/1.1 and 69 KiB over HTTP/2. The limits in the tests are
//! higher, because a growing buffer is counted twice while it is copied.
//!
//! HTTP/1.1:
//!
//! | the server sends | the caller gets | KiB | limited by |
//! |---|---|---|---|
//! | endless headers: one header, many headers, empty lines, a reason phrase | a transport error | 808 | hyper's read buffer, 408 KiB |
//! | bytes that are not HTTP | a transport error | 54 | hyper's parser |
//! | 101 or 10,000 `Set-Cookie` headers | a transport error | 64, 808 | hyper: 100 headers |
//! | 99 `Set-Cookie` headers | the response | 89 | |
//! | a request id of 64 KiB, in three attempts | the response | 422 | hyper's read buffer, 408 KiB; the report stores ids of at most 256 bytes |
//! | 1,000 `RateLimit` policies in one header or in 90; dates in the year 9999 | the response | 417 | the limiter: the eight policies with the fewest remaining permits |
//! | 10,000 interim responses (100, 103) | the response | 783 | hyper drops each one when it arrives |
//! | endless interim responses | the attempt timeout | 791 | the same, and the timeout |
//! | a 503 with an endless body | the 503, after three attempts | 211 | drain: 64 KiB, 100 ms |
//! | a 503 with a body that arrives byte by byte | the 503, after three attempts | 63 | drain: 100 ms |
//! | a 200 with an endless body that the caller does not read | the response | 63 | hyper stops reading |
//! | the same, collected with a limit of 64 KiB | `BodyTooLarge` | 254 | the limit of `bytes_up_to` |
//! | the same, read as JSON | `is_too_large` | 25,089 to 49,525 | `Client::MAX_JSON`, 16 MiB, in a buffer that doubles when it grows |
//! | a 404 with an endless body, read as JSON | `is_status`, with an excerpt of 1 KiB | 69 | 2 KiB are read |
//! | a gzip or brotli body of 40 MiB, collected with a limit of 64 KiB | `BodyTooLarge` | 192, 6,191 | the limit of `bytes_up_to`, and the window of the decoder |
//! | the same, read as JSON or as bytes | `is_too_large` | 24,751, 28,748 | 16 MiB, as without compression |
//! | the same in a 404, read as JSON | `is_status`, with an excerpt of 1 KiB | 99, 6,202 | 2 KiB are read |
//! | the same in a 503 | the 503, after three attempts | 79, 6,193 | the drain discards what it reads: 64 KiB, 100 ms |
//! | an endless chunk extension, endless trailers | a body error | 86 | hyper: 16 KiB |
//! | `content-length` of 16 MiB, and two bytes | the caller's own timeout | 54 | the client allocates nothing for the announced length |
//! | headers that arrive byte by byte | the attempt timeout, three times | 64 | the timeout |
//! | a body that arrives byte by byte, read as JSON | `is_timeout`, from the call's deadline | 113 | the deadline |
//! | a body that arrives byte by byte, read otherwise | each byte | 110 | the caller: neither the deadline nor the idle timeout ends this body |
//! | no TLS handshake, or one that arrives byte by byte | the attempt timeout, or a transport error | 26 | the timeout |
//!
//! HTTP/2:
//!
//! | the server sends | the caller gets | KiB | limited by |
//! |---|---|---|---|
//! | endless `CONTINUATION` frames, with fields or empty | a transport error | 74 | h2: 16 KiB of headers in a limited number of frames |
//! | 48 MB of headers, compressed to 16 KiB by HPACK | a transport error | 85 | h2: 16 KiB of decoded headers |
//! | 1,000 `Set-Cookie` headers | a transport error | 152 | the same |
//! | 200 `Set-Cookie` headers | the response | 98 | |
//! | 10,000 or endless interim responses | the response, or the attempt timeout | 6,021 (twice that for 100,000) | nothing limits their number: h2 queues all that arrive while its task runs, and hyper's task then drops them |
//! | a 503 with an endless body | the 503, after three attempts | 1,142 | flow control until the stream is reset: 2 MiB for a stream |
//! | a 200 with an endless body that the caller does not read | the response | 2,142 | flow control: 2 MiB for a stream, 5 MiB for a connection |
//! | the same, in frames of one byte | the response | 6,101 | h2's limit on small frames |
//! | the same, in empty frames | the response | 69 | h2: 100 empty frames |
//! | the same, collected with a limit of 64 KiB | `BodyTooLarge` | 276 | the limit of `bytes_up_to` |
//! | a 404 with an endless body, read as JSON | `is_status`, with an excerpt of 1 KiB | 169 | 2 KiB are read |
//! | headers or a body that arrive byte by byte | as over HTTP/1.1 | 84 | as over HTTP/1.1 |
//! | endless `SETTINGS`, `PING`, `WINDOW_UPDATE` or unknown frames; the server reads the replies or does not | the attempt timeout | 76 | h2 stops reading while it cannot reply |
//! | 10,000 `RST_STREAM` frames | a transport error | 76 | |

mod bodies;
#[cfg(all(feature = "decompression", feature = "json"))]
mod compressed_bodies;
mod frame_floods;
mod headers;
mod interim_responses;
mod server;
mod slow_responses;

use std::{future::Future, time::Duration};

use http::StatusCode;
use tokio::runtime::Builder;
use tower_outbound::{
    ApiKey, Client, Error, Report, body::BodyTooLarge, preset, stack, transport::TransportConfig,
};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// The memory limit for hyper's read buffer of 408 KiB, including the smaller buffers that hyper copies while the
/// buffer grows.
const HTTP1_HEADER_LIMIT: u64 = 1_536 * KIB;
/// The memory limit for an HTTP/2 connection without body data.
const HTTP2_HEADER_LIMIT: u64 = 384 * KIB;
/// The memory limit for an HTTP/1.1 connection and a few reads of a body.
const HTTP1_BODY_LIMIT: u64 = 1_024 * KIB;
/// The memory limit for an HTTP/2 connection and a full flow-control window of 5 MiB.
const HTTP2_BODY_LIMIT: u64 = 6 * MIB;
/// The memory limit for h2's frame queue. The queue's capacity is a power of two.
const HTTP2_SMALL_FRAME_LIMIT: u64 = 16 * MIB;
/// The memory limit for h2's frame queue if it holds all interim responses that arrive before hyper's task runs.
const HTTP2_INTERIM_LIMIT: u64 = 48 * MIB;
/// The memory limit for a connection that receives little data.
const IDLE_LIMIT: u64 = 384 * KIB;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Protocol {
    Http1,
    Http2,
}
use Protocol::{Http1, Http2};

const PROTOCOLS: [Protocol; 2] = [Http1, Http2];
/// The protocols, with the memory limit of a body.
const BODY_LIMITS: [(Protocol, u64); 2] = [(Http1, HTTP1_BODY_LIMIT), (Http2, HTTP2_BODY_LIMIT)];

fn transport(protocol: Protocol) -> TransportConfig {
    match protocol {
        Protocol::Http1 => TransportConfig::new(),
        Protocol::Http2 => TransportConfig::new().with_http2_prior_knowledge(),
    }
}

fn preset_builder(url: &str) -> stack::StackBuilder {
    preset::currency_rates(url).unwrap().with_api_key(ApiKey::new("s3cret").unwrap())
}

/// Returns the client of a preset with its default settings.
fn preset_client(url: &str, protocol: Protocol) -> Client {
    preset_builder(url).client_with_transport(transport(protocol)).unwrap()
}

/// Returns the error of a call that reads JSON within the memory limit.
#[cfg(feature = "json")]
fn json_error(client: &Client, case: &str, limit: u64) -> tower_outbound::client::ResponseError {
    with_memory_limit(case, limit, async {
        client.get("/v1/latest").fetch_json::<Vec<u8>>().await.unwrap_err()
    })
}

/// Checks that a call that reads JSON reads only an excerpt of a 404.
#[cfg(feature = "json")]
fn assert_excerpt(client: &Client, case: &str, limit: u64) {
    let error = json_error(client, case, limit);
    assert_eq!(error.status().unwrap(), 404);
    assert!(error.excerpt().len() <= 1027, "{error:?}");
}

/// Checks that a call whose body exceeds 64 KiB fails within the memory limit.
fn assert_collects_64_kib(client: &Client, case: &str, limit: u64) {
    let error = with_memory_limit(case, limit, async {
        client.get("/v1/latest").await.unwrap().into_body().bytes_up_to(64 << 10).await.unwrap_err()
    });
    assert_eq!(error.downcast_ref::<BodyTooLarge>().unwrap().limit(), 64 << 10);
}

/// Returns a preset's client with a total timeout and an attempt timeout of 400 ms each. The preset's attempt timeout
/// is 10 s. The call has time for a single attempt.
fn short_timeout_client(url: &str, protocol: Protocol) -> Client {
    let timeout = Duration::from_millis(400);
    preset_builder(url)
        .with_total_timeout(timeout)
        .with_attempt_timeout(timeout)
        .client_with_transport(transport(protocol))
        .unwrap()
}

/// Runs `work` on this thread, and asserts that the thread never has more than `limit` bytes allocated. During a
/// reallocation, both the old and the new memory are counted.
#[track_caller]
fn with_memory_limit<T>(case: &str, limit: u64, work: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut output = None;
    let allocated = allocation_counter::measure(|| {
        output = Some(runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), work).await }));
    });
    println!("{case}: {} of {} KiB", allocated.bytes_max.div_ceil(KIB), limit / KIB);
    assert!(allocated.bytes_max <= limit, "{case}: {} bytes in use, limit {limit}", allocated.bytes_max);
    output.unwrap().expect("within 60 s")
}

/// Sends a GET request, and returns the status after the duration `unread`. Until then, the response body stays open
/// and unread.
async fn get_status(client: &Client, unread: Duration) -> Result<StatusCode, Error> {
    let response = client.get("/v1/latest").await?;
    tokio::time::sleep(unread).await;
    Ok(response.status())
}

/// The result of a call to a hostile server.
#[derive(Debug, Clone, Copy)]
enum Expected {
    Status(u16),
    TransportError,
    /// From a client with a short timeout.
    Timeout,
}
use Expected::{Status, Timeout, TransportError};

/// Sends a GET request, and asserts the result and the memory that the client uses. The text `case` is printed.
#[track_caller]
fn assert_get(case: &str, protocol: Protocol, url: &str, limit: u64, expected: Expected) {
    let client = match expected {
        Timeout => short_timeout_client(url, protocol),
        _ => preset_client(url, protocol),
    };
    let case = format!("{protocol:?} {case}");
    match (with_memory_limit(&case, limit, get_status(&client, Duration::ZERO)), expected) {
        (Ok(status), Status(expected)) => assert_eq!(status, expected, "{case}"),
        (Err(error), TransportError) => assert!(error.is_service(), "{case}: {error:?}"),
        (Err(error), Timeout) => assert!(error.is_timeout(), "{case}: {error:?}"),
        (result, expected) => panic!("{case}: {result:?}, expected {expected:?}"),
    }
}

/// Sends a GET request, and leaves the body of its response unread for this time.
#[track_caller]
fn assert_unread(case: &str, protocol: Protocol, url: &str, limit: u64, unread: Duration) {
    let client = preset_client(url, protocol);
    let result = with_memory_limit(&format!("{protocol:?} {case}"), limit, get_status(&client, unread));
    assert_eq!(result.unwrap(), 200);
}

fn attempts(report: Option<&Report>) -> usize {
    report.map_or(0, Report::attempt_count)
}
