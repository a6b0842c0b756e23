//! Four processes that share one quota through Redis, which is stopped and started in the middle. `--help` says more.

#[path = "../support/fleet/mod.rs"]
mod fleet;
#[path = "../support/redis_server.rs"]
mod redis_server;
mod report;
mod store;

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use fleet::{Count, Counter, Job, Kind, Members};
use tokio::{
    process::Command,
    time::{Instant, sleep_until, timeout},
};
use tower_outbound::{BoxError, InvalidConfig, Quota, adapter::RedisLimiter};
use tower_outbound_examples::{Interrupt, arguments, exit_code, reject, unknown};

use self::{report::Run, store::Store};

const HELP: &str = "\
Four processes of sixteen tasks each share 200 requests a second through Redis, and call a server that counts.

Usage: cargo run --example shared_limit [-- [--refuse] [URL]]

  URL       of a Redis or Valkey that runs already, such as redis://127.0.0.1:6379/; REDIS_URL does the same.
            It is not stopped. Without one a redis-server is started, killed in the middle, and started again.
  --refuse  reject every request while Redis does not respond; otherwise each process keeps to a quarter of the quota
  --help    this text

It takes about 11 seconds.

Exit status: 0, 1 if more requests arrived than the quota allows or the program cannot start, 2 for a wrong argument,
130 after Ctrl-C, which prints the summary of the run so far.
";

const PROCESSES: usize = 4;
const TASKS: usize = 16;

/// One line of the table.
const STEP: Duration = Duration::from_millis(500);
/// Lines until redis is stopped, while it is away, and after it.
const STEPS: [u32; 3] = [9, 4, 7];

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // This program is also what it starts.
    match Job::given() {
        Ok(None) => {}
        Ok(Some((number, job))) => return exit_code(fleet::run(number, job).await),
        Err(error) => return exit_code(Err(error)),
    }
    let (mut url, mut parts) =
        (std::env::var("REDIS_URL").ok().filter(|url| !url.is_empty()), PROCESSES as u32);
    for argument in arguments(HELP) {
        match argument.as_str() {
            "--refuse" => parts = 0,
            _ if argument.contains("://") => {
                // Only reads the URL: the limiter connects with its first request.
                let read =
                    quota().and_then(|quota| RedisLimiter::token_bucket(&argument, "argument", [quota]));
                if let Err(error) = read {
                    reject(error);
                }
                url = Some(argument);
            }
            _ => unknown(&argument, "--refuse, --help or the URL of a Redis"),
        }
    }
    let mut interrupt = Interrupt::listen();
    let error = match run(url, parts, &mut interrupt).await {
        Ok(code) => return code,
        Err(error) => error,
    };
    // A terminal sends Ctrl-C to redis-server and the processes, too. Their end is no error then.
    match timeout(Duration::from_millis(500), interrupt.received()).await {
        Ok(code) => {
            println!("{}the run was not over", interrupt.title());
            code
        }
        Err(_) => exit_code(Err(error)),
    }
}

fn quota() -> Result<Quota, InvalidConfig> {
    // The operating system suspends a process for tens of milliseconds now and then. A quarter of the margin covers it.
    Quota::per_second(200)?.with_margin(Duration::from_millis(200))
}

/// Starts the counting server and the processes, which wait for the start signal.
async fn start(url: Option<String>, parts: u32) -> Result<(Store, Counter, Job, Members), BoxError> {
    let store = Store::find(url)?;
    let counter = Counter::start()?;
    let job = Job {
        server: counter.address(),
        redis: store.url(),
        name: "shared_limit".to_owned(),
        kind: Kind::TokenBucket,
        quota: quota()?,
        parts,
        tasks: TASKS,
    };
    store.check(&job).await?;
    print(&report::title(&job, &store))?;
    let members = Members::start(PROCESSES, &job, || Ok(Command::new(std::env::current_exe()?))).await?;
    Ok((store, counter, job, members))
}

/// Prints a line for each step and the summary. Redis and the processes end with it, Ctrl-C or not.
async fn run(url: Option<String>, parts: u32, interrupt: &mut Interrupt) -> Result<ExitCode, BoxError> {
    let (mut store, counter, job, mut members) = tokio::select! {
        started = start(url, parts) => started?,
        code = interrupt.received() => {
            print(&format!("{}the processes had not started\n", interrupt.title()))?;
            return Ok(code);
        }
    };
    let asked = store.questions()?;
    members.go().await?;

    let start = Instant::now();
    let mut run = Run { start, killed: None, restarted: None, end: start, questions: None, job };
    let [before, away, after] = STEPS;
    print(report::HEAD)?;
    let mut interrupted = None;
    for step in 0..before + away + after {
        tokio::select! {
            () = sleep_until(start + STEP * (step + 1)) => {}
            code = interrupt.received() => {
                interrupted = Some(code);
                break;
            }
        }
        let (from, to) = (start + STEP * step, start + STEP * (step + 1));
        let count = Count::new(counter.arrivals(), run.job.quota).between(from, to);
        print(&report::line(from - start, &count, &store, &members.states()))?;
        if step + 1 == before {
            run.questions = store.questions()?.zip(asked).map(|(now, before)| now - before);
            if store.kill()? {
                run.killed = Some(Instant::now());
            }
        } else if step + 1 == before + away && store.restart()? {
            run.restarted = Some(Instant::now());
        }
    }
    run.end = Instant::now();
    let events = members.stop().await?;
    let all = Count::new(counter.arrivals(), run.job.quota);
    print(&run.summary(&all, &events))?;
    if let Some(code) = interrupted {
        print(&format!("{}{} requests had arrived\n", interrupt.title(), all.total()))?;
        return Ok(code);
    }
    Ok(if all.violations() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(text: &str) -> Result<(), BoxError> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
