use std::{fmt, str::FromStr};

use http::HeaderName;

use super::Form;
use crate::error::InvalidConfig;

/// Where on a request the key goes: `bearer`, `header:NAME`, `query:NAME` or `basic:USER`.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyPlacement {
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

impl KeyPlacement {
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

    fn checked(self) -> Result<Self, InvalidConfig> {
        self.form().map(|_| self)
    }
}

fn header_name(text: &str) -> Result<HeaderName, InvalidConfig> {
    let expected = "the name of a header, such as x-api-key";
    text.parse().map_err(|_| InvalidConfig::new("header", text.escape_debug().to_string(), expected))
}

/// As far as it can be a name.
fn start_of(name: &str) -> String {
    name.chars().take_while(|one| one.is_ascii_alphanumeric() || "-_".contains(*one)).take(32).collect()
}

impl FromStr for KeyPlacement {
    type Err = InvalidConfig;

    fn from_str(text: &str) -> Result<Self, InvalidConfig> {
        match text.split_once(':') {
            None if text == "bearer" => Ok(Self::Bearer),
            // What follows a name may be the key, by mistake: it is neither shown nor kept.
            Some(("header", name)) if name.contains([':', '=', ' ']) => Err(InvalidConfig::new(
                "key placement",
                format!("header:{}...", start_of(name)),
                "the name of a header and nothing after it",
            )),
            Some(("header", name)) => Self::Header(header_name(name)?).checked(),
            Some(("query", name))
                if name.contains(|one: char| "=&#?:".contains(one) || one.is_whitespace()) =>
            {
                Err(InvalidConfig::new(
                    "key placement",
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
                Err(InvalidConfig::new("key placement", shown, expected))
            }
        }
    }
}

impl fmt::Display for KeyPlacement {
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

impl fmt::Debug for KeyPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPlacement({self})")
    }
}
