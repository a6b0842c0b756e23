use http::{HeaderName, HeaderValue, Request};

use crate::{call::CallContext, config::text::Written, error::Error, headers, policy, random::Random, uuid};

/// Adds a key by which the server recognizes a repeated request (draft-ietf-httpapi-idempotency-key).
///
/// - The key is a UUID in the header `Idempotency-Key`. Each call has a new key, and all its attempts send the same
///   one.
/// - A key that the caller has set is kept.
/// - A request with an idempotent method gets no key, because it needs none.
/// - The layer marks its key as sensitive, so that HTTP/2 does not add it to its compression table. `Debug` of the
///   request's headers therefore does not show the key.
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
#[cfg_attr(
    feature = "serde",
    serde(expecting = "a table", default = "IdempotencyKey::bare", deny_unknown_fields)
)]
pub struct IdempotencyKey {
    header: Written<HeaderName>,
    quoted: bool,
}

impl IdempotencyKey {
    /// Sends the key without quotes, as most services expect it: `Idempotency-Key: 8e03978e-…`.
    pub fn bare() -> Self {
        Self { header: Written(HeaderName::from_static("idempotency-key")), quoted: false }
    }

    /// Sends the key as a quoted string, as the draft specifies: `Idempotency-Key: "8e03978e-…"`.
    pub fn quoted() -> Self {
        Self { quoted: true, ..Self::bare() }
    }

    /// Sets the name of the header.
    pub fn with_header(mut self, header: HeaderName) -> Self {
        self.header.0 = header;
        self
    }

    /// Adds a key unless the method is idempotent. Returns whether the request has a key.
    ///
    /// `repeats` is `true` if the call has sent the request before. It then sends the same key again, or none.
    pub(super) fn put_on<B>(
        &self,
        request: &mut Request<B>,
        call: &CallContext,
        repeats: bool,
        random: &Random,
    ) -> Result<bool, Error> {
        // An empty key cannot identify a request.
        let is_key = |key: &HeaderValue| key.as_bytes().iter().any(|byte| !b" \t\"".contains(byte));
        if request.headers().get(&self.header.0).is_some_and(is_key) {
            return Ok(true);
        }
        if policy::retry_decision::is_idempotent(request.method()) {
            return Ok(false);
        }
        if repeats {
            let Some(key) = call.idempotency_key(&self.header.0) else { return Ok(false) };
            return headers::insert(request.headers_mut(), &self.header.0, key).map(|()| true);
        }
        let key = uuid::v7_header(random);
        let key = match self.quoted {
            true => HeaderValue::try_from([b"\"", key.as_bytes(), b"\""].concat()),
            false => Ok(key),
        };
        // Quotes, hexadecimal digits and hyphens always make a valid header value.
        let Ok(mut key) = key else { return Ok(false) };
        headers::mark_unique(&mut key);
        call.keep_idempotency_key(&self.header.0, &key);
        headers::insert(request.headers_mut(), &self.header.0, key).map(|()| true)
    }
}
