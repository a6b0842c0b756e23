use crate::policy::Delivery;

/// What an attempt's error proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::retry) struct Proof {
    pub(in crate::retry) delivery: Delivery,
    /// Whether the next attempt would fail in the same way, until a certificate, a setting or the request changes.
    pub(in crate::retry) lasting: bool,
}

pub(super) const NOT_SENT: Proof = Proof { delivery: Delivery::NotSent, lasting: false };
pub(super) const MAYBE: Proof = Proof { delivery: Delivery::MaybeProcessed, lasting: false };
