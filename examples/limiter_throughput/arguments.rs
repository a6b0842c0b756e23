use std::{fmt, str::FromStr, time::Duration};

use tower_outbound::{InvalidConfig, Quota};

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

impl Arguments {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, ArgumentError> {
        let mut raw = RawArguments::default();
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            let slot = raw.slot(&name).ok_or_else(|| ArgumentError::unknown(&name))?;
            // If the next argument is also an option, this option has no value.
            let value = value.or_else(|| arguments.next_if(|next| !next.starts_with("--")));
            *slot = Some(value.ok_or_else(|| ArgumentError(format!("{name} has no value")))?);
        }
        raw.arguments()
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

/// The texts of the options before they are parsed.
#[derive(Default)]
struct RawArguments {
    quota: Option<String>,
    burst: Option<String>,
    margin: Option<String>,
    strategy: Option<String>,
    tasks: Option<String>,
    seconds: Option<String>,
}

impl RawArguments {
    fn slot(&mut self, name: &str) -> Option<&mut Option<String>> {
        Some(match name {
            "--quota" => &mut self.quota,
            "--burst" => &mut self.burst,
            "--margin" => &mut self.margin,
            "--strategy" => &mut self.strategy,
            "--tasks" => &mut self.tasks,
            "--seconds" => &mut self.seconds,
            _ => return None,
        })
    }

    fn arguments(&self) -> Result<Arguments, ArgumentError> {
        let value_or = |value: &Option<String>, default: &str| value.as_deref().unwrap_or(default).to_owned();
        let strategy = match value_or(&self.strategy, STRATEGY).as_str() {
            "token" => Strategy::Token,
            "window" => Strategy::Window,
            other => return Err(ArgumentError::new("--strategy", other, "token or window")),
        };
        let text = value_or(&self.quota, QUOTA);
        let mut quota = quota(&text)?;
        if let Some(text) = &self.burst {
            let burst = number("--burst", text, 1, u32::MAX)?;
            if strategy == Strategy::Window {
                return Err(ArgumentError::new("--burst", text, "no --burst with --strategy window"));
            }
            quota =
                quota.with_burst(burst).map_err(|error| ArgumentError::invalid("--burst", text, &error))?;
        }
        let text = value_or(&self.margin, MARGIN);
        let margin = duration("--margin", &text)?;
        quota =
            quota.with_margin(margin).map_err(|error| ArgumentError::invalid("--margin", &text, &error))?;
        let seconds = number("--seconds", &value_or(&self.seconds, SECONDS), 1, MAX_SECONDS)?;
        Ok(Arguments {
            quota,
            strategy,
            tasks: number("--tasks", &value_or(&self.tasks, TASKS), 1, MAX_TASKS)?,
            duration: Duration::from_secs(seconds),
        })
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

/// The error message for an invalid argument, with the argument's name, its value, and the valid values.
#[derive(Debug)]
pub(crate) struct ArgumentError(String);

impl ArgumentError {
    fn unknown(name: &str) -> Self {
        let expected = "--quota, --burst, --margin, --strategy, --tasks, --seconds or --help";
        Self(format!("unknown argument `{name}`: expected {expected}"))
    }

    fn new(name: &str, value: &str, expected: &str) -> Self {
        Self(format!("{name} `{value}`: expected {expected}"))
    }

    /// Wraps an error of this crate, which already lists the valid values.
    fn invalid(name: &str, value: &str, error: &InvalidConfig) -> Self {
        Self(format!("{name} `{value}`: {error}"))
    }
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
