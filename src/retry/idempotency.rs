use http::{HeaderName, HeaderValue, request};

use crate::{config::text::Written, error::Error, headers, policy, random::Random, uuid};

/// Adds a key by which the server recognizes a request that it has processed (draft-ietf-httpapi-idempotency-key).
///
/// - The key is a UUID in `Idempotency-Key`. It is new for each call, and the same on all its attempts.
/// - The caller's own header is kept.
/// - A request with an idempotent method gets no key.
///
/// ```
/// use http::HeaderName;
/// use tower_outbound::retry::{IdempotencyKey, RetryLayer};
///
/// let key = IdempotencyKey::bare().with_header(HeaderName::from_static("x-request-token"));
/// let layer = RetryLayer::new().with_honoured_idempotency_key(key);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default = "IdempotencyKey::bare", deny_unknown_fields))]
pub struct IdempotencyKey {
    header: Written<HeaderName>,
    quoted: bool,
}

impl IdempotencyKey {
    /// Writes `Idempotency-Key: 8e03978e-…`, as most services expect it.
    pub fn bare() -> Self {
        Self { header: Written(HeaderName::from_static("idempotency-key")), quoted: false }
    }

    /// Writes `Idempotency-Key: "8e03978e-…"`, the quoted string of the draft.
    pub fn quoted() -> Self {
        Self { quoted: true, ..Self::bare() }
    }

    /// Sets the name of the header.
    pub fn with_header(mut self, header: HeaderName) -> Self {
        self.header.0 = header;
        self
    }

    /// Adds a key to a request that its method does not make idempotent. Returns whether the request has one.
    pub(super) fn put_on(&self, head: &mut request::Parts, random: &Random) -> Result<bool, Error> {
        // An empty key identifies nothing.
        let is_key = |key: &HeaderValue| key.as_bytes().iter().any(|byte| !b" \t\"".contains(byte));
        if head.headers.get(&self.header.0).is_some_and(is_key) {
            return Ok(true);
        }
        if policy::outcome::is_idempotent(&head.method) {
            return Ok(false);
        }
        let key = uuid::v7_header(random);
        let key = match self.quoted {
            true => HeaderValue::try_from([b"\"", key.as_bytes(), b"\""].concat()),
            false => Ok(key),
        };
        // Always a valid header value: quotes around hexadecimal digits and hyphens.
        let Ok(key) = key else { return Ok(false) };
        headers::insert(&mut head.headers, &self.header.0, key).map(|()| true)
    }
}
