//! The settings of a limiter, and the values that are derived from them.

use std::{borrow::Cow, fmt, num::NonZeroU32, time::Duration};

use redis::{Cmd, ConnectionInfo};
use sha2::{Digest, Sha256};

use super::protocol::{FlightReport, Query, micros};
use crate::{
    config::InvalidConfig,
    limit::core::{PauseSettings, Rule},
    policy::{Quota, nanos},
};

/// A store that does not reply is queried again after a random time of 50 to 250 ms.
pub(super) const SHORTEST_RETRY: Duration = Duration::from_millis(50);
pub(super) const LONGEST_RETRY: Duration = Duration::from_millis(250);

/// The end of the key that contains the requests in flight of each process.
pub(super) const FLIGHT: &str = ":flight";

/// Returns an error for an invalid value of a setting.
pub(super) fn require(
    is_valid: bool,
    field: &'static str,
    value: impl fmt::Debug,
    expected: impl Into<Cow<'static, str>>,
) -> Result<(), InvalidConfig> {
    if is_valid { Ok(()) } else { Err(InvalidConfig::new(field, format!("{value:?}"), expected)) }
}

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) info: ConnectionInfo,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) rule: Rule,
    pub(super) quotas: Vec<Quota>,
    /// The maximum number of permits that are fetched before requests need them.
    pub(super) lease: u32,
    /// The time from the start time of a permit to its expiry.
    pub(super) hold: Duration,
    pub(super) timeout: Duration,
    pub(super) pauses: PauseSettings,
    /// The quotas that this process applies while the store does not reply. If `None`, it refuses requests instead.
    pub(super) share: Option<Vec<Quota>>,
    /// The number of processes among which the limits are divided while the store does not reply.
    pub(super) processes: u32,
    pub(super) max_in_flight: Option<NonZeroU32>,
    /// How long the store counts the requests in flight of a process that sends no query.
    pub(super) in_flight_expiry: Duration,
}

impl Settings {
    pub(super) fn new(
        info: ConnectionInfo,
        name: &str,
        rule: Rule,
        quotas: Vec<Quota>,
    ) -> Result<Self, InvalidConfig> {
        let expected = "at least one quota to share";
        let shortest = quotas.iter().map(Quota::window).min();
        let shortest = shortest.ok_or_else(|| InvalidConfig::new("quotas", "none", expected))?;
        Ok(Self {
            info,
            name: name.to_owned(),
            namespace: "tower-outbound".to_owned(),
            rule,
            quotas,
            lease: 1,
            hold: (shortest / 50).clamp(Duration::from_millis(5), Duration::from_millis(250)).min(shortest),
            // This timeout is longer than a nearby server needs, and short enough for several queries before a call's
            // deadline.
            timeout: Duration::from_millis(250),
            pauses: PauseSettings::DEFAULT,
            share: None,
            processes: 1,
            max_in_flight: None,
            // Longer than any pause of a healthy process, and short enough for the users of a process that has crashed.
            in_flight_expiry: Duration::from_secs(10),
        })
    }

    /// Returns the quotas that count requests.
    fn requests(&self) -> impl Iterator<Item = &Quota> + Clone {
        self.quotas.iter().filter(|quota| quota.counts_requests())
    }

    /// Returns the quotas that count another unit.
    pub(super) fn units(&self) -> impl Iterator<Item = &Quota> + Clone {
        self.quotas.iter().filter(|quota| !quota.counts_requests())
    }

    /// Returns whether a quota counts a unit other than requests. Each request is then queried.
    pub(super) fn has_units(&self) -> bool {
        self.units().next().is_some()
    }

    /// Returns whether the store is also queried while a forecast or the limit of requests in flight delays a waiter.
    pub(super) fn is_queried_early(&self) -> bool {
        self.max_in_flight.is_some() || self.has_units()
    }

    /// Returns the shortest window of the quotas.
    pub(super) fn shortest(&self) -> Duration {
        self.quotas.iter().map(Quota::window).min().unwrap_or_default()
    }

    /// Returns how long before its start time the store may grant a permit. This is 100 ms, or `hold` if `hold` is
    /// longer, but at most a quarter of the shortest window. A process then need not wait between two queries, and the
    /// store keeps permits for other processes.
    pub(super) fn horizon(&self) -> Duration {
        let horizon = self.hold.max(Duration::from_millis(100)).min(self.shortest() / 4);
        horizon.max(Duration::from_micros(1))
    }

    /// Returns how long a process may use its share after a failed query. After one process has returned to the store,
    /// the other processes may continue to use their shares for this long.
    pub(super) fn holdoff(&self) -> Duration {
        // The next query starts at most `LONGEST_RETRY` after a failure, and takes at most `timeout`. Permits that the
        // store has already granted may start up to one horizon later.
        match self.share {
            None => self.horizon(),
            Some(_) => self.horizon().max(LONGEST_RETRY + self.timeout),
        }
    }

    /// Returns the maximum number of permits that one request can ever take.
    pub(super) fn largest(&self) -> u32 {
        let largest = |quota: &Quota| if self.is_logged(quota) { quota.limit() } else { self.burst(quota) };
        self.requests().map(largest).min().unwrap_or(u32::MAX)
    }

    /// Returns whether the store keeps a log of the grants of a quota. Otherwise, it keeps a bucket.
    fn is_logged(&self, quota: &Quota) -> bool {
        self.rule == Rule::SlidingWindow && quota.refill().is_none()
    }

    /// Returns the burst. For a [bucket](Quota::bucket), `hold` lowers the burst in the same way as the margin.
    fn burst(&self, quota: &Quota) -> u32 {
        self.held(quota).burst()
    }

    /// Extends the margin of a [bucket](Quota::bucket) by the time for which its permits may be kept.
    fn held(&self, quota: &Quota) -> Quota {
        let margin = quota.margin().saturating_add(self.hold);
        if quota.refill().is_some() { quota.with_bucket_margin(margin) } else { *quota }
    }

    /// Returns how long a grant counts towards the quota, in µs. This is the window plus margin and `hold`, and 1 µs
    /// more, because both ends of a window belong to the window.
    fn length(&self, quota: &Quota) -> u64 {
        micros(quota.counted_for(quota.margin() + self.hold)) + 1
    }

    /// Returns the time between two permits of a bucket, in ns. Returns zero for a log, whose permits may become
    /// available together.
    fn refill(&self, quota: &Quota) -> u64 {
        if self.is_logged(quota) {
            return 0;
        }
        if quota.refill().is_some() {
            return nanos(self.held(quota).refill_interval());
        }
        let length = self.length(quota).saturating_mul(1_000);
        length.div_ceil(u64::from(quota.limit() - quota.burst()).max(1))
    }

    /// Returns the longest time for which a grant counts towards a quota.
    pub(super) fn longest(&self) -> Duration {
        let lengths = self.quotas.iter().map(|quota| self.length(quota));
        Duration::from_micros(lengths.max().unwrap_or(0))
    }

    /// Returns the shortest time between two permits of a quota, in ns. Returns zero if one has a log.
    pub(super) fn interval(&self) -> u64 {
        self.requests().map(|quota| self.refill(quota)).min().unwrap_or(0)
    }

    /// Returns an id for each of these quotas: its window, and the number of earlier quotas of the unit with the same
    /// window.
    fn ids<'a>(quotas: impl Iterator<Item = &'a Quota> + Clone) -> impl Iterator<Item = String> {
        let windows = quotas.map(|quota| (quota.unit(), quota.window().as_micros()));
        windows.clone().enumerate().map(move |(index, own)| {
            let same = windows.clone().take(index).filter(|before| *before == own).count();
            format!("{}.{same}", own.1)
        })
    }

    /// Returns the Redis keys for the limiter's name. The part in braces assigns all keys to one slot of a cluster.
    pub(super) fn keys(&self) -> Vec<String> {
        let hash = Sha256::digest(self.name.as_bytes());
        let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let tag = format!("{}:{{{hex}}}", self.namespace);
        let state = tag + if self.rule == Rule::SlidingWindow { ":window" } else { ":bucket" };
        let logged =
            self.requests().zip(Self::ids(self.requests())).filter(|(quota, _)| self.is_logged(quota));
        let logs = logged.map(|(_, id)| format!("{state}:{id}"));
        let flight = self.max_in_flight.map(|_| format!("{state}{FLIGHT}"));
        std::iter::once(state.clone()).chain(logs).chain(flight).collect()
    }

    /// Writes the arguments in the order in which the script reads them. `fresh` tells the script that the connection
    /// is new. The server may then have restarted and lost its memory since the last query.
    pub(super) fn write(&self, command: &mut Cmd, query: &Query, fresh: bool) {
        let left = |until: u64| until.saturating_sub(query.now).div_ceil(1_000);
        let age = |at: u64| i64::try_from(query.now.saturating_sub(at) / 1_000).unwrap_or(i64::MAX);
        let known = query.known.map_or([0, 0, -1], |(known, at)| [known.born, known.granted, age(at)]);
        // A process has had no contact with the store for longer than `quiet` when its share grants the first permit.
        // Until then, either a query has timed out, or the share was empty for `horizon + hold`.
        let quiet = (self.timeout / 2).min(self.horizon() + self.hold);
        command
            .arg(query.want)
            .arg(query.unit.max(1))
            .arg(micros(self.horizon()))
            .arg(u8::from(fresh))
            .arg(&known)
            .arg(query.share_used.unwrap_or(0))
            .arg(u8::from(query.share_used.is_some()))
            .arg(micros(self.holdoff()))
            .arg(micros(quiet))
            .arg(left(query.updates.pause_until))
            .arg(query.updates.resumed_at.unwrap_or(-1))
            .arg(self.requests().count());
        for (quota, id) in self.requests().zip(Self::ids(self.requests())) {
            command
                .arg(quota.limit())
                .arg(self.burst(quota))
                .arg(self.length(quota))
                .arg(self.refill(quota))
                .arg(id);
        }
        command.arg(query.updates.gates.len());
        for gate in &query.updates.gates {
            command.arg(gate.policy).arg(gate.left).arg(left(gate.until));
        }
        command.arg(self.max_in_flight.map_or(0, NonZeroU32::get));
        if self.max_in_flight.is_some() {
            let FlightReport { id, requests, spare, counted_until } = query.flight;
            command.arg(requests).arg(spare).arg(counted_until).arg(micros(self.in_flight_expiry));
            command.arg(query.now).arg(format!("{id:016x}"));
        }
        self.write_units(command, query);
    }

    fn write_units(&self, command: &mut Cmd, Query { amounts, updates, .. }: &Query) {
        command.arg(self.units().count());
        for (quota, id) in self.units().zip(Self::ids(self.units())) {
            let unit = quota.unit();
            command
                .arg(quota.limit())
                .arg(self.length(quota))
                .arg(self.burst(quota))
                .arg(if quota.is_bucket() { self.refill(quota) } else { 0 })
                .arg(amounts.get(unit))
                .arg(updates.more.get(unit));
            command.arg(format!("{}.{id}", unit.as_str()));
        }
        command.arg(updates.less.len());
        for returned in &updates.less {
            command.arg(returned.since);
            self.units().for_each(|quota| _ = command.arg(returned.amounts.get(quota.unit())));
        }
    }
}
