//! The script alone, on a clock that the test sets, compared with a count of every window.

use proptest::{prelude::*, test_runner::TestRunner};

use super::*;

const SCRIPT: &str = include_str!("../../src/adapter/redis/script.lua");
const CLOCK: &str = "local clock = redis.call('TIME')\nlocal now = clock[1] * 1000000 + clock[2]\n";

/// A quota as the script takes it: limit, burst, length in µs, interval in ns.
#[derive(Debug, Clone, Copy)]
struct Term {
    limit: u64,
    burst: u64,
    length: u64,
}

impl Term {
    fn interval(&self) -> u64 {
        (self.length * 1_000).div_ceil((self.limit - self.burst).max(1))
    }
}

#[derive(Debug, Clone, Copy)]
struct PermitRequest {
    /// The time since the previous request, in µs.
    later: u64,
    want: u64,
    unit: u64,
}

struct Store {
    connection: redis::Connection,
    script: String,
    now: u64,
    windowed: bool,
    terms: Vec<Term>,
    horizon: u64,
}

impl Store {
    /// When permits may be used, and how many.
    fn ask(&mut self, ask: PermitRequest) -> Vec<(u64, u64)> {
        self.now += ask.later;
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script).arg(1 + self.terms.len()).arg("{a}");
        for number in 0..self.terms.len() {
            command.arg(format!("{{a}}:{number}"));
        }
        command.arg(self.now).arg(u8::from(self.windowed)).arg(ask.want).arg(ask.unit).arg(self.horizon);
        // An old connection, nothing known, no permits used from a share, and no server limits.
        command.arg(&[0, 0, 0, -1, 0, 0, 0, 1_000_000_000, 0, 0]).arg(self.terms.len());
        for (number, term) in self.terms.iter().enumerate() {
            command.arg(&[term.limit, term.burst, term.length, term.interval()]).arg(format!("id{number}"));
        }
        type Reply = (u64, u64, u64, u64, u64, Vec<(u64, u64)>);
        let (.., grants): Reply = command.arg(0).query(&mut self.connection).unwrap();
        grants.into_iter().map(|(due, permits)| (self.now + due, permits)).collect()
    }

    fn most_in(&self, given: &[(u64, u64)], length: u64) -> u64 {
        let in_window =
            |first: u64| given.iter().filter(move |(at, _)| (first..=first + length).contains(at));
        given.iter().map(|(first, _)| in_window(*first).map(|(_, permits)| permits).sum()).max().unwrap_or(0)
    }
}

fn asks() -> impl Strategy<Value = Vec<PermitRequest>> {
    let later = prop_oneof![3 => Just(0), 3 => 0u64..2_000, 2 => 0u64..60_000, 1 => 0u64..400_000];
    let ask = (later, 0u64..12, 1u64..4).prop_map(|(later, want, unit)| PermitRequest { later, want, unit });
    prop::collection::vec(ask, 1..60)
}

fn term() -> impl Strategy<Value = Term> {
    (1u64..40, any::<u64>(), 5_000u64..200_000).prop_map(|(limit, burst, length)| Term {
        limit,
        burst: 1 + burst % (limit - 1).max(1),
        length: length + 1,
    })
}

#[test]
fn no_window_of_any_quota_gets_more_than_its_limit() {
    assert!(SCRIPT.contains(CLOCK), "the script reads its clock in another way");
    let server = server();
    let client = redis::Client::open(server.url()).unwrap();
    let script = SCRIPT.replace(CLOCK, "local now = tonumber(table.remove(ARGV, 1))\n");
    let strategy = (prop::collection::vec(term(), 1..4), asks(), any::<bool>(), 0u64..20_000);
    let given = std::cell::Cell::new(0);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) };
    let run = |(terms, asks, windowed, horizon): (Vec<Term>, Vec<PermitRequest>, bool, u64)| {
        let mut connection = client.get_connection().unwrap();
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
        // The longest window is at least four times as long as the horizon.
        let horizon = horizon.min(terms.iter().map(|term| term.length).min().unwrap_or(0) / 4);
        let mut store = Store {
            connection,
            script: script.clone(),
            now: 2_000_000_000_000_000,
            windowed,
            terms,
            horizon,
        };
        let largest = |term: &Term| if windowed { term.limit } else { term.burst };
        let largest = store.terms.iter().map(largest).min().unwrap_or(1);
        let mut all = Vec::new();
        for mut ask in asks {
            ask.unit = ask.unit.min(largest);
            let answer = store.ask(ask);
            let (last, total) =
                (all.last().map_or(0, |(at, _)| *at), answer.iter().map(|(_, permits)| permits));
            prop_assert!(total.clone().sum::<u64>() <= ask.want * ask.unit);
            prop_assert!(answer.iter().all(|(at, _)| (store.now..=store.now + horizon).contains(at)));
            prop_assert!(answer.first().is_none_or(|(at, _)| *at >= last), "out of order");
            all.extend(answer);
        }
        given.set(given.get() + all.len());
        for term in &store.terms {
            let most = store.most_in(&all, term.length - 1);
            prop_assert!(most <= term.limit, "{most} in {term:?}, windowed: {windowed}: {all:?}");
        }
        Ok(())
    };
    TestRunner::new(config).run(&strategy, run).unwrap();
    assert!(given.get() > 1_000, "{given:?}");
}
