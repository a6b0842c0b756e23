//! What becomes of one request.

use std::{fmt::Write as _, io, sync::atomic::Ordering::Relaxed, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use tower_outbound::BoxError;

use super::{
    dice::Dice,
    ledger::{Arrival, Asked, now},
    server::{Host, Orders},
};

type Scripted = Response<UnsyncBoxBody<Bytes, io::Error>>;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    Scripted,
    Delayed,
    Fail,
    /// 503 with a pause of so many milliseconds.
    Busy,
    /// 429 with a pause of a second.
    Throttle,
    /// 429 with a pause that nobody lives to see.
    ThrottleForEver,
    /// 200, and nothing left for a second.
    Empty,
    Hostile,
    Silence,
    Cut,
    Garbage,
    CutBody,
    StalledBody,
    NotProcessed,
    AskAgain,
}

const FATES: &[(u64, Fate)] = &[
    (600, Fate::Scripted),
    (70, Fate::Delayed),
    (60, Fate::Fail),
    (5, Fate::Busy),
    (1, Fate::Throttle),
    (2, Fate::ThrottleForEver),
    (2, Fate::Empty),
    (40, Fate::Hostile),
    (20, Fate::Silence),
    (30, Fate::Cut),
    (25, Fate::Garbage),
    (30, Fate::CutBody),
    (15, Fate::StalledBody),
    (20, Fate::NotProcessed),
    (15, Fate::AskAgain),
];

fn number<T: std::str::FromStr>(headers: &HeaderMap, name: &str) -> Option<T> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// The key, wherever this site has it.
fn key(request: &Request<Incoming>) -> Option<&str> {
    let bearer =
        request.headers().get("authorization").and_then(|it| it.to_str().ok()?.strip_prefix("Bearer "));
    let own = request.headers().get("x-api-key").and_then(|it| it.to_str().ok());
    let query =
        request.uri().query().and_then(|query| query.split('&').find_map(|it| it.strip_prefix("key=")));
    bearer.or(own).or(query)
}

pub(crate) async fn answer(
    request: Request<Incoming>,
    host: Host,
    orders: Orders,
) -> Result<Scripted, BoxError> {
    let at = now();
    let ledger = &host.ledger;
    let marks = (number::<u64>(request.headers(), "x-call"), number(request.headers(), "x-left"));
    let (Some(call), Some(left)) = marks else {
        ledger.wrong(format!("a request without its marks at site {}", host.site));
        return Ok(plain(400));
    };
    let takes = key(&request).map(|key| host.vault.takes(key));
    if takes.is_none_or(|takes| takes.is_none()) {
        ledger.wrong(format!("no key, or a foreign one, at site {}: {takes:?}", host.site));
    }
    let attempt: u64 = number(request.headers(), "x-attempt").unwrap_or(0);
    let mut dice = Dice::about(host.seed, "request", call << 8 | attempt);
    let fate = if ledger.is_calm() { Fate::Scripted } else { dice.weighed(FATES) };
    let refused = takes == Some(Some(false));
    ledger.arrivals.lock().unwrap().push(Arrival {
        site: host.site,
        call,
        method: request.method().clone(),
        idempotency_key: request
            .headers()
            .get("idempotency-key")
            .map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned()),
        cost: number(request.headers(), "x-cost").unwrap_or(1),
        left,
        at,
        may_be_processed: !refused && fate != Fate::NotProcessed,
    });
    // A refused key is answered at once: nothing was done.
    if refused {
        ledger.fault("key refused");
        return Ok(plain(401));
    }
    ledger.fault(&format!("{fate:?}"));
    if request.method() != Method::GET && dice.chance(900) {
        let _ = tokio::time::timeout(Duration::from_secs(1), request.into_body().collect()).await;
    }
    if !ledger.is_calm() {
        tokio::time::sleep(dice.millis(0, 15)).await;
    }
    let host = &host;
    Ok(match fate {
        Fate::Scripted => whole(200, dice.below(8_000) as usize),
        Fate::Delayed => {
            tokio::time::sleep(dice.millis(50, 300)).await;
            whole(200, 100)
        }
        Fate::Fail => plain(dice.pick(&[500, 502, 503, 504, 408, 404])),
        Fate::Busy => {
            let pause = dice.millis(150, 400);
            let asks = ("retry-after-ms", pause.as_millis().to_string());
            asking(503, host, pause, asks)
        }
        Fate::Throttle => asking(429, host, Duration::from_secs(1), ("retry-after", "1".to_owned())),
        Fate::ThrottleForEver => {
            let asks = dice.pick(&["999999999999999999999999", "946080000", "Fri, 31 Dec 9999 23:59:59 GMT"]);
            asking(429, host, Duration::from_secs(3600), ("retry-after", asks.to_owned()))
        }
        Fate::Empty => {
            let says = "\"soak\";r=0;t=1".to_owned();
            asking(200, host, Duration::from_secs(1), ("ratelimit", says))
        }
        Fate::Hostile => hostile(&mut dice),
        Fate::Silence => {
            tokio::time::sleep(Duration::from_secs(2)).await;
            plain(200)
        }
        Fate::Cut => {
            orders.cut.store(true, Relaxed);
            return Err("cut".into());
        }
        Fate::Garbage => {
            orders.garble.store(true, Relaxed);
            plain(200)
        }
        Fate::CutBody => {
            let rest = stream::once(async { Err(io::Error::other("cut off")) });
            started(rest)
        }
        Fate::StalledBody => started(stream::pending()),
        Fate::NotProcessed => return Err(h2::Error::from(h2::Reason::REFUSED_STREAM).into()),
        Fate::AskAgain => with(plain(409), "x-should-retry", "true"),
    })
}

fn whole(status: u16, length: usize) -> Scripted {
    let body = Full::new(Bytes::from(vec![b'x'; length])).map_err(|never| match never {}).boxed_unsync();
    let mut answer = Response::new(body);
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    answer
}

fn plain(status: u16) -> Scripted {
    whole(status, 0)
}

/// A body that begins, and goes on by this.
fn started(rest: impl futures_util::Stream<Item = io::Result<Frame<Bytes>>> + Send + 'static) -> Scripted {
    let first = stream::once(async { Ok(Frame::data(Bytes::from_static(b"a part"))) });
    Response::new(UnsyncBoxBody::new(StreamBody::new(first.chain(rest))))
}

fn with(mut answer: Scripted, name: &'static str, value: &str) -> Scripted {
    answer.headers_mut().append(name, HeaderValue::from_str(value).unwrap());
    answer
}

/// Written down before it is sent: whenever the client hears it, the pause is over no earlier than counted from here.
fn asking(status: u16, host: &Host, length: Duration, (name, value): (&'static str, String)) -> Scripted {
    let at = {
        let mut asked = host.ledger.asked.lock().unwrap();
        asked.push(Asked { site: host.site, at: now(), length, by: name, heard: None });
        asked.len() - 1
    };
    with(with(plain(status), name, &value), "x-ask", &at.to_string())
}

/// Headers that are hard to read, or to hold.
fn hostile(dice: &mut Dice) -> Scripted {
    match dice.below(5) {
        0 => {
            let mut list = String::new();
            for number in 0..1000 {
                let _ = write!(list, "\"p{number}\";r={};t=1, ", 1_000_000 + number);
            }
            with(plain(200), "ratelimit", list.trim_end_matches(", "))
        }
        1 => with(plain(dice.pick(&[200, 503])), "x-request-id", &"i".repeat(64 << 10)),
        2 => (0..60).fold(plain(200), |answer, number| {
            with(answer, "set-cookie", &format!("c{number}={}", "x".repeat(100)))
        }),
        3 => with(
            with(plain(200), "date", "Fri, 31 Dec 9999 23:59:59 GMT"),
            "x-ratelimit-reset",
            "18446744073709551615",
        ),
        // On a 200 it speaks of nothing that is waited for.
        _ => with(plain(200), "retry-after", "99999999999999999999"),
    }
}
