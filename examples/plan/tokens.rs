//! The quota of tokens, and the tokens of the requests.

use std::{
    collections::HashMap,
    num::{NonZero, NonZeroU32},
};

use tower_outbound::{Quota, limit::Unit};
use tower_outbound_examples::ArgumentError;

use crate::arguments::{number, per_second};

pub(crate) const REQUEST_TOKENS: &str = "800";
pub(crate) const ESTIMATE_ERROR: &str = "50";
pub(crate) const MAX_TOKENS: u32 = 100_000_000;
pub(crate) const MAX_TOKENS_PER_SECOND: f64 = 10_000_000.0;

/// A second quota, and what the requests take of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tokens {
    pub(crate) quota: Quota,
    pub(crate) estimate: NonZeroU32,
    /// The largest difference of the actual tokens from the estimate, in percent of the estimate.
    pub(crate) error: u32,
}

impl Tokens {
    /// Parses the options of tokens. The options of a request need the quota.
    pub(crate) fn parse(options: &HashMap<&str, String>) -> Result<Option<Self>, ArgumentError> {
        let Some(text) = options.get("--tokens") else {
            let useless = ["--request-tokens", "--estimate-error"].into_iter().find_map(|name| {
                options
                    .get(name)
                    .map(|value| ArgumentError::new(name, value, "--tokens LIMIT/WINDOW as well"))
            });
            return useless.map_or(Ok(None), Err);
        };
        let invalid = |error| ArgumentError::invalid("--tokens", text, &error);
        let quota: Quota = text.parse().map_err(invalid)?;
        let quota = match quota.unit() {
            Unit::Requests | Unit::Tokens => quota.with_unit(Unit::Tokens).map_err(invalid)?,
            _ => return Err(ArgumentError::new("--tokens", text, "a quota of tokens")),
        };
        if quota.limit() > MAX_TOKENS || per_second(quota) > MAX_TOKENS_PER_SECOND {
            let expected =
                format!("at most {MAX_TOKENS} tokens per window and {MAX_TOKENS_PER_SECOND} per second");
            return Err(ArgumentError::new("--tokens", text, &expected));
        }
        let option = |name, default, least, most| {
            number(name, options.get(name).map_or(default, String::as_str), least, most)
        };
        let estimate = option("--request-tokens", REQUEST_TOKENS, 1, quota.limit())?;
        let error = option("--estimate-error", ESTIMATE_ERROR, 0, 100)?;
        Ok(NonZero::new(estimate).map(|estimate| Self { quota, estimate, error }))
    }

    /// Returns the actual tokens of the next request, by the random number generator splitmix64. All strategies send
    /// the same requests.
    pub(crate) fn actual(&self, state: &mut u64) -> u32 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut random = *state;
        for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb), (31, 1)] {
            random = (random ^ (random >> shift)).wrapping_mul(factor);
        }
        let estimate = u64::from(self.estimate.get());
        let spread = estimate * u64::from(self.error) / 100;
        u32::try_from(estimate - spread + random % (2 * spread + 1)).unwrap_or(u32::MAX)
    }
}
