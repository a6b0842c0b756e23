//! Changes the settings of a limiter in use.

use super::{Core, CoreSettings, has_quota};
use crate::policy::Quota;

impl Core {
    /// Replaces the quotas, the pauses and the limit of requests in flight. Ignores the other settings. Without a
    /// quota, the limiter begins to learn the rate. Once it learns, it always does, so that it keeps the learned rate.
    pub fn reconfigure(&mut self, quotas: &[Quota], settings: &CoreSettings, now: u64) {
        if self.server.pause.settings != settings.pauses {
            self.server.pause.settings = settings.pauses;
        }
        if let (Some(in_flight), Some(max)) = (&mut self.in_flight, settings.max_in_flight) {
            (in_flight.max, in_flight.hold) = (max, settings.hold_after_cancel);
        }
        if !has_quota(quotas) {
            self.supply.learn(now);
        }
        self.set_quotas(quotas, now);
    }
}
