//! A language model on a real server, over connections in memory. It counts requests and tokens exactly, and has the
//! responses and the headers of OpenAI or of Anthropic.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response, Uri, response::Builder};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Frame, Incoming};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use serde::{Deserialize, Serialize};
use tokio::{
    io::DuplexStream,
    time::{Instant, sleep},
};
use tower_outbound::{
    BoxError,
    limit::{Amounts, Unit},
};

use super::{KEY, anthropic, completion_body, text_event, usage_events};

pub const MINUTE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// A window of requests and tokens.
    OpenAi,
    /// Buckets of requests, input tokens and output tokens.
    Anthropic,
}

impl Style {
    /// Returns the limits of a minute.
    pub fn limits(self) -> &'static [(Unit, u32)] {
        match self {
            Self::OpenAi => &[(Unit::Requests, 500), (Unit::Tokens, 200_000)],
            Self::Anthropic => {
                &[(Unit::Requests, 500), (Unit::InputTokens, 100_000), (Unit::OutputTokens, 100_000)]
            }
        }
    }

    pub fn path(self) -> &'static str {
        match self {
            Self::OpenAi => "/chat/completions",
            Self::Anthropic => "/messages",
        }
    }
}

/// The tokens of the prompt and of the response.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Tokens {
    pub input: u32,
    pub output: u32,
}

impl Tokens {
    pub fn amounts(self) -> Amounts {
        let amounts = Amounts::of(Unit::Tokens, self.input + self.output);
        amounts.with(Unit::InputTokens, self.input).with(Unit::OutputTokens, self.output)
    }

    pub fn scaled(self, percent: u32) -> Self {
        Self { input: self.input * percent / 100, output: self.output * percent / 100 }
    }
}

/// The body of a request. It states how the server responds.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Prompt {
    pub stream: bool,
    pub estimate: Tokens,
    pub actual: Tokens,
    /// The milliseconds until the server counts the request.
    pub transit: u64,
    /// The milliseconds from then until the end of the response.
    pub generation: u64,
}

/// A request that the server has received.
pub struct Received {
    pub at: Instant,
    pub estimate: Amounts,
    /// What the request takes: its estimate until the server counts it, and after a rejection.
    pub actual: Amounts,
    /// `None` until the server counts the request.
    pub is_accepted: Option<bool>,
    pub settled_at: Option<Instant>,
}

/// Returns how much a request takes of a unit.
pub fn amount(amounts: &Amounts, unit: Unit) -> u32 {
    if unit == Unit::Requests { 1 } else { amounts.get(unit) }
}

/// What a quota of the server counts.
enum Count {
    /// The accepted requests of the last minute.
    Window(VecDeque<(Instant, u32)>),
    Bucket {
        left: f64,
        at: Instant,
    },
}

struct Counted {
    unit: Unit,
    limit: u32,
    count: Count,
}

impl Counted {
    /// Returns what is left.
    fn left(&mut self, now: Instant) -> f64 {
        let limit = f64::from(self.limit);
        match &mut self.count {
            Count::Window(log) => {
                while log.pop_front_if(|(at, _)| now - *at >= MINUTE).is_some() {}
                limit - log.iter().map(|(_, amount)| f64::from(*amount)).sum::<f64>()
            }
            Count::Bucket { left, at } => {
                *left = (*left + (now - *at).as_secs_f64() * limit / 60.0).min(limit);
                *at = now;
                *left
            }
        }
    }

    fn take(&mut self, amount: u32, now: Instant) {
        match &mut self.count {
            Count::Window(log) => log.push_back((now, amount)),
            Count::Bucket { left, .. } => *left -= f64::from(amount),
        }
    }

    /// Returns the time until `amount` is left.
    fn until(&mut self, amount: u32, now: Instant) -> Duration {
        let mut missing = f64::from(amount) - self.left(now);
        match &self.count {
            Count::Window(log) => {
                let needed = log.iter().take_while(|(_, amount)| {
                    let is_needed = missing > 0.0;
                    missing -= f64::from(*amount);
                    is_needed
                });
                needed.last().map_or(Duration::ZERO, |(at, _)| *at + MINUTE - now)
            }
            Count::Bucket { .. } => {
                Duration::from_secs_f64((missing - 1e-6).max(0.0) * 60.0 / f64::from(self.limit))
            }
        }
    }

    /// Adds the headers of the quota.
    fn headers(&mut self, style: Style, clock: Clock, now: Instant, mut head: Builder) -> Builder {
        let (left, reset) = (self.left(now), self.until(self.limit, now));
        let name = self.unit.to_string().replace('_', "-");
        let (prefix, suffix, left, reset) = match style {
            Style::OpenAi => (
                "x-ratelimit-".to_owned(),
                format!("-{name}"),
                left.floor(),
                format!("{:.3}s", reset.as_secs_f64()),
            ),
            Style::Anthropic => {
                // The service rounds the remaining tokens to thousands.
                let step = if self.unit == Unit::Requests { 1.0 } else { 1e3 };
                let reset = format!("2026-01-01T{}Z", clock.at(now + reset + Duration::from_millis(999)));
                (format!("anthropic-ratelimit-{name}-"), String::new(), (left / step).round() * step, reset)
            }
        };
        for (field, value) in
            [("limit", self.limit.to_string()), ("remaining", left.max(0.0).to_string()), ("reset", reset)]
        {
            head = head.header(format!("{prefix}{field}{suffix}"), value);
        }
        head
    }
}

/// The server's clock, which starts at 01:00.
#[derive(Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn at(self, time: Instant) -> String {
        let seconds = (time - self.0).as_secs();
        format!("{:02}:{:02}:{:02}", 1 + seconds / 3_600, seconds / 60 % 60, seconds % 60)
    }
}

/// The clones are one server.
#[derive(Clone)]
pub struct Llm {
    style: Style,
    clock: Clock,
    counted: Arc<Mutex<Vec<Counted>>>,
    pub received: Arc<Mutex<Vec<Received>>>,
}

impl Llm {
    pub fn new(style: Style) -> Self {
        let now = Instant::now();
        let counted = style.limits().iter().map(|&(unit, limit)| {
            let count = match style {
                Style::OpenAi => Count::Window(VecDeque::new()),
                Style::Anthropic => Count::Bucket { left: limit.into(), at: now },
            };
            Counted { unit, limit, count }
        });
        let counted = Arc::new(Mutex::new(counted.collect()));
        Self { style, clock: Clock(now), counted, received: Arc::default() }
    }

    /// Opens a connection to the server.
    pub async fn connect(self, _: Uri) -> io::Result<DuplexStream> {
        let (near, far) = tokio::io::duplex(64 * 1024);
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| self.clone().respond(request));
            // The client reports how its connection ended.
            let _ =
                auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(far), service).await;
        });
        Ok(near)
    }

    async fn respond(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<UnsyncBoxBody<Bytes, Infallible>>, BoxError> {
        let at = Instant::now();
        let (head, body) = request.into_parts();
        let key = match self.style {
            Style::OpenAi => head.headers["authorization"].to_str()?.trim_start_matches("Bearer "),
            Style::Anthropic => head.headers["x-api-key"].to_str()?,
        };
        assert_eq!((head.uri.path().trim_start_matches("/v1"), key), (self.style.path(), KEY));
        let prompt: Prompt = serde_json::from_slice(&body.collect().await?.to_bytes())?;
        let number = {
            let estimate = prompt.estimate.amounts();
            let mut received = self.received.lock().unwrap();
            received.push(Received { at, estimate, actual: estimate, is_accepted: None, settled_at: None });
            received.len() - 1
        };
        sleep(Duration::from_millis(prompt.transit)).await;
        let (delay, response) = self.count(prompt.actual.amounts());
        let response = response.header("x-number", number);
        let is_accepted = delay.is_zero();
        {
            let received = &mut self.received.lock().unwrap()[number];
            received.is_accepted = Some(is_accepted);
            if is_accepted {
                received.actual = prompt.actual.amounts();
            }
        }
        if !is_accepted {
            let error = "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\"}}".to_owned();
            let response = match self.style {
                Style::OpenAi => response.header("retry-after-ms", delay.as_millis() as u64 + 1),
                Style::Anthropic => response.header("retry-after", delay.as_secs() + 1),
            };
            return Ok(response.status(429).body(in_parts(vec![error], Duration::ZERO))?);
        }
        let generation = Duration::from_millis(prompt.generation);
        if !prompt.stream {
            sleep(generation).await;
        }
        let (parts, kind) = self.body(&prompt);
        let pause = if prompt.stream { generation / (parts.len() as u32 - 1) } else { Duration::ZERO };
        Ok(response.header("content-type", kind).body(in_parts(parts, pause))?)
    }

    /// Counts a request. Returns the delay until it would be accepted, and the head of the response.
    fn count(&self, actual: Amounts) -> (Duration, Builder) {
        let (mut all, now) = (self.counted.lock().unwrap(), Instant::now());
        let delays = all.iter_mut().map(|counted| counted.until(amount(&actual, counted.unit), now));
        let delay = delays.max().unwrap();
        if delay.is_zero() {
            all.iter_mut().for_each(|counted| counted.take(amount(&actual, counted.unit), now));
        }
        let head = Response::builder().header("date", format!("Thu, 01 Jan 2026 {} GMT", self.clock.at(now)));
        (delay, all.iter_mut().fold(head, |head, counted| counted.headers(self.style, self.clock, now, head)))
    }

    /// Returns the parts of the body, and its type.
    fn body(&self, prompt: &Prompt) -> (Vec<String>, &'static str) {
        let Tokens { input, output } = prompt.actual;
        let (message, events) = match self.style {
            Style::OpenAi => (
                completion_body("hello", input + output),
                vec![text_event("hel", None), text_event("lo", Some("stop")), usage_events(input + output)],
            ),
            Style::Anthropic => (
                anthropic::message(input, output),
                vec![
                    anthropic::first_events(input),
                    anthropic::tokens_so_far(output / 2, None),
                    anthropic::tokens_so_far(output, Some("end_turn")) + &anthropic::last_event(),
                ],
            ),
        };
        if prompt.stream { (events, "text/event-stream") } else { (vec![message], "application/json") }
    }
}

/// Returns a body of these parts, with a pause before each part but the first.
fn in_parts(parts: Vec<String>, pause: Duration) -> UnsyncBoxBody<Bytes, Infallible> {
    let parts = stream::iter(parts.into_iter().enumerate()).then(move |(index, part)| async move {
        if index > 0 {
            sleep(pause).await;
        }
        Ok(Frame::data(Bytes::from(part)))
    });
    UnsyncBoxBody::new(StreamBody::new(parts))
}
