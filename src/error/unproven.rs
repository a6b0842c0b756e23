use std::{error::Error as StdError, fmt};

use super::BoxError;

/// Around a failure whose causes prove nothing of the request that was given: the service may have made other requests
/// of it. It may have been sent.
#[derive(Debug)]
pub(crate) struct Unproven {
    source: BoxError,
    lasting: bool,
}

#[cfg_attr(not(feature = "reqwest"), allow(dead_code, reason = "only an adapter makes one"))]
impl Unproven {
    pub(crate) fn new(source: impl Into<BoxError>) -> Self {
        Self { source: source.into(), lasting: false }
    }

    /// One that the next attempt would meet, too.
    pub(crate) fn for_good(source: impl Into<BoxError>) -> Self {
        Self { source: source.into(), lasting: true }
    }

    pub(crate) fn is_lasting(&self) -> bool {
        self.lasting
    }
}

impl fmt::Display for Unproven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it may have been sent")
    }
}

impl StdError for Unproven {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}
