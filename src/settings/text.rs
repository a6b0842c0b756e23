//! Values that are written as text, in the forms in which code reads them, too: by the same parser, with its words.

use std::{fmt, marker::PhantomData, time::Duration};

use http::{HeaderName, StatusCode};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, SeqAccess, Unexpected, Visitor},
};

use super::ServiceUrl;
use crate::{
    auth::{KeyPlacement, Origin},
    error::InvalidConfig,
    policy::{Jitter, Quota, human::Human, parse_duration},
};

pub(super) trait Text: Sized {
    const EXPECTED: &str;
    /// Whether a number is as good as its digits.
    const NUMBERS: bool = false;

    fn read(text: &str) -> Result<Self, InvalidConfig>;

    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
}

macro_rules! text {
    ($($type:ty, $expected:literal, $read:expr, $shown:expr;)*) => {$(
        impl Text for $type {
            const EXPECTED: &str = $expected;

            fn read(text: &str) -> Result<Self, InvalidConfig> {
                $read(text)
            }

            fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(&$shown(self))
            }
        }
    )*};
}

text! {
    Duration, "a duration such as 60s", parse_duration, |it: &Duration| Human(*it);
    Quota, "a quota such as 100/60s", str::parse, |it: &Quota| format!("{it:#}");
    Jitter, "a part of each wait, such as 50%", str::parse, |it: &Jitter| *it;
    KeyPlacement, "a place such as header:x-api-key", str::parse, KeyPlacement::to_string;
    ServiceUrl, "a url", str::parse, ServiceUrl::to_string;
    Origin, "an origin such as https://api.example.com", Origin::parse, Origin::to_string;
    HeaderName, "the name of a header", header_name, |it: &HeaderName| it.clone();
}

pub(super) fn header_name(text: &str) -> Result<HeaderName, InvalidConfig> {
    text.parse().map_err(|_| {
        InvalidConfig::new(
            "header",
            text.escape_debug().to_string(),
            "the name of a header, such as x-api-key",
        )
    })
}

impl Text for StatusCode {
    const EXPECTED: &str = "a status such as 409";
    const NUMBERS: bool = true;

    fn read(text: &str) -> Result<Self, InvalidConfig> {
        text.parse().map_err(|_| InvalidConfig::new("status", text.escape_debug().to_string(), "100 to 999"))
    }

    fn write<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u16(self.as_u16())
    }
}

pub(super) fn serialize<T: Text, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => value.write(to),
        None => to.serialize_none(),
    }
}

pub(super) fn deserialize<'de, T: Text, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Read<T>>::deserialize(from)?.map(|read| read.0))
}

struct Read<T>(T);

struct ReadVisitor<T>(PhantomData<T>);

impl<'de, T: Text> Deserialize<'de> for Read<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ReadVisitor(PhantomData)).map(Read)
    }
}

impl<T: Text> ReadVisitor<T> {
    /// What a number that stands for a text lacks is for the parser to say: mostly its unit.
    fn number<E: Error>(self, number: &dyn fmt::Display) -> Result<T, E> {
        match T::read(&number.to_string()) {
            Ok(value) if T::NUMBERS => Ok(value),
            Ok(_) => Err(E::invalid_type(Unexpected::Other("number"), &self)),
            Err(error) => Err(E::custom(error)),
        }
    }
}

impl<T: Text> Visitor<'_> for ReadVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::read(text).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.number(&number)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.number(&number)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        self.number(&number)
    }
}

/// Several of them: a list, or one text with `;` between them, which is all that a variable can hold. One alone needs no
/// list. None are `[]` there: an empty text is a variable that somebody forgot to fill, and would lift a limit.
pub(super) mod list {
    use super::*;

    const NONE: &str = "[]";

    pub(in crate::settings) fn serialize<T: Text, S: Serializer>(
        values: &Option<Vec<T>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        struct Write<'a, T>(&'a T);
        impl<T: Text> Serialize for Write<'_, T> {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                self.0.write(to)
            }
        }
        match values.as_deref() {
            None => to.serialize_none(),
            Some([value]) => value.write(to),
            Some(values) => to.collect_seq(values.iter().map(Write)),
        }
    }

    pub(in crate::settings) fn deserialize<'de, T: Text, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Vec<T>>, D::Error> {
        Ok(Option::<List<T>>::deserialize(from)?.map(|list| list.0))
    }

    struct List<T>(Vec<T>);

    struct ListVisitor<T>(PhantomData<T>);

    impl<'de, T: Text> Deserialize<'de> for List<T> {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            from.deserialize_any(ListVisitor(PhantomData)).map(List)
        }
    }

    impl<'de, T: Text> Visitor<'de> for ListVisitor<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}, or a list of such", T::EXPECTED)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
            match text.trim() {
                NONE => Ok(Vec::new()),
                "" => Err(E::custom(format_args!(
                    "nothing is given: expected {}, or {NONE} for none",
                    T::EXPECTED
                ))),
                text => text.split(';').map(|item| T::read(item.trim()).map_err(E::custom)).collect(),
            }
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<Vec<T>, E> {
            ReadVisitor(PhantomData).number(&number).map(|value| vec![value])
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<Vec<T>, E> {
            ReadVisitor(PhantomData).number(&number).map(|value| vec![value])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(Read(item)) = items.next_element()? {
                list.push(item);
            }
            Ok(list)
        }
    }
}
