use std::{num::NonZeroU32, time::Duration};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, FakeRelativeClock},
};

use super::*;
use crate::random::Random;

#[test]
fn bucket_grants_exactly_what_governor_grants() {
    for seed in 0..200 {
        let random = Random::seeded(seed);
        let (interval, burst) = (random.up_to(1_000) + 1, random.up_to(20) as u32 + 1);
        let quota = Quota::with_period(Duration::from_nanos(interval)).unwrap();
        let quota = quota.allow_burst(NonZeroU32::new(burst).unwrap());
        let clock = FakeRelativeClock::default();
        let governor = RateLimiter::direct_with_clock(quota, clock.clone());
        let mut bucket = Gcra::new(interval, burst);
        for _ in 0..200 {
            clock.advance(Duration::from_nanos(random.up_to(2 * interval)));
            let now = clock.now().as_u64();
            let cost = random.up_to(burst.into()) as u32 + 1;
            let cost = NonZeroU32::new(cost.min(burst)).unwrap();
            let is_granted = bucket.due(now, cost.get().into()) <= now;
            assert_eq!(is_granted, bucket.available(now) >= cost.get().into(), "seed {seed}");
            assert_eq!(is_granted, governor.check_n(cost).unwrap().is_ok(), "seed {seed}");
            if is_granted {
                bucket.take(now, cost.get().into());
            }
        }
    }
}
