//! Random scripts of a simulation.

use std::{num::NonZeroU32, time::Duration};

use super::RULES;
use crate::limit::core::{CoreSettings, Rule};
use crate::policy::{Priority, Quota, Unit, nanos};
use crate::random::Random;

/// A millisecond in nanoseconds.
pub(super) const MS: u64 = 1_000_000;

/// A limiter, and what its callers and its server do.
#[derive(Debug, Clone)]
pub struct Script {
    pub seed: u64,
    pub quotas: Vec<Quota>,
    pub settings: CoreSettings,
    /// The longest delay of a timer.
    pub lateness: u64,
    /// Whether callers take permits from blocks.
    pub has_blocks: bool,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone)]
pub struct Step {
    pub at: u64,
    pub action: Action,
}

#[derive(Debug, Clone)]
pub enum Action {
    Call(Call),
    /// A caller drops its future. The number counts the calls of the script.
    Drop(usize),
    Poll(usize),
    Pause(u64),
    Resume,
    SetQuotas(Vec<Quota>),
}

#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub cost: NonZeroU32,
    pub priority: Priority,
    pub max_wait: Option<u64>,
    /// Counted from the call.
    pub deadline: Option<u64>,
    pub max_queue: usize,
    /// The time from a wake-up until the task is polled.
    pub poll: u64,
    /// Whether the task is polled that late after each wake-up, and not only after the first one.
    pub is_always_late: bool,
    /// The time from the poll until the inner service is ready.
    pub ready: u64,
    pub network: u64,
    /// The time from the head of the response until the end of its body.
    pub body: u64,
    pub reply: Reply,
    /// The estimated and the actual tokens.
    pub tokens: (u32, u32),
    /// The time from the head of the response until the actual tokens are known, if they ever are.
    pub settles_after: Option<u64>,
}

/// The server's reaction to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Accepts,
    /// Rejects the request, and requests this delay, or none if it is zero.
    Throttles(u64),
    /// Accepts the request, and reports the remaining permits and the seconds until their reset.
    Reports(u64, u64),
    /// Sends no response.
    Nothing,
}

impl Script {
    /// Creates the script of a seed.
    pub fn random(seed: u64) -> Self {
        let random = Random::seeded(seed);
        // The last rule, which learns, has a third of the scripts of another one.
        let (_, rule, _) = RULES[(random.up_to(3 * (RULES.len() as u64 - 1)) / 3) as usize];
        let has_margin = random.percent(60);
        let number = random.pick(&[1, 1, 1, 1, 2, 0]);
        let mut quotas: Vec<_> = (0..number).filter_map(|_| quota(&random, has_margin)).collect();
        if random.percent(25) {
            quotas.extend(tokens(&random, has_margin));
        }
        let slack = quotas.iter().map(|quota| quota.margin().as_nanos() as u64 / 4).min();
        let slack = slack.unwrap_or(if quotas.is_empty() { 200 * MS } else { 0 });
        let lower_share = random.pick(&[None, None, Some(0), Some(25)]);
        let obeys_remaining = random.percent(30);
        let max_in_flight = if random.percent(30) { NonZeroU32::new(random.pick(&[1, 2, 5])) } else { None };
        let hold_after_cancel = random.pick(&[0, 50 * MS]);
        let settings = CoreSettings {
            obeys_remaining,
            lower_share,
            max_in_flight,
            hold_after_cancel,
            ..CoreSettings::new(rule)
        };
        let lateness = random.pick(&[0, MS, 20 * MS]);
        let mut script =
            Self { seed, quotas, settings, lateness, has_blocks: random.percent(30), steps: Vec::new() };
        script.fill(&random, slack);
        script
    }

    fn fill(&mut self, random: &Random, slack: u64) {
        let largest = match self.settings.rule {
            Rule::SlidingWindow => self.requests().map(largest_at_once).min(),
            _ => self.requests().map(Quota::burst).min(),
        };
        let largest = largest.unwrap_or(10);
        let (has_costs, has_ranks) = (random.percent(40), random.percent(50));
        let is_bounded = random.percent(50);
        let tokens = self.tokens().map_or(0, |tokens| u64::from(tokens.limit()) / 3);
        // The estimates of a bucket may exceed its capacity.
        let has_large = self.tokens().is_some_and(Quota::is_bucket) && random.percent(40);
        let thirds = if has_large { 4 } else { random.pick(&[0, 1, 2, 2]) };
        let (most_tokens, exceeds) = (thirds * tokens, random.percent(50));
        let window = self.quotas.iter().map(|quota| quota.window().as_nanos() as u64).max();
        let window = window.unwrap_or(1_000 * MS);
        let gaps = if self.has_blocks { [4_000, 1_500, 400, 15] } else { [400, 100, 40, 15] };
        let gap = window / random.pick(&gaps);
        let (mut at, mut calls) = (0, 0);
        let disturbance = random.pick(&[0, 3, 10]);
        for _ in 0..random.up_to(60) + 5 {
            at += if random.percent(50) { 0 } else { random.up_to(2 * gap) };
            let action = if calls > 0 && random.percent(disturbance) {
                match random.up_to(9) {
                    0..=3 => Action::Drop(random.up_to(calls as u64 - 1) as usize),
                    4..=5 => Action::Poll(random.up_to(calls as u64 - 1) as usize),
                    6..=7 => Action::Pause(random.up_to(window)),
                    9 if !self.has_bucket() => Action::SetQuotas(self.changed(random)),
                    _ => Action::Resume,
                }
            } else {
                calls += 1;
                let cost = if has_costs { 1 + random.up_to(largest.min(6).into()) as u32 } else { 1 };
                let bound =
                    |random: &Random| (is_bounded && random.percent(40)).then(|| random.up_to(window));
                let delay = |random: &Random| {
                    let most = if slack > 0 { slack + slack / 8 } else { 0 };
                    if random.percent(60) { random.up_to(most) } else { 0 }
                };
                let absent = slack > 0 && random.percent(6);
                let estimate = if most_tokens > 0 { random.up_to(most_tokens) } else { 0 };
                let actual = random.up_to(if exceeds { 2 * estimate } else { estimate });
                Action::Call(Call {
                    cost: NonZeroU32::new(cost).unwrap_or(NonZeroU32::MIN),
                    priority: match if has_ranks { random.up_to(2) } else { 1 } {
                        0 => Priority::High,
                        1 => Priority::Normal,
                        _ => Priority::Low,
                    },
                    max_wait: bound(random),
                    deadline: bound(random),
                    max_queue: if random.percent(5) { 2 } else { 1_000 },
                    poll: if absent { random.up_to(2 * window) } else { delay(random) },
                    is_always_late: random.percent(30),
                    ready: delay(random),
                    tokens: (estimate as u32, actual as u32),
                    settles_after: random.percent(80).then(|| random.up_to(window / 2)),
                    network: if slack > 0 { random.up_to(slack) } else { 0 },
                    body: if self.settings.max_in_flight.is_some() { random.up_to(100 * MS) } else { 0 },
                    reply: match random.up_to(100) {
                        0 if disturbance > 0 => {
                            Reply::Throttles(if random.percent(80) { random.up_to(window) } else { 0 })
                        }
                        1..=3 => Reply::Nothing,
                        4..=6 if disturbance > 0 => Reply::Reports(random.up_to(12), 1 + random.up_to(3)),
                        _ => Reply::Accepts,
                    },
                })
            };
            self.steps.push(Step { at, action });
        }
    }

    /// Returns the quotas that count requests.
    pub(super) fn requests(&self) -> impl Iterator<Item = &Quota> {
        self.quotas.iter().filter(|quota| quota.counts_requests())
    }

    /// Returns the quota of tokens.
    pub(super) fn tokens(&self) -> Option<&Quota> {
        self.quotas.iter().find(|quota| quota.unit() == Unit::Tokens)
    }

    fn has_bucket(&self) -> bool {
        self.quotas.iter().any(|quota| quota.refill().is_some())
    }

    /// Returns quotas with other limits and the same windows and margins.
    fn changed(&self, random: &Random) -> Vec<Quota> {
        let changed = |quota: &Quota| {
            let limit = 2 + random.up_to(60) as u32;
            let new = Quota::new(limit, quota.window()).ok()?.with_unit(quota.unit()).ok()?;
            let burst = (1 + random.up_to(u64::from(limit) / 2) as u32).min(limit - 1).max(1);
            new.with_burst(burst).ok()?.with_margin(quota.margin()).ok()
        };
        self.quotas.iter().filter_map(changed).collect()
    }

    /// Returns how long a permit may be held: a quarter of the margin, or a part of the window if there is no margin.
    pub(super) fn slack(&self) -> u64 {
        let slack = |quota: &Quota| match nanos(quota.margin()) {
            0 => (nanos(quota.window()) / 32).min(50 * MS),
            margin => margin / 4,
        };
        self.quotas.iter().map(slack).min().unwrap_or(u64::MAX)
    }

    /// Returns by how much a grant may be backdated: a quarter of the margin, if a waiter is polled late.
    pub(super) fn backdating(&self) -> u64 {
        let is_late = self.calls().any(|call| call.poll > 0);
        let margins = self.quotas.iter().map(|quota| nanos(quota.margin()) / 4);
        margins.min().filter(|_| is_late).unwrap_or(0)
    }

    /// Returns the shortest pause after a throttled response that requests no delay.
    pub(super) fn shortest_pause(&self) -> u64 {
        let has_pause = self.requests().next().is_some() && self.settings.rule != Rule::Learned;
        if has_pause { self.settings.pauses.throttled() } else { 0 }
    }

    /// Returns the calls of the script.
    pub fn calls(&self) -> impl Iterator<Item = &Call> {
        self.steps.iter().filter_map(|step| match &step.action {
            Action::Call(call) => Some(call),
            _ => None,
        })
    }

    /// Removes steps that a failure does not need.
    pub fn shrink(mut self, fails: impl Fn(&Self) -> bool) -> Self {
        let mut index = self.steps.len();
        while index > 0 {
            index -= 1;
            let mut shorter = self.clone();
            // A call only loses its effect, so that the numbers of other calls stay the same.
            match &shorter.steps[index].action {
                Action::Call(_) if shorter.steps[index + 1..].iter().any(is_numbered) => continue,
                _ => _ = shorter.steps.remove(index),
            }
            if fails(&shorter) {
                self = shorter;
            }
        }
        self
    }
}

/// Returns the largest cost of a request to a sliding window.
fn largest_at_once(quota: &Quota) -> u32 {
    if quota.refill().is_some() { quota.burst() } else { quota.limit() }
}

fn is_numbered(step: &Step) -> bool {
    matches!(step.action, Action::Drop(_) | Action::Poll(_))
}

fn quota(random: &Random, has_margin: bool) -> Option<Quota> {
    let limit = 1 + random.up_to(60) as u32;
    let window = random.pick(&[100, 1_000, 1_000, 10_000]) * MS + random.up_to(1_000);
    if random.percent(15) {
        let refill = 1 + random.up_to(30) as u32;
        let bucket = Quota::bucket(limit, refill, Duration::from_nanos(window)).ok()?;
        return Some(if has_margin { bucket } else { bucket.without_margin() });
    }
    let quota = Quota::new(limit, Duration::from_nanos(window)).ok()?;
    let burst = (1 + random.up_to(u64::from(limit) / 2) as u32).min(limit.saturating_sub(1)).max(1);
    let quota = quota.with_burst(burst).ok()?;
    Some(if has_margin { quota } else { quota.without_margin() })
}

fn tokens(random: &Random, has_margin: bool) -> Option<Quota> {
    let limit = 10 + random.up_to(2_000) as u32;
    let window = Duration::from_nanos(random.pick(&[100, 1_000, 10_000]) * MS);
    let quota = match random.percent(40) {
        true => Quota::bucket(limit, 1 + random.up_to(limit.into()) as u32, window),
        false => Quota::new(limit, window),
    };
    let quota = quota.ok()?.with_unit(Unit::Tokens).ok()?;
    Some(if has_margin { quota } else { quota.without_margin() })
}

impl Random {
    /// Returns a number from 0 to `most`.
    pub(crate) fn up_to(&self, most: u64) -> u64 {
        self.next() % most.saturating_add(1).max(1)
    }

    /// Returns `true` with a probability of `percent`.
    pub(crate) fn percent(&self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.next() as usize % of.len()]
    }
}
