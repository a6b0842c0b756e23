use std::{fmt, str::FromStr, time::Duration};

use tower_outbound::{InvalidConfig, Quota};

/// What to measure, and for how long.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) quota: Quota,
    pub(crate) strategy: Strategy,
    pub(crate) tasks: usize,
    pub(crate) lasting: Duration,
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

/// A day; who wants more wants a different tool.
const MOST_SECONDS: u64 = 86_400;
const MOST_TASKS: usize = 1_000_000;

pub(crate) fn help() -> String {
    format!(
        "\
Measures a limiter: so many tasks ask for a permit, get it, and ask again.

Usage: cargo run --release --example limiter_throughput -- [OPTIONS]

  --quota LIMIT/WINDOW   so many permits in any window of this length          [{QUOTA}]
  --burst PERMITS        of them, so many back to back; token only             [a tenth of the limit]
  --margin DURATION      the quota's safety margin, which widens the window    [{MARGIN}]
  --strategy STRATEGY    token: the burst, then evenly. window: the whole quota as it comes  [{STRATEGY}]
  --tasks TASKS          that ask at the same time                             [{TASKS}]
  --seconds SECONDS      that it takes                                         [{SECONDS}]
  --help                 this text

A duration is whole numbers with their units d, h, m, s or ms, such as 500ms or 1m30s. `--name value` and `--name=value`
both do.

Exit status: 0, 1 if more than the quota was granted in some window, 2 for a wrong argument, 130 after Ctrl-C, which
prints the report of the run so far.
"
    )
}

impl Arguments {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Wrong> {
        let mut given = Given::default();
        let mut arguments = arguments.peekable();
        while let Some(argument) = arguments.next() {
            let (name, value) = match argument.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (argument, None),
            };
            let place = given.place(&name).ok_or_else(|| Wrong::unknown(&name))?;
            // A name where the value should be is a value that was forgotten.
            let value = value.or_else(|| arguments.next_if(|next| !next.starts_with("--")));
            *place = Some(value.ok_or_else(|| Wrong(format!("{name} has no value")))?);
        }
        given.arguments()
    }

    pub(crate) fn title(&self) -> String {
        let Self { quota, tasks, lasting, .. } = self;
        let limiter = match self.strategy {
            Strategy::Token => {
                format!("a token bucket of {quota}, refilled every {:.3?}", quota.refill_interval())
            }
            Strategy::Window => {
                let (limit, window, margin) = (quota.limit(), quota.window(), quota.margin());
                format!("a sliding window of {limit} per {window:?}, margin {margin:?}")
            }
        };
        format!("{limiter}\n{tasks} tasks for {lasting:?}\n\n")
    }
}

/// The arguments as they were given.
#[derive(Default)]
struct Given {
    quota: Option<String>,
    burst: Option<String>,
    margin: Option<String>,
    strategy: Option<String>,
    tasks: Option<String>,
    seconds: Option<String>,
}

impl Given {
    fn place(&mut self, name: &str) -> Option<&mut Option<String>> {
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

    fn arguments(&self) -> Result<Arguments, Wrong> {
        let given = |value: &Option<String>, or: &str| value.as_deref().unwrap_or(or).to_owned();
        let strategy = match given(&self.strategy, STRATEGY).as_str() {
            "token" => Strategy::Token,
            "window" => Strategy::Window,
            other => return Err(Wrong::new("--strategy", other, "token or window")),
        };
        let text = given(&self.quota, QUOTA);
        let mut quota = quota(&text)?;
        if let Some(text) = &self.burst {
            let burst = number("--burst", text, 1, u32::MAX)?;
            if strategy == Strategy::Window {
                return Err(Wrong::new("--burst", text, "none with --strategy window, which has no burst"));
            }
            quota = quota.with_burst(burst).map_err(|error| Wrong::refused("--burst", text, &error))?;
        }
        let text = given(&self.margin, MARGIN);
        let margin = duration("--margin", &text)?;
        quota = quota.with_margin(margin).map_err(|error| Wrong::refused("--margin", &text, &error))?;
        let seconds = number("--seconds", &given(&self.seconds, SECONDS), 1, MOST_SECONDS)?;
        Ok(Arguments {
            quota,
            strategy,
            tasks: number("--tasks", &given(&self.tasks, TASKS), 1, MOST_TASKS)?,
            lasting: Duration::from_secs(seconds),
        })
    }
}

fn quota(text: &str) -> Result<Quota, Wrong> {
    text.parse().map_err(|error| Wrong::refused("--quota", text, &error))
}

fn number<T: FromStr + PartialOrd + fmt::Display>(
    name: &str,
    text: &str,
    least: T,
    most: T,
) -> Result<T, Wrong> {
    let number = text.parse().ok().filter(|number| (&least..=&most).contains(&number));
    number.ok_or_else(|| Wrong::new(name, text, &format!("a whole number from {least} to {most}")))
}

/// Reads a duration in the form of a quota's margin.
fn duration(name: &str, text: &str) -> Result<Duration, Wrong> {
    let quota: Result<Quota, _> = format!("1/1s, margin {text}").parse();
    quota.map(|quota| quota.margin()).map_err(|error| Wrong::refused(name, text, &error))
}

/// What is wrong with the arguments: which one, its value, and what it could be.
#[derive(Debug)]
pub(crate) struct Wrong(String);

impl Wrong {
    fn unknown(name: &str) -> Self {
        let expected = "--quota, --burst, --margin, --strategy, --tasks, --seconds or --help";
        Self(format!("unknown argument `{name}`: expected {expected}"))
    }

    fn new(name: &str, value: &str, expected: &str) -> Self {
        Self(format!("{name} `{value}`: expected {expected}"))
    }

    /// The crate says itself what it could be.
    fn refused(name: &str, value: &str, error: &InvalidConfig) -> Self {
        Self(format!("{name} `{value}`: {error}"))
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
