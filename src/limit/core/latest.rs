//! The bounds of a request: its longest wait and its deadline.

use crate::error::Reason;

/// The latest time at which a grant is useful, for each bound of a request. `u64::MAX` without that bound.
#[derive(Debug, Clone, Copy)]
pub struct Latest {
    pub max_wait: u64,
    pub deadline: u64,
}

impl Latest {
    /// Returns the bound that a request misses if its permits become available at `due`. If `grace` is above zero,
    /// `due <= now` means that the forecast is unknown. In this case, `grace` extends the longest wait.
    pub fn missed_by(&self, due: u64, now: u64, grace: u64) -> Option<Reason> {
        let unknown = grace > 0 && due <= now;
        let missed = |latest| if unknown { now >= latest } else { due > latest };
        let max_wait = if unknown { self.max_wait.saturating_add(grace) } else { self.max_wait };
        match (missed(max_wait), missed(self.deadline)) {
            (true, true) if self.deadline < max_wait => Some(Reason::Deadline),
            (true, _) => Some(Reason::MaxWait),
            (false, true) => Some(Reason::Deadline),
            (false, false) => None,
        }
    }

    /// Returns the latest time at which a grant is useful.
    pub fn last(&self, grace: u64) -> u64 {
        self.max_wait.saturating_add(grace).min(self.deadline)
    }

    pub fn is_bounded(&self) -> bool {
        self.last(0) < u64::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_misses_the_earlier_of_its_longest_wait_and_its_deadline() {
        const END: u64 = u64::MAX;
        let (max_wait, deadline) = (Some(Reason::MaxWait), Some(Reason::Deadline));
        for (latest, due, now, grace, missed) in [
            ((END, END), END, 0, 0, None),
            ((5, END), 5, 0, 0, None),
            ((5, END), 6, 0, 0, max_wait),
            ((5, END), 5, 5, 0, None),
            ((END, 5), 5, 5, 0, None),
            ((END, 5), 6, 0, 0, deadline),
            ((7, 5), 6, 0, 0, deadline),
            ((7, 5), 8, 0, 0, deadline),
            ((5, 7), 8, 0, 0, max_wait),
            ((5, 5), 6, 0, 0, max_wait),
            // If the forecast is unknown, a request misses a bound as soon as the bound is reached.
            ((5, END), 5, 5, 3, None),
            ((5, END), 8, 8, 3, max_wait),
            ((END, 5), 5, 5, 3, deadline),
            ((5, END), 6, 5, 3, max_wait),
        ] {
            let bounds = Latest { max_wait: latest.0, deadline: latest.1 };
            assert_eq!(
                bounds.missed_by(due, now, grace),
                missed,
                "{latest:?}, due {due} at {now}, grace {grace}"
            );
        }
        assert_eq!(Latest { max_wait: 5, deadline: 9 }.last(3), 8);
        assert_eq!(Latest { max_wait: 5, deadline: 7 }.last(3), 7);
    }
}
