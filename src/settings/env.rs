//! Variables as serde sees them: the fields of a struct say which names there can be.

use std::{env, fmt};

use serde::{
    de::{
        DeserializeOwned, DeserializeSeed, Deserializer, Error, IntoDeserializer, MapAccess, Visitor,
        value::StrDeserializer,
    },
    forward_to_deserialize_any,
};

use super::{PresetName, ServiceSettings};

/// An environment variable that can't be read as a setting: a name that is none, or a value that can't work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidVariable {
    name: String,
    reason: String,
}

impl InvalidVariable {
    /// The variable, where it is known.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for InvalidVariable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name.as_str() {
            "" => f.write_str(&self.reason),
            name => write!(f, "{name}: {}", self.reason),
        }
    }
}

impl std::error::Error for InvalidVariable {}

impl Error for InvalidVariable {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self { name: String::new(), reason: reason.to_string() }
    }
}

/// The settings in the environment's variables that begin with `prefix` and a `_`: see [the manual](super#environment).
///
/// It knows of no variable that a key is read from: for a service, [`ServiceSettings::with_env`] does, with or without
/// settings below.
///
/// # Errors
///
/// When one of them is no setting, or its value can't work.
pub fn from_env<T: DeserializeOwned>(prefix: &str) -> Result<T, InvalidVariable> {
    from_variables(prefix, &variables(prefix)?)
}

/// The same of these variables, names and values, of which those without the prefix don't count.
///
/// # Errors
///
/// As [`from_env`].
pub fn from_variables<T: DeserializeOwned>(
    prefix: &str,
    variables: &[(String, String)],
) -> Result<T, InvalidVariable> {
    let prefix = checked(prefix)?;
    let mut found = Vec::new();
    for (name, value) in variables {
        if let Some(rest) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_')) {
            found.push(Variable { name, rest, value });
        }
    }
    T::deserialize(Variables(found))
}

impl ServiceSettings {
    /// The environment's variables [over](Self::over) these settings. The one that the key is read from is no setting,
    /// whatever it begins with: one that [`key_env`](Self::key_env) names, here or among the variables, or the preset's,
    /// where no source of a key is given.
    ///
    /// # Errors
    ///
    /// As [`from_env`]. A preset's variable for the key is in error when it begins with the prefix and the key comes from
    /// elsewhere.
    pub fn with_env(self, prefix: &str) -> Result<Self, InvalidVariable> {
        self.with_variables(prefix, &variables(prefix)?)
    }

    /// The same with these variables.
    ///
    /// # Errors
    ///
    /// As [`from_env`].
    pub fn with_variables(
        self,
        prefix: &str,
        variables: &[(String, String)],
    ) -> Result<Self, InvalidVariable> {
        let within = format!("{}_", checked(prefix)?);
        let setting = |name: &str, field: &str| name.strip_prefix(&within) == Some(field);
        let key_env = variables.iter().find(|(name, _)| setting(name, "KEY_ENV")).map(|(_, value)| value);
        let named = |name: &String| key_env == Some(name) || self.key_env.as_ref() == Some(name);
        let by_default = |name: &str| {
            let mut presets = PresetName::ALL.into_iter();
            presets.any(|preset| preset.key_env() == name) && !setting(name, "API_KEY")
        };
        let (keys, given): (Vec<_>, Vec<_>) = (variables.iter().filter(|(name, _)| !named(name)).cloned())
            .partition(|(name, _)| name.starts_with(&within) && by_default(name));
        let settings = from_variables::<Self>(prefix, &given)?.over(self);
        // Only now it is known which preset it is.
        let source = settings.key_sources().next();
        let source = source.unwrap_or(settings.preset.unwrap_or_default().key_env());
        match keys.iter().find(|(name, _)| name != source) {
            Some((name, value)) => Err(Variable { name, rest: "", value }
                .error(format!("there is no such setting, and the key comes from {source}"))),
            None => Ok(settings),
        }
    }
}

/// Without its last `_`, if it has one.
fn checked(prefix: &str) -> Result<&str, InvalidVariable> {
    match prefix.strip_suffix('_').unwrap_or(prefix) {
        "" => Err(InvalidVariable::custom("without a prefix every variable of the environment is meant")),
        prefix => Ok(prefix),
    }
}

fn variables(prefix: &str) -> Result<Vec<(String, String)>, InvalidVariable> {
    let prefix = format!("{}_", checked(prefix)?);
    let mut variables = Vec::new();
    // Not `vars`, which panics over anybody's variable that is not Unicode.
    for (name, value) in env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        if name.starts_with(&prefix) {
            let reason = "invalid value: expected unicode";
            let value = value
                .into_string()
                .map_err(|_| Variable { name: &name, rest: "", value: "" }.error(reason))?;
            variables.push((name, value));
        }
    }
    Ok(variables)
}

#[derive(Clone, Copy)]
struct Variable<'a> {
    name: &'a str,
    /// What is left of the name at this level.
    rest: &'a str,
    value: &'a str,
}

impl Variable<'_> {
    fn error(&self, reason: impl fmt::Display) -> InvalidVariable {
        InvalidVariable { name: self.name.to_owned(), reason: reason.to_string() }
    }

    fn unknown(&self) -> InvalidVariable {
        self.error("there is no such setting")
    }

    /// Digits alone, without a sign.
    fn number(&self) -> Result<u64, InvalidVariable> {
        let number = self.value.parse().ok().filter(|_| !self.value.starts_with('+'));
        number.ok_or_else(|| {
            self.error(format!("invalid number `{}`: expected digits", self.value.escape_debug()))
        })
    }
}

/// Those of one level: one without a rest is a value, the others are fields.
struct Variables<'a>(Vec<Variable<'a>>);

impl<'a> Variables<'a> {
    fn value(&self) -> Result<Variable<'a>, InvalidVariable> {
        match self.0.iter().find(|variable| !variable.rest.is_empty()) {
            Some(deeper) => Err(deeper.unknown()),
            // Nothing is asked of a level that no variable leads to, but for the outermost.
            None => self.0.first().copied().ok_or_else(|| InvalidVariable::custom("no variable is given")),
        }
    }

    fn visit<T>(
        self,
        visit: impl FnOnce(Variable<'a>) -> Result<T, InvalidVariable>,
    ) -> Result<T, InvalidVariable> {
        let variable = self.value()?;
        visit(variable)
            .map_err(|error| if error.name.is_empty() { variable.error(error.reason) } else { error })
    }
}

macro_rules! numbers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidVariable> {
            self.visit(|variable| visitor.visit_u64(variable.number()?))
        }
    )*};
}

impl<'de> Deserializer<'de> for Variables<'_> {
    type Error = InvalidVariable;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidVariable> {
        self.visit(|variable| visitor.visit_str(variable.value))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, InvalidVariable> {
        let mut by_field: Vec<(&'static str, Vec<Variable<'_>>)> = Vec::new();
        for variable in self.0 {
            let (field, rest) = field_of(variable.rest, fields).ok_or_else(|| variable.unknown())?;
            let variable = Variable { rest, ..variable };
            match by_field.iter_mut().find(|(name, _)| *name == field) {
                Some((_, variables)) => variables.push(variable),
                None => by_field.push((field, vec![variable])),
            }
        }
        visitor.visit_map(Fields { fields: by_field.into_iter(), next: Vec::new() })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidVariable> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, InvalidVariable> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, InvalidVariable> {
        self.visit(|variable| {
            let value: StrDeserializer<'_, InvalidVariable> = variable.value.into_deserializer();
            visitor.visit_enum(value)
        })
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, InvalidVariable> {
        self.visit(|variable| match variable.value {
            "true" => visitor.visit_bool(true),
            "false" => visitor.visit_bool(false),
            other => {
                Err(variable
                    .error(format!("invalid value `{}`: expected true or false", other.escape_debug())))
            }
        })
    }

    numbers!(deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64);

    forward_to_deserialize_any! {
        i8 i16 i32 i64 i128 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map
        identifier ignored_any
    }
}

/// The field that a name leads to, and what is left of the name: the longest, for `key_file` begins with `key`.
fn field_of<'a>(name: &'a str, fields: &[&'static str]) -> Option<(&'static str, &'a str)> {
    let fits = fields.iter().filter_map(|field| {
        let rest = name.strip_prefix(field.to_ascii_uppercase().as_str())?;
        let rest =
            if rest.is_empty() { rest } else { rest.strip_prefix('_').filter(|rest| !rest.is_empty())? };
        Some((*field, rest))
    });
    fits.max_by_key(|(field, _)| field.len())
}

struct Fields<'a> {
    fields: std::vec::IntoIter<(&'static str, Vec<Variable<'a>>)>,
    next: Vec<Variable<'a>>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = InvalidVariable;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, InvalidVariable> {
        let Some((field, variables)) = self.fields.next() else { return Ok(None) };
        self.next = variables;
        let field: StrDeserializer<'_, InvalidVariable> = field.into_deserializer();
        seed.deserialize(field).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, InvalidVariable> {
        seed.deserialize(Variables(std::mem::take(&mut self.next)))
    }
}
