use std::{fmt, str::FromStr};

use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use crate::{auth::ApiKey, error::InvalidConfig, preset::BaseUrl};

/// A key that stands among the settings. Read, and never written: not by `Serialize`, not by `Debug`.
///
/// One that can't be used is refused when something is made of the settings and not when they are read, for whoever
/// parses a file quotes the line that an error is about.
#[derive(Clone, PartialEq, Eq)]
pub struct InlineKey(Result<ApiKey, InvalidConfig>);

impl InlineKey {
    /// The key, if it can be used.
    ///
    /// # Errors
    ///
    /// As [`ApiKey::new`].
    pub fn key(&self) -> Result<ApiKey, InvalidConfig> {
        self.0.clone()
    }
}

impl From<ApiKey> for InlineKey {
    fn from(key: ApiKey) -> Self {
        Self(Ok(key))
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

/// Takes everything, so that no error of another crate's making can tell what stood there.
struct KeyVisitor;

macro_rules! no_text {
    ($($visit:ident: $type:ty),*) => {$(
        fn $visit<E: Error>(self, _: $type) -> Result<InlineKey, E> {
            Ok(no_text())
        }
    )*};
}

fn no_text() -> InlineKey {
    InlineKey(Err(InvalidConfig::new("api key", "given as a value", "a text")))
}

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = InlineKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<InlineKey, E> {
        Ok(InlineKey(ApiKey::new(key)))
    }

    no_text!(visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128, visit_f64: f64);
    no_text!(visit_bytes: &[u8]);

    fn visit_unit<E: Error>(self) -> Result<InlineKey, E> {
        Ok(no_text())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<InlineKey, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(no_text())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<InlineKey, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(no_text())
    }
}

/// Where a service lives, checked as every preset does: without user info, query and fragment, and so without a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl(String);

impl FromStr for ServiceUrl {
    type Err = InvalidConfig;

    fn from_str(text: &str) -> Result<Self, InvalidConfig> {
        BaseUrl::parse(text).map(|_| Self(text.to_owned()))
    }
}

impl AsRef<str> for ServiceUrl {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
