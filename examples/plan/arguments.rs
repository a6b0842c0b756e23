use std::{
    fmt::Write,
    num::{NonZero, NonZeroU32},
    path::PathBuf,
    time::Duration,
};

use tower_outbound::{
    Quota,
    limit::Unit,
    test_util::{LimitHeaders, ServerLimit},
};
use tower_outbound_examples::{ArgumentError, options};

use crate::{
    simulation::{ROUND_TRIP, idle},
    strategies::{STRATEGIES, Strategy},
    tokens::{ESTIMATE_ERROR, MAX_TOKENS, MAX_TOKENS_PER_SECOND, REQUEST_TOKENS, Tokens},
};

/// The parsed arguments.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) quota: Quota,
    /// The number of windows with requests.
    pub(crate) windows: u32,
    pub(crate) server: fn(Quota) -> ServerLimit,
    /// The name of the server, with the name of its headers.
    pub(crate) server_name: String,
    pub(crate) headers: LimitHeaders,
    pub(crate) strategies: Vec<&'static Strategy>,
    pub(crate) svg: PathBuf,
    pub(crate) tokens: Option<Tokens>,
    pub(crate) max_in_flight: Option<NonZeroU32>,
    /// The time from a request to the end of its response.
    pub(crate) response_time: Duration,
}

const OPTIONS: [&str; 12] = [
    "--quota",
    "--burst",
    "--windows",
    "--tokens",
    "--request-tokens",
    "--estimate-error",
    "--max-in-flight",
    "--response-time",
    "--server",
    "--headers",
    "--strategy",
    "--svg",
];
const QUOTA: &str = "100/60s";
const WINDOWS: &str = "3";
const RESPONSE_TIME: &str = "40ms";
const SERVER: &str = "fixed-window";
const HEADERS: &str = "none";
const STRATEGY: &str = "bucket,window,adaptive";
const SVG: &str = "target/plan.svg";

const MAX_LIMIT: u32 = 10_000;
const MAX_PER_SECOND: f64 = 1_000.0;
const MAX_IN_FLIGHT: u32 = 10_000;
const MAX_RESPONSE_TIME: Duration = Duration::from_secs(600);
/// Limits the memory that the program takes.
const MAX_BUSY: f64 = 25_000.0;
/// Limits the time that the program takes. A year of 100 per minute has 52,560,000 requests.
const MAX_REQUESTS: u32 = 60_000_000;
/// A century.
const MAX_LENGTH: Duration = Duration::from_secs(3_155_760_000);

/// The name of a server, its description, and its constructor.
type Server = (&'static str, &'static str, fn(Quota) -> ServerLimit);

/// A window of the last two servers starts a quarter of a window after the start of the simulated load.
const SERVERS: [Server; 6] = [
    ("token-bucket", "a bucket of the limit, which refills evenly over the window", |quota| {
        ServerLimit::token_bucket(quota.limit(), quota.window())
    }),
    ("spacing", "one request per window / limit, and up to the burst more at once", |quota| {
        ServerLimit::spacing(quota.limit(), quota.window(), quota.burst())
    }),
    ("fixed-window", "the limit per window; a request starts the window", |quota| {
        ServerLimit::fixed_window(quota.limit(), quota.window())
    }),
    ("sliding-window", "the limit in the window before each request", |quota| {
        ServerLimit::sliding_window(quota.limit(), quota.window())
    }),
    ("clock-window", "the limit per window; the windows start at fixed times", |quota| {
        ServerLimit::clock_window(quota.limit(), quota.window(), quota.window() / 2)
    }),
    ("estimate", "an estimate from the counts of two windows, like HAProxy", |quota| {
        ServerLimit::estimate(quota.limit(), quota.window(), quota.window() / 2)
    }),
];

const ALL_HEADERS: [(&str, LimitHeaders); 5] = [
    ("none", LimitHeaders::None),
    ("retry-after", LimitHeaders::RetryAfter),
    ("x-rate-limit", LimitHeaders::XRateLimit),
    ("draft-7", LimitHeaders::Draft7),
    ("draft-10", LimitHeaders::Draft10),
];

pub(crate) fn help() -> String {
    let headers = list(&ALL_HEADERS.map(|(name, _)| name));
    let mut help = format!(
        "\
Plans the use of a quota: simulates limiters in front of a server that enforces the quota.

Usage: cargo run --example plan -- [OPTIONS]

  --quota LIMIT/WINDOW     the quota of the server and of the limiters             [{QUOTA}]
  --burst REQUESTS         the most requests at once; not for governor, sliding    [a tenth of the limit]
  --windows WINDOWS        the number of windows with requests                     [{WINDOWS}]
  --tokens LIMIT/WINDOW    a second quota of the limiters, in tokens               [none]
  --request-tokens TOKENS  the estimated tokens of a request                       [{REQUEST_TOKENS}]
  --estimate-error PERCENT the largest difference from the estimate, in % of it    [{ESTIMATE_ERROR}]
  --max-in-flight REQUESTS the most requests in flight; not for governor           [none]
  --response-time TIME     the time from a request to the end of its response      [{RESPONSE_TIME}]
  --server SERVER          how the server counts requests                          [{SERVER}]
  --headers HEADERS        {headers:<54}  [{HEADERS}]
  --strategy STRATEGY,...  the limiters, in addition to governor                   [{STRATEGY}]
  --svg PATH               the file for the plot                                   [{SVG}]
  --help                   this text

Servers:
"
    );
    // Writing to a string cannot fail.
    for (name, description, _) in SERVERS {
        let _ = writeln!(help, "  {name:<16}{description}");
    }
    let _ = writeln!(help, "\nStrategies:");
    for Strategy { name, description, .. } in &STRATEGIES {
        let _ = writeln!(help, "  {name:<16}{description}");
    }
    let _ = write!(
        help,
        "
The callers are idle for a quarter of a window. Then each always has a request to send, until the end of the last
window. A request takes 20 ms to the server. A rejected request is not retried.

With --tokens, a limiter grants a request its estimated tokens, and settles them to the actual ones at the end of its
response. The actual tokens are random, and the same in every run. A rejected request uses none. The server counts only
requests. A window can exceed the limit by the tokens that are not settled yet, unless --estimate-error is 0. governor
counts the estimates in a second bucket and does not settle them. It does not limit the requests in flight.

The simulation runs on virtual time. A million requests of one limiter take about half a second in a release build. With
100/60s, `--windows 43200` is a month and takes about 5 seconds. `--windows 525600` is a year and takes about a minute.

The quota has at most {MAX_LIMIT} requests per window, at most {MAX_PER_SECOND} requests per second, and at most
{MAX_REQUESTS} requests in all windows. The quota of tokens has at most {MAX_TOKENS} tokens per window and
{MAX_TOKENS_PER_SECOND} per second.

Exit status: 0, 1 if the plot cannot be written, 2 for an invalid argument, 130 after Ctrl-C.
"
    );
    help
}

impl Arguments {
    pub(crate) fn parse(arguments: Vec<String>) -> Result<Self, ArgumentError> {
        let options = options(arguments, &OPTIONS)?;
        let value_or = |name, default| options.get(name).map_or(default, String::as_str);
        let mut quota = quota(value_or("--quota", QUOTA))?;
        if let Some(text) = options.get("--burst") {
            let burst =
                text.parse().map_err(|_| ArgumentError::new("--burst", text, "a number of requests"))?;
            quota =
                quota.with_burst(burst).map_err(|error| ArgumentError::invalid("--burst", text, &error))?;
        }
        let windows = windows(value_or("--windows", WINDOWS), quota)?;
        let tokens = Tokens::parse(&options)?;
        let max_in_flight = options.get("--max-in-flight");
        let max_in_flight =
            max_in_flight.map(|text| number("--max-in-flight", text, 1, MAX_IN_FLIGHT)).transpose()?;
        let response_time = response_time(value_or("--response-time", RESPONSE_TIME), quota)?;
        let names = SERVERS.map(|(name, ..)| name);
        let server = choice("--server", value_or("--server", SERVER), &names)?;
        let (server_name, _, server) = SERVERS[server];
        let server_name = format!("{server_name} server");
        let names = ALL_HEADERS.map(|(name, _)| name);
        let headers = choice("--headers", value_or("--headers", HEADERS), &names)?;
        let server_name = match ALL_HEADERS[headers] {
            (_, LimitHeaders::None) => server_name,
            (name, _) => format!("{server_name} with {name} headers"),
        };
        let names = STRATEGIES.each_ref().map(|strategy| strategy.name);
        let mut is_chosen = [false; STRATEGIES.len()];
        is_chosen[0] = true;
        for text in value_or("--strategy", STRATEGY).split(',') {
            is_chosen[choice("--strategy", text.trim(), &names)?] = true;
        }
        let strategies = STRATEGIES.iter().zip(is_chosen).filter(|(_, is_chosen)| *is_chosen);
        Ok(Self {
            quota,
            windows,
            server,
            server_name,
            headers: ALL_HEADERS[headers].1,
            strategies: strategies.map(|(strategy, _)| strategy).collect(),
            svg: value_or("--svg", SVG).into(),
            tokens,
            max_in_flight: max_in_flight.and_then(NonZero::new),
            response_time,
        })
    }
}

impl Arguments {
    /// Returns the length of a run.
    pub(crate) fn length(&self) -> Duration {
        idle(self.quota) + self.quota.window() * self.windows
    }

    /// Returns how many requests the quota allows in all windows.
    pub(crate) fn requests(&self) -> u32 {
        self.quota.limit() * self.windows
    }
}

fn quota(text: &str) -> Result<Quota, ArgumentError> {
    let quota: Quota = text.parse().map_err(|error| ArgumentError::invalid("--quota", text, &error))?;
    if quota.unit() != Unit::Requests {
        return Err(ArgumentError::new("--quota", text, "a quota of requests: see --tokens"));
    }
    if quota.limit() > MAX_LIMIT || per_second(quota) > MAX_PER_SECOND {
        let expected = format!("at most {MAX_LIMIT} requests per window and {MAX_PER_SECOND} per second");
        return Err(ArgumentError::new("--quota", text, &expected));
    }
    Ok(quota)
}

fn response_time(text: &str, quota: Quota) -> Result<Duration, ArgumentError> {
    // Only a quota parses a duration. A comma would begin its burst or its margin.
    let quota_of_one: Option<Quota> = format!("1/{text}").parse().ok().filter(|_| !text.contains(','));
    let longest = MAX_RESPONSE_TIME.min(Duration::from_secs_f64(MAX_BUSY / per_second(quota)));
    let time = quota_of_one.map(|quota| quota.window()).filter(|it| (ROUND_TRIP..=longest).contains(it));
    let expected = || format!("a time from {ROUND_TRIP:?} to {longest:?}, such as 2s");
    time.ok_or_else(|| ArgumentError::new("--response-time", text, &expected()))
}

/// Returns how much the quota allows per second.
pub(crate) fn per_second(quota: Quota) -> f64 {
    f64::from(quota.limit()) / quota.window().as_secs_f64()
}

/// Parses a number.
pub(crate) fn number(name: &str, text: &str, least: u32, most: u32) -> Result<u32, ArgumentError> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| ArgumentError::new(name, text, &format!("a whole number from {least} to {most}")))
}

fn windows(text: &str, quota: Quota) -> Result<u32, ArgumentError> {
    let longest = MAX_LENGTH.as_nanos() / quota.window().as_nanos();
    let most = u128::from(MAX_REQUESTS / quota.limit()).min(longest);
    let windows = text.parse().ok().filter(|windows| (1..=most).contains(&u128::from(*windows)));
    let expected = || format!("a whole number from 1 to {most}");
    windows.ok_or_else(|| ArgumentError::new("--windows", text, &expected()))
}

/// Returns the index of `text` in `names`.
fn choice(argument: &str, text: &str, names: &[&str]) -> Result<usize, ArgumentError> {
    let index = names.iter().position(|name| *name == text);
    index.ok_or_else(|| ArgumentError::new(argument, text, &list(names)))
}

/// Joins names as in `one, two or three`.
fn list(names: &[&str]) -> String {
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}
