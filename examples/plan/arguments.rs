use std::{fmt::Write, path::PathBuf};

use tower_outbound::{
    Quota,
    test_util::{LimitHeaders, ServerLimit},
};
use tower_outbound_examples::{ArgumentError, options};

use crate::strategies::{STRATEGIES, Strategy};

/// The parsed arguments.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) quota: Quota,
    pub(crate) server: fn(Quota) -> ServerLimit,
    /// The name of the server, with the name of its headers.
    pub(crate) server_name: String,
    pub(crate) headers: LimitHeaders,
    pub(crate) strategies: Vec<&'static Strategy>,
    pub(crate) svg: PathBuf,
}

const OPTIONS: [&str; 6] = ["--quota", "--burst", "--server", "--headers", "--strategy", "--svg"];
const QUOTA: &str = "100/60s";
const SERVER: &str = "fixed-window";
const HEADERS: &str = "none";
const STRATEGY: &str = "bucket,window,adaptive";
const SVG: &str = "target/plan.svg";

/// The program takes about 10 seconds with this limit.
const MAX_LIMIT: u32 = 10_000;
const MAX_PER_SECOND: f64 = 1_000.0;

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
The callers are idle for a quarter of a window. For the next three windows, each always has a request to send. A
request takes 20 ms to the server, and its response takes 20 ms back. A rejected request is not retried. The simulation
runs on virtual time. It takes less than a second with the default quota, and about 10 seconds with the largest one.

The quota has at most {MAX_LIMIT} requests per window, and at most {MAX_PER_SECOND} requests per second.

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
            server,
            server_name,
            headers: ALL_HEADERS[headers].1,
            strategies: strategies.map(|(strategy, _)| strategy).collect(),
            svg: value_or("--svg", SVG).into(),
        })
    }
}

fn quota(text: &str) -> Result<Quota, ArgumentError> {
    let quota: Quota = text.parse().map_err(|error| ArgumentError::invalid("--quota", text, &error))?;
    let per_second = f64::from(quota.limit()) / quota.window().as_secs_f64();
    if quota.limit() > MAX_LIMIT || per_second > MAX_PER_SECOND {
        let expected = format!("at most {MAX_LIMIT} requests per window and {MAX_PER_SECOND} per second");
        return Err(ArgumentError::new("--quota", text, &expected));
    }
    Ok(quota)
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
