//! Runs a load phase with faulty servers, a recovery phase with correct servers, and the shutdown of all clients.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, SeqCst},
    },
    thread,
    time::Duration,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::Barrier,
    task::JoinSet,
    time::Instant,
};

use super::{
    api::{APIS, Api, SHARED},
    history::History,
    load, log_scanner,
    rng::Rng,
    server::Server,
};

/// The number of callers of one API on one thread in the load phase.
const CALLERS: usize = 24;
/// The number of callers of one API in the recovery phase. With many callers on a slow machine, all calls could time
/// out, and their retries would keep the machine busy.
const RECOVERY_CALLERS: usize = 3;
/// The time limit of each step after the load phase, long enough for a busy machine.
const STEP_TIMEOUT: Duration = Duration::from_secs(240);

/// Runs all phases. `duration` is the length of the load phase. Returns the number of bytes that the clients allocated
/// and did not free.
pub(crate) fn run(seed: u64, duration: Duration, history: &Arc<History>) -> i64 {
    let server = Server::start(seed, history);
    let barrier = Arc::new(Barrier::new(2));
    let mut remaining = 0;
    let main = allocation_counter::measure(|| {
        let apis: Vec<_> = (0..APIS).map(|number| Arc::new(Api::new(number, &server, seed))).collect();
        // Both threads use only the shared API. Every other API is used by a single thread.
        let threads = [[0, 2], [1, 1]].map(|own| {
            let own: Vec<_> = apis
                .iter()
                .filter(|api| own.contains(&api.number) || api.number == SHARED)
                .map(Arc::clone)
                .collect();
            let (history, barrier) = (Arc::clone(history), Arc::clone(&barrier));
            let is_first = own.iter().any(|api| api.number == 0);
            thread::spawn(move || {
                log_scanner::enable_on_this_thread();
                // Only the sum over all threads is meaningful, because a thread may free the memory that another thread
                // allocated.
                allocation_counter::measure(|| {
                    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(run_callers(own, is_first, seed, duration, history, barrier));
                })
                .bytes_current
            })
        });
        drop(apis);
        remaining += threads.map(|thread| thread.join().unwrap()).iter().sum::<i64>();
    });
    drop(server);
    remaining + main.bytes_current
}

/// Runs the callers of one thread. The first thread also runs the operator of the shared API.
async fn run_callers(
    apis: Vec<Arc<Api>>,
    is_first: bool,
    seed: u64,
    duration: Duration,
    history: Arc<History>,
    barrier: Arc<Barrier>,
) {
    let load_end = Instant::now() + duration;
    let mut tasks = JoinSet::new();
    for api in &apis {
        for _ in 0..CALLERS {
            tasks.spawn(load::send_until_load_ends(Arc::clone(api), Arc::clone(&history), seed));
        }
        if api.number != SHARED || is_first {
            tasks.spawn(operate(Arc::clone(api), Arc::clone(&history), seed));
        }
    }
    tokio::time::sleep_until(load_end).await;
    history.load_ended.store(true, SeqCst);
    while let Some(result) = tasks.join_next().await {
        if let Err(error) = result {
            history.add_violation(format!("a caller's task failed: {error}"));
        }
    }
    barrier.wait().await;

    history.recovering.store(true, SeqCst);
    let own: Vec<_> = apis.iter().filter(|api| api.number != SHARED || is_first).cloned().collect();
    for api in &own {
        api.recover();
        for _ in 0..RECOVERY_CALLERS {
            tasks.spawn(load::send_until_budget_is_full(Arc::clone(api), Arc::clone(&history)));
        }
    }
    within(&history, "full budgets", async { while tasks.join_next().await.is_some() {} }).await;
    for api in &own {
        let condition = format!("an idle limiter of API {}", api.number);
        within(&history, &condition, async {
            while !api.is_idle() {
                tokio::time::sleep(POLL_INTERVAL).await
            }
        })
        .await;
    }
    barrier.wait().await;

    drop((own, apis));
    barrier.wait().await;
    let metrics = Handle::current().metrics();
    within(&history, "no task left", async {
        while metrics.num_alive_tasks() > 0 {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    })
    .await;
}

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Adds a violation if `work` does not end in time.
async fn within(history: &History, condition: &str, work: impl Future<Output = ()>) {
    if tokio::time::timeout(STEP_TIMEOUT, work).await.is_err() {
        history.add_violation(format!("not reached within {STEP_TIMEOUT:?}: {condition}"));
    }
}

/// Changes quotas and keys, and ends pauses that are longer than the test.
async fn operate(api: Arc<Api>, history: Arc<History>, seed: u64) {
    for number in 0.. {
        let mut rng = Rng::new(seed, "operator", number << 8 | api.number as u64);
        tokio::time::sleep(rng.millis(100, 500)).await;
        if history.load_ended.load(Relaxed) {
            return;
        }
        match rng.below(10) {
            0..3 => api.set_quota(rng.below(2) as usize),
            3..6 => api.keys.rotate(),
            // `resume` ends a short pause only with a probability of 50 %, so that many short pauses run to their
            // end.
            _ if rng.chance(500) || is_paused_for_long(&api) => api.resume(),
            _ => {}
        }
    }
}

fn is_paused_for_long(api: &Api) -> bool {
    api.snapshot().paused_until.is_some_and(|until| until > Instant::now() + Duration::from_secs(2))
}
