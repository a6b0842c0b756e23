//! Copies header fields into one block of bytes, which is smaller than a `HeaderMap`.

use std::mem;

use http::{HeaderMap, HeaderName, HeaderValue};

/// The maximum number of bytes that are copied.
const MAX_SIZE: usize = 1024;
/// The size of the prefix of each field. The prefix contains the lengths of the name and the value, and whether the
/// value is sensitive.
const PREFIX: usize = 5;

/// Copies the fields. Returns `None` if they are larger than [`MAX_SIZE`].
pub(crate) fn encode(headers: &HeaderMap) -> Option<Box<[u8]>> {
    let size = |(name, value): (&HeaderName, &HeaderValue)| {
        PREFIX.saturating_add(name.as_str().len()).saturating_add(value.len())
    };
    let size = headers.iter().map(size).fold(0, usize::saturating_add);
    if size > MAX_SIZE {
        return None;
    }
    let mut bytes = vec![0; size].into_boxed_slice();
    write(headers, &mut bytes).map(|_| bytes)
}

/// Writes the fields to the start of `to`. Returns their size, or `None` if there is no room.
pub(crate) fn write(headers: &HeaderMap, mut to: &mut [u8]) -> Option<usize> {
    let room = to.len();
    for (name, value) in headers {
        let (name, value, sensitive) = (name.as_str().as_bytes(), value.as_bytes(), value.is_sensitive());
        let [n0, n1] = u16::try_from(name.len()).ok()?.to_le_bytes();
        let [v0, v1] = u16::try_from(value.len()).ok()?.to_le_bytes();
        for bytes in [&[n0, n1, v0, v1, sensitive.into()], name, value] {
            let (start, rest) = mem::take(&mut to).split_at_mut_checked(bytes.len())?;
            start.copy_from_slice(bytes);
            to = rest;
        }
    }
    Some(room - to.len())
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
    let (&[n0, n1, v0, v1, sensitive], rest) = bytes.split_first_chunk::<PREFIX>()?;
    let (name, rest) = rest.split_at_checked(u16::from_le_bytes([n0, n1]).into())?;
    let (value, rest) = rest.split_at_checked(u16::from_le_bytes([v0, v1]).into())?;
    let mut value = HeaderValue::from_bytes(value).ok()?;
    value.set_sensitive(sensitive != 0);
    // Unlike `from_bytes`, `from_lowercase` accepts every name that a `HeaderMap` can contain.
    Some((HeaderName::from_lowercase(name).ok()?, value, rest))
}
