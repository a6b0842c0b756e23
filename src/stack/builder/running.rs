//! The change of a running client to the settings of another builder.

use std::fmt;

use super::StackBuilder;
use crate::{
    config::InvalidConfig,
    limit::LocalLimiter,
    stack::{Pool, pool::PoolLimiter},
};

/// The description in the error of a file, which has no field for these settings.
const IN_FILE: &str = "the client's, because a file cannot change what code has set";

impl StackBuilder {
    /// Returns this builder with the limiter of `running`, the builder of a client. Returns an error if a setting that
    /// cannot change differs.
    pub(crate) fn for_running(&self, running: &Self) -> Result<Self, InvalidConfig> {
        let pool = |builder: &Self| builder.pool.as_ref().map(Pool::id);
        let endpoints = |builder: &Self| builder.endpoints.as_ref().map(|limits| limits.id);
        let [max, old_max] = [self, running].map(|builder| builder.limiter_settings.max_in_flight);
        let layers = |field, new: &dyn fmt::Debug, old: &dyn fmt::Debug| {
            (field, format!("{new:?}"), format!("{old:?}, those of the client"))
        };
        #[cfg(feature = "decompression")]
        if self.decompresses != running.decompresses {
            let expected = format!("{}, that of the client", running.decompresses);
            return Err(InvalidConfig::of_setting("decompression", self.decompresses.to_string(), expected));
        }
        let (field, value, expected) = if self.base.uri != running.base.uri {
            let expected = format!("{}, that of the client", running.base.uri);
            return Err(InvalidConfig::of_setting("base url", self.base.uri.to_string(), expected));
        } else if pool(self) != pool(running) {
            ("pool", "another pool".into(), "a clone of the client's pool, or none if it has none".into())
        } else if !self.has_limiter_of(running) {
            const EXPECTED: &str = "the client's limiter: a clone of the `AnyLimiter` or `LocalLimiter`, or no `with_limiter` if the client was built without it";
            let error = InvalidConfig::new("limiter", "another limiter", EXPECTED);
            return Err(error.at("limit").expecting_in_file(IN_FILE));
        } else if endpoints(self) != endpoints(running) {
            const EXPECTED: &str = "a clone of the client's `Keyed`, or none if the client has none";
            ("endpoint limits", "other limits".into(), EXPECTED.into())
        } else if !running.has_given_limiter && max.is_some() != old_max.is_some() {
            let expected = if max.is_some() { "none" } else { "a number" };
            let value = max.map_or("none".into(), |max: std::num::NonZeroU32| max.to_string());
            let expected = format!("{expected}, because the limit cannot be added or removed at run time");
            return Err(InvalidConfig::of_setting("max in flight", value, expected).at("limit"));
        } else if self.transport_layers.0.len() != running.transport_layers.0.len() {
            layers("transport layers", &self.transport_layers, &running.transport_layers)
        } else if self.outer_layers.0.len() != running.outer_layers.0.len() {
            layers("outer layers", &self.outer_layers, &running.outer_layers)
        } else {
            self.check_limiter_settings()?;
            let mut new = self.clone();
            new.limit = new.limit.with_limiter(running.limiter().clone());
            new.has_given_limiter = running.has_given_limiter;
            return Ok(new);
        };
        Err(InvalidConfig::new(field, value, expected).expecting_in_file(IN_FILE))
    }

    fn has_limiter_of(&self, running: &Self) -> bool {
        match &self.pool {
            Some(pool) => self.limiter().downcast_ref::<PoolLimiter>().is_some_and(|own| own.is_of(pool)),
            None if self.has_given_limiter || running.has_given_limiter => {
                self.limiter().is_same(running.limiter())
            }
            None => true,
        }
    }

    /// Changes the limiter of a client to the builder's quotas, unless the builder has a given limiter.
    pub(crate) fn apply_to_limiter_of(&self, running: &Self) {
        let own = running.limiter().downcast_ref::<LocalLimiter>().filter(|_| !self.has_given_limiter);
        own.inspect(|limiter| limiter.reconfigure(&self.quotas, &self.limiter_settings));
    }
}
