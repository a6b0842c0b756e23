//! Tests the learner of a unit of which each request takes an amount.

use super::*;
use crate::policy::{Amounts, Taken, Unit};

fn of(amount: u32) -> Amounts {
    Amounts::of(Unit::Tokens, amount)
}

/// What a request takes whose permit has ended.
fn ended(amount: u32, is_accepted: Option<bool>) -> Taken {
    Taken { is_accepted, ..Taken::of(of(amount)) }
}

/// The quota of tokens that a server reports.
fn tokens(limit: u64, left: u64, reset: u64) -> Vec<Remaining> {
    let [limit, left, reset] = [limit.to_string(), left.to_string(), format!("{reset}s")];
    reported(&[
        ("x-ratelimit-limit-tokens", limit.as_bytes()),
        ("x-ratelimit-remaining-tokens", left.as_bytes()),
        ("x-ratelimit-reset-tokens", reset.as_bytes()),
    ])
}

fn read(unit: &mut LearnedUnit, remaining: &[Remaining], now: u64) {
    unit.observe(&Observation { remaining, ..response(Acceptance::Accepted, now) }, now);
}

/// Returns a learner that has read a quota of 30,000 tokens per minute.
fn learned() -> LearnedUnit {
    let mut unit = LearnedUnit::new(Unit::Tokens, f64::INFINITY, 0);
    read(&mut unit, &tokens(30_000, 29_000, 60), 0);
    assert_eq!(unit.learner.rate.map(f64::round), Some(490.0));
    unit
}

/// Takes 1,000 tokens as often as the rate allows, but at most once per `interval`, for `seconds`. The server reports
/// that `left` of 30,000 tokens remain. Returns the rate.
fn serve_for(
    unit: &mut LearnedUnit,
    (seconds, interval, left): (u64, u64, u64),
    is_accepted: Option<bool>,
    now: &mut u64,
) -> f64 {
    let end = *now + seconds * SECOND;
    while *now < end {
        unit.advance(&of(1_000), *now);
        unit.take(&of(1_000), *now);
        unit.end(&ended(1_000, is_accepted), *now);
        read(unit, &tokens(30_000, left, 60), *now);
        *now = unit.due(*now + interval, 0, &of(1_000));
    }
    unit.learner.rate.unwrap()
}

#[test]
fn rate_of_a_unit_is_raised_only_if_it_was_used() {
    let (mut unit, mut now) = (learned(), SECOND);
    let before = unit.learner.rate.unwrap();
    // 333 tokens per second are 68 % of the rate.
    assert_eq!(serve_for(&mut unit, (600, 3 * SECOND, 20_000), Some(true), &mut now), before);
    assert!(serve_for(&mut unit, (600, 0, 20_000), Some(true), &mut now) > 1.01 * before);
}

#[test]
fn rate_of_a_unit_exceeds_the_reported_quota_only_while_half_of_it_remains() {
    let (mut unit, mut now) = (learned(), SECOND);
    // 30,000 per minute, without the margin.
    assert_eq!(serve_for(&mut unit, (600, 0, 14_000), Some(true), &mut now).round(), 500.0);
    assert!(serve_for(&mut unit, (200, 0, 20_000), Some(true), &mut now) > 530.0);
    assert_eq!(serve_for(&mut unit, (100, 0, 14_000), Some(true), &mut now).round(), 500.0);
    assert!(serve_for(&mut unit, (200, 0, 20_000), Some(true), &mut now) > 530.0);
    assert_eq!(serve_for(&mut unit, (100, 0, 1_000), Some(true), &mut now).round(), 500.0);
}

#[test]
fn rate_of_a_unit_is_raised_only_if_the_server_accepted_the_requests() {
    for is_accepted in [Some(false), None] {
        let (mut unit, mut now) = (learned(), SECOND);
        let before = unit.learner.rate.unwrap();
        assert_eq!(serve_for(&mut unit, (1_200, 0, 20_000), is_accepted, &mut now), before);
    }
}

#[test]
fn counts_the_amounts_in_flight_and_those_of_accepted_requests() {
    let mut unit = learned();
    let counts = |unit: &LearnedUnit| [unit.progress().in_flight, unit.progress().accepted];
    for amount in [100, 50_000, 7, 0] {
        unit.take(&of(amount), SECOND);
    }
    assert_eq!(counts(&unit), [50_107, 0]);
    unit.settle(SECOND, &Taken::of(of(100)), &of(300), SECOND);
    assert_eq!(counts(&unit), [50_307, 0]);
    unit.end(&ended(50_000, Some(true)), SECOND);
    assert_eq!(counts(&unit), [307, 30_000], "a larger amount counts as the limit");
    unit.settle(SECOND, &ended(50_000, Some(true)), &of(20_000), SECOND);
    assert_eq!(counts(&unit), [307, 20_000]);
    // The amount of a rejected request counts neither before nor after it is settled.
    unit.end(&ended(7, Some(false)), SECOND);
    unit.settle(SECOND, &ended(7, Some(false)), &of(9), SECOND);
    assert_eq!(counts(&unit), [300, 20_000]);
    // A request whose permit took nothing does not count.
    let later = Taken { granted: of(0), ..ended(80, Some(true)) };
    unit.end(&later, SECOND);
    unit.settle(SECOND, &later, &of(90), SECOND);
    assert_eq!(counts(&unit), [300, 20_000]);
    unit.end(&Taken { granted: of(100), ..ended(300, Some(true)) }, SECOND);
    assert_eq!(counts(&unit), [0, 20_300]);
}

#[test]
fn request_waits_until_the_amounts_before_it_are_refilled() {
    let mut unit = learned();
    let each = unit.learner.interval() * 1_000;
    let burst = unit.learner.interval() * 600;
    assert_eq!(unit.due(SECOND, 0, &of(1_000)), SECOND);
    unit.take(&of(1_000), SECOND);
    assert_eq!(unit.due(SECOND, 0, &of(1_000)), SECOND + each);
    assert_eq!(unit.due(SECOND, 0, &of(1)), SECOND + each - burst + unit.learner.interval());
    assert_eq!(unit.due(SECOND, 2_000, &of(1_000)), SECOND + 3 * each);
    // A request without tokens leaves after those before it, of which the last one may take up to 30,000.
    assert_eq!(unit.due(SECOND, 0, &of(0)), SECOND);
    assert_eq!(unit.due(SECOND, 500, &of(0)), SECOND + each - burst + unit.learner.interval() * 500);
    assert_eq!(unit.due(SECOND, 30_000, &of(0)), SECOND + each);
    assert_eq!(unit.due(SECOND, 40_000, &of(0)), SECOND + 11 * each);
    // Settled amounts replace the estimate.
    assert!(unit.settle(SECOND, &Taken::of(of(1_000)), &of(1_500), SECOND));
    assert_eq!(unit.due(SECOND, 0, &of(1_000)), SECOND + each * 3 / 2);
    assert!(!unit.settle(SECOND, &Taken::of(of(1_500)), &of(500), SECOND));
    assert_eq!(unit.due(SECOND, 0, &of(1_000)), SECOND + each / 2);
}

#[test]
fn amount_above_the_limit_of_the_server_counts_as_the_limit() {
    let mut unit = learned();
    unit.take(&of(u32::MAX), SECOND);
    assert!(unit.due(SECOND, 0, &of(1_000)) < 63 * SECOND);
}

#[test]
fn amount_from_before_a_lower_rate_is_not_returned() {
    let mut unit = LearnedUnit::new(Unit::Tokens, f64::INFINITY, 0);
    read(&mut unit, &tokens(30_000, 29_000, 1), 0);
    unit.take(&of(1_000), SECOND);
    read(&mut unit, &tokens(30_000, 28_000, 60), 2 * SECOND);
    for _ in 0..3 {
        unit.take(&of(1_000), 3 * SECOND);
    }
    let due = unit.due(3 * SECOND, 0, &of(1_000));
    unit.settle(SECOND, &Taken::of(of(1_000)), &of(0), 3 * SECOND);
    assert_eq!(unit.due(3 * SECOND, 0, &of(1_000)), due);
}

#[derive(Debug, Clone)]
enum UnitStep {
    Take(u32),
    Settle(u64, u32, u32, Option<bool>),
    End(u32, Option<bool>),
    Respond { acceptance: Acceptance, age: u64, quota: (u64, u64, u64) },
    Lose(bool),
}

fn unit_steps() -> impl Strategy<Value = Vec<(u64, UnitStep)>> {
    let number = || prop_oneof![0..200_u64, any::<u64>()];
    let acceptance = prop_oneof![3 => Just(Acceptance::Accepted), 1 => Just(Acceptance::Throttled)];
    let step = prop_oneof![
        4 => any::<u32>().prop_map(UnitStep::Take),
        2 => (number(), any::<u32>(), any::<u32>(), any::<Option<bool>>())
            .prop_map(|(age, one, two, end)| UnitStep::Settle(age, one, two, end)),
        4 => (any::<u32>(), any::<Option<bool>>()).prop_map(|(amount, end)| UnitStep::End(amount, end)),
        4 => (acceptance, number(), (number(), number(), number()))
            .prop_map(|(acceptance, age, quota)| UnitStep::Respond { acceptance, age, quota }),
        1 => any::<bool>().prop_map(UnitStep::Lose),
    ];
    prop::collection::vec((prop_oneof![0..2 * SECOND, any::<u64>()], step), 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn learned_rate_of_a_unit_stays_within_its_bounds_after_any_sequence(
        steps in unit_steps(), ceiling in prop_oneof![Just(f64::INFINITY), 1.0..1e6]
    ) {
        let mut unit = LearnedUnit::new(Unit::Tokens, ceiling, 0);
        let mut now = 0_u64;
        for (time, step) in steps {
            now = now.saturating_add(time);
            let before = unit.learner.rate;
            unit.advance(&of(1), now);
            if let (Some(before), Some(after)) = (before, unit.learner.rate) {
                prop_assert!(after <= 2.0 * before, "raised from {before} to {after}");
            }
            match step {
                UnitStep::Take(amount) => unit.take(&of(amount), now),
                UnitStep::Settle(age, one, two, end) => {
                    unit.settle(now.saturating_sub(age), &ended(one, end), &of(two), now);
                }
                UnitStep::End(amount, end) => unit.end(&ended(amount, end), now),
                UnitStep::Respond { acceptance, age, quota: (limit, left, reset) } => {
                    let (granted_at, remaining) = (now.saturating_sub(age), tokens(limit, left, reset));
                    let observation = Observation { remaining: &remaining, ..response(acceptance, granted_at) };
                    let (_, pause) = unit.observe(&observation, now);
                    prop_assert!(pause.is_none_or(|until| until >= now));
                }
                UnitStep::Lose(was_sent) => drop(unit.learner.lose(now, was_sent)),
            }
            if let Some(rate) = unit.learner.rate {
                prop_assert!(LOWEST.min(ceiling) <= rate && rate <= ceiling.min(HIGHEST), "{rate} of {ceiling}");
            }
            prop_assert!(unit.due(now, 0, &of(7)) >= now && unit.due(now, u64::MAX, &of(u32::MAX)) >= now);
        }
    }
}
