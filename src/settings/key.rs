use std::{fmt, str::FromStr};

use http::HeaderName;
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

use super::text::header_name;
use crate::{
    auth::{ApiKey, Form},
    error::InvalidConfig,
    preset::{BaseUrl, StackBuilder},
};

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

/// Where on a request the key goes: `bearer`, `header:NAME`, `query:NAME` or `basic:USER`.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyPlace {
    /// `Authorization: Bearer <key>`.
    #[default]
    Bearer,
    /// The header of this name.
    Header(HeaderName),
    /// The query parameter of this name.
    Query(String),
    /// `Authorization: Basic`, as the password of this user.
    Basic(String),
}

impl KeyPlace {
    /// The same as a form of [`Rotating`](crate::auth::Rotating).
    ///
    /// # Errors
    ///
    /// When the header frames the message, the parameter has no name, or the user has a colon.
    pub fn form(&self) -> Result<Form, InvalidConfig> {
        match self {
            Self::Bearer => Ok(Form::bearer()),
            Self::Header(name) => Form::header(name.clone()),
            Self::Query(name) => Form::query(name),
            Self::Basic(user) => Form::basic(user),
        }
    }

    pub(super) fn on(self, preset: StackBuilder) -> StackBuilder {
        match self {
            Self::Bearer => preset,
            Self::Header(name) => preset.with_key_in_header(name),
            Self::Query(name) => preset.with_key_in_query(name),
            Self::Basic(user) => preset.with_key_as_password(user),
        }
    }

    fn checked(self) -> Result<Self, InvalidConfig> {
        self.form().map(|_| self)
    }
}

/// As far as it can be a name.
fn start_of(name: &str) -> String {
    name.chars().take_while(|one| one.is_ascii_alphanumeric() || "-_".contains(*one)).take(32).collect()
}

impl FromStr for KeyPlace {
    type Err = InvalidConfig;

    fn from_str(text: &str) -> Result<Self, InvalidConfig> {
        match text.split_once(':') {
            None if text == "bearer" => Ok(Self::Bearer),
            // What follows a name may be the key, by mistake: it is neither shown nor kept.
            Some(("header", name)) if name.contains([':', '=', ' ']) => Err(InvalidConfig::new(
                "key place",
                format!("header:{}...", start_of(name)),
                "the name of a header and nothing after it",
            )),
            Some(("header", name)) => Self::Header(header_name(name)?).checked(),
            Some(("query", name))
                if name.contains(|one: char| "=&#?:".contains(one) || one.is_whitespace()) =>
            {
                Err(InvalidConfig::new(
                    "key place",
                    format!("query:{}...", start_of(name)),
                    "the name of a parameter and nothing after it",
                ))
            }
            Some(("query", name)) => Self::Query(name.to_owned()).checked(),
            Some(("basic", user)) => Self::Basic(user.to_owned()).checked(),
            _ => {
                let expected = "bearer, header:NAME, query:NAME or basic:USER";
                // Or the key itself stands in its place.
                let shown: String = text.chars().take_while(char::is_ascii_lowercase).take(8).collect();
                let shown = if shown == text { shown } else { format!("{shown}...") };
                Err(InvalidConfig::new("key place", shown, expected))
            }
        }
    }
}

impl fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bearer => f.write_str("bearer"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
            // What follows a colon was meant as the password.
            Self::Basic(user) => write!(f, "basic:{}", user.split(':').next().unwrap_or_default()),
        }
    }
}

impl fmt::Debug for KeyPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPlace({self})")
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
