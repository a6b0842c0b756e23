use std::{
    io::{self, BufRead, Write},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use tokio::{sync::mpsc, time::Instant};
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_outbound::{
    BoxError, Error,
    adapter::{RedisLimiter, Store},
    limit::RateLimitLayer,
    request_id::RequestIdLayer,
    timeout::TotalTimeoutLayer,
};

use super::{
    WorkerConfig,
    counting_server::{GRANTED_AT, PROCESS, wall_clock},
    workers::Message,
};

/// The timeout of a call, including the wait for the limiter. A call that does not hang takes at most a few windows.
const DEADLINE: Duration = Duration::from_secs(10);

/// Runs a worker until its parent process stops the worker. The worker also ends when its parent ends.
pub(crate) async fn run(number: usize, config: WorkerConfig) -> Result<(), BoxError> {
    let limiter = config.limiter()?;
    let results = Arc::new(Results::new(config.tasks));
    let mut commands = commands();
    send(&Message::Ready)?;
    commands.recv().await;
    for task in 0..config.tasks {
        tokio::spawn(call_repeatedly(number, config.clone(), task, limiter.clone(), Arc::clone(&results)));
    }
    let mut reported = None;
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let state = limiter.store();
                if reported != Some(state) {
                    let name = match state {
                        Store::NotQueried => "not_queried".to_owned(),
                        _ => format!("{state:?}").to_lowercase(),
                    };
                    send(&Message::State(name))?;
                    reported = Some(state);
                }
            }
            _ = commands.recv() => break,
        }
    }
    send(&results.end())
}

/// Reads commands from stdin, one per line. The first line starts the calls and the second line stops them. The process
/// exits at the end of stdin.
fn commands() -> mpsc::UnboundedReceiver<()> {
    let (sender, commands) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for _ in io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(());
        }
        std::process::exit(0);
    });
    commands
}

fn send(message: &Message) -> Result<(), BoxError> {
    let mut out = io::stdout().lock();
    // The message starts on a new line, because the test harness may have printed an incomplete line.
    writeln!(out, "\n{message}")?;
    Ok(out.flush()?)
}

/// The results of all calls, and the start times of the calls in progress.
struct Results {
    completed: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    longest: Mutex<Duration>,
    /// The start of each task's current call.
    started: Vec<Mutex<Option<Instant>>>,
}

impl Results {
    fn new(tasks: usize) -> Self {
        Self {
            completed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            longest: Mutex::default(),
            started: (0..tasks).map(|_| Mutex::default()).collect(),
        }
    }

    /// Ends the task's current call, and records its duration if it is the longest.
    fn finish(&self, task: usize) {
        let took = locked(&self.started[task]).take().map_or(Duration::ZERO, |started| started.elapsed());
        let mut longest = locked(&self.longest);
        *longest = took.max(*longest);
    }

    fn end(&self) -> Message {
        // Calls in progress count, too, so that a hanging call shows up as the longest call.
        for task in 0..self.started.len() {
            self.finish(task);
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Message::End {
            completed: count(&self.completed),
            refused: count(&self.refused),
            failed: count(&self.failed),
            longest: *locked(&self.longest),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn call_repeatedly(
    number: usize,
    config: WorkerConfig,
    task: usize,
    limiter: RedisLimiter,
    results: Arc<Results>,
) -> Result<(), BoxError> {
    let mut service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TotalTimeoutLayer::new(DEADLINE)?)
        .layer(RateLimitLayer::new(limiter))
        // This service runs directly inside the limiter, in the same poll as the grant.
        .map_request(|mut request: Request<Empty<Bytes>>| {
            let granted_at = u64::try_from(wall_clock().as_micros()).unwrap_or(u64::MAX);
            request.headers_mut().insert(GRANTED_AT, granted_at.into());
            request
        })
        .service(Client::builder(TokioExecutor::new()).build_http());
    loop {
        let request = Request::get(format!("http://{}/", config.server)).header(PROCESS, number);
        let request = request.body(Empty::<Bytes>::new())?;
        *locked(&results.started[task]) = Some(Instant::now());
        let outcome = match service.ready().await?.call(request).await {
            Ok(response) => response.into_body().collect().await.map(drop).map_err(|_| None),
            Err(error) => Err(Some(error)),
        };
        results.finish(task);
        let (counter, pause) = match outcome {
            Ok(()) => (&results.completed, None),
            Err(Some(error)) if error.is_rate_limited() => (&results.refused, Some(retry_after(&error))),
            Err(_) => (&results.failed, Some(Duration::from_millis(10))),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }
}

fn retry_after(error: &Error) -> Duration {
    error.retry_after().unwrap_or_default().max(Duration::from_millis(1))
}
