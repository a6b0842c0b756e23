//! Runs the store's script on a clock that the test sets, and counts the permits of every window.

use proptest::{prelude::*, test_runner::TestRunner};

use tower_outbound::limit::LocalLimiter;

use super::*;

const SCRIPT: &str = include_str!("../../src/adapter/redis/script.lua");
const CLOCK: &str = "local clock = redis.call('TIME')\nlocal now = clock[1] * 1000000 + clock[2]\n";

/// The store's script on a clock that the test sets. Times are in µs.
pub(super) struct Script {
    pub(super) connection: redis::Connection,
    text: String,
    pub(super) now: u64,
    /// How early the store may grant a permit before its due time.
    pub(super) horizon: u64,
}

pub(super) type Pairs = Vec<(u64, u64)>;

/// A limiter's query to the store. The default reports and requests nothing.
#[derive(Default)]
pub(super) struct Question<'a> {
    /// The maximum number of grants, and the number of permits in each.
    pub(super) count: u64,
    pub(super) cost: u64,
    /// The limit, the burst, the length and the interval of each quota.
    pub(super) quotas: &'a [[u64; 4]],
    /// The limit, the length, the burst, the interval, the requested amount and the settled excess of each quota of a
    /// unit.
    pub(super) units: &'a [[u64; 6]],
    /// A returned amount, and the time since which it counted.
    pub(super) returned: Option<(u64, u64)>,
    /// Whether the connection is new.
    pub(super) fresh: bool,
    /// The permits that the process has used from its share.
    pub(super) booked: i64,
    /// The length of a pause, and when the process has lifted an earlier one.
    pub(super) pause: u64,
    pub(super) resumed: Option<i64>,
    /// With a limit of requests in flight: the requests of the process.
    pub(super) flight: Option<Flight>,
}

/// The requests in flight of a process, with their limit.
#[derive(Clone, Copy)]
pub(super) struct Flight {
    pub(super) process: &'static str,
    pub(super) max: u64,
    pub(super) used: u64,
    /// The time until which the store counts them, as far as the process knows.
    pub(super) till: u64,
    pub(super) expiry: u64,
    /// The number of the query.
    pub(super) number: u64,
}

/// The script's reply, as `adapter::redis::connection` documents it.
pub(super) type Reply = (u64, u64, u64, u64, u64, Pairs, u64, (bool, bool), u64, Pairs);

impl Script {
    /// Deletes everything in the store.
    pub(super) fn new(server: &RedisServer, horizon: u64) -> Self {
        assert!(SCRIPT.contains(CLOCK), "the script no longer reads its clock with the expected lines");
        let text = SCRIPT.replace(CLOCK, "local now = tonumber(table.remove(ARGV, 1))\n");
        let mut connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        Self { connection, text, now: 2_000_000_000_000_000, horizon }
    }

    /// Returns the grants, each with its time and its number of permits, and the available amount and the wait of each
    /// unit.
    pub(super) fn query(&mut self, question: &Question<'_>) -> (Pairs, Pairs) {
        let (.., grants, _, _, _, units) = self.reply(question);
        (grants.into_iter().map(|(due, permits)| (self.now + due, permits)).collect(), units)
    }

    pub(super) fn reply(&mut self, question: &Question<'_>) -> Reply {
        let Question { count, cost, quotas, units, returned, fresh, booked, pause, resumed, flight } =
            question;
        let mut command = redis::cmd("EVAL");
        command.arg(&self.text).arg(1 + quotas.len() + usize::from(flight.is_some())).arg("{a}");
        for number in 0..quotas.len() {
            command.arg(format!("{{a}}:{number}"));
        }
        command.arg(flight.map(|_| "{a}:flight"));
        command.arg(&[self.now, *count, *cost, self.horizon]);
        // These arguments describe a process that has been connected for a long time and has nothing else to report.
        command.arg(&[i64::from(*fresh), 0, 0, -1, *booked, 0, 0, 1_000_000_000]).arg(pause);
        command.arg(resumed.unwrap_or(-1)).arg(quotas.len());
        for (number, quota) in quotas.iter().enumerate() {
            command.arg(quota).arg(format!("id{number}"));
        }
        command.arg(0).arg(flight.map_or(0, |flight| flight.max));
        if let Some(Flight { process, used, till, expiry, number, .. }) = flight {
            command.arg(&[*used, 0, *till, *expiry, *number]).arg(process);
        }
        command.arg(units.len());
        for (number, unit) in units.iter().enumerate() {
            command.arg(unit).arg(format!("unit{number}"));
        }
        command.arg(u8::from(returned.is_some()));
        if let Some((since, amount)) = returned {
            command.arg(*since).arg(vec![*amount; units.len()]);
        }
        let reply: Reply = command.query(&mut self.connection).unwrap();
        assert_eq!(reply.8, self.now);
        reply
    }
}

/// A quota as the script receives it, with its length in µs.
#[derive(Debug, Clone, Copy)]
struct ScriptQuota {
    limit: u64,
    burst: u64,
    length: u64,
}

impl ScriptQuota {
    /// Returns the time between two refilled permits, in ns.
    fn interval(&self) -> u64 {
        (self.length * 1_000).div_ceil((self.limit - self.burst).max(1))
    }
}

#[derive(Debug, Clone, Copy)]
struct Query {
    /// The time since the previous query, in µs.
    delay: u64,
    /// The maximum number of grants for this query.
    count: u64,
    /// The number of permits in one grant.
    cost: u64,
}

struct Store {
    script: Script,
    sliding: bool,
    quotas: Vec<ScriptQuota>,
    /// The time between two refilled permits, in ns, if it does not follow from the window.
    interval: Option<u64>,
}

impl Store {
    /// Returns the grants, each with its time and its number of permits.
    fn query(&mut self, Query { delay, count, cost }: Query) -> Vec<(u64, u64)> {
        self.script.now += delay;
        let quotas = self.quotas.iter().map(|quota| {
            let interval = if self.sliding { 0 } else { self.interval.unwrap_or(quota.interval()) };
            [quota.limit, quota.burst, quota.length, interval]
        });
        let quotas: Vec<_> = quotas.collect();
        self.script.query(&Question { count, cost, quotas: &quotas, ..Question::default() }).0
    }
}

/// Returns the largest number of permits granted in any window of the given length.
fn most_in(grants: &[(u64, u64)], length: u64) -> u64 {
    let in_window = |first: u64| grants.iter().filter(move |(at, _)| (first..=first + length).contains(at));
    grants.iter().map(|(first, _)| in_window(*first).map(|(_, permits)| permits).sum()).max().unwrap_or(0)
}

fn queries() -> impl Strategy<Value = Vec<Query>> {
    let delay = prop_oneof![3 => Just(0), 3 => 0u64..2_000, 2 => 0u64..60_000, 1 => 0u64..400_000];
    let query = (delay, 0u64..12, 1u64..4).prop_map(|(delay, count, cost)| Query { delay, count, cost });
    prop::collection::vec(query, 1..60)
}

fn script_quota() -> impl Strategy<Value = ScriptQuota> {
    (1u64..40, any::<u64>(), 5_000u64..200_000).prop_map(|(limit, burst, length)| ScriptQuota {
        limit,
        burst: 1 + burst % (limit - 1).max(1),
        length: length + 1,
    })
}

#[test]
fn script_of_the_store_exceeds_no_quota_in_any_window() {
    let server = server();
    let strategy = (prop::collection::vec(script_quota(), 1..4), queries(), any::<bool>(), 0u64..20_000);
    let granted = std::cell::Cell::new(0);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) };
    let run = |(quotas, queries, sliding, horizon): (Vec<ScriptQuota>, Vec<Query>, bool, u64)| {
        // As in the limiter, the store may grant a permit before its due time, by at most a quarter of the shortest
        // window.
        let horizon = horizon.min(quotas.iter().map(|quota| quota.length).min().unwrap_or(0) / 4);
        let mut store = Store { script: Script::new(&server, horizon), sliding, quotas, interval: None };
        let largest = |quota: &ScriptQuota| if sliding { quota.limit } else { quota.burst };
        let largest = store.quotas.iter().map(largest).min().unwrap_or(1);
        let mut all = Vec::new();
        for mut query in queries {
            query.cost = query.cost.min(largest);
            let grants = store.query(query);
            let (last, total) =
                (all.last().map_or(0, |(at, _)| *at), grants.iter().map(|(_, permits)| permits));
            prop_assert!(total.clone().sum::<u64>() <= query.count * query.cost);
            prop_assert!(
                grants.iter().all(|(at, _)| (store.script.now..=store.script.now + horizon).contains(at))
            );
            prop_assert!(
                grants.first().is_none_or(|(at, _)| *at >= last),
                "the script granted permits out of order"
            );
            all.extend(grants);
        }
        granted.set(granted.get() + all.len());
        for quota in &store.quotas {
            let most = most_in(&all, quota.length - 1);
            prop_assert!(
                most <= quota.limit,
                "{most} permits in one window of {quota:?}, sliding window: {sliding}: {all:?}"
            );
        }
        Ok(())
    };
    TestRunner::new(config).run(&strategy, run).unwrap();
    assert!(granted.get() > 1_000, "the script granted only {granted:?} times");
}

/// Creates a `LocalLimiter` for each bucket, and queries the store at the times of its clock.
#[tokio::test(start_paused = true)]
async fn script_of_the_store_grants_exactly_the_permits_of_a_local_bucket() {
    let server = server();
    let mut random = 1_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let (mut granted, mut refused) = (0, 0);
    for _ in 0..50 {
        let (capacity, refill, interval) = (1 + next(40), 1 + next(10), 1 + next(400_000));
        let bucket = Quota::bucket(capacity as u32, refill as u32, Duration::from_micros(refill * interval));
        let bucket = bucket.unwrap().without_margin();
        let local = LocalLimiter::token_bucket(bucket);
        let quota = ScriptQuota { limit: capacity, burst: capacity, length: capacity * interval };
        let (script, interval_ns) = (Script::new(&server, 0), Some(interval * 1_000));
        let mut store = Store { script, sliding: false, quotas: vec![quota], interval: interval_ns };
        // The store's bucket is empty at first, because the server has just started.
        store.query(Query { delay: 0, count: 0, cost: 1 });
        store.script.now += 2 * quota.length + 10_000_000;
        for _ in 0..100 {
            let (delay, cost) = (next(3 * interval), 1 + next(capacity.min(4)));
            tokio::time::advance(Duration::from_micros(delay)).await;
            let is_granted = !store.query(Query { delay, count: 1, cost }).is_empty();
            let by_local = local.try_acquire_many(NonZeroU32::new(cost as u32).unwrap()).is_ok();
            assert_eq!(is_granted, by_local, "{cost} permits of {bucket:#} after {delay} us");
            *if is_granted { &mut granted } else { &mut refused } += 1;
        }
    }
    assert!(granted > 1_000 && refused > 1_000, "{granted} granted, {refused} refused");
}

#[test]
fn log_of_a_window_contains_at_most_its_limit_of_permits_from_shares() {
    let server = server();
    let mut script = Script::new(&server, 0);
    let quotas = &[[10, 10, 1_000_001, 0]];
    script.query(&Question { cost: 1, quotas, ..Question::default() });
    script.now += 10_000_000;
    for _ in 0..100 {
        script.now += 1_000;
        script.query(&Question { cost: 1, quotas, booked: 1, ..Question::default() });
    }
    // Each entry has a time and a number of permits.
    let length: u32 = redis::cmd("LLEN").arg("{a}:0").query(&mut script.connection).unwrap();
    assert_eq!(length, 2 * 10);
    // The oldest of the last ten permits leaves the window 991 ms after the last query.
    for (wait, granted) in [(991_000, 0), (1, 1)] {
        script.now += wait;
        let (grants, _) = script.query(&Question { count: 1, cost: 1, quotas, ..Question::default() });
        assert_eq!(grants.len(), granted);
    }
}

/// Each process enforces its own quotas, also if another process of the same name has shorter windows.
#[test]
fn query_with_shorter_windows_does_not_let_keys_expire_earlier() {
    let server = server();
    let mut script = Script::new(&server, 0);
    for (length, expiry) in [(3_600_000_001, 60_000_000), (100_001, 1_000_000)] {
        let flight = Some(Flight { process: "a", max: 1, used: 0, till: 0, expiry, number: 0 });
        script.query(&Question { cost: 1, quotas: &[[10, 10, length, 0]], flight, ..Question::default() });
        for key in ["{a}", "{a}:0", "{a}:flight"] {
            let left: i64 = redis::cmd("PTTL").arg(key).query(&mut script.connection).unwrap();
            assert!(left > 3_600_000, "{key} expires in {left} ms after a query with {length}");
        }
    }
}

/// Other processes may keep the state for longer than the log, if only this process has its quota.
#[test]
fn missing_log_is_a_loss_only_until_its_last_permit_leaves_the_window() {
    let server = server();
    let quotas = &[[10, 10, 1_000_001, 0]];
    for booked in [0, 1] {
        for (wait, granted) in [(1_000_000, 0), (1_000_001, 1)] {
            let mut script = Script::new(&server, 0);
            script.query(&Question { cost: 1, quotas, ..Question::default() });
            script.now += 10_000_000;
            let count = u64::from(booked == 0);
            script.query(&Question { count, cost: 1, quotas, booked, ..Question::default() });
            script.now += wait;
            redis::cmd("DEL").arg("{a}:0").exec(&mut script.connection).unwrap();
            let (grants, _) = script.query(&Question { count: 1, cost: 1, quotas, ..Question::default() });
            assert_eq!(grants.len(), granted, "{booked} booked, {wait} us");
        }
    }
}

/// A process whose queries fail reports later that it has lifted the pause.
#[test]
fn pause_is_lifted_only_by_a_process_that_did_so_after_its_last_report() {
    let server = server();
    let quotas = &[[10, 10, 1_000_001, 0]];
    // Times are relative to the second pause, which does not extend the first one.
    for (resumed, granted) in [(-1_000_000, 0), (-1, 0), (0, 1), (1_000_000, 1), (i64::MAX, 1)] {
        let mut script = Script::new(&server, 0);
        script.query(&Question { cost: 1, quotas, ..Question::default() });
        script.now += 10_000_000;
        for pause in [60_000_000, 1_500_000] {
            script.now += 1_000_000;
            script.query(&Question { cost: 1, quotas, pause, ..Question::default() });
        }
        let resumed_at = (script.now as i64).saturating_add(resumed);
        script.now += 3_000_000;
        script.query(&Question { cost: 1, quotas, resumed: Some(resumed_at), ..Question::default() });
        let (grants, _) = script.query(&Question { count: 1, cost: 1, quotas, ..Question::default() });
        assert_eq!(grants.len(), granted, "{resumed}");
    }
}

/// The process with shorter windows queries first after the restart, and its own quota counts as spent.
#[test]
fn restart_is_detected_for_each_quota_that_the_store_does_not_know() {
    let server = server();
    let (short, long) = ([10, 10, 600_000_001, 0], [10, 10, 3_600_000_001, 0]);
    for (quotas, units) in [(&[short, long][..], &[][..]), (&[short], &[[10, 3_600_000_001, 10, 0, 1, 0]])] {
        // The server has run for a few seconds.
        let mut script = Script::new(&server, 0);
        script.query(&Question { cost: 1, quotas: &[short], fresh: true, ..Question::default() });
        script.now += 1_000_000;
        let question = Question { count: 1, cost: 1, quotas, units, fresh: true, ..Question::default() };
        script.query(&question);
        script.now += 610_000_000;
        let question = Question { fresh: false, ..question };
        assert_eq!(script.query(&question).0, [], "{quotas:?} {units:?}");
        script.now += 3_000_000_000;
        assert_eq!(script.query(&question).0.len(), 1, "{quotas:?} {units:?}");
    }
}

#[test]
fn bucket_and_sliding_window_of_one_name_do_not_share_a_quota() {
    let server = server();
    let mut script = Script::new(&server, 0);
    let quotas = [[10, 10, 1_000_001, 0], [10, 10, 1_000_001, 100_000_100]];
    for quota in quotas {
        script.query(&Question { cost: 1, quotas: &[quota], ..Question::default() });
    }
    script.now += 10_000_000;
    for quota in quotas {
        let question = Question { count: 10, cost: 1, quotas: &[quota], ..Question::default() };
        assert_eq!(script.query(&question).0, [(script.now, 10)], "{quota:?}");
    }
}
