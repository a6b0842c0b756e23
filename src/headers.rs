//! Adds header fields with the fallible methods of `HeaderMap`. Its other methods panic if the map is full.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{config::InvalidConfig, error::Error};

/// The maximum number of header names in a request. A `HeaderMap` holds up to 24,576 names, but only 6,553 if the
/// hashes of some names collide.
const CAPACITY: usize = 6_500;

/// The number of header names that are reserved for the fields of closures and clients. Both add fields with methods
/// that panic if the map is full.
const RESERVED: usize = 500;

/// Creates the error of a request whose headers have no room for another field.
fn too_many_fields() -> Error {
    Error::invalid_request("the request has more than 6,000 header fields")
}

/// Returns an error if the headers leave no room for the fields that closures and clients add.
pub(crate) fn check_room(headers: &HeaderMap) -> Result<(), Error> {
    match headers.keys_len() > CAPACITY - RESERVED {
        true => Err(too_many_fields()),
        false => Ok(()),
    }
}

/// Sets a field. Replaces its previous values.
pub(crate) fn insert(headers: &mut HeaderMap, name: &HeaderName, value: HeaderValue) -> Result<(), Error> {
    if headers.keys_len() >= CAPACITY && !headers.contains_key(name) {
        return Err(too_many_fields());
    }
    headers.try_insert(name, value).map(drop).map_err(|_| too_many_fields())
}

/// Adds a field. Keeps other values of the same name.
#[cfg(feature = "client")]
pub(crate) fn append(headers: &mut HeaderMap, name: HeaderName, value: HeaderValue) -> Result<(), Error> {
    if headers.keys_len() >= CAPACITY && !headers.contains_key(&name) {
        return Err(too_many_fields());
    }
    headers.try_append(name, value).map(drop).map_err(|_| too_many_fields())
}

/// Parses a name and a value. The error never contains the value, because it may be a secret.
pub(crate) fn parse<K, V>(name: K, value: V) -> Result<(HeaderName, HeaderValue), InvalidConfig>
where
    K: AsRef<str>,
    V: TryInto<HeaderValue>,
{
    let text = name.as_ref();
    let Ok(name) = HeaderName::from_bytes(text.as_bytes()) else {
        let expected = "letters, digits and hyphens, such as x-api-version";
        // The text may be a secret, for example if the arguments were swapped.
        let shown: String =
            text.chars().take_while(|c| c.is_ascii_alphabetic() || *c == '-').take(3).collect();
        return Err(InvalidConfig::new("header name", format!("{shown}…"), expected));
    };
    match value.try_into() {
        Ok(value) => Ok((name, value)),
        Err(_) => Err(InvalidConfig::new(
            "header",
            text.to_owned(),
            "a value of visible ascii characters and spaces",
        )),
    }
}

/// Sets a field if it is missing, and returns its value.
pub(crate) fn get_or_insert_with<'a>(
    headers: &'a mut HeaderMap,
    name: &HeaderName,
    value: impl FnOnce() -> HeaderValue,
) -> Result<&'a mut HeaderValue, Error> {
    // `try_entry` of a full map fails, even for a field that the map contains.
    if headers.keys_len() >= CAPACITY {
        return headers.get_mut(name).ok_or_else(too_many_fields);
    }
    let entry = headers.try_entry(name).map_err(|_| too_many_fields())?;
    entry.or_try_insert_with(value).map_err(|_| too_many_fields())
}

/// Marks a value that differs in each request as sensitive. Otherwise HTTP/2 would add it to its table of repeated fields,
/// and compare it with all values in the table.
pub(crate) fn mark_unique(value: &mut HeaderValue) {
    value.set_sensitive(true);
}

#[cfg(test)]
mod tests {
    use std::hash::{Hash, Hasher};

    use super::*;

    const NAME: HeaderName = HeaderName::from_static("x-more");

    fn named(number: usize) -> HeaderName {
        HeaderName::try_from(format!("x-{number}")).unwrap()
    }

    fn filled(count: usize) -> HeaderMap {
        (0..count).map(|number| (named(number), HeaderValue::from(number))).collect()
    }

    /// FNV-1a, the hash function that `HeaderMap` uses until many hashes collide.
    struct Fnv(u64);

    impl Hasher for Fnv {
        fn finish(&self) -> u64 {
            self.0
        }

        fn write(&mut self, bytes: &[u8]) {
            self.0 = bytes
                .iter()
                .fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
        }
    }

    fn hash(name: &HeaderName) -> u64 {
        let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
        name.hash(&mut hasher);
        hasher.finish() & 0x7fff
    }

    /// Creates a map of `count` names, some of which collide. The next insertion changes the map's hash function, or
    /// exceeds the maximum size of its table.
    fn colliding(count: usize) -> HeaderMap {
        // The names with the hashes 6 to 206 fill the table's slots in a row. A second name with the hash 6 then
        // displaces the 200 names after the first.
        let mut wanted: Vec<u64> = (7..207).chain([6, 6]).collect();
        let names = (100_000..).map(named).filter_map(|name| {
            let at = wanted.iter().position(|wanted| *wanted == hash(&name))?;
            Some((wanted.swap_remove(at), name))
        });
        let mut names: Vec<_> = names.take(202).collect();
        names.sort_by_key(|(hash, _)| std::cmp::Reverse(*hash));
        let others = (0..).map(named).filter(|name| hash(name) > 1_000).take(count - 202);
        let names = others.chain(names.into_iter().map(|(_, name)| name));
        let mut headers = HeaderMap::with_capacity(24_576);
        headers.extend(names.map(|name| (name, HeaderValue::from(1))));
        headers
    }

    #[test]
    fn check_room_rejects_colliding_header_names_before_an_insertion_panics() {
        let mut headers = colliding(6_000);
        assert!(check_room(&headers).is_ok());
        for number in 0..500 {
            headers.insert(named(50_000 + number), HeaderValue::from(1));
        }
        let full = colliding(6_600);
        assert!(check_room(&full).is_err());
        assert!(full.clone().try_insert(NAME, HeaderValue::from(1)).is_err(), "`http` rejects the name");
    }

    #[test]
    fn header_fields_are_added_up_to_the_capacity() {
        let mut headers = filled(CAPACITY - 1);
        assert_eq!(get_or_insert_with(&mut headers, &NAME, || HeaderValue::from(7)).unwrap(), "7");
        assert!(insert(&mut headers, &NAME, HeaderValue::from(8)).is_ok());
        for count in [CAPACITY, 24_576] {
            let mut headers = filled(count);
            assert!(insert(&mut headers, &NAME, HeaderValue::from(7)).is_err());
            assert!(get_or_insert_with(&mut headers, &NAME, || HeaderValue::from(7)).is_err());
        }
    }

    #[test]
    fn get_or_insert_returns_the_value_of_a_header_in_a_full_map() {
        let (mut headers, name) = (filled(24_576), HeaderName::from_static("x-17"));
        assert_eq!(get_or_insert_with(&mut headers, &name, || HeaderValue::from(0)).unwrap(), "17");
    }

    #[test]
    fn header_capacity_is_reserved_for_closures_and_clients() {
        assert!(check_room(&filled(6_000)).is_ok());
        let error = check_room(&filled(6_001)).unwrap_err();
        assert_eq!(error.to_string(), "invalid request: the request has more than 6,000 header fields");
    }
}
