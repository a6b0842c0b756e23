//! Copies header fields into one block of bytes, which is smaller than a `HeaderMap`.

use std::mem;

use http::{HeaderMap, HeaderName, HeaderValue};

/// The maximum number of bytes that are copied.
const MAX_SIZE: usize = 1024;
/// The size of the prefix of each field. Its first byte is the length of the name. The other bytes are twice the length
/// of the value, plus 1 if the value is sensitive.
const PREFIX: usize = 3;

/// Copies the fields. Returns `None` if they are larger than [`MAX_SIZE`], or a name has more than 255 bytes.
pub(crate) fn encode(headers: &HeaderMap) -> Option<Box<[u8]>> {
    let mut bytes = allocate(size(headers))?;
    write(headers, &mut bytes).map(|_| bytes)
}

/// Allocates a block of `size` bytes. Returns `None` if `size` exceeds [`MAX_SIZE`].
pub(crate) fn allocate(size: usize) -> Option<Box<[u8]>> {
    (size <= MAX_SIZE).then(|| vec![0; size].into_boxed_slice())
}

/// Returns the number of bytes that [`write`] writes.
pub(crate) fn size(headers: &HeaderMap) -> usize {
    let size = |(name, value): (&HeaderName, &HeaderValue)| {
        PREFIX.saturating_add(name.as_str().len()).saturating_add(value.len())
    };
    headers.iter().map(size).fold(0, usize::saturating_add)
}

/// Writes the fields to the start of `to`. Returns their size, or `None` if `to` is too short or a length does not fit
/// into its prefix.
pub(crate) fn write(headers: &HeaderMap, mut to: &mut [u8]) -> Option<usize> {
    let room = to.len();
    for (name, value) in headers {
        let (name, sensitive) = (name.as_str().as_bytes(), value.is_sensitive());
        let length = u16::try_from(value.len()).ok()?.checked_mul(2)?;
        let [low, high] = (length + u16::from(sensitive)).to_le_bytes();
        put(&mut to, &[u8::try_from(name.len()).ok()?, low, high])?;
        put(&mut to, name)?;
        put(&mut to, value.as_bytes())?;
    }
    Some(room - to.len())
}

/// Copies `text` to the start of `to`, and advances `to` past it. Returns `None` if there is no room.
#[inline]
pub(crate) fn put(to: &mut &mut [u8], text: &[u8]) -> Option<()> {
    let (start, rest) = mem::take(to).split_at_mut_checked(text.len())?;
    start.copy_from_slice(text);
    *to = rest;
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
