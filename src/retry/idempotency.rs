use http::{HeaderName, HeaderValue, request};

use crate::{
    headers::{self, TooManyFields},
    id, policy,
    random::Random,
};

/// A key by which a server knows a request again that it has processed already (draft-ietf-httpapi-idempotency-key).
///
/// A UUID, new for each call and the same on all its attempts, in `Idempotency-Key`; a caller's own header is kept.
/// Requests of an idempotent method get none.
///
/// ```
/// use http::HeaderName;
/// use tower_outbound::retry::{IdempotencyKey, RetryLayer};
///
/// let key = IdempotencyKey::bare().with_header(HeaderName::from_static("x-request-token"));
/// let layer = RetryLayer::new().with_honoured_idempotency_key(key);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    header: HeaderName,
    quoted: bool,
}

impl IdempotencyKey {
    /// `Idempotency-Key: 8e03978e-…`, as most services take it.
    pub fn bare() -> Self {
        Self { header: HeaderName::from_static("idempotency-key"), quoted: false }
    }

    /// `Idempotency-Key: "8e03978e-…"`, the string with its quotes that the draft asks for.
    pub fn quoted() -> Self {
        Self { quoted: true, ..Self::bare() }
    }

    /// Under another name.
    pub fn with_header(mut self, header: HeaderName) -> Self {
        self.header = header;
        self
    }

    /// Adds a key to a request that its method does not make idempotent. Returns whether the request has one.
    pub(super) fn put_on(&self, head: &mut request::Parts, random: &Random) -> Result<bool, TooManyFields> {
        // One without content is none.
        let is_key = |key: &HeaderValue| key.as_bytes().iter().any(|byte| !b" \t\"".contains(byte));
        if head.headers.get(&self.header).is_some_and(is_key) {
            return Ok(true);
        }
        if policy::outcome::is_idempotent(&head.method) {
            return Ok(false);
        }
        let key = id::uuid_v7(random);
        let key = match self.quoted {
            true => HeaderValue::try_from([b"\"", key.as_bytes(), b"\""].concat()),
            false => Ok(key),
        };
        // Always a valid header value: quotes around hexadecimal digits and hyphens.
        let Ok(key) = key else { return Ok(false) };
        headers::insert(&mut head.headers, &self.header, key).map(|()| true)
    }
}
