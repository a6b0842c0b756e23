//! Admits requests in flight for a store that counts those of all processes.

use std::num::NonZeroU32;

use super::Core;
use crate::policy::Amounts;

/// The requests of a limiter whose store counts the requests in flight.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flight {
    /// The number of requests in flight.
    pub requests: u32,
    /// How many further requests the store admits. `None` if the limit applies without a store.
    pub admitted: Option<u32>,
    /// The number of waiters that are already in flight, because their permits have expired.
    pub renewing: u32,
}

impl Core {
    /// Replaces the limit, and how many further requests the store admits. Returns the number of requests in flight.
    pub fn admit(&mut self, max: NonZeroU32, further: Option<u32>, now: u64) -> u32 {
        self.end_held(now);
        if let Some(in_flight) = &mut self.in_flight {
            (in_flight.max, in_flight.admitted) = (max, further);
        }
        self.requests_in_flight(now).unwrap_or(0)
    }

    /// Replaces what the store has reported of each quota that counts a unit other than requests, in their order: the
    /// available amount, and until when it delays the first waiter.
    pub fn set_stored_units(&mut self, states: &[(u64, u64)], amounts: &Amounts) {
        self.units.iter_mut().for_each(|units| units.set_stored(states, amounts));
    }

    pub fn flight(&self, now: u64) -> Flight {
        Flight {
            requests: self.requests_in_flight(now).unwrap_or(0),
            admitted: self.in_flight.as_ref().and_then(|in_flight| in_flight.admitted),
            renewing: u32::try_from(self.queue.in_flight).unwrap_or(u32::MAX),
        }
    }
}
