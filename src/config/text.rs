//! `#[serde(with = "text")]`: a value that is written as text and read by the parser that code uses, also in an
//! `Option` or as a list. A number is read as its digits. One value alone is read as a list of one.

use std::{fmt, marker::PhantomData};

use http::{HeaderName, StatusCode};
use serde::{
    Deserialize, Deserializer, Serializer,
    de::{Error, SeqAccess, Unexpected, Visitor},
};

use super::InvalidConfig;

/// A value with one form as text.
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
    HeaderName, "the name of a header", header_name, HeaderName::to_string;
    StatusCode, "a status such as 409", status, |status: &StatusCode| status.as_str().to_owned();
}

fn header_name(text: &str) -> Result<HeaderName, InvalidConfig> {
    let expected = "the name of a header, such as x-api-key";
    text.parse().map_err(|_| InvalidConfig::new("header", text.escape_debug().to_string(), expected))
}

fn status(text: &str) -> Result<StatusCode, InvalidConfig> {
    text.parse().map_err(|_| InvalidConfig::new("status", text.escape_debug().to_string(), "100 to 999"))
}

/// A field that holds such a value, or several.
pub(crate) trait Field: Sized {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error>;

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error>;
}

pub(crate) fn serialize<F: Field, S: Serializer>(field: &F, to: S) -> Result<S::Ok, S::Error> {
    field.write(to)
}

pub(crate) fn deserialize<'de, F: Field, D: Deserializer<'de>>(from: D) -> Result<F, D::Error> {
    F::read(from)
}

impl<T: Text> Field for T {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&Text::write(self))
    }

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let one = from.deserialize_any(TextVisitor { list: false, text: PhantomData })?.pop();
        one.ok_or_else(|| D::Error::custom(T::EXPECTED))
    }
}

impl<T: Text> Field for Vec<T> {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.iter().map(Text::write))
    }

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(TextVisitor { list: true, text: PhantomData })
    }
}

impl<F: Field> Field for Option<F> {
    fn write<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Some(field) => field.write(to),
            None => to.serialize_none(),
        }
    }

    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Option::<Read<F>>::deserialize(from)?.map(|read| read.0))
    }
}

struct Read<F>(F);

impl<'de, F: Field> Deserialize<'de> for Read<F> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        F::read(from).map(Self)
    }
}

struct TextVisitor<T> {
    list: bool,
    text: PhantomData<T>,
}

macro_rules! as_digits {
    ($($visit:ident: $number:ty),*) => {$(
        fn $visit<E: Error>(self, number: $number) -> Result<Vec<T>, E> {
            self.visit_str(&number.to_string())
        }
    )*};
}

impl<'de, T: Text> Visitor<'de> for TextVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)?;
        f.write_str(if self.list { ", or a list of such" } else { "" })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        Ok(vec![T::read(text).map_err(E::custom)?])
    }

    as_digits!(visit_u64: u64, visit_i64: i64, visit_f64: f64);

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        if !self.list {
            return Err(A::Error::invalid_type(Unexpected::Seq, &self));
        }
        let mut list = Vec::new();
        while let Some(Read(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list)
    }
}

/// `#[serde(with = "positive")]`: a duration of more than zero.
pub(crate) mod positive {
    use std::time::Duration;

    use super::{Deserializer, Error, Field, InvalidConfig};
    pub(crate) use super::serialize;

    pub(crate) fn deserialize<'de, F, D>(from: D) -> Result<F, D::Error>
    where
        F: Field + Copy + Into<Option<Duration>>,
        D: Deserializer<'de>,
    {
        let field = F::read(from)?;
        match field.into() {
            Some(Duration::ZERO) => {
                Err(D::Error::custom(InvalidConfig::new("duration", "0s", "more than zero")))
            }
            _ => Ok(field),
        }
    }
}
