//! What a permit and a key cost, how a crowd is served and what a window holds: this crate's limiters and their
//! peers in one run.
//!
//! `cargo bench -p tower-outbound-peers --bench limiter` prints a table for each section; the peers are
//! dependencies of that package alone. After `--`:
//!
//! - `--quick` runs short, to see that it works;
//! - `--only SECTION` runs one of `grant`, `refusal`, `keyed`, `waiters`, `fairness`, `window`, `redis`, `redis-cost`;
//! - `--json PATH`, `--svg PATH` and `--markdown PATH` write the figures, a plot and the tables as well, see README.md;
//!   Cargo runs it in `benches/peers`, so give absolute paths.
//!
//! Compare within one run: figures move between machines and hours. For that the rows of `grant`, `refusal`
//! and `keyed` take turns, and a ratio is the median of the rounds' ratios. "8 tasks" yield every 64 calls.
//!
//! `keyed` holds a million keys, numbers, under each of which a permit is owed. "Asked" is what a key keeps of
//! what was asked of the allocator, its share of spare room included; "resident" is how much more of the process
//! is in memory, the allocator's own share included. "One key" is the same at each call, "random" any of all.
//!
//! `redis` and `redis-cost` start a redis-server of their own, and are skipped where none is installed. A bare `INCR`
//! over the same client is the round trip that their ratios are to, of the time for each of all tasks together.

use std::{hint::black_box, io, sync::Arc, time::Duration};

use governor::clock::{FakeRelativeClock, MonotonicClock};
use tower::buffer::Buffer;
use tower_outbound::{
    Quota,
    limit::{Keyed, Limiter, PermitRequest, SlidingWindow, TokenBucket},
};
use tower_outbound_peers::{
    Arguments, BoxError, Column, Contest, Greedy, Keys, Pattern, Report, Server, Settings, Table, bucket,
    crowd, each_waiter, greedy, leaky, let_through, loopers, median, most_in_window, now, poll_once,
    ratelimit, redis, redis_cost, redis_memory, resilience, runtime, tower_limit, wait_for,
};
use tower_resilience_ratelimiter::WindowType;

const SECOND: Duration = Duration::from_secs(1);

/// What the ratios are to: governor on the clock of the row.
const STD: &str = "governor check, std clock";
const QUANTA: &str = "governor check, quanta clock";

/// Nothing waits, for a permit comes back every nanosecond.
fn grant(settings: Settings) -> Result<Table, BoxError> {
    const MANY: u32 = 1_000_000_000;
    let endless = Quota::new(4_000_000_000, SECOND)?.with_burst(2_000_000_000)?.without_margin();
    // A log has to remember what it granted: 1,000 of the last microsecond.
    let (limit, window) = (1_000, Duration::from_micros(1));
    let mut contest = Contest::new(true)?;

    contest.row("Instant::now() alone", STD, || {
        black_box(now());
        true
    });

    let ours = TokenBucket::new(endless);
    contest.row("tower-outbound TokenBucket try_acquire", STD, move || ours.try_acquire().is_ok());
    let ours = TokenBucket::new(endless);
    contest.row("tower-outbound TokenBucket acquire", STD, move || {
        matches!(poll_once(ours.acquire_with(&PermitRequest::new())), Some(Ok(_)))
    });
    let ours = TokenBucket::with_quanta_clock([endless]);
    contest.row("tower-outbound TokenBucket try_acquire, fast clock", QUANTA, move || {
        ours.try_acquire().is_ok()
    });
    let ours = TokenBucket::with_quanta_clock([endless]);
    contest.row("tower-outbound TokenBucket acquire, fast clock", QUANTA, move || {
        matches!(poll_once(ours.acquire_with(&PermitRequest::new())), Some(Ok(_)))
    });
    let ours = SlidingWindow::new(Quota::new(limit, window)?.without_margin());
    contest.row("tower-outbound SlidingWindow try_acquire", STD, move || ours.try_acquire().is_ok());
    let ours = TokenBucket::all_of([endless, endless]);
    contest.row("tower-outbound TokenBucket of two quotas", STD, move || ours.try_acquire().is_ok());

    let nanosecond = bucket(Duration::from_nanos(1), MANY)?;
    let peer = Arc::new(governor::RateLimiter::direct(nanosecond));
    contest.row(QUANTA, QUANTA, move || peer.check().is_ok());
    let peer = Arc::new(governor::RateLimiter::direct_with_clock(nanosecond, MonotonicClock));
    contest.row(STD, STD, move || peer.check().is_ok());
    let peer = Arc::new(governor::RateLimiter::direct(nanosecond));
    contest
        .row("governor until_ready, quanta clock", QUANTA, move || poll_once(peer.until_ready()).is_some());
    let peer = leaky(usize::MAX >> 2, SECOND, None);
    contest.row("leaky-bucket acquire, fair", STD, move || poll_once(peer.acquire(1)).is_some());
    let peer = ratelimit(u64::from(MANY), SECOND)?;
    contest.row("ratelimit try_wait", STD, move || peer.try_wait().is_ok());
    let outside = runtime(1)?;
    let mut peer = {
        let _entered = outside.enter();
        tower_limit(u64::MAX, SECOND)
    };
    contest.single("tower RateLimit", STD, move || let_through(&mut peer));
    contest.on_runtime("tower Buffer + RateLimit", STD, || {
        let peer = Buffer::new(tower_limit(u64::MAX, SECOND), 1_024);
        move || wait_for(peer.clone())
    })?;
    let mut peer = resilience(MANY as usize, SECOND, SECOND, Ok(0))?;
    contest.row("tower-resilience token bucket", STD, move || let_through(&mut peer));
    let mut peer = resilience(limit as usize, window, SECOND, Err(WindowType::SlidingLog))?;
    contest.row("tower-resilience sliding log", STD, move || let_through(&mut peer));

    contest.run("grant", "A grant without a wait", settings)
}

/// The one permit of the hour is gone.
fn refusal(settings: Settings) -> Result<Table, BoxError> {
    const HOUR: Duration = Duration::from_secs(3_600);
    let quota = Quota::new(2, HOUR)?.with_burst(1)?.without_margin();
    let mut contest = Contest::new(false)?;

    let ours = TokenBucket::new(quota).with_initial_burst(0);
    contest.row("tower-outbound TokenBucket try_acquire", STD, move || ours.try_acquire().is_ok());
    let ours = TokenBucket::with_quanta_clock([quota]).with_initial_burst(0);
    contest.row("tower-outbound TokenBucket try_acquire, fast clock", QUANTA, move || {
        ours.try_acquire().is_ok()
    });
    let ours = TokenBucket::new(quota).with_initial_burst(0);
    let shedding = PermitRequest::new().with_max_wait(Duration::ZERO);
    contest.row("tower-outbound TokenBucket acquire, no wait allowed", STD, move || {
        matches!(poll_once(ours.acquire_with(&shedding)), Some(Ok(_)))
    });
    let ours = SlidingWindow::new(quota).with_initial_burst(0);
    contest.row("tower-outbound SlidingWindow try_acquire", STD, move || ours.try_acquire().is_ok());

    let hourly = bucket(HOUR, 1)?;
    let peer = Arc::new(governor::RateLimiter::direct(hourly));
    peer.check().map_err(|_| "a full bucket refused")?;
    contest.row(QUANTA, QUANTA, move || peer.check().is_ok());
    let peer = Arc::new(governor::RateLimiter::direct_with_clock(hourly, MonotonicClock));
    peer.check().map_err(|_| "a full bucket refused")?;
    contest.row(STD, STD, move || peer.check().is_ok());
    let peer = ratelimit(1, HOUR)?;
    peer.try_wait().map_err(|_| "a full bucket refused")?;
    contest.row("ratelimit try_wait", STD, move || peer.try_wait().is_ok());
    let mut peer = resilience(1, HOUR, Duration::ZERO, Ok(0))?;
    let_through(&mut peer);
    contest.row("tower-resilience token bucket", STD, move || let_through(&mut peer));

    contest.run("refusal", "A refusal, the bucket empty", settings)
}

/// A bucket for each key, which owes a permit for half a minute: no key is idle before the last one has come.
fn keyed(keys: u32, settings: Settings) -> Result<Table, BoxError> {
    const STD: &str = "governor dashmap check_key, std clock";
    const QUANTA: &str = "governor dashmap check_key, quanta clock";
    const MANY: u32 = 100_000_000;
    let quota = Quota::new(MANY + 1_000_000, 365 * 86_400 * SECOND)?.with_burst(MANY)?.without_margin();
    let same = bucket(quota.refill_interval(), MANY)?;
    // Room to spare, for the keys don't fall on the shards evenly.
    let room = 2 * keys as usize;
    let mut contest = Keys::new(keys);

    let ours = Keyed::with_max_keys(room, |_| 0, move |_: &u64| TokenBucket::new(quota));
    let lookup = ours.clone();
    contest.row("tower-outbound Keyed try_acquire", STD, || {
        move |key| ours.limiter(&key).is_ok_and(|bucket| bucket.try_acquire().is_ok())
    })?;
    contest.again("tower-outbound Keyed limiter, nothing taken", STD, move |key| {
        black_box(lookup.limiter(&key)).is_ok()
    });
    let fast = move |_: &u64| TokenBucket::with_quanta_clock([quota]);
    let ours = Keyed::with_max_keys(room, |_| 0, fast);
    contest.row("tower-outbound Keyed try_acquire, fast clock", QUANTA, || {
        move |key| ours.limiter(&key).is_ok_and(|bucket| bucket.try_acquire().is_ok())
    })?;

    contest.row(QUANTA, QUANTA, || {
        let peer = Arc::new(governor::RateLimiter::dashmap(same));
        move |key| peer.check_key(&key).is_ok()
    })?;
    contest.row(STD, STD, || {
        let peer = Arc::new(governor::RateLimiter::dashmap_with_clock(same, MonotonicClock));
        move |key| peer.check_key(&key).is_ok()
    })?;
    contest.row("governor hashmap check_key, quanta clock", QUANTA, || {
        let peer = Arc::new(governor::RateLimiter::hashmap(same));
        move |key| peer.check_key(&key).is_ok()
    })?;
    contest.row("governor hashmap check_key, std clock", STD, || {
        let peer = Arc::new(governor::RateLimiter::hashmap_with_clock(same, MonotonicClock));
        move |key| peer.check_key(&key).is_ok()
    })?;

    contest.run("keyed", &format!("A bucket for each of {keys} keys"), settings)
}

/// 10,000 tasks come at once for 10,000 a second.
fn waiters(workers: usize, repetitions: usize, tasks: u32) -> Result<Table, BoxError> {
    const RATE: u32 = 10_000;
    const BURST: u32 = 100;
    let ideal = SECOND * (tasks - BURST) / RATE;
    let (id, on) = match workers {
        1 => ("waiters-1", "1 thread"),
        _ => ("waiters-2", "2 workers"),
    };
    let columns = [
        Column::new("rate kept", "%", 1),
        Column::new("CPU", "ms", 1).plotted(),
        Column::new("× governor", "", 3),
        Column::new("displaced, median", "places", 0),
        Column::new("displaced, worst", "places", 0).plotted(),
        Column::new("wake-ups a grant", "", 2).plotted(),
    ];
    let title = format!("{tasks} tasks waiting on {RATE}/s, burst {BURST}, {on}");
    let mut rows = Vec::new();
    macro_rules! run {
        ($name:expr, $make:expr) => {{
            let runs = (0..repetitions).map(|_| crowd(workers, tasks as usize, usize::MAX, $make));
            let runs = runs.collect::<Result<Vec<_>, _>>().map_err(|error| format!("{}: {error}", $name))?;
            let of =
                |figure: fn(&tower_outbound_peers::Crowd) -> f64| median(runs.iter().map(figure).collect());
            let kept = 100.0 * ideal.as_secs_f64() / of(|run| run.took.as_secs_f64());
            let cpu = runs.iter().all(|run| run.cpu.is_some()).then(|| of(|run| run.cpu.unwrap_or(0.0)));
            let (median, worst) = (of(|run| run.displaced.0), of(|run| run.displaced.1));
            rows.push(($name, kept, cpu, median, worst, of(|run| run.wakes)));
        }};
    }
    each_waiter!(RATE, SECOND, BURST, run);

    let governor = rows.iter().find(|row| row.0.starts_with("governor")).and_then(|row| row.2);
    let mut table = Table::new(id, &title, columns);
    for (name, kept, cpu, median, worst, wakes) in rows {
        let ratio = cpu.zip(governor).map(|(cpu, governor)| cpu / governor);
        table.row(name, vec![Some(kept), cpu, ratio, Some(median), Some(worst), Some(wakes)]);
    }
    Ok(table)
}

/// 64 tasks come again and again for 1,000 a second.
fn fairness(length: Duration) -> Result<Table, BoxError> {
    const RATE: u32 = 1_000;
    const BURST: u32 = 10;
    let columns = [
        Column::new("grants, least", "", 0),
        Column::new("grants, most", "", 0),
        Column::new("most ÷ least", "", 2).plotted(),
        Column::new("rate kept", "%", 1),
    ];
    let title = format!("64 looping tasks on {RATE}/s, burst {BURST}, for {length:?}, 2 workers");
    let mut table = Table::new("fairness", &title, columns);
    macro_rules! run {
        ($name:expr, $make:expr) => {{
            let shares = loopers(64, length, $make)?;
            let allowed = f64::from(BURST) + f64::from(RATE) * shares.took.as_secs_f64();
            let (least, most) = (shares.least as f64, shares.most as f64);
            let kept = 100.0 * shares.total as f64 / allowed;
            table.row($name, vec![Some(least), Some(most), (least > 0.0).then(|| most / least), Some(kept)]);
        }};
    }
    each_waiter!(RATE, SECOND, BURST, run);
    Ok(table)
}

/// "100 in any window", and callers who take what they get.
fn window(window: Duration) -> Result<Table, BoxError> {
    const LIMIT: u32 = 100;
    let quota = Quota::new(LIMIT, window)?.without_margin();
    let columns = [
        Column::new("worst window, steady", "grants", 0),
        Column::new("worst window, sly", "grants", 0).plotted(),
        Column::new("quota used", "%", 1),
        Column::new("own refill kept", "%", 2),
    ];
    let title = format!("Greedy callers, {LIMIT} per {window:?} (virtual time where it says so)");
    let mut table = Table::new("window", &title, columns);
    macro_rules! run {
        ($name:expr, $refill:expr, $make:expr) => {{
            let steady: Greedy = greedy(Pattern::Steady, window, $make)?;
            let sly: Greedy = greedy(Pattern::Sly, window, $make)?;
            let used = 100.0 * steady.total as f64 / f64::from(LIMIT * 5);
            let refill: Option<(Duration, u32)> = $refill;
            let kept = refill.map(|(interval, burst)| {
                let refilled = steady.total as f64 - f64::from(burst);
                100.0 * refilled * interval.as_secs_f64() / steady.took.as_secs_f64()
            });
            table.row($name, vec![Some(steady.worst as f64), Some(sly.worst as f64), Some(used), kept]);
        }};
    }

    let own = Some((quota.refill_interval(), quota.burst()));
    run!("tower-outbound TokenBucket", own, || {
        let ours = TokenBucket::new(quota);
        Ok(move || ours.try_acquire().is_ok())
    });
    run!("tower-outbound TokenBucket, fast clock", own, || {
        let ours = TokenBucket::with_quanta_clock([quota]);
        Ok(move || ours.try_acquire().is_ok())
    });
    run!("tower-outbound SlidingWindow", None, || {
        let ours = SlidingWindow::new(quota);
        Ok(move || ours.try_acquire().is_ok())
    });
    let interval = window / LIMIT;
    run!("governor check", Some((interval, LIMIT)), || {
        let peer = governor::RateLimiter::direct(bucket(interval, LIMIT)?);
        Ok(move || peer.check().is_ok())
    });
    run!("leaky-bucket, fair, its default max", None, || {
        let peer = leaky(LIMIT as usize, window, None);
        Ok(move || peer.try_acquire(1))
    });
    run!("ratelimit try_wait", Some((interval, LIMIT)), || {
        let peer = ratelimit(u64::from(LIMIT), window)?;
        Ok(move || peer.try_wait().is_ok())
    });
    run!("tower RateLimit", None, || {
        let mut peer = tower_limit(u64::from(LIMIT), window);
        Ok(move || let_through(&mut peer))
    });
    for (name, strategy) in [
        ("tower-resilience, its default", Err(WindowType::Fixed)),
        ("tower-resilience token bucket", Ok(0)),
        ("tower-resilience sliding counter", Err(WindowType::SlidingCounter)),
        ("tower-resilience sliding log", Err(WindowType::SlidingLog)),
    ] {
        run!(name, None, || {
            let mut peer = resilience(LIMIT as usize, window, Duration::ZERO, strategy)?;
            Ok(move || let_through(&mut peer))
        });
    }

    // governor alone takes a clock that is moved by hand.
    let (clock, start, mut elapsed) = (FakeRelativeClock::default(), now(), Duration::ZERO);
    let (minute, step) = (Duration::from_secs(60), Duration::from_millis(1));
    let peer = governor::RateLimiter::direct_with_clock(bucket(minute / LIMIT, LIMIT)?, clock.clone());
    let mut grants = Vec::new();
    while elapsed < minute * 5 {
        if peer.check().is_ok() {
            grants.push((start + elapsed, start + elapsed));
        } else {
            clock.advance(step);
            elapsed += step;
        }
    }
    let worst = most_in_window(&grants, minute - Duration::from_nanos(1)) as f64;
    let used = grants.len() as f64 / f64::from(LIMIT * 5) * 100.0;
    table.row("governor check, 100 per 60 s in virtual time", vec![Some(worst), None, Some(used), None]);
    Ok(table)
}

/// What needs a server, which is started once.
fn shared(report: &mut Report, wanted: impl Fn(&str) -> bool, quick: bool) -> Result<(), BoxError> {
    let wanted: Vec<_> = ["redis", "redis-cost"].into_iter().filter(|section| wanted(section)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let server = match Server::start() {
        Ok(server) => server,
        Err(error)
            if error
                .downcast_ref::<io::Error>()
                .is_some_and(|error| error.kind() == io::ErrorKind::NotFound) =>
        {
            for section in wanted {
                report.skip(section, error.to_string());
            }
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    if wanted.contains(&"redis") {
        let (turn, rounds) = if quick { (10, 3) } else { (100, 21) };
        report.add(redis(&server, Settings { turn: Duration::from_millis(turn), rounds })?);
    }
    if wanted.contains(&"redis-cost") {
        report.add(redis_cost(&server, Duration::from_millis(if quick { 40 } else { 2_000 }))?);
        report.add(redis_memory(&server, quick)?);
    }
    Ok(())
}

fn main() -> Result<(), BoxError> {
    let sections = ["grant", "refusal", "keyed", "waiters", "fairness", "window", "redis", "redis-cost"];
    let arguments = Arguments::parse(&sections)?;
    let (quick, wanted) = (arguments.quick, |section: &str| arguments.wants(section));

    let settings = match quick {
        true => Settings { turn: Duration::from_millis(2), rounds: 3 },
        false => Settings { turn: Duration::from_millis(20), rounds: 41 },
    };
    let mut report =
        Report::new("limiter", "rows in turns where they can be; ratios are to the row that each names");
    if wanted("grant") {
        report.add(grant(settings)?);
    }
    if wanted("refusal") {
        report.add(refusal(settings)?);
    }
    if wanted("keyed") {
        // Long turns: each begins with caches that hold the keys of another row.
        let (keys, turn, rounds) = if quick { (10_000, 2, 3) } else { (1_000_000, 100, 15) };
        report.add(keyed(keys, Settings { turn: Duration::from_millis(turn), rounds })?);
    }
    if wanted("waiters") {
        let (repetitions, tasks) = if quick { (1, 1_000) } else { (5, 10_000) };
        for workers in [1, 2] {
            report.add(waiters(workers, repetitions, tasks)?);
        }
    }
    if wanted("fairness") {
        report.add(fairness(Duration::from_millis(if quick { 300 } else { 3_000 }))?);
    }
    if wanted("window") {
        report.add(window(Duration::from_millis(if quick { 60 } else { 600 }))?);
    }
    shared(&mut report, wanted, quick)?;
    report.write(&arguments)
}
