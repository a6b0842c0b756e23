use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{InvalidConfig, inline_key::InlineKey, text::Text};

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
