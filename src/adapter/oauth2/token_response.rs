use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::auth::{ApiKey, FreshKey, KeyError};

/// The fields of RFC 6749 §5.1 and §5.2.
#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenResponse {
    access_token: Option<String>,
    token_type: Option<String>,
    expires_in: Option<Value>,
    error: Option<String>,
}

/// The error codes that an error shows: those of RFC 6749 §5.2 and §4.1.2.1, and of RFC 8707. Any other code is text
/// that the server chooses, and may contain the secret.
const CODES: [&str; 10] = [
    "access_denied",
    "invalid_client",
    "invalid_grant",
    "invalid_request",
    "invalid_scope",
    "invalid_target",
    SERVER_ERROR,
    UNAVAILABLE,
    "unauthorized_client",
    "unsupported_grant_type",
];
const SERVER_ERROR: &str = "server_error";
const UNAVAILABLE: &str = "temporarily_unavailable";

/// The longest lifetime of a token in seconds: a century.
const LONGEST_LIFETIME: f64 = 3_155_760_000.0;

/// The delay after an error that another request cannot fix.
const LASTING_DELAY: Duration = Duration::from_secs(60);

/// Returns the token of a response.
pub(super) fn read(status: StatusCode, body: &[u8]) -> Result<FreshKey, KeyError> {
    // Drops the error of the parser, because it may quote the token.
    let read: Option<TokenResponse> = serde_json::from_slice(body).ok();
    let TokenResponse { access_token, token_type, expires_in, error } = read.unwrap_or_default();
    // Some servers respond 200 with an error.
    if !status.is_success() || error.is_some() {
        return Err(rejected(status, error.as_deref()));
    }
    let Some(token) = access_token.map(Zeroizing::new) else {
        return Err(KeyError::new("the token response is not json, or has no `access_token`"));
    };
    if !token_type.is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
        return Err(KeyError::new("the `token_type` of the token response is not `Bearer`"));
    }
    let key = ApiKey::new(&*token)
        .map_err(|error| KeyError::new("the token response has an invalid token").with_source(error))?;
    let Some(lifetime) = expires_in else { return Ok(FreshKey::new(key)) };
    // Some servers send the number as a string.
    let seconds = lifetime.as_f64().or_else(|| lifetime.as_str()?.parse().ok());
    let lifetime =
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.min(LONGEST_LIFETIME)).ok());
    let lifetime = lifetime
        .ok_or_else(|| KeyError::new("the `expires_in` of the token response is not a number of seconds"))?;
    Ok(FreshKey::new(key).with_lifetime(lifetime))
}

/// Returns the error for an error response.
fn rejected(status: StatusCode, code: Option<&str>) -> KeyError {
    let code = code.and_then(|code| CODES.into_iter().find(|known| *known == code));
    let shown = code.map_or_else(String::new, |code| format!("the error `{code}`, "));
    let error = KeyError::new(format!("the token endpoint returned {shown}status {status}"));
    let is_temporary = status.is_server_error()
        || matches!(status.as_u16(), 408 | 425 | 429)
        || matches!(code, Some(SERVER_ERROR | UNAVAILABLE));
    if is_temporary { error } else { error.with_retry_in(LASTING_DELAY) }
}
