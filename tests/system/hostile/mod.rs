//! A server that means harm, what its caller sees, and the most that the client holds of it.
//!
//! Every case goes through the ready client of a preset as it comes; where it would take a preset's 10 s for an attempt, with
//! a shorter limit. The servers write bytes by hand, on threads of their own, so that what the client's thread
//! allocates is the client's: all of it counts, its connection, its buffers, the call and the report. The figures are those
//! of `cargo test --features json --test hostile -- --nocapture --test-threads 1`, which prints them, and in an optimised build they are the
//! same within some ten KiB. A plain call holds 54 KiB over HTTP/1.1 and 69 KiB over HTTP/2. The bounds that the tests assert are wider,
//! by what a buffer that is made larger holds twice for a moment.
//!
//! HTTP/1.1:
//!
//! | the server | the caller sees | KiB held | what bounds it |
//! |---|---|---|---|
//! | a head that never ends: of one header, of many, of empty lines, of a reason | an error of the transport | 808 | hyper's read buffer, 408 KiB |
//! | bytes that are no HTTP | an error of the transport | 54 | the parser |
//! | 101 headers, or 10,000 `Set-Cookie` | an error of the transport | 64, 808 | hyper: 100 headers |
//! | 99 `Set-Cookie` | the answer | 89 | |
//! | `RateLimit` of 1,000 members, in one header or 90; dates in the year 9999 | the answer | 231 | eight policies are kept, those with the least left |
//! | an id of 64 KiB, three times | the answer | 422 | hyper's read buffer, 408 KiB; the report keeps none of more than 256 bytes |
//! | 10,000 interim answers (100, 103) | the answer | 783 | hyper drops them as they come |
//! | interim answers without an end | the attempt's timeout | 791 | the same, and the timeout |
//! | a 503 whose body never ends | the 503, after three attempts | 211 | 64 KiB of it are read, for 100 ms at most |
//! | a 503 whose body comes by the byte | the 503, after three attempts | 63 | 100 ms |
//! | a 200 whose body never ends, which nobody reads | the answer | 63 | hyper reads no further |
//! | the same, collected up to 64 KiB | `BodyTooLarge` | 254 | the limit given to `collect` |
//! | the same, read as JSON | `is_too_large` | 25,089 to 49,525 | `Client::MAX_JSON`, 16 MiB, in a buffer that is doubled as it grows |
//! | a 404 whose body never ends, read as JSON | `is_status`, 1 KiB of it | 69 | 2 KiB are read |
//! | a chunk's extension, or trailers, that never end | an error of the body | 86 | hyper: 16 KiB |
//! | a length of 16 MiB, and two bytes | the caller's own timeout | 54 | nothing is set aside by a length |
//! | a head by the byte | the attempt's timeout, three times | 64 | the timeout |
//! | a body by the byte, read as JSON | `is_timeout`, by the call's deadline | 113 | the deadline |
//! | a body by the byte, otherwise | byte after byte | 110 | nobody but the caller: neither the deadline nor the idle timeout ends it |
//! | a body that stands still, under an idle timeout | an error that `is_timeout` | 54 | the idle timeout; by default it is off |
//! | no TLS handshake, or one by the byte | the attempt's timeout, or an error of the transport | 26 | the timeout |
//!
//! HTTP/2:
//!
//! | the server | the caller sees | KiB held | what bounds it |
//! |---|---|---|---|
//! | `CONTINUATION` without an end, with fields or empty | an error of the transport | 74 | h2: 16 KiB of headers, and few frames for them |
//! | 48 MB of headers in 16 KiB, by HPACK's table | an error of the transport | 85 | h2: 16 KiB of headers, unpacked |
//! | 1,000 `Set-Cookie` | an error of the transport | 152 | the same |
//! | 200 `Set-Cookie` | the answer | 98 | |
//! | 10,000 interim answers, or without an end | the answer, or the attempt's timeout | 6,021 (twice that for 100,000) | not their number: h2 queues those that come in one turn of the connection's task, and hyper's next task drops them |
//! | a 503 whose body never ends | the 503, after three attempts | 1,142 | what comes before the stream is reset; a stream's window, 2 MiB |
//! | a 200 whose body never ends, which nobody reads | the answer | 2,142 | the stream's window, 2 MiB; the connection's, 5 MiB |
//! | the same, by frames of one byte | the answer | 6,101 | h2's budget of small frames |
//! | the same, by empty frames | the answer | 69 | h2: 100 of them |
//! | the same, collected up to 64 KiB | `BodyTooLarge` | 276 | the limit given to `collect` |
//! | a 404 whose body never ends, read as JSON | `is_status`, 1 KiB of it | 169 | 2 KiB are read |
//! | a head by the byte; a body by the byte | as over HTTP/1.1 | 84 | as over HTTP/1.1 |
//! | `SETTINGS`, `PING`, `WINDOW_UPDATE`, unknown frames without an end, its ears open or shut | the attempt's timeout | 76 | h2 reads no further while it can't answer |
//! | 10,000 `RST_STREAM` | an error of the transport | 76 | |

mod bodies;
mod drips;
mod frames;
mod heads;
mod interim;
mod server;

use std::{future::Future, time::Duration};

use http::StatusCode;
use tokio::runtime::Builder;
use tower_outbound::{ApiKey, Client, Error, Report, client::Transport, preset, stack};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// hyper's read buffer, 408 KiB, and what it was made of as it grew.
const HEAD1: u64 = 1_536 * KIB;
/// An HTTP/2 connection, and no body.
const HEAD2: u64 = 384 * KIB;
/// A body over HTTP/1.1, of which there are a few reads at a time.
const BODY1: u64 = 1_024 * KIB;
/// What an HTTP/2 connection may have received for nobody: its window is 5 MiB.
const BODY2: u64 = 6 * MIB;
/// Entries of h2's queue, in powers of two.
const QUEUE2: u64 = 16 * MIB;
/// The same, of interim answers, as many as come before the next task has its turn.
const INTERIM2: u64 = 48 * MIB;
/// As little as waiting costs.
const WAITING: u64 = 384 * KIB;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Wire {
    Http1,
    Http2,
}

fn transport(wire: Wire) -> Transport {
    match wire {
        Wire::Http1 => Transport::new(),
        Wire::Http2 => Transport::new().with_http2_prior_knowledge(),
    }
}

fn rates(url: &str) -> stack::StackBuilder {
    preset::currency_rates(url).unwrap().with_api_key(ApiKey::new("s3cret").unwrap())
}

/// A preset as it comes.
fn ready(url: &str, wire: Wire) -> Client {
    rates(url).client_with_transport(transport(wire)).unwrap()
}

/// A preset whose one attempt may take so long: with that of a preset, 10 s, the same would come later.
fn hasty(url: &str, wire: Wire) -> Client {
    let limit = Duration::from_millis(400);
    rates(url)
        .with_total_timeout(limit)
        .with_attempt_timeout(limit)
        .client_with_transport(transport(wire))
        .unwrap()
}

/// What came of the work, and the most bytes that its thread had allocated while it ran: all of the client, for the
/// servers have threads of their own. What is allocated anew to grow counts twice for that moment.
#[track_caller]
fn held<T>(case: &str, bound: u64, work: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let mut came = None;
    let held = allocation_counter::measure(|| {
        came = Some(runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), work).await }));
    });
    println!("{case}: {} of {} KiB", held.bytes_max.div_ceil(KIB), bound / KIB);
    assert!(held.bytes_max <= bound, "{case}: {} bytes held, of {bound}", held.bytes_max);
    came.unwrap().expect("within 60 s")
}

/// Without a body.
type Came = Result<StatusCode, Error>;

/// Sends a GET, and leaves the body of its answer alone for so long.
async fn get(client: &Client, unread: Duration) -> Came {
    let response = client.get("/v1/latest").await?;
    tokio::time::sleep(unread).await;
    Ok(response.status())
}

/// One attempt that got no answer that can be read.
#[track_caller]
fn failed(came: Came) {
    let error = came.unwrap_err();
    assert!(error.is_service(), "{error:?}");
}

#[track_caller]
fn timed_out(came: Came) {
    let error = came.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
}

fn attempts(report: Option<&Report>) -> usize {
    report.map_or(0, Report::attempt_count)
}
