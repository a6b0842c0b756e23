//! One round: chaos, then calm, then nothing: all is dropped and must be gone.

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
    caller,
    dice::Dice,
    ledger::Ledger,
    listener,
    server::Server,
    site::{CALM, SHARED, SITES, Site},
};

/// Callers of one site on one thread.
const CALLERS: usize = 24;
/// Those of a site in the calm. Few: with as many as a slow machine has no time for, no call comes to its end in time,
/// and what fails is tried again.
const CALM_CALLERS: usize = 3;
/// Longer than anything takes on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(240);

/// Runs it for so long, and gives what is left of the clients' memory, in bytes.
pub(crate) fn run(seed: u64, lasting: Duration, ledger: &Arc<Ledger>) -> i64 {
    let server = Server::start(seed, ledger);
    let both = Arc::new(Barrier::new(2));
    let mut left = 0;
    let main = allocation_counter::measure(|| {
        let sites: Vec<_> = (0..SITES).map(|site| Arc::new(Site::new(site, &server, seed, ledger))).collect();
        // Each limiter but one is used by one thread alone, where what is heard and what leaves have one order.
        let threads = [[0, 2], [1, 1]].map(|own| {
            let own: Vec<_> = sites
                .iter()
                .filter(|site| own.contains(&site.number) || site.number == SHARED)
                .map(Arc::clone)
                .collect();
            let (ledger, both) = (Arc::clone(ledger), Arc::clone(&both));
            let first = own.iter().any(|site| site.number == 0);
            thread::spawn(move || {
                listener::hear();
                // What is left when a thread is over: what others must free is counted there.
                allocation_counter::measure(|| {
                    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                    runtime.block_on(callers(own, first, seed, lasting, ledger, both));
                })
                .bytes_current
            })
        });
        drop(sites);
        left += threads.map(|thread| thread.join().unwrap()).iter().sum::<i64>();
    });
    drop(server);
    left + main.bytes_current
}

async fn callers(
    sites: Vec<Arc<Site>>,
    first: bool,
    seed: u64,
    lasting: Duration,
    ledger: Arc<Ledger>,
    both: Arc<Barrier>,
) {
    let until = Instant::now() + lasting;
    let mut tasks = JoinSet::new();
    for site in &sites {
        for _ in 0..CALLERS {
            tasks.spawn(caller::calls(Arc::clone(site), Arc::clone(&ledger), seed));
        }
        // The shared one has one operator.
        if site.number != SHARED || first {
            tasks.spawn(operator(Arc::clone(site), Arc::clone(&ledger), seed));
        }
    }
    tokio::time::sleep_until(until).await;
    ledger.over.store(true, SeqCst);
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            ledger.wrong(format!("a caller ended in {error}"));
        }
    }
    both.wait().await;

    ledger.calm.store(true, SeqCst);
    let own: Vec<_> = sites.iter().filter(|site| site.number != SHARED || first).cloned().collect();
    for site in &own {
        site.set_quota(CALM);
        site.resume();
        for _ in 0..CALM_CALLERS {
            tasks.spawn(caller::recovers(Arc::clone(site), Arc::clone(&ledger)));
        }
    }
    within(&ledger, "full budgets", async { while tasks.join_next().await.is_some() {} }).await;
    for site in &own {
        let what = format!("a quiet limiter at site {}", site.number);
        within(&ledger, &what, async {
            while !is_quiet(site) {
                tokio::time::sleep(TICK).await
            }
        })
        .await;
    }
    both.wait().await;

    drop((own, sites));
    both.wait().await;
    let metrics = Handle::current().metrics();
    within(&ledger, "no task left", async {
        while metrics.num_alive_tasks() > 0 {
            tokio::time::sleep(TICK).await;
        }
    })
    .await;
}

const TICK: Duration = Duration::from_millis(10);

async fn within(ledger: &Ledger, what: &str, work: impl Future<Output = ()>) {
    if tokio::time::timeout(PATIENCE, work).await.is_err() {
        ledger.wrong(format!("not seen within {PATIENCE:?}: {what}"));
    }
}

/// As it was before the first request.
fn is_quiet(site: &Site) -> bool {
    let now = site.snapshot();
    (now.queued, now.in_flight, now.paused_until, now.available) == (0, 0, None, site.full(CALM))
}

/// Changes quotas and keys, and lifts pauses that are longer than the test.
async fn operator(site: Arc<Site>, ledger: Arc<Ledger>, seed: u64) {
    for number in 0.. {
        let mut dice = Dice::about(seed, "operator", number << 8 | site.number as u64);
        tokio::time::sleep(dice.millis(100, 500)).await;
        if ledger.over.load(Relaxed) {
            return;
        }
        match dice.below(10) {
            0..3 => site.set_quota(dice.below(2) as usize),
            3..6 => site.vault.rotate(),
            // Pauses of up to a second are kept in peace, more often than not.
            _ if dice.chance(500) || is_stopped(&site) => site.resume(),
            _ => {}
        }
    }
}

/// Until long after the test.
fn is_stopped(site: &Site) -> bool {
    site.snapshot().paused_until.is_some_and(|until| until > Instant::now() + Duration::from_secs(2))
}
