//! Header fields that the layers add. A map of `http` panics above its capacity unless its fallible methods are used.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::error::{Error, Kind};

/// The capacity of `http`'s map, in names.
const CAPACITY: usize = 24_576;

/// Kept free for hooks and clients, which add fields by the methods that panic.
const RESERVED: usize = 576;

/// A request whose header fields leave no room for another one.
#[derive(Debug)]
pub(crate) struct TooManyFields {
    /// The field that does not fit, where it is known.
    name: Option<HeaderName>,
}

impl fmt::Display for TooManyFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => {
                write!(f, "the request has too many header fields (at most 24,576) to add `{name}`")
            }
            None => f.write_str("the request has too many header fields (at most 24,000)"),
        }
    }
}

impl std::error::Error for TooManyFields {}

impl From<TooManyFields> for Error {
    fn from(error: TooManyFields) -> Self {
        Self::new(Kind::Request, error)
    }
}

/// Returns an error unless hooks and clients have room for their own fields.
pub(crate) fn check_room(headers: &HeaderMap) -> Result<(), TooManyFields> {
    match headers.keys_len() > CAPACITY - RESERVED {
        true => Err(TooManyFields { name: None }),
        false => Ok(()),
    }
}

/// Sets a field, and replaces any value that it has.
pub(crate) fn insert(
    headers: &mut HeaderMap,
    name: &HeaderName,
    value: HeaderValue,
) -> Result<(), TooManyFields> {
    headers.try_insert(name, value).map(drop).map_err(|_| TooManyFields { name: Some(name.clone()) })
}

/// Sets a field unless it is set, and returns its value.
pub(crate) fn get_or_insert_with<'a>(
    headers: &'a mut HeaderMap,
    name: &HeaderName,
    value: impl FnOnce() -> HeaderValue,
) -> Result<&'a HeaderValue, TooManyFields> {
    let too_many = || TooManyFields { name: Some(name.clone()) };
    // A full map has no entries to offer, not even those that it has.
    if headers.keys_len() >= CAPACITY {
        return headers.get(name).ok_or_else(too_many);
    }
    let entry = headers.try_entry(name).map_err(|_| too_many())?;
    entry.or_try_insert_with(value).map(|value| &*value).map_err(|_| too_many())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: HeaderName = HeaderName::from_static("x-more");

    fn filled(count: usize) -> HeaderMap {
        (0..count)
            .map(|number| (HeaderName::try_from(format!("x-{number}")).unwrap(), HeaderValue::from(number)))
            .collect()
    }

    #[test]
    fn adds_a_field_up_to_the_capacity() {
        let mut headers = filled(CAPACITY - 1);
        assert_eq!(get_or_insert_with(&mut headers, &NAME, || HeaderValue::from(7)).unwrap(), "7");
        assert!(
            headers.try_insert("x-one-more", HeaderValue::from(8)).is_err(),
            "the capacity of `http`'s map"
        );
    }

    #[test]
    fn rejects_a_field_above_the_capacity() {
        let mut headers = filled(CAPACITY);
        let inserted = insert(&mut headers, &NAME, HeaderValue::from(7)).unwrap_err().to_string();
        let got = get_or_insert_with(&mut headers, &NAME, || HeaderValue::from(7)).unwrap_err().to_string();
        assert_eq!(inserted, got);
        assert_eq!(got, "the request has too many header fields (at most 24,576) to add `x-more`");
    }

    #[test]
    fn returns_the_value_of_a_full_map() {
        let (mut headers, name) = (filled(CAPACITY), HeaderName::from_static("x-17"));
        assert_eq!(get_or_insert_with(&mut headers, &name, || HeaderValue::from(0)).unwrap(), "17");
    }

    #[test]
    fn keeps_room_for_hooks_and_clients() {
        assert!(check_room(&filled(24_000)).is_ok());
        let error = check_room(&filled(24_001)).unwrap_err().to_string();
        assert_eq!(error, "the request has too many header fields (at most 24,000)");
    }
}
