use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use http::Extensions;

use super::{CallContext, attempt::OptionalDuration, extension_beside};
use crate::{
    clock::{self, Instant},
    policy::nanos,
};

/// The time by which the response headers of a call must arrive. The caller inserts it into the request's extensions.
///
/// If there are several deadlines, the layers use the earliest. A deadline never extends the total timeout. A deadline
/// always bounds the wait for the limiter and the delay before a retry. It cancels a running attempt only if the stack
/// contains a [`TotalTimeoutLayer`](crate::timeout::TotalTimeoutLayer) or an
/// [`AttemptTimeoutLayer`](crate::timeout::AttemptTimeoutLayer).
///
/// ```
/// use std::time::Duration;
/// use tower_outbound::call::Deadline;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Deadline::after(Duration::from_secs(3)));
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(pub Instant);

/// The time limit that the caller of a client has set for a request, as an extension. It replaces the total timeout of
/// the stack.
pub(crate) type RequestTimeout = (Instant, DeadlineSetting);

impl Deadline {
    /// Returns the deadline that is `left` from now.
    pub fn after(left: Duration) -> Self {
        Self(clock::after(clock::now(), left))
    }

    /// Returns the deadline of the call or the deadline in the request's extensions, whichever is earlier.
    pub(crate) fn of(call: Option<&CallContext>, extensions: &Extensions) -> Option<Instant> {
        let own = extension_beside(call, extensions).map(|Self(deadline)| *deadline);
        call.and_then(CallContext::deadline).into_iter().chain(own).min()
    }
}

impl CallContext {
    /// Returns the time by which the response headers must arrive, if the call has a deadline.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.shared.deadline().map(|(deadline, _)| deadline)
    }

    /// Sets the deadline, unless the call has an earlier one.
    pub(crate) fn narrow_deadline(&self, deadline: Instant, setting: DeadlineSetting) {
        self.0.shared.earliest_deadline.narrow(deadline.checked_duration_since(self.started()), setting);
    }

    /// Limits the time from the start of the call, unless the call has an earlier deadline.
    pub(crate) fn limit_time(&self, limit: Duration, setting: DeadlineSetting) {
        self.0.shared.earliest_deadline.narrow(Some(limit), setting);
    }
}

/// The setting that determines the deadline of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeadlineSetting {
    Extension = 0,
    RequestTimeout = 1,
    TotalTimeout = 2,
}

/// The earliest deadline of a call. Its two lowest bits are the setting. The other bits are the nanoseconds after the
/// start of the call, plus 1, or 0 for a deadline before the start.
#[derive(Debug)]
pub(super) struct EarliestDeadline(AtomicU64);

impl EarliestDeadline {
    const NONE: u64 = u64::MAX;
    const BITS: u32 = 2;
    /// About 146 years.
    const LATEST: u64 = (Self::NONE >> Self::BITS) - 1;

    /// `after` is the time from the start of the call to the deadline, or `None` for a deadline before the start.
    fn narrow(&self, after: Option<Duration>, setting: DeadlineSetting) {
        let after = after.map_or(0, |after| nanos(after).saturating_add(1));
        self.0.fetch_min((after.min(Self::LATEST) << Self::BITS) | setting as u64, Ordering::Relaxed);
    }

    /// Returns whether the deadline has passed, this long after the start of the call.
    pub(super) fn has_passed(&self, elapsed: OptionalDuration) -> bool {
        let stored = self.0.load(Ordering::Relaxed);
        stored != Self::NONE && stored >> Self::BITS <= elapsed.0
    }

    /// Returns the deadline of a call that started at `start`.
    pub(super) fn get(&self, start: Instant) -> Option<(Instant, DeadlineSetting)> {
        let stored = self.0.load(Ordering::Relaxed);
        let deadline = match stored >> Self::BITS {
            _ if stored == Self::NONE => return None,
            0 => start.checked_sub(Duration::from_nanos(1)).unwrap_or(start),
            after => clock::after(start, Duration::from_nanos(after - 1)),
        };
        let setting = match stored & 3 {
            0 => DeadlineSetting::Extension,
            1 => DeadlineSetting::RequestTimeout,
            _ => DeadlineSetting::TotalTimeout,
        };
        Some((deadline, setting))
    }
}

impl Default for EarliestDeadline {
    fn default() -> Self {
        Self(AtomicU64::new(Self::NONE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_deadline_applies_with_its_setting() {
        let (start, second) = (clock::now() + Duration::from_secs(9), Duration::from_secs(1));
        let earliest = EarliestDeadline::default();
        assert_eq!(earliest.get(start), None);
        for (deadline, setting, expected) in [
            (start + second * 9, DeadlineSetting::TotalTimeout, true),
            (start + second * 8, DeadlineSetting::RequestTimeout, true),
            (start + second * 8, DeadlineSetting::TotalTimeout, false),
            (start + second * 9, DeadlineSetting::Extension, false),
            (start, DeadlineSetting::Extension, true),
            (start - Duration::from_nanos(1), DeadlineSetting::TotalTimeout, true),
        ] {
            earliest.narrow(deadline.checked_duration_since(start), setting);
            assert_eq!(earliest.get(start) == Some((deadline, setting)), expected, "{deadline:?}");
        }
        let latest = EarliestDeadline::default();
        let century = clock::after(start, Duration::MAX);
        latest.narrow(century.checked_duration_since(start), DeadlineSetting::TotalTimeout);
        assert_eq!(latest.get(start), Some((century, DeadlineSetting::TotalTimeout)));
    }

    #[test]
    fn deadline_has_passed_from_the_first_nanosecond_after_it() {
        let (earliest, second) = (EarliestDeadline::default(), Duration::from_secs(1));
        let has_passed = |elapsed: Duration| earliest.has_passed(elapsed.into());
        assert!(!has_passed(Duration::MAX));
        earliest.narrow(Some(second), DeadlineSetting::TotalTimeout);
        assert!(!has_passed(second) && has_passed(second + Duration::from_nanos(1)));
        earliest.narrow(Some(Duration::ZERO), DeadlineSetting::Extension);
        assert!(!has_passed(Duration::ZERO) && has_passed(Duration::from_nanos(1)));
        earliest.narrow(None, DeadlineSetting::Extension);
        assert!(has_passed(Duration::ZERO));
    }
}
