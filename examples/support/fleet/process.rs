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
    BoxError, Error, adapter::RedisLimiter, limit::RateLimitLayer, request_id::RequestIdLayer,
    timeout::TimeoutLayer,
};

use super::{
    Job,
    counter::{LEFT, PROCESS, wall},
    members::Said,
};

/// How long a call may take with all that it waits for: no more than a few windows, if nothing hangs.
const DEADLINE: Duration = Duration::from_secs(10);

/// Works until it is told to stop, and ends with whoever started it, whatever becomes of that.
pub(crate) async fn run(number: usize, job: Job) -> Result<(), BoxError> {
    let limiter = job.limiter()?;
    let log = Arc::new(Log::new(job.tasks));
    let mut orders = orders();
    tell(&Said::Ready)?;
    orders.recv().await;
    for task in 0..job.tasks {
        tokio::spawn(work(number, job.clone(), task, limiter.clone(), Arc::clone(&log)));
    }
    let mut seen = None;
    let mut looks = tokio::time::interval(Duration::from_millis(5));
    loop {
        tokio::select! {
            _ = looks.tick() => {
                let state = limiter.store();
                if seen != Some(state) {
                    tell(&Said::State(format!("{state:?}").to_lowercase()))?;
                    seen = Some(state);
                }
            }
            _ = orders.recv() => break,
        }
    }
    tell(&log.end())
}

/// A line is an order; the end of the lines is the end of the process.
fn orders() -> mpsc::UnboundedReceiver<()> {
    let (sender, orders) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for _ in io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(());
        }
        std::process::exit(0);
    });
    orders
}

fn tell(said: &Said) -> Result<(), BoxError> {
    let mut out = io::stdout().lock();
    // On a line of its own, whatever the test harness has printed.
    writeln!(out, "\n{said}")?;
    Ok(out.flush()?)
}

/// Calls that are over, and those that are not.
struct Log {
    answered: AtomicU64,
    refused: AtomicU64,
    failed: AtomicU64,
    longest: Mutex<Duration>,
    /// When the call of each task began.
    begun: Vec<Mutex<Option<Instant>>>,
}

impl Log {
    fn new(tasks: usize) -> Self {
        Self {
            answered: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            longest: Mutex::default(),
            begun: (0..tasks).map(|_| Mutex::default()).collect(),
        }
    }

    fn over(&self, task: usize) {
        let took = locked(&self.begun[task]).take().map_or(Duration::ZERO, |begun| begun.elapsed());
        let mut longest = locked(&self.longest);
        *longest = took.max(*longest);
    }

    fn end(&self) -> Said {
        // One that hangs counts for as long as it has hung.
        for task in 0..self.begun.len() {
            self.over(task);
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Said::End {
            answered: count(&self.answered),
            refused: count(&self.refused),
            failed: count(&self.failed),
            longest: *locked(&self.longest),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One call after another.
async fn work(
    number: usize,
    job: Job,
    task: usize,
    limiter: RedisLimiter,
    log: Arc<Log>,
) -> Result<(), BoxError> {
    let mut service = ServiceBuilder::new()
        .layer(RequestIdLayer::new())
        .layer(TimeoutLayer::total(DEADLINE)?)
        .layer(RateLimitLayer::new(limiter))
        // Right below it, in the poll in which the request had its permit.
        .map_request(|mut request: Request<Empty<Bytes>>| {
            let left = u64::try_from(wall().as_micros()).unwrap_or(u64::MAX);
            request.headers_mut().insert(LEFT, left.into());
            request
        })
        .service(Client::builder(TokioExecutor::new()).build_http());
    loop {
        let request = Request::get(format!("http://{}/", job.server)).header(PROCESS, number);
        let request = request.body(Empty::<Bytes>::new())?;
        *locked(&log.begun[task]) = Some(Instant::now());
        let outcome = match service.ready().await?.call(request).await {
            Ok(response) => response.into_body().collect().await.map(drop).map_err(|_| None),
            Err(error) => Err(Some(error)),
        };
        log.over(task);
        let (counter, rest) = match outcome {
            Ok(()) => (&log.answered, None),
            Err(Some(error)) if error.is_rate_limited() => (&log.refused, Some(retry_after(&error))),
            Err(_) => (&log.failed, Some(Duration::from_millis(10))),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Some(rest) = rest {
            tokio::time::sleep(rest).await;
        }
    }
}

fn retry_after(error: &Error) -> Duration {
    error.retry_after().unwrap_or_default().max(Duration::from_millis(1))
}
