//! Measures this crate's limiters and those of other crates: grants, refusals, many keys, queued tasks, fairness, the
//! most grants in a window, and a quota shared through Redis.
//!
//! `cargo bench -p tower-outbound-peers --bench limiter` prints a table for each section. Arguments after `--`:
//!
//! - `--quick` runs briefly, to check that the bench works.
//! - `--only SECTION` runs one of `grant`, `refusal`, `keyed`, `waiters`, `fairness`, `window`, `redis`, `redis-cost`.
//! - `--json PATH`, `--svg PATH` and `--markdown PATH` also write the figures, a plot and the tables. See README.md.
//!   Cargo runs the bench in `benches/peers`, so pass absolute paths.
//!
//! Compare rows of one run only, because figures vary between machines and over time. The rows of `grant`, `refusal`,
//! `keyed` and `redis` are interleaved. A ratio is the median of the ratios within each round. The column "× base" is
//! the ratio of a row's figure to that of governor with the same clock.
//!
//! | section | columns |
//! |---|---|
//! | `grant`, `refusal` | in "2 threads" and "8 tasks", the threads or tasks share one limiter. A task yields after every 64 calls |
//! | `keyed` | a million integer keys, one permit of each used. "Allocated" is the allocated memory per key, including unused capacity. "Resident" is the growth of the process's memory per key. "Same key" always acquires from one key, "random keys" from random keys |
//! | `waiters` | "displacement" is the distance of a task from its position in FIFO order |
//! | `fairness` | the fewest and the most grants that one of the tasks got |
//! | `window` | the most grants in any window: "steady" for a caller that calls continuously, "boundary" for a caller that starts shortly before a window ends. "Refill rate achieved" is the percentage of the limiter's configured refill rate |
//! | `redis`, `redis-cost` | the bench starts a redis-server, or skips these sections if redis-server is not installed. The base is a bare `INCR` through the same client. "Per second" counts all tasks together |

use std::{
    convert::Infallible, future::ready, hint::black_box, io, num::NonZeroU32, sync::Arc, time::Duration,
};

use futures_util::FutureExt;
use governor::clock::{FakeRelativeClock, MonotonicClock};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tokio::sync::Semaphore;
use tower::{Layer, Service, buffer::Buffer, service_fn};
use tower_outbound::{
    Quota,
    limit::{Amounts, Keyed, Limiter, LocalLimiter, PermitRequest, RateLimitLayer, ResponseInfo, Unit},
};
use tower_outbound_peers::{
    Arguments, BoxError, Column, Greedy, KeyedComparison, LimiterComparison, Pattern, Report, ServedWaiters,
    Server, Settings, Table, acquire_in_loops, for_each_waiting_limiter, governor_quota, greedy, is_admitted,
    leaky, median, most_in_window, now, poll_once, progress, ratelimit, redis, redis_cost, redis_memory,
    resilience, runtime, serve_waiters, tower_limit, wait_for,
};
use tower_resilience_ratelimiter::WindowType;

const SECOND: Duration = Duration::from_secs(1);

/// The names of the rows that are the bases of the ratios: governor with the standard clock and with quanta's clock.
const GOVERNOR_STD: &str = "governor check, std clock";
const GOVERNOR_QUANTA: &str = "governor check, quanta clock";

/// The name of the row that is the base of the limits of requests in flight.
const SEMAPHORE: &str = "tokio semaphore of 64 try_acquire and drop";

/// The name of the row that is the base of the limits of requests and tokens.
const TWO_GOVERNORS: &str = "governor check and check_n of two limiters";

/// The names of the rows of the layer over a service that does nothing.
const LAYER: &str = "tower-outbound RateLimitLayer";
const LAYER_WITH_LIMITS: &str = "tower-outbound RateLimitLayer, responses with rate-limit headers";

/// The header fields of the responses to the layer.
const ORDINARY_FIELDS: [(&str, &str); 3] =
    [("content-type", "application/json"), ("content-length", "120"), ("server", "example")];
const RATE_LIMIT_FIELDS: [(&str, &str); 3] =
    [("x-ratelimit-limit", "1000"), ("x-ratelimit-remaining", "900"), ("x-ratelimit-reset", "30")];

/// Measures grants that need no wait. The limiters refill one permit per nanosecond.
fn grant(settings: Settings) -> Result<Table, BoxError> {
    const BURST: u32 = 1_000_000_000;
    const FACTOR: u32 = 1 << 25;
    let ample = Quota::new(4_000_000_000, SECOND)?.with_burst(2_000_000_000)?.without_margin();
    // A log stores an entry for each block, so a quota with a log has a shorter window.
    let window = Quota::new(10_000_000, Duration::from_millis(10))?.with_burst(1_000_000)?.without_margin();
    // A block of this quota would have too few permits, so each grant takes the lock.
    let (limit, short) = (1_000, Duration::from_micros(1));
    let without_blocks = Quota::new(limit, short)?.with_burst(limit / 2)?.without_margin();
    let mut comparison = LimiterComparison::new(true)?;

    comparison.row("Instant::now() alone", GOVERNOR_STD, || {
        black_box(now());
        true
    });

    let limiter = LocalLimiter::token_bucket(ample);
    comparison
        .row("tower-outbound token bucket try_acquire", GOVERNOR_STD, move || limiter.try_acquire().is_ok());
    let limiter = LocalLimiter::token_bucket(ample);
    comparison.row("tower-outbound token bucket acquire", GOVERNOR_STD, move || {
        matches!(poll_once(limiter.acquire_with(&PermitRequest::new())), Some(Ok(_)))
    });
    let limiter = LocalLimiter::token_bucket(ample).with_quanta_clock();
    comparison.row("tower-outbound token bucket try_acquire, fast clock", GOVERNOR_QUANTA, move || {
        limiter.try_acquire().is_ok()
    });
    let limiter = LocalLimiter::token_bucket(ample).with_quanta_clock();
    comparison.row("tower-outbound token bucket acquire, fast clock", GOVERNOR_QUANTA, move || {
        matches!(poll_once(limiter.acquire_with(&PermitRequest::new())), Some(Ok(_)))
    });
    let limiter = LocalLimiter::paced_window(window);
    comparison
        .row("tower-outbound paced window try_acquire", GOVERNOR_STD, move || limiter.try_acquire().is_ok());
    let limiter = LocalLimiter::paced_window(window);
    comparison.row("tower-outbound paced window acquire", GOVERNOR_STD, move || {
        matches!(poll_once(limiter.acquire_with(&PermitRequest::new())), Some(Ok(_)))
    });
    let limiter = LocalLimiter::paced_window(window).with_quanta_clock();
    comparison.row("tower-outbound paced window try_acquire, fast clock", GOVERNOR_QUANTA, move || {
        limiter.try_acquire().is_ok()
    });
    let limiter = LocalLimiter::paced_window(window).with_quanta_clock();
    comparison.row("tower-outbound paced window acquire, fast clock", GOVERNOR_QUANTA, move || {
        matches!(poll_once(limiter.acquire_with(&PermitRequest::new())), Some(Ok(_)))
    });
    let limiter = LocalLimiter::paced_window(without_blocks);
    comparison.row("tower-outbound paced window try_acquire, few permits", GOVERNOR_STD, move || {
        limiter.try_acquire().is_ok()
    });
    // The default: 100 per minute with the default margin and burst. All times are shorter by the same factor, so that
    // each grant finds a permit.
    let scaled = Quota::new(100, 60 * SECOND / FACTOR)?.with_burst(10)?.with_margin(SECOND / FACTOR)?;
    let limiter = LocalLimiter::paced_window(scaled);
    comparison.row("tower-outbound paced window try_acquire, 100 per minute", GOVERNOR_STD, move || {
        limiter.try_acquire().is_ok()
    });
    let limiter = LocalLimiter::paced_window(scaled);
    comparison.row("tower-outbound paced window acquire, 100 per minute", GOVERNOR_STD, move || {
        matches!(poll_once(limiter.acquire_with(&PermitRequest::new())), Some(Ok(_)))
    });
    let limiter = LocalLimiter::token_bucket(without_blocks);
    comparison.row("tower-outbound token bucket try_acquire, few permits", GOVERNOR_STD, move || {
        limiter.try_acquire().is_ok()
    });
    let limiter = LocalLimiter::sliding_window(window);
    comparison.row("tower-outbound sliding window try_acquire", GOVERNOR_STD, move || {
        limiter.try_acquire().is_ok()
    });
    // The responses have no rate-limit headers, so the limiter learns no rate.
    let limiter = LocalLimiter::adaptive(window);
    let headers = HeaderMap::new();
    comparison.row("tower-outbound adaptive try_acquire and complete", GOVERNOR_STD, move || {
        let response = ResponseInfo::new(StatusCode::OK, &headers);
        limiter.try_acquire().map(|permit| permit.complete(&response)).is_ok()
    });
    let limiter = LocalLimiter::paced_window(window);
    let headers = HeaderMap::new();
    comparison.row("tower-outbound paced window try_acquire and complete", GOVERNOR_STD, move || {
        let response = ResponseInfo::new(StatusCode::OK, &headers);
        limiter.try_acquire().map(|permit| permit.complete(&response)).is_ok()
    });
    let limiter = LocalLimiter::token_bucket(ample);
    let headers = HeaderMap::new();
    comparison.row("tower-outbound token bucket try_acquire and complete", GOVERNOR_STD, move || {
        let response = ResponseInfo::new(StatusCode::OK, &headers);
        limiter.try_acquire().map(|permit| permit.complete(&response)).is_ok()
    });
    let limiter = LocalLimiter::token_bucket([ample, ample]);
    comparison.row("tower-outbound token bucket of two quotas", GOVERNOR_STD, move || {
        limiter.try_acquire().is_ok()
    });

    // Each permit is dropped at once, so that at most one request of each thread is in flight.
    let limiter = LocalLimiter::without_quota().with_max_in_flight(64)?;
    comparison.row("tower-outbound 64 in flight, try_acquire and drop", SEMAPHORE, move || {
        limiter.try_acquire().is_ok()
    });
    let limiter = LocalLimiter::token_bucket(ample).with_max_in_flight(64)?;
    comparison.row("tower-outbound 64 in flight with a quota, try_acquire and drop", SEMAPHORE, move || {
        limiter.try_acquire().is_ok()
    });
    let peer = Arc::new(Semaphore::new(64));
    comparison.row(SEMAPHORE, SEMAPHORE, move || peer.try_acquire().is_ok());

    // Each request takes one permit and 10 tokens.
    let tokens = NonZeroU32::new(10).ok_or("not zero")?;
    let of_tokens = Quota::new(1_000_000_000, Duration::from_millis(10))?.without_margin();
    let limiter = LocalLimiter::paced_window([window, of_tokens.with_unit(Unit::Tokens)?]);
    let request = PermitRequest::new().with_amounts(Amounts::of(Unit::Tokens, tokens.get()));
    comparison.row("tower-outbound requests and tokens, acquire", TWO_GOVERNORS, move || {
        matches!(poll_once(limiter.acquire_with(&request)), Some(Ok(_)))
    });
    let limiter = LocalLimiter::paced_window([window, of_tokens.with_unit(Unit::Tokens)?]);
    comparison.row(
        "tower-outbound requests and tokens, acquire, settle and complete",
        TWO_GOVERNORS,
        move || {
            let Some(Ok(mut permit)) = poll_once(limiter.acquire_with(&request)) else { return false };
            permit.mark_sent(now().into());
            permit.settlement().into_iter().for_each(|it| it.settle(Amounts::of(Unit::Tokens, 8)));
            permit.complete(&ResponseInfo::new(StatusCode::OK, &HeaderMap::new()));
            true
        },
    );
    // Two limiters hold both quotas, but take from one even if the other refuses.
    let (per_request, per_token) = (
        Arc::new(governor::RateLimiter::direct_with_clock(
            governor_quota(Duration::from_nanos(1), BURST)?,
            MonotonicClock,
        )),
        Arc::new(governor::RateLimiter::direct_with_clock(
            governor_quota(Duration::from_nanos(1), BURST)?,
            MonotonicClock,
        )),
    );
    comparison.row(TWO_GOVERNORS, TWO_GOVERNORS, move || {
        per_request.check().is_ok() && per_token.check_n(tokens).is_ok_and(|checked| checked.is_ok())
    });

    for (name, fields) in [(LAYER, ORDINARY_FIELDS), (LAYER_WITH_LIMITS, RATE_LIMIT_FIELDS)] {
        let limiter = LocalLimiter::paced_window(window);
        let service = RateLimitLayer::new(limiter).layer(service_fn(move |_: Request<()>| {
            let mut response = Response::new(());
            let fields =
                fields.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            response.headers_mut().extend(fields);
            ready(Ok::<_, Infallible>(response))
        }));
        comparison.row(name, LAYER, move || {
            matches!(poll_once(service.clone().call(Request::new(()))), Some(Ok(_)))
        });
    }

    let per_nanosecond = governor_quota(Duration::from_nanos(1), BURST)?;
    let peer = Arc::new(governor::RateLimiter::direct(per_nanosecond));
    comparison.row(GOVERNOR_QUANTA, GOVERNOR_QUANTA, move || peer.check().is_ok());
    let peer = Arc::new(governor::RateLimiter::direct_with_clock(per_nanosecond, MonotonicClock));
    comparison.row(GOVERNOR_STD, GOVERNOR_STD, move || peer.check().is_ok());
    let peer = Arc::new(governor::RateLimiter::direct(per_nanosecond));
    comparison.row("governor until_ready, quanta clock", GOVERNOR_QUANTA, move || {
        poll_once(peer.until_ready()).is_some()
    });
    let peer = leaky(usize::MAX >> 2, SECOND, None);
    comparison.row("leaky-bucket acquire, fair", GOVERNOR_STD, move || poll_once(peer.acquire(1)).is_some());
    let peer = ratelimit(u64::from(BURST), SECOND)?;
    comparison.row("ratelimit try_wait", GOVERNOR_STD, move || peer.try_wait().is_ok());
    let timer_runtime = runtime(1)?;
    let mut peer = {
        let _entered = timer_runtime.enter();
        tower_limit(u64::MAX, SECOND)
    };
    comparison.single("tower RateLimit", GOVERNOR_STD, move || is_admitted(&mut peer));
    comparison.on_runtime("tower Buffer + RateLimit", GOVERNOR_STD, || {
        let peer = Buffer::new(tower_limit(u64::MAX, SECOND), 1_024);
        move || wait_for(peer.clone())
    })?;
    let mut peer = resilience(BURST as usize, SECOND, SECOND, Ok(0))?;
    comparison.row("tower-resilience token bucket", GOVERNOR_STD, move || is_admitted(&mut peer));
    let mut peer = resilience(limit as usize, short, SECOND, Err(WindowType::SlidingLog))?;
    comparison.row("tower-resilience sliding log", GOVERNOR_STD, move || is_admitted(&mut peer));

    comparison.run("grant", "A grant without a wait", settings)
}

/// Measures refusals by limiters that refill one permit per hour, unless stated, and have none left.
fn refusal(settings: Settings) -> Result<Table, BoxError> {
    const HOUR: Duration = Duration::from_secs(3_600);
    let quota = Quota::new(2, HOUR)?.with_burst(1)?.without_margin();
    let mut comparison = LimiterComparison::new(false)?;

    let limiter = LocalLimiter::token_bucket(quota).with_initial_burst(0);
    comparison
        .row("tower-outbound token bucket try_acquire", GOVERNOR_STD, move || limiter.try_acquire().is_ok());
    let limiter = LocalLimiter::paced_window(quota).with_initial_burst(0);
    comparison
        .row("tower-outbound paced window try_acquire", GOVERNOR_STD, move || limiter.try_acquire().is_ok());
    let limiter = LocalLimiter::token_bucket(quota).with_quanta_clock().with_initial_burst(0);
    comparison.row("tower-outbound token bucket try_acquire, fast clock", GOVERNOR_QUANTA, move || {
        limiter.try_acquire().is_ok()
    });
    let limiter = LocalLimiter::token_bucket(quota).with_initial_burst(0);
    let no_wait = PermitRequest::new().with_max_wait(Duration::ZERO);
    comparison.row("tower-outbound token bucket acquire, no wait allowed", GOVERNOR_STD, move || {
        matches!(poll_once(limiter.acquire_with(&no_wait)), Some(Ok(_)))
    });
    let limiter = LocalLimiter::paced_window(quota).with_initial_burst(0);
    comparison.row("tower-outbound paced window acquire, no wait allowed", GOVERNOR_STD, move || {
        matches!(poll_once(limiter.acquire_with(&no_wait)), Some(Ok(_)))
    });
    // The default margin. A permit becomes available every 0.61 s, so that a few calls of millions are grants.
    let limiter = LocalLimiter::paced_window(Quota::per_minute(100)?).with_initial_burst(0);
    comparison.row("tower-outbound paced window try_acquire, 100 per minute", GOVERNOR_STD, move || {
        black_box(limiter.try_acquire().is_ok());
        false
    });
    let limiter = LocalLimiter::sliding_window(quota).with_initial_burst(0);
    comparison.row("tower-outbound sliding window try_acquire", GOVERNOR_STD, move || {
        limiter.try_acquire().is_ok()
    });

    let hourly = governor_quota(HOUR, 1)?;
    let peer = Arc::new(governor::RateLimiter::direct(hourly));
    peer.check().map_err(|_| "a full bucket refused a permit")?;
    comparison.row(GOVERNOR_QUANTA, GOVERNOR_QUANTA, move || peer.check().is_ok());
    let peer = Arc::new(governor::RateLimiter::direct_with_clock(hourly, MonotonicClock));
    peer.check().map_err(|_| "a full bucket refused a permit")?;
    comparison.row(GOVERNOR_STD, GOVERNOR_STD, move || peer.check().is_ok());
    let peer = ratelimit(1, HOUR)?;
    peer.try_wait().map_err(|_| "a full bucket refused a permit")?;
    comparison.row("ratelimit try_wait", GOVERNOR_STD, move || peer.try_wait().is_ok());
    let mut peer = resilience(1, HOUR, Duration::ZERO, Ok(0))?;
    is_admitted(&mut peer);
    comparison.row("tower-resilience token bucket", GOVERNOR_STD, move || is_admitted(&mut peer));

    comparison.run("refusal", "A refusal by an empty limiter", settings)
}

/// Measures a limiter with one bucket per key. A used permit is refilled after half a minute, so no key becomes idle
/// during the setup.
fn keyed(keys: u32, settings: Settings) -> Result<Table, BoxError> {
    const GOVERNOR_STD: &str = "governor dashmap check_key, std clock";
    const GOVERNOR_QUANTA: &str = "governor dashmap check_key, quanta clock";
    const BURST: u32 = 100_000_000;
    let quota = Quota::new(BURST + 1_000_000, 365 * 86_400 * SECOND)?.with_burst(BURST)?.without_margin();
    let peer_quota = governor_quota(quota.refill_interval(), BURST)?;
    // `max_keys` is twice the number of keys, because the keys are not distributed evenly over the shards.
    let max_keys = 2 * keys as usize;
    let mut comparison = KeyedComparison::new(keys);

    let limiter = Keyed::with_max_keys(max_keys, |_| 0, move |_: &u64| LocalLimiter::token_bucket(quota));
    let lookup = limiter.clone();
    comparison.row("tower-outbound Keyed try_acquire", GOVERNOR_STD, || {
        move |key| limiter.limiter(&key).is_ok_and(|bucket| bucket.try_acquire().is_ok())
    })?;
    comparison.row_on_same_keys("tower-outbound Keyed lookup, no permit", GOVERNOR_STD, move |key| {
        black_box(lookup.limiter(&key)).is_ok()
    });
    let with_fast_clock = move |_: &u64| LocalLimiter::token_bucket(quota).with_quanta_clock();
    let limiter = Keyed::with_max_keys(max_keys, |_| 0, with_fast_clock);
    comparison.row("tower-outbound Keyed try_acquire, fast clock", GOVERNOR_QUANTA, || {
        move |key| limiter.limiter(&key).is_ok_and(|bucket| bucket.try_acquire().is_ok())
    })?;

    comparison.row(GOVERNOR_QUANTA, GOVERNOR_QUANTA, || {
        let peer = Arc::new(governor::RateLimiter::dashmap(peer_quota));
        move |key| peer.check_key(&key).is_ok()
    })?;
    comparison.row(GOVERNOR_STD, GOVERNOR_STD, || {
        let peer = Arc::new(governor::RateLimiter::dashmap_with_clock(peer_quota, MonotonicClock));
        move |key| peer.check_key(&key).is_ok()
    })?;
    comparison.row("governor hashmap check_key, quanta clock", GOVERNOR_QUANTA, || {
        let peer = Arc::new(governor::RateLimiter::hashmap(peer_quota));
        move |key| peer.check_key(&key).is_ok()
    })?;
    comparison.row("governor hashmap check_key, std clock", GOVERNOR_STD, || {
        let peer = Arc::new(governor::RateLimiter::hashmap_with_clock(peer_quota, MonotonicClock));
        move |key| peer.check_key(&key).is_ok()
    })?;

    comparison.run("keyed", &format!("A bucket for each of {keys} keys"), settings)
}

/// Measures 10,000 tasks that wait at the same time for a limiter of 10,000 permits per second.
fn waiters(workers: usize, repetitions: usize, tasks: u32) -> Result<Table, BoxError> {
    const RATE: u32 = 10_000;
    const BURST: u32 = 100;
    let ideal = SECOND * (tasks - BURST) / RATE;
    let (id, on) = match workers {
        1 => ("waiters-1", "1 thread"),
        _ => ("waiters-2", "2 workers"),
    };
    let columns = [
        Column::new("rate achieved", "%", 1),
        Column::new("CPU", "ms", 1).plotted(),
        Column::new("× governor", "", 3),
        Column::new("median displacement", "positions", 0),
        Column::new("worst displacement", "positions", 0).plotted(),
        Column::new("wake-ups per grant", "", 2).plotted(),
    ];
    let title = format!("{tasks} queued tasks, served at {RATE} permits/s, burst {BURST}, on {on}");
    let mut rows = Vec::new();
    macro_rules! run {
        ($name:expr, $make:expr) => {
            run!($name, $make, ideal)
        };
        ($name:expr, $make:expr, $ideal:expr) => {{
            progress(format_args!("{title}: {}", $name));
            let runs = (0..repetitions).map(|_| serve_waiters(workers, tasks as usize, usize::MAX, $make));
            let runs = runs.collect::<Result<Vec<_>, _>>().map_err(|error| format!("{}: {error}", $name))?;
            let of = |figure: fn(&ServedWaiters) -> f64| median(runs.iter().map(figure).collect());
            let achieved = 100.0 * $ideal.as_secs_f64() / of(|run| run.took.as_secs_f64());
            let cpu = runs.iter().all(|run| run.cpu.is_some()).then(|| of(|run| run.cpu.unwrap_or(0.0)));
            let (median, worst) = (of(|run| run.displacement.0), of(|run| run.displacement.1));
            rows.push(($name, achieved, cpu, median, worst, of(|run| run.wakeups)));
        }};
    }
    for_each_waiting_limiter!(RATE, SECOND, BURST, run);
    // The default margin is a sixteenth of the window. Grants are backdated within a quarter of it, so a burst of one
    // permit suffices although timers are late.
    let quota = Quota::new(RATE + RATE / 16 + 1, SECOND)?.with_burst(1)?;
    let request = PermitRequest::new().with_max_queue(usize::MAX);
    run!(
        "tower-outbound token bucket, burst 1",
        || {
            let limiter = LocalLimiter::token_bucket(quota);
            Ok(move || limiter.acquire_with(&request).map(|granted| granted.is_ok()))
        },
        SECOND * (tasks - 1) / RATE
    );
    // With the default margin, the quota sustains `RATE` permits per second.
    let with_margin = Quota::new(RATE + RATE / 16, SECOND)?.with_burst(BURST)?;
    let without_margin = Quota::new(RATE, SECOND)?.with_burst(BURST)?.without_margin();
    for (name, quota) in [
        ("tower-outbound paced window", with_margin),
        ("tower-outbound paced window, no margin", without_margin),
    ] {
        run!(name, || {
            let limiter = LocalLimiter::paced_window(quota);
            Ok(move || limiter.acquire_with(&request).map(|granted| granted.is_ok()))
        });
    }

    let governor = rows.iter().find(|row| row.0.starts_with("governor")).and_then(|row| row.2);
    let mut table = Table::new(id, &title, columns);
    for (name, achieved, cpu, median, worst, wakeups) in rows {
        let ratio = cpu.zip(governor).map(|(cpu, governor)| cpu / governor);
        table.row(name, vec![Some(achieved), cpu, ratio, Some(median), Some(worst), Some(wakeups)]);
    }
    Ok(table)
}

/// Measures 64 tasks that acquire permits in loops from a limiter of 1,000 permits per second.
fn fairness(length: Duration) -> Result<Table, BoxError> {
    const RATE: u32 = 1_000;
    const BURST: u32 = 10;
    let columns = [
        Column::new("fewest grants of a task", "", 0),
        Column::new("most grants of a task", "", 0),
        Column::new("most ÷ fewest", "", 2).plotted(),
        Column::new("rate achieved", "%", 1),
    ];
    let title =
        format!("64 tasks acquiring in loops, {RATE} permits/s, burst {BURST}, for {length:?}, on 2 workers");
    let mut table = Table::new("fairness", &title, columns);
    macro_rules! run {
        ($name:expr, $make:expr) => {{
            progress(format_args!("fairness: {}", $name));
            let shares = acquire_in_loops(64, length, $make)?;
            let allowed = f64::from(BURST) + f64::from(RATE) * shares.took.as_secs_f64();
            let (least, most) = (shares.least as f64, shares.most as f64);
            let achieved = 100.0 * shares.total as f64 / allowed;
            table.row(
                $name,
                vec![Some(least), Some(most), (least > 0.0).then(|| most / least), Some(achieved)],
            );
        }};
    }
    for_each_waiting_limiter!(RATE, SECOND, BURST, run);
    Ok(table)
}

/// Measures the most grants in any window, for callers that acquire every permit of a quota of 100 per window.
fn window(window: Duration) -> Result<Table, BoxError> {
    const LIMIT: u32 = 100;
    let quota = Quota::new(LIMIT, window)?.without_margin();
    let columns = [
        Column::new("worst window, steady", "grants", 0),
        Column::new("worst window, boundary", "grants", 0).plotted(),
        Column::new("quota used", "%", 1),
        Column::new("refill rate achieved", "%", 2),
    ];
    let title = format!("Greedy callers of a quota of {LIMIT} per {window:?}, in real time unless stated");
    let mut table = Table::new("window", &title, columns);
    macro_rules! run {
        ($name:expr, $refill:expr, $make:expr) => {{
            progress(format_args!("windows: {}", $name));
            let steady: Greedy = greedy(Pattern::Steady, window, $make)?;
            let boundary: Greedy = greedy(Pattern::Boundary, window, $make)?;
            let used = 100.0 * steady.total as f64 / f64::from(LIMIT * 5);
            let refill: Option<(Duration, u32)> = $refill;
            let achieved = refill.map(|(interval, burst)| {
                let refilled = steady.total as f64 - f64::from(burst);
                100.0 * refilled * interval.as_secs_f64() / steady.took.as_secs_f64()
            });
            table.row(
                $name,
                vec![Some(steady.worst as f64), Some(boundary.worst as f64), Some(used), achieved],
            );
        }};
    }

    let own = Some((quota.refill_interval(), quota.burst()));
    run!("tower-outbound token bucket", own, || {
        let limiter = LocalLimiter::token_bucket(quota);
        Ok(move || limiter.try_acquire().is_ok())
    });
    run!("tower-outbound token bucket, fast clock", own, || {
        let limiter = LocalLimiter::token_bucket(quota).with_quanta_clock();
        Ok(move || limiter.try_acquire().is_ok())
    });
    run!("tower-outbound sliding window", None, || {
        let limiter = LocalLimiter::sliding_window(quota);
        Ok(move || limiter.try_acquire().is_ok())
    });
    let interval = window / LIMIT;
    run!("governor check", Some((interval, LIMIT)), || {
        let peer = governor::RateLimiter::direct(governor_quota(interval, LIMIT)?);
        Ok(move || peer.check().is_ok())
    });
    run!("leaky-bucket, fair, default capacity", None, || {
        let peer = leaky(LIMIT as usize, window, None);
        Ok(move || peer.try_acquire(1))
    });
    run!("ratelimit try_wait", Some((interval, LIMIT)), || {
        let peer = ratelimit(u64::from(LIMIT), window)?;
        Ok(move || peer.try_wait().is_ok())
    });
    run!("tower RateLimit", None, || {
        let mut peer = tower_limit(u64::from(LIMIT), window);
        Ok(move || is_admitted(&mut peer))
    });
    for (name, strategy) in [
        ("tower-resilience, default strategy", Err(WindowType::Fixed)),
        ("tower-resilience token bucket", Ok(0)),
        ("tower-resilience sliding counter", Err(WindowType::SlidingCounter)),
        ("tower-resilience sliding log", Err(WindowType::SlidingLog)),
    ] {
        run!(name, None, || {
            let mut peer = resilience(LIMIT as usize, window, Duration::ZERO, strategy)?;
            Ok(move || is_admitted(&mut peer))
        });
    }

    // governor is the only peer that accepts a fake clock.
    let (clock, start, mut elapsed) = (FakeRelativeClock::default(), now(), Duration::ZERO);
    let (minute, step) = (Duration::from_secs(60), Duration::from_millis(1));
    let peer =
        governor::RateLimiter::direct_with_clock(governor_quota(minute / LIMIT, LIMIT)?, clock.clone());
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

/// Runs the sections that need a Redis server.
fn redis_sections(report: &mut Report, wanted: impl Fn(&str) -> bool, quick: bool) -> Result<(), BoxError> {
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
        let (sample, rounds) = if quick { (10, 3) } else { (100, 21) };
        report.add(redis(&server, Settings { sample: Duration::from_millis(sample), rounds })?);
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
        true => Settings { sample: Duration::from_millis(2), rounds: 3 },
        false => Settings { sample: Duration::from_millis(20), rounds: 41 },
    };
    let mut report = Report::new(
        "limiter",
        "rows are measured in turn where possible; base of ratios: governor with the same clock, or a bare INCR",
    );
    if wanted("grant") {
        report.add(grant(settings)?);
    }
    if wanted("refusal") {
        report.add(refusal(settings)?);
    }
    if wanted("keyed") {
        // Each sample is long, because at its start the CPU caches hold the keys of another row.
        let (keys, sample, rounds) = if quick { (10_000, 2, 3) } else { (1_000_000, 100, 15) };
        report.add(keyed(keys, Settings { sample: Duration::from_millis(sample), rounds })?);
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
    redis_sections(&mut report, wanted, quick)?;
    report.write(&arguments)
}
