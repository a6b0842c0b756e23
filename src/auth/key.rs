use std::{borrow::Cow, env, fmt, fs, io::Read, path::Path, sync::Arc, time::Duration};

use http::HeaderValue;
use zeroize::Zeroizing;

use crate::{
    config::InvalidConfig,
    error::{BoxError, Error, ErrorKind, redact},
    secret::Secret,
};

/// An API key of visible ASCII characters. `Debug` and errors redact it.
///
/// The key's memory is overwritten when its last clone is dropped. Copies of the key in requests are not overwritten,
/// because `http`, hyper and the TLS library own that memory.
///
/// ```
/// use tower_outbound::ApiKey;
///
/// let key = ApiKey::new("s3cret")?;
/// assert_eq!(format!("{key:?}"), "ApiKey(redacted)");
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
///
/// # Clone
///
/// Cloning is cheap, because all clones of a key share its memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey(pub(super) Secret);

impl ApiKey {
    /// The maximum size of a key file. The limit prevents a wrong path from filling the memory.
    const MAX_FILE: u64 = 64 * 1024;

    /// Creates a key.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is empty or contains a character other than visible ASCII. The error contains the
    /// position of that character, but never the key.
    pub fn new(key: impl AsRef<str>) -> Result<Self, InvalidConfig> {
        Self::check(key.as_ref(), || "given as a value".to_owned())
    }

    /// Reads the key from the environment variable `name`, once.
    ///
    /// # Errors
    ///
    /// Returns an error if the variable is not set or its value is not a valid key. The error contains the name of the
    /// variable.
    ///
    /// A caller may pass the key itself as `name` by mistake. If the variable is not set, the error therefore omits a
    /// `name` that contains characters other than ASCII letters, digits and `_`.
    pub fn from_env(name: &str) -> Result<Self, InvalidConfig> {
        const UNSET: &str = "the environment variable to be set";
        Self::from_env_or(name, UNSET, UNSET)
    }

    /// Like [`from_env`](Self::from_env), but the error for a variable that is not set has these hints: `unset` names
    /// setters, and `unset_in_file` names fields of a configuration file.
    pub(crate) fn from_env_or(
        name: &str,
        unset: &'static str,
        unset_in_file: &'static str,
    ) -> Result<Self, InvalidConfig> {
        let place = || format!("in environment variable {name}");
        match env::var(name).map(Zeroizing::new) {
            Ok(key) => Self::check(key.trim(), place),
            Err(env::VarError::NotPresent)
                if !name.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_') =>
            {
                Err(InvalidConfig::new(FIELD, "in an environment variable", NAME))
            }
            Err(env::VarError::NotPresent) => {
                Err(InvalidConfig::new(FIELD, place(), unset).expecting_in_file(unset_in_file))
            }
            Err(env::VarError::NotUnicode(_)) => Err(InvalidConfig::new(FIELD, place(), VISIBLE)),
        }
    }

    /// Reads the key from the file at `path`, once. Ignores white space around the key.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, is larger than 64 KiB, or contains no valid key. The error contains
    /// the path.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, InvalidConfig> {
        let path = path.as_ref();
        let place = || format!("in file {}", path.display());
        let read = fs::File::open(path).and_then(|file| {
            // Reserves memory for the whole file, because a string that grows leaves copies of the key in freed memory.
            let mut key = Zeroizing::new(String::with_capacity(Self::MAX_FILE as usize + 2));
            file.take(Self::MAX_FILE + 1).read_to_string(&mut key).map(|_| key)
        });
        match read {
            Ok(key) if key.len() as u64 > Self::MAX_FILE => {
                Err(InvalidConfig::new(FIELD, place(), "a file of at most 64 KiB"))
            }
            Ok(key) => Self::check(key.trim(), place),
            Err(error) => Err(InvalidConfig::new(FIELD, place(), format!("a readable file ({error})"))),
        }
    }

    /// Returns the key in plain text, for code that sends it or uses it for a signature.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }

    /// Returns the key as a header value that is marked sensitive, so that `Debug` does not show it and HTTP/2 does not
    /// index it.
    pub fn header_value(&self) -> HeaderValue {
        sensitive(self.expose())
    }

    fn check(key: &str, place: impl FnOnce() -> String) -> Result<Self, InvalidConfig> {
        if key.is_empty() {
            return Err(InvalidConfig::new(FIELD, place(), "at least one character"));
        }
        match key.bytes().position(|byte| !byte.is_ascii_graphic()) {
            None => Ok(Self(Secret::new(key))),
            Some(at) => {
                Err(InvalidConfig::new(FIELD, place(), format!("{VISIBLE}, but byte {at} is invalid")))
            }
        }
    }
}

/// Creates a sensitive header value. A text of visible ASCII characters and spaces is always a valid value.
pub(crate) fn sensitive(text: &str) -> HeaderValue {
    let mut value = HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

const FIELD: &str = "api key";
const NAME: &str =
    "the name of an environment variable that is set (letters, digits and _), not the key itself";
const VISIBLE: &str = "visible ascii characters only";

/// The id, key and secret of an application. `Debug` redacts the key and the secret.
///
/// Realtime messaging services use an id, a key and a secret. Each service has its own scheme to send them or to sign
/// requests with them. Implement this scheme in a closure or a signer: see
/// [`StackBuilder::with_authorize`](crate::stack::StackBuilder::with_authorize) and [`Sign`](super::Sign).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppCredentials {
    app_id: Arc<str>,
    key: ApiKey,
    secret: ApiKey,
}

impl AppCredentials {
    /// Creates the credentials of one application.
    ///
    /// # Errors
    ///
    /// Returns an error if the id is empty or contains a character other than visible ASCII.
    pub fn new(app_id: impl AsRef<str>, key: ApiKey, secret: ApiKey) -> Result<Self, InvalidConfig> {
        let app_id = app_id.as_ref();
        if app_id.is_empty() || !app_id.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidConfig::new("application id", app_id.escape_debug().to_string(), VISIBLE));
        }
        Ok(Self { app_id: app_id.into(), key, secret })
    }

    /// Returns the id of the application, which is not a secret.
    pub fn app_id(&self) -> &str {
        &self.app_id
    }

    /// Returns the application's key.
    pub fn key(&self) -> &ApiKey {
        &self.key
    }

    /// Returns the secret that belongs to the key.
    pub fn secret(&self) -> &ApiKey {
        &self.secret
    }
}

/// The error of a key source that failed. `source()` returns the cause: the error of the closure or of the file.
///
/// The [`Error`] of a call contains this message, and returns the same `source()`.
///
/// If the closure returns a `KeyError`, for example the error of another key source, requests receive this error
/// without a wrapper. The closure is not called again before the [`retry_in`](Self::retry_in) of this error has passed.
#[derive(Debug, Clone)]
pub struct KeyError(
    // Boxed, because each clone of a service has room for an error.
    Box<Inner>,
);

#[derive(Debug, Clone)]
struct Inner {
    message: Cow<'static, str>,
    retry_in: Option<Duration>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

const PROVIDER: &str = "the key provider failed";

impl KeyError {
    pub(crate) fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner { message: message.into(), retry_in: None, source: None }))
    }

    /// Creates the error of a provider that returned `error`.
    pub(super) fn of_provider(error: BoxError) -> Self {
        error.downcast().map_or_else(|error| Self::new(PROVIDER).with_source(error), |error| *error)
    }

    pub(crate) fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.0.source = Some(Arc::from(redact(source)));
        self
    }

    pub(crate) fn with_retry_in(mut self, wait: Duration) -> Self {
        self.0.retry_in = Some(wait);
        self
    }

    /// Returns the time until the next attempt to fetch the key. Returns `None` if the source is not backing off.
    pub fn retry_in(&self) -> Option<Duration> {
        self.0.retry_in
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        match self.0.retry_in {
            Some(wait) => write!(f, ", next attempt in {wait:?}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for KeyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Creates the error of a call whose credential could not be added to its request. The message contains `why`.
pub(super) fn unattached(why: &'static str) -> Error {
    auth_error(why).showing_source()
}

/// Creates the error of a call whose credential could not be added to its request.
pub(super) fn auth_error(error: impl Into<BoxError>) -> Error {
    let error = error.into();
    let (of_source, again_in) = (error.is::<KeyError>(), error.downcast_ref().and_then(KeyError::retry_in));
    let error = Error::new(ErrorKind::Auth, again_in, Some(error));
    if of_source { error.showing_source() } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_an_invalid_key_names_its_source_and_omits_the_key() {
        let error = ApiKey::new("bad key\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid api key `given as a value`: expected visible ascii characters only, but byte 3 is invalid"
        );
        assert!(ApiKey::new("").is_err());
        assert!(ApiKey::new("schlüssel").is_err());
    }

    #[test]
    fn error_names_the_missing_environment_variable_or_key_file() {
        let error = ApiKey::from_env("TOWER_OUTBOUND_NO_SUCH_VARIABLE").unwrap_err();
        assert!(error.to_string().contains("TOWER_OUTBOUND_NO_SUCH_VARIABLE"), "{error}");
        let error = ApiKey::from_file("no/such/file").unwrap_err();
        assert!(error.to_string().contains("no/such/file"), "{error}");
    }

    #[test]
    fn key_file_of_at_most_64_kib_is_read_and_trimmed() {
        let path = env::temp_dir().join(format!("tower-outbound-key-{}", std::process::id()));
        fs::write(&path, "s3cret\n").unwrap();
        let key = ApiKey::from_file(&path);
        fs::remove_file(&path).unwrap();
        assert_eq!(key.unwrap().expose(), "s3cret");

        let path = path.with_extension("long");
        fs::write(&path, "x".repeat(70_000)).unwrap();
        let key = ApiKey::from_file(&path);
        fs::remove_file(&path).unwrap();
        assert!(key.unwrap_err().to_string().contains("at most 64 KiB"));

        for (length, fits) in [(65_536, true), (65_537, false)] {
            fs::write(&path, "x".repeat(length)).unwrap();
            let key = ApiKey::from_file(&path);
            fs::remove_file(&path).unwrap();
            assert_eq!(key.is_ok_and(|key| key.expose().len() == length), fits, "{length}");
        }
    }

    #[test]
    fn debug_output_redacts_keys() {
        let credentials =
            AppCredentials::new("app", ApiKey::new("k3y").unwrap(), ApiKey::new("s3cret").unwrap()).unwrap();
        let shown = format!("{credentials:?} {:?}", credentials.key());
        assert!(shown.contains("app") && shown.contains("ApiKey(redacted)"), "{shown}");
        assert!(!shown.contains("k3y") && !shown.contains("s3cret"), "{shown}");
    }
}
