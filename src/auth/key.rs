use std::{env, fmt, fs, io::Read, path::Path, sync::Arc};

use http::HeaderValue;
use zeroize::Zeroizing;

use crate::error::InvalidConfig;

/// A secret of visible ASCII characters. Never shown: not in `Debug`, not in an error.
///
/// Its memory is overwritten when the last clone is dropped. What is made of it to be sent is not: a header's value
/// and a URI are copies that belong to `http`, hyper and TLS, and the environment and the file stay what they are.
///
/// ```
/// use tower_outbound::ApiKey;
///
/// let key = ApiKey::new("s3cret")?;
/// assert_eq!(format!("{key:?}"), "ApiKey(redacted)");
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(Arc<Zeroizing<Box<str>>>);

impl ApiKey {
    /// Far more than any key; a path to something else ends here and not in memory.
    const LONGEST_FILE: u64 = 64 * 1024;

    /// The key itself.
    ///
    /// # Errors
    ///
    /// When it is empty or has a character that no header can carry (white space, control, not ASCII). The
    /// error names the position of the character, never the key.
    pub fn new(key: impl AsRef<str>) -> Result<Self, InvalidConfig> {
        Self::check(key.as_ref(), || "given as a value".to_owned())
    }

    /// Reads the key in the environment variable `name`, once.
    ///
    /// # Errors
    ///
    /// Returns an error that names the variable if the variable is not set, or if its value is not a valid key.
    ///
    /// The error redacts an unset name with characters other than ASCII letters, digits and `_`, because it may be the
    /// key itself.
    pub fn from_env(name: &str) -> Result<Self, InvalidConfig> {
        Self::from_env_or(name, "the variable to be set")
    }

    /// Like [`from_env`](Self::from_env), with another hint if the variable is not set.
    pub(crate) fn from_env_or(name: &str, unset: &'static str) -> Result<Self, InvalidConfig> {
        let place = || format!("in environment variable {name}");
        match env::var(name).map(Zeroizing::new) {
            Ok(key) => Self::check(key.trim(), place),
            Err(env::VarError::NotPresent)
                if !name.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'_') =>
            {
                Err(InvalidConfig::new(FIELD, "in an environment variable", NAME))
            }
            Err(env::VarError::NotPresent) => Err(InvalidConfig::new(FIELD, place(), unset)),
            Err(env::VarError::NotUnicode(_)) => Err(InvalidConfig::new(FIELD, place(), VISIBLE)),
        }
    }

    /// The key in the file at `path`, of at most 64 KiB, read once, now; white space around it does not count.
    ///
    /// # Errors
    ///
    /// When the file can't be read or what it holds is no key; the error names the file.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, InvalidConfig> {
        let path = path.as_ref();
        let place = || format!("in file {}", path.display());
        // One byte more than the longest, to see whether there is more.
        let read = fs::File::open(path).and_then(|file| {
            // With room for all of it: a string that grows leaves copies behind.
            let mut key = Zeroizing::new(String::with_capacity(Self::LONGEST_FILE as usize + 2));
            file.take(Self::LONGEST_FILE + 1).read_to_string(&mut key).map(|_| key)
        });
        match read {
            Ok(key) if key.len() as u64 > Self::LONGEST_FILE => {
                Err(InvalidConfig::new(FIELD, place(), "a file of at most 64 KiB"))
            }
            Ok(key) => Self::check(key.trim(), place),
            Err(error) => Err(InvalidConfig::new(FIELD, place(), format!("a readable file ({error})"))),
        }
    }

    /// The secret in plain, for whoever has to send or sign with it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// The secret as the value of a header, marked sensitive: neither shown by `Debug` nor indexed by HTTP/2.
    pub fn header_value(&self) -> HeaderValue {
        sensitive(&self.0)
    }

    fn check(key: &str, place: impl FnOnce() -> String) -> Result<Self, InvalidConfig> {
        if key.is_empty() {
            return Err(InvalidConfig::new(FIELD, place(), "at least one character"));
        }
        match key.bytes().position(|byte| !byte.is_ascii_graphic()) {
            None => Ok(Self(Arc::new(Zeroizing::new(key.into())))),
            Some(at) => Err(InvalidConfig::new(FIELD, place(), format!("{VISIBLE}, unlike its byte {at}"))),
        }
    }
}

/// A key, or a scheme's name and a key: visible ASCII and spaces, which every header value may hold.
pub(super) fn sensitive(text: &str) -> HeaderValue {
    let mut value = HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""));
    value.set_sensitive(true);
    value
}

const FIELD: &str = "api key";
const NAME: &str = "the name of a variable that is set, of letters, digits and _, and not the key itself";
const VISIBLE: &str = "visible ascii characters only";

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(redacted)")
    }
}

/// An application id, its key and its secret, which travel together. Only the id is ever shown.
///
/// How a service wants the three to be sent or signed with is its own affair: a closure turns them into headers,
/// see [`StackBuilder::with_credentials`](crate::stack::StackBuilder::with_credentials).
#[derive(Clone, PartialEq, Eq)]
pub struct AppCredentials {
    app_id: Arc<str>,
    key: ApiKey,
    secret: ApiKey,
}

impl AppCredentials {
    /// The three of them.
    ///
    /// # Errors
    ///
    /// When the application id is empty or not of visible ASCII characters.
    pub fn new(app_id: impl AsRef<str>, key: ApiKey, secret: ApiKey) -> Result<Self, InvalidConfig> {
        let app_id = app_id.as_ref();
        if app_id.is_empty() || !app_id.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(InvalidConfig::new("application id", app_id.escape_debug().to_string(), VISIBLE));
        }
        Ok(Self { app_id: app_id.into(), key, secret })
    }

    /// The id of the application; not a secret.
    pub fn app_id(&self) -> &str {
        &self.app_id
    }

    /// The key that belongs to the application.
    pub fn key(&self) -> &ApiKey {
        &self.key
    }

    /// The secret that belongs to the key.
    pub fn secret(&self) -> &ApiKey {
        &self.secret
    }
}

impl fmt::Debug for AppCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppCredentials").field("app_id", &self.app_id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_key_is_named_by_its_place_and_never_shown() {
        let error = ApiKey::new("bad key\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid api key `given as a value`: expected visible ascii characters only, unlike its byte 3"
        );
        assert!(ApiKey::new("").is_err());
        assert!(ApiKey::new("schlüssel").is_err());
    }

    #[test]
    fn a_missing_variable_or_file_is_named() {
        let error = ApiKey::from_env("TOWER_OUTBOUND_NO_SUCH_VARIABLE").unwrap_err();
        assert!(error.to_string().contains("TOWER_OUTBOUND_NO_SUCH_VARIABLE"), "{error}");
        let error = ApiKey::from_file("no/such/file").unwrap_err();
        assert!(error.to_string().contains("no/such/file"), "{error}");
    }

    #[test]
    fn a_key_file_may_end_in_a_newline() {
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
    fn debug_shows_no_secret() {
        let credentials =
            AppCredentials::new("app", ApiKey::new("k3y").unwrap(), ApiKey::new("s3cret").unwrap()).unwrap();
        let shown = format!("{credentials:?} {:?}", credentials.key());
        assert!(shown.contains("app") && shown.contains("ApiKey(redacted)"), "{shown}");
        assert!(!shown.contains("k3y") && !shown.contains("s3cret"), "{shown}");
    }

    /// What it does is the crate's own to test; that it stands at the end of every key is ours.
    #[test]
    fn a_key_is_overwritten_when_it_is_dropped() {
        fn overwritten(_: &impl zeroize::ZeroizeOnDrop) {}
        overwritten(&*ApiKey::new("s3cret").unwrap().0);
    }
}
