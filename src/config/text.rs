//! Reads and writes values that are strings in configuration files.

use std::fmt;

/// A value that configuration files contain as a string. A file may contain a number instead, which is parsed like a
/// string of its digits.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Written<T>(pub(crate) T);

impl<T: fmt::Debug> fmt::Debug for Written<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(feature = "serde")]
pub(crate) use self::form::{Checked, InlineKey, List, Text, text};

#[cfg(feature = "serde")]
mod form {
    use std::{fmt, marker::PhantomData};

    use http::{HeaderName, HeaderValue, StatusCode};
    use serde::{
        Deserialize, Deserializer, Serialize, Serializer,
        de::{Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor},
    };
    use zeroize::Zeroizing;

    use super::Written;
    use crate::config::InvalidConfig;

    /// Several values, written as a list of strings. A single string is also accepted.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) struct List<T>(pub(crate) Vec<T>);

    impl<T> Default for List<T> {
        fn default() -> Self {
            Self(Vec::new())
        }
    }

    pub(crate) trait Text: Sized {
        const EXPECTED: &'static str;

        fn read(text: &str) -> Result<Self, InvalidConfig>;

        fn write(&self) -> String;
    }

    macro_rules! text {
        ($($type:ty, $expected:literal, $read:expr, $write:expr;)*) => {$(
            impl $crate::config::text::Text for $type {
                const EXPECTED: &'static str = $expected;

                fn read(text: &str) -> Result<Self, $crate::config::InvalidConfig> {
                    $read(text)
                }

                fn write(&self) -> String {
                    $write(self)
                }
            }
        )*};
    }

    pub(crate) use text;

    text! {
        HeaderName, "the name of a header",
            |text: &str| text.parse().map_err(|_| invalid("header", text, "the name of a header, such as x-api-key")),
            HeaderName::to_string;
        HeaderValue, "the value of a header",
            |text: &str| text.parse().map_err(|_| invalid("header value", text, "visible ASCII characters and spaces")),
            |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        StatusCode, "a status such as 409",
            |text: &str| text.parse().map_err(|_| invalid("status", text, "100 to 999")),
            |status: &StatusCode| status.as_str().to_owned();
    }

    fn invalid(field: &'static str, text: &str, expected: &'static str) -> InvalidConfig {
        InvalidConfig::new(field, text.escape_debug().to_string(), expected)
    }

    impl<T: Text> Serialize for Written<T> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_str(&self.0.write())
        }
    }

    impl<T: Text> Serialize for List<T> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.collect_seq(self.0.iter().map(T::write))
        }
    }

    impl<'de, T: Text> Deserialize<'de> for Written<T> {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            let one = from.deserialize_any(TextVisitor { list: false, text: PhantomData })?.pop();
            one.map(Self).ok_or_else(|| D::Error::custom(T::EXPECTED))
        }
    }

    impl<'de, T: Text> Deserialize<'de> for List<T> {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            from.deserialize_any(TextVisitor { list: true, text: PhantomData }).map(Self)
        }
    }

    struct TextVisitor<T> {
        list: bool,
        text: PhantomData<T>,
    }

    impl<'de, T: Text> Visitor<'de> for TextVisitor<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(T::EXPECTED)?;
            f.write_str(if self.list { ", or a list of such values" } else { "" })
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
            Ok(vec![T::read(text).map_err(E::custom)?])
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Vec<T>, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<Vec<T>, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<Vec<T>, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            if !self.list {
                return Err(A::Error::invalid_type(Unexpected::Seq, &self));
            }
            let mut list = Vec::new();
            while let Some(Written(item)) = items.next_element()? {
                list.push(item);
            }
            Ok(list)
        }
    }

    /// A parsed value, or the error of parsing it. The text may contain a key by mistake, so the error redacts it.
    ///
    /// A parser of files quotes the line of a value that cannot be deserialized. Deserialization therefore accepts every
    /// value, and [`get`](Self::get) returns the error instead.
    #[derive(Debug, Clone)]
    pub(crate) struct Checked<T>(Result<T, InvalidConfig>);

    impl<T> Checked<T> {
        pub(crate) fn get(&self) -> Result<&T, InvalidConfig> {
            self.0.as_ref().map_err(InvalidConfig::clone)
        }
    }

    impl<T: Default> Default for Checked<T> {
        fn default() -> Self {
            Self(Ok(T::default()))
        }
    }

    /// Needed for lists of checked values, whose items must implement `Text`.
    impl<T: Text> Text for Checked<T> {
        const EXPECTED: &'static str = T::EXPECTED;

        fn read(text: &str) -> Result<Self, InvalidConfig> {
            Ok(Self(T::read(text)))
        }

        fn write(&self) -> String {
            self.0.as_ref().map_or_else(|error| error.value().to_owned(), T::write)
        }
    }

    impl<T: Text> Serialize for Checked<T> {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            to.serialize_str(&self.write())
        }
    }

    impl<'de, T: Text> Deserialize<'de> for Checked<T> {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            let value = InlineKey::deserialize(from)?;
            // If the value is not a string, the error shows `…` instead.
            Ok(Self(T::read(value.text().unwrap_or("…"))))
        }
    }

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
}
