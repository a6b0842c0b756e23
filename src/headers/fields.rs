//! Copies header fields into one block of bytes, which is smaller than a `HeaderMap`.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The maximum number of bytes that are copied.
const MAX_SIZE: usize = 1024;
/// The size of the prefix of each field. Its first byte is the length of the name. The other bytes are twice the length
/// of the value, plus 1 if the value is sensitive.
const PREFIX: usize = 3;

/// Copies the fields. Returns `None` if they are larger than [`MAX_SIZE`], or a name has more than 255 bytes.
pub(crate) fn encode(headers: &HeaderMap) -> Option<Box<[u8]>> {
    let mut bytes = allocate(size(headers))?;
    write(headers, &mut bytes)?;
    Some(bytes.into_boxed_slice())
}

/// Allocates room for `size` bytes. Returns `None` if `size` exceeds [`MAX_SIZE`].
pub(crate) fn allocate(size: usize) -> Option<Vec<u8>> {
    (size <= MAX_SIZE).then(|| Vec::with_capacity(size))
}

/// Returns the number of bytes that [`write`] writes.
pub(crate) fn size(headers: &HeaderMap) -> usize {
    let size = |(name, value): (&HeaderName, &HeaderValue)| {
        PREFIX.saturating_add(name.as_str().len()).saturating_add(value.len())
    };
    headers.iter().map(size).fold(0, usize::saturating_add)
}

/// Adds the fields to `bytes`. Returns `None` if a length does not fit into its prefix.
pub(crate) fn write(headers: &HeaderMap, bytes: &mut Vec<u8>) -> Option<()> {
    for (name, value) in headers {
        let (name, sensitive) = (name.as_str().as_bytes(), value.is_sensitive());
        let length = u16::try_from(value.len()).ok()?.checked_mul(2)?;
        let [low, high] = (length + u16::from(sensitive)).to_le_bytes();
        bytes.extend_from_slice(&[u8::try_from(name.len()).ok()?, low, high]);
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value.as_bytes());
    }
    Some(())
}

/// Returns the fields that [`encode`] or [`write`] has copied.
pub(crate) fn decode(mut bytes: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    while let Some((name, value, rest)) = field(bytes) {
        // The fields fit into the map, because they fitted into the map from which they were copied.
        let _ = headers.try_append(name, value);
        bytes = rest;
    }
    headers
}

/// Returns the first field and the remaining bytes.
fn field(bytes: &[u8]) -> Option<(HeaderName, HeaderValue, &[u8])> {
    let (&[name, low, high], rest) = bytes.split_first_chunk::<PREFIX>()?;
    let length = u16::from_le_bytes([low, high]);
    let (name, rest) = rest.split_at_checked(name.into())?;
    let (value, rest) = rest.split_at_checked(usize::from(length / 2))?;
    let mut value = HeaderValue::from_bytes(value).ok()?;
    value.set_sensitive(length % 2 != 0);
    // Unlike `from_bytes`, `from_lowercase` accepts every name that a `HeaderMap` can contain.
    Some((HeaderName::from_lowercase(name).ok()?, value, rest))
}
