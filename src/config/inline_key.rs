use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use zeroize::Zeroizing;

use super::InvalidConfig;

/// A key that is written in a configuration file. `Debug` redacts it, and there is no `Serialize`.
///
/// A parser of files quotes the line of a value that cannot be deserialized, and this line contains the key.
/// Deserialization therefore accepts a value of any type. [`text`](Self::text) then rejects a value that is not a
/// string.
#[derive(Clone, PartialEq)]
pub(crate) struct InlineKey(Option<Zeroizing<String>>);

impl InlineKey {
    pub(crate) fn text(&self) -> Result<&str, InvalidConfig> {
        let text = self.0.as_ref().map(|text| text.as_str());
        text.ok_or_else(|| InvalidConfig::new("api key", "given as a value", "a string"))
    }
}

impl fmt::Debug for InlineKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InlineKey(redacted)")
    }
}

impl<'de> Deserialize<'de> for InlineKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(KeyVisitor)
    }
}

struct KeyVisitor;

macro_rules! no_text {
    ($($visit:ident: $type:ty),*) => {$(
        fn $visit<E: Error>(self, _: $type) -> Result<InlineKey, E> {
            Ok(InlineKey(None))
        }
    )*};
}

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = InlineKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<InlineKey, E> {
        Ok(InlineKey(Some(Zeroizing::new(key.to_owned()))))
    }

    no_text!(visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128, visit_f64: f64);
    no_text!(visit_bytes: &[u8]);

    fn visit_unit<E: Error>(self) -> Result<InlineKey, E> {
        Ok(InlineKey(None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<InlineKey, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(InlineKey(None))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<InlineKey, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(InlineKey(None))
    }
}
