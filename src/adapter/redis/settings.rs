//! The settings of a limiter, and what follows from them.

use std::time::Duration;

use redis::{Cmd, ConnectionInfo};
use sha2::{Digest, Sha256};

use super::protocol::{Kind, Query, micros};
use crate::{config::InvalidConfig, policy::Quota};

/// A store that does not reply is queried again after a random time between these two.
pub(super) const SHORTEST_RETRY: Duration = Duration::from_millis(50);
pub(super) const LONGEST_RETRY: Duration = Duration::from_millis(250);

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) info: ConnectionInfo,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) kind: Kind,
    pub(super) quotas: Vec<Quota>,
    /// The most permits that are fetched ahead of requests.
    pub(super) lease: u32,
    /// How long a permit may be used after the moment for which it was granted.
    pub(super) hold: Duration,
    pub(super) timeout: Duration,
    /// The quotas of this process while the store does not reply. `None` refuses.
    pub(super) share: Option<Vec<Quota>>,
}

impl Settings {
    pub(super) fn new(
        info: ConnectionInfo,
        name: &str,
        kind: Kind,
        quotas: Vec<Quota>,
    ) -> Result<Self, InvalidConfig> {
        let expected = "at least one: without any there is nothing to share";
        let shortest = quotas.iter().map(Quota::window).min();
        let shortest = shortest.ok_or_else(|| InvalidConfig::new("quotas", "none", expected))?;
        Ok(Self {
            info,
            name: name.to_owned(),
            namespace: "tower-outbound".to_owned(),
            kind,
            quotas,
            lease: 1,
            hold: (shortest / 50).clamp(Duration::from_millis(5), Duration::from_millis(250)).min(shortest),
            // Longer than a nearby server takes, and short enough for several queries within a call's deadline.
            timeout: Duration::from_millis(250),
            share: None,
        })
    }

    /// The shortest window.
    pub(super) fn shortest(&self) -> Duration {
        self.quotas.iter().map(Quota::window).min().unwrap_or_default()
    }

    /// How long ahead of its moment a permit is granted: 100 ms, or a quarter of a shorter window. A process is never idle
    /// between two queries, and leaves permits to the others.
    pub(super) fn horizon(&self) -> Duration {
        let horizon = self.hold.max(Duration::from_millis(100)).min(self.shortest() / 4);
        horizon.max(Duration::from_micros(1))
    }

    /// How long after a failure the share may be used, also by the other processes when one has come back.
    pub(super) fn holdoff(&self) -> Duration {
        // A process that uses its share queries again after the longest retry. Permits are granted a horizon ahead.
        match self.share {
            None => self.horizon(),
            Some(_) => self.horizon().max(LONGEST_RETRY + self.timeout),
        }
    }

    /// The most permits that one request can ever take.
    pub(super) fn largest(&self) -> u32 {
        self.quotas.iter().map(|quota| self.kind.most(quota).0).min().unwrap_or(u32::MAX)
    }

    /// How long a grant counts, in µs. Both ends of a window count.
    fn length(&self, quota: &Quota) -> u64 {
        micros(quota.window() + quota.margin() + self.hold) + 1
    }

    /// The time between two permits of a bucket, in ns.
    fn refill(&self, quota: &Quota) -> u64 {
        let length = self.length(quota).saturating_mul(1_000);
        length.div_ceil(u64::from(quota.limit() - quota.burst()).max(1))
    }

    /// The longest time for which a grant counts.
    pub(super) fn longest(&self) -> Duration {
        let lengths = self.quotas.iter().map(|quota| self.length(quota));
        Duration::from_micros(lengths.max().unwrap_or(0))
    }

    /// The shortest time between two permits of a bucket, in ns. Zero for a window, whose permits may become available
    /// together.
    pub(super) fn interval(&self) -> u64 {
        match self.kind {
            Kind::TokenBucket => self.quotas.iter().map(|quota| self.refill(quota)).min().unwrap_or(0),
            Kind::SlidingWindow => 0,
        }
    }

    /// Each quota's id: its window, and how many quotas before it have the same one.
    fn ids(&self) -> impl Iterator<Item = String> {
        let windows = || self.quotas.iter().map(|quota| quota.window().as_micros());
        windows().enumerate().map(move |(index, window)| {
            let same = windows().take(index).filter(|before| *before == window).count();
            format!("{window}.{same}")
        })
    }

    /// The keys of one name. The part in braces places them in one slot of a cluster.
    pub(super) fn keys(&self) -> Vec<String> {
        let hash = Sha256::digest(self.name.as_bytes());
        let hex: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let tag = format!("{}:{{{hex}}}", self.namespace);
        match self.kind {
            Kind::TokenBucket => vec![format!("{tag}:bucket")],
            Kind::SlidingWindow => {
                let state = format!("{tag}:window");
                let logs: Vec<_> = self.ids().map(|id| format!("{state}:{id}")).collect();
                std::iter::once(state).chain(logs).collect()
            }
        }
    }

    /// Writes the arguments in the order in which the script reads them. `fresh`: the connection is new, so that the server
    /// may have lost its memory.
    pub(super) fn write(&self, command: &mut Cmd, query: &Query, fresh: bool) {
        let left = |until: u64| until.saturating_sub(query.now).div_ceil(1_000);
        let known = query.known.map_or([0, 0, -1], |(known, at)| {
            let age = query.now.saturating_sub(at) / 1_000;
            [known.born, known.granted, i64::try_from(age).unwrap_or(i64::MAX)]
        });
        // A process that uses its share has sent no query for longer, and its share grants nothing before that.
        let quiet = (self.timeout / 2).min(self.horizon() + self.hold);
        command
            .arg(u8::from(self.kind == Kind::SlidingWindow))
            .arg(query.want)
            .arg(query.unit.max(1))
            .arg(micros(self.horizon()))
            .arg(u8::from(fresh))
            .arg(&known)
            .arg(query.back.unwrap_or(0))
            .arg(u8::from(query.back.is_some()))
            .arg(micros(self.holdoff()))
            .arg(micros(quiet))
            .arg(left(query.news.pause_until))
            .arg(u8::from(query.news.resume))
            .arg(self.quotas.len());
        for (quota, id) in self.quotas.iter().zip(self.ids()) {
            command
                .arg(quota.limit())
                .arg(quota.burst())
                .arg(self.length(quota))
                .arg(self.refill(quota))
                .arg(id);
        }
        command.arg(query.news.gates.len());
        for gate in &query.news.gates {
            command.arg(gate.policy).arg(gate.left).arg(left(gate.until));
        }
    }
}
