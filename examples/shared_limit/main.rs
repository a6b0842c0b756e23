//! Shares one quota between four processes through Redis. The program kills and restarts Redis during the run. `--help`
//! shows more.

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

use fleet::{Algorithm, ArrivalLog, CountingServer, WorkerConfig, Workers};
use tokio::{
    process::Command,
    time::{Instant, sleep_until, timeout},
};
use tower_outbound::{BoxError, InvalidConfig, Quota, adapter::RedisLimiter};
use tower_outbound_examples::{Interrupt, arguments, exit_code, reject, reject_unknown};

use self::{report::Run, store::Store};

const HELP: &str = "\
Four processes share a quota of 200 requests per second through Redis. Each calls a counting server from sixteen tasks.

Usage: cargo run --example shared_limit [-- [--refuse] [URL]]

  URL       the URL of a running Redis or Valkey, such as redis://127.0.0.1:6379/. The program does not stop that
            server. The variable REDIS_URL does the same. By default the program starts a redis-server, kills it, and
            restarts it.
  --refuse  refuse every request while Redis does not reply, instead of using a quarter of the quota per process
  --help    this text

The program takes about 11 seconds.

Exit status: 0, 1 if more requests arrived than the quota allows or the program cannot start, 2 for an invalid argument,
130 after Ctrl-C, which prints the summary of the run so far.
";

const PROCESSES: usize = 4;
const TASKS: usize = 16;

/// The time that one row of the printed table covers.
const STEP: Duration = Duration::from_millis(500);
/// The numbers of table rows before Redis is killed, while Redis is down, and after the restart of Redis.
const STEPS: [u32; 3] = [9, 4, 7];

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // The worker processes run this same executable, with their configuration in an environment variable.
    match WorkerConfig::from_env() {
        Ok(None) => {}
        Ok(Some((number, config))) => return exit_code(fleet::run(number, config).await),
        Err(error) => return exit_code(Err(error)),
    }
    let (mut url, mut fallback_share) =
        (std::env::var("REDIS_URL").ok().filter(|url| !url.is_empty()), PROCESSES as u32);
    for argument in arguments(HELP) {
        match argument.as_str() {
            "--refuse" => fallback_share = 0,
            _ if argument.contains("://") => {
                // Here the URL is parsed but not yet used, because a limiter connects with its first request.
                let parsed =
                    quota().and_then(|quota| RedisLimiter::token_bucket(&argument, "argument", [quota]));
                if let Err(error) = parsed {
                    reject(error);
                }
                url = Some(argument);
            }
            _ => reject_unknown(&argument, "--refuse, --help or the URL of a Redis"),
        }
    }
    let mut interrupt = Interrupt::listen();
    let error = match run(url, fallback_share, &mut interrupt).await {
        Ok(code) => return code,
        Err(error) => error,
    };
    // A terminal also sends Ctrl-C to redis-server and the workers, so their exit is not an error.
    match timeout(Duration::from_millis(500), interrupt.received()).await {
        Ok(code) => {
            println!("{}the run was not complete", interrupt.title());
            code
        }
        Err(_) => exit_code(Err(error)),
    }
}

fn quota() -> Result<Quota, InvalidConfig> {
    // The operating system sometimes suspends a process for tens of milliseconds. A quarter of the margin covers such a
    // pause.
    Quota::per_second(200)?.with_margin(Duration::from_millis(200))
}

/// Starts the counting server and the workers. The workers send no requests before `go` is called.
async fn start(
    url: Option<String>,
    fallback_share: u32,
) -> Result<(Store, CountingServer, WorkerConfig, Workers), BoxError> {
    let store = Store::find(url)?;
    let server = CountingServer::start()?;
    let config = WorkerConfig {
        server: server.address(),
        redis: store.url(),
        name: "shared_limit".to_owned(),
        algorithm: Algorithm::TokenBucket,
        quota: quota()?,
        fallback_share,
        tasks: TASKS,
    };
    store.check(&config).await?;
    print(&report::title(&config, &store))?;
    let workers = Workers::start(PROCESSES, &config, || Ok(Command::new(std::env::current_exe()?))).await?;
    Ok((store, server, config, workers))
}

/// Runs the workers, prints a table row for each step, and prints the summary. Stops Redis and the workers even after
/// an error.
async fn run(
    url: Option<String>,
    fallback_share: u32,
    interrupt: &mut Interrupt,
) -> Result<ExitCode, BoxError> {
    let (mut store, server, config, mut workers) = tokio::select! {
        started = start(url, fallback_share) => started?,
        code = interrupt.received() => {
            print(&format!("{}the workers had not started\n", interrupt.title()))?;
            return Ok(code);
        }
    };
    let calls_before = store.script_calls()?;
    workers.go().await?;

    let start = Instant::now();
    let mut run = Run { start, killed: None, restarted: None, end: start, script_calls: None, config };
    let [before, down, after] = STEPS;
    print(report::HEADING)?;
    let mut interrupted = None;
    for step in 0..before + down + after {
        tokio::select! {
            () = sleep_until(start + STEP * (step + 1)) => {}
            code = interrupt.received() => {
                interrupted = Some(code);
                break;
            }
        }
        let (from, to) = (start + STEP * step, start + STEP * (step + 1));
        let arrivals = ArrivalLog::new(server.arrivals(), run.config.quota).between(from, to);
        print(&report::row(from - start, &arrivals, &store, &workers.states()))?;
        if step + 1 == before {
            run.script_calls = store.script_calls()?.zip(calls_before).map(|(now, before)| now - before);
            if store.kill()? {
                run.killed = Some(Instant::now());
            }
        } else if step + 1 == before + down && store.restart()? {
            run.restarted = Some(Instant::now());
        }
    }
    run.end = Instant::now();
    let events = workers.stop().await?;
    let all = ArrivalLog::new(server.arrivals(), run.config.quota);
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
