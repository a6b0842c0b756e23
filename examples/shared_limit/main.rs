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
    time::{Instant, sleep_until},
};
use tower_outbound::{BoxError, Quota};

use self::{report::Run, store::Store};

const HELP: &str = "\
Four processes of sixteen tasks each share 200 requests a second through Redis, and call a server that counts.

Usage: cargo run --example shared_limit [-- [--refuse] [URL]]

  URL       of a Redis or Valkey that runs already, such as redis://127.0.0.1:6379/; REDIS_URL does the same.
            It is not stopped. Without one a redis-server is started, killed in the middle, and started again.
  --refuse  refuse while redis is away; else each process keeps to a quarter of the quota then
  --help    this text

Exit status: 0, 1 when more arrived than the quota allows or nothing can be run, 2 for a wrong argument.
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
        Ok(Some((number, job))) => return done(fleet::run(number, job).await.map(|()| true)),
        Err(error) => return done(Err(error)),
    }
    let (mut url, mut parts) =
        (std::env::var("REDIS_URL").ok().filter(|url| !url.is_empty()), PROCESSES as u32);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--help" | "-h" => return done(print(HELP).map(|()| true)),
            "--refuse" => parts = 0,
            _ if argument.contains("://") => url = Some(argument),
            _ => {
                eprintln!("shared_limit: unknown argument `{argument}`, see --help");
                return ExitCode::from(2);
            }
        }
    }
    // Whatever ends it, redis-server and the processes end with it.
    tokio::select! {
        result = run(url, parts) => done(result),
        () = store::interrupted() => done(Err("interrupted".into())),
    }
}

/// Whether the quota was kept to.
async fn run(url: Option<String>, parts: u32) -> Result<bool, BoxError> {
    let mut store = Store::find(url)?;
    let counter = Counter::start()?;
    let job = Job {
        server: counter.address(),
        redis: store.url(),
        name: "shared_limit".to_owned(),
        kind: Kind::TokenBucket,
        // The operating system suspends a process for tens of milliseconds now and then. A quarter of the margin covers it.
        quota: Quota::per_second(200)?.with_margin(Duration::from_millis(200))?,
        parts,
        tasks: TASKS,
    };
    store.check(&job).await?;
    print(&report::title(&job, &store))?;
    let mut members = Members::start(PROCESSES, &job, || Ok(Command::new(std::env::current_exe()?))).await?;
    let asked = store.questions()?;
    members.go().await?;

    let start = Instant::now();
    let mut run = Run { start, killed: None, restarted: None, end: start, questions: None, job };
    let [before, away, after] = STEPS;
    print(report::HEAD)?;
    for step in 0..before + away + after {
        sleep_until(start + STEP * (step + 1)).await;
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
    Ok(all.violations() == 0)
}

fn print(text: &str) -> Result<(), BoxError> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn done(kept: Result<bool, BoxError>) -> ExitCode {
    match kept {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("shared_limit: {error}");
            ExitCode::FAILURE
        }
    }
}
