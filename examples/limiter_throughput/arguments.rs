use std::{fmt, str::FromStr, time::Duration};

use tower_outbound::Quota;
use tower_outbound_examples::{ArgumentError, options};

/// The parsed arguments: the limiter to measure, and the load on the limiter.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) quota: Quota,
    pub(crate) strategy: Strategy,
    pub(crate) tasks: usize,
    pub(crate) duration: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strategy {
    Token,
    Window,
}

const QUOTA: &str = "1000/1s";
const MARGIN: &str = "0s";
const STRATEGY: &str = "token";
const TASKS: &str = "64";
const SECONDS: &str = "5";

/// The longest run is one day.
const MAX_SECONDS: u64 = 86_400;
const MAX_TASKS: usize = 1_000_000;

pub(crate) fn help() -> String {
    format!(
        "\
Measures the throughput of a limiter from which several tasks acquire permits in a loop.

Usage: cargo run --release --example limiter_throughput -- [OPTIONS]

  --quota LIMIT/WINDOW   the most permits in any window of this length         [{QUOTA}]
  --burst PERMITS        the permits granted at once, with token only          [a tenth of the limit]
  --margin DURATION      the quota's safety margin, which extends the window   [{MARGIN}]
  --strategy STRATEGY    token: a token bucket. window: a sliding window       [{STRATEGY}]
  --tasks TASKS          the number of concurrent tasks                        [{TASKS}]
  --seconds SECONDS      the length of the run                                 [{SECONDS}]
  --help                 this text

A token bucket grants the burst, then refills evenly. A sliding window grants the whole quota in any pattern. A duration
has the units d, h, m, s and ms, such as 500ms or 1m30s. `--name value` and `--name=value` are equivalent.

Exit status: 0, 1 if more than the quota was granted in a window, 2 for an invalid argument, 130 after Ctrl-C, which
prints the report of the run so far.
"
    )
}

const OPTIONS: [&str; 6] = ["--quota", "--burst", "--margin", "--strategy", "--tasks", "--seconds"];

impl Arguments {
    pub(crate) fn parse(arguments: Vec<String>) -> Result<Self, ArgumentError> {
        let options = options(arguments, &OPTIONS)?;
        let value_or = |name, default| options.get(name).map_or(default, String::as_str);
        let strategy = match value_or("--strategy", STRATEGY) {
            "token" => Strategy::Token,
            "window" => Strategy::Window,
            other => return Err(ArgumentError::new("--strategy", other, "token or window")),
        };
        let mut quota = quota(value_or("--quota", QUOTA))?;
        if let Some(text) = options.get("--burst") {
            let burst = number("--burst", text, 1, u32::MAX)?;
            if strategy == Strategy::Window {
                return Err(ArgumentError::new("--burst", text, "no --burst with --strategy window"));
            }
            quota =
                quota.with_burst(burst).map_err(|error| ArgumentError::invalid("--burst", text, &error))?;
        }
        let text = value_or("--margin", MARGIN);
        let margin = duration("--margin", text)?;
        quota =
            quota.with_margin(margin).map_err(|error| ArgumentError::invalid("--margin", text, &error))?;
        let seconds = number("--seconds", value_or("--seconds", SECONDS), 1, MAX_SECONDS)?;
        Ok(Self {
            quota,
            strategy,
            tasks: number("--tasks", value_or("--tasks", TASKS), 1, MAX_TASKS)?,
            duration: Duration::from_secs(seconds),
        })
    }

    pub(crate) fn title(&self) -> String {
        let Self { quota, tasks, duration, .. } = self;
        let limiter = match self.strategy {
            Strategy::Token => {
                format!(
                    "a token bucket of {quota}, one permit refilled every {:.3?}",
                    quota.refill_interval()
                )
            }
            Strategy::Window => {
                let (limit, window, margin) = (quota.limit(), quota.window(), quota.margin());
                format!("a sliding window of {limit} per {window:?}, margin {margin:?}")
            }
        };
        format!("{limiter}\n{tasks} tasks for {duration:?}\n\n")
    }
}

fn quota(text: &str) -> Result<Quota, ArgumentError> {
    text.parse().map_err(|error| ArgumentError::invalid("--quota", text, &error))
}

fn number<T: FromStr + PartialOrd + fmt::Display>(
    name: &str,
    text: &str,
    min: T,
    max: T,
) -> Result<T, ArgumentError> {
    let number = text.parse().ok().filter(|number| (&min..=&max).contains(&number));
    number.ok_or_else(|| ArgumentError::new(name, text, &format!("a whole number from {min} to {max}")))
}

/// Parses a duration in the format of a quota's margin.
fn duration(name: &str, text: &str) -> Result<Duration, ArgumentError> {
    let quota: Result<Quota, _> = format!("1/1s, margin {text}").parse();
    quota.map(|quota| quota.margin()).map_err(|error| ArgumentError::invalid(name, text, &error))
}
