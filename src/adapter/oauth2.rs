//! OAuth 2 access tokens as the keys of a service.

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::{
    auth::{ApiKey, FreshKey, KeyError, KeySource, RefreshingKey, basic, key::sensitive, with_basic},
    call::CallContext,
    client::service::Client,
    config::InvalidConfig,
    secret::Secret,
    stack::StackBuilder,
    uri::ENCODED,
};

/// Fetches access tokens from an OAuth 2 token endpoint, with the client credentials grant (RFC 6749 §4.4).
///
/// ```
/// use tower_outbound::{ApiKey, Client, InvalidConfig, adapter::ClientCredentials};
///
/// fn orders(secret: ApiKey) -> Result<Client, InvalidConfig> {
///     let tokens = ClientCredentials::new("https://login.example.com/oauth2/token", "orders-app", secret)?
///         .with_scope("orders.read orders.write")?
///         .with_parameter("audience", "https://api.example.com")?
///         .into_key_source()?;
///     Client::builder("https://api.example.com/v2")?.with_keys(tokens).client()
/// }
/// # orders(ApiKey::new("s3cret")?)?;
/// # Ok::<(), InvalidConfig>(())
/// ```
///
/// # When a token is fetched
///
/// The first request fetches a token. The token is fetched again 5 minutes before it expires, or after 80 % of a
/// lifetime shorter than 25 minutes, and after a 401. Concurrent requests share one fetch: see [`RefreshingKey`]. The
/// lifetime is the response's `expires_in`. Without `expires_in`, a token is used until the service responds 401.
///
/// # The token request
///
/// A [`Client`] with the default settings sends the POST: up to 3 attempts of 10 s, and at most 60 s in total. The POST
/// counts as idempotent, because a repeated request only issues another token. A response of more than 16 MiB is an
/// error. [`into_key_source_with`](Self::into_key_source_with) changes the settings.
///
/// The client id and secret are sent by HTTP Basic authentication, form-encoded as in RFC 6749 §2.3.1, or [in the
/// body](Self::with_credentials_in_body).
///
/// # Errors
///
/// A fetch fails with a [`KeyError`] if
///
/// - no response arrived. `source()` is the [`Error`](crate::Error) of the call;
/// - the token endpoint returned an error. The message has the status, and the error code if it is one of RFC 6749 or
///   RFC 8707. Other text of the response is not shown;
/// - the response is not the JSON of RFC 6749 §5.1, or its `token_type` is not `Bearer`.
///
/// The next fetch starts after a delay of 1 s, doubled up to 20 s after consecutive failures. The delay is at least
/// 60 s after an error that another request cannot fix, such as `invalid_client`. This includes every status other than
/// 2xx, 408, 425, 429 and 5xx, unless the error code is `server_error` or `temporarily_unavailable`.
///
/// # Redaction
///
/// `Debug`, errors and the log show neither the secret nor a token. The body of the token request and its
/// `Authorization` header stay in memory, unencrypted, as long as the key source.
pub struct ClientCredentials {
    builder: StackBuilder,
    token_url: Arc<str>,
    client_id: String,
    secret: ApiKey,
    in_body: bool,
    parameters: Vec<(String, String)>,
}

/// The longest time of a fetch. The total timeout of the client, 60 s by default, should be shorter, because its error
/// shows the attempts.
const FETCH_TIMEOUT: Duration = Duration::from_secs(90);

const SCOPE: &str = "scope";

impl ClientCredentials {
    /// Creates the credentials of one application. `token_url` may have a query.
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - `token_url` is not an absolute `http` or `https` URL, or has user info or a fragment;
    /// - `client_id` is empty or contains a character other than ASCII letters, digits, punctuation and spaces.
    pub fn new(
        token_url: impl AsRef<str>,
        client_id: impl Into<String>,
        client_secret: ApiKey,
    ) -> Result<Self, InvalidConfig> {
        let (token_url, client_id) = (token_url.as_ref(), client_id.into());
        let is_url = token_url.is_ascii() && !token_url.contains('#') && token_url.parse::<Uri>().is_ok();
        // The base URL has no query. An invalid URL is passed whole, so that the builder rejects it.
        let base = token_url.split('?').next().filter(|_| is_url).unwrap_or(token_url);
        let builder = StackBuilder::new(base).map_err(|error| error.within("token url"))?;
        if client_id.is_empty() || !client_id.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            let shown = client_id.escape_debug().to_string();
            return Err(InvalidConfig::new("client id", shown, "printable ascii characters"));
        }
        Ok(Self {
            builder,
            token_url: token_url.into(),
            client_id,
            secret: client_secret,
            in_body: false,
            parameters: Vec::new(),
        })
    }

    /// Requests tokens with this scope, one or several names separated by single spaces. By default, the token endpoint
    /// chooses the scope.
    ///
    /// # Errors
    ///
    /// Returns an error if a name is empty, or contains `"`, `\` or a character other than visible ASCII.
    pub fn with_scope(mut self, scope: impl Into<String>) -> Result<Self, InvalidConfig> {
        let scope = scope.into();
        let is_name = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(&byte))
        };
        if !scope.split(' ').all(is_name) {
            let expected = "names of visible ascii characters except \" and \\, separated by single spaces";
            return Err(InvalidConfig::new("scope", scope.escape_debug().to_string(), expected));
        }
        self.parameters.retain(|(name, _)| name != SCOPE);
        self.parameters.push((SCOPE.to_owned(), scope));
        Ok(self)
    }

    /// Adds a parameter to the body of the token request, such as `audience` or `resource`. A name may occur several
    /// times.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is empty, or is `grant_type`, `scope`, `client_id` or `client_secret`. The error
    /// does not contain the value.
    pub fn with_parameter(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, InvalidConfig> {
        let name = name.into();
        if ["", "grant_type", SCOPE, "client_id", "client_secret"].contains(&&*name) {
            let expected = "a name other than grant_type, scope, client_id and client_secret";
            return Err(InvalidConfig::new("token request parameter", name, expected));
        }
        self.parameters.push((name, value.into()));
        Ok(self)
    }

    /// Sends the client id and secret in the body of the token request. The default is HTTP Basic authentication, which
    /// RFC 6749 recommends and requires token endpoints to support.
    pub fn with_credentials_in_body(mut self) -> Self {
        self.in_body = true;
        self
    }

    /// Creates the key source. Its clones share the token.
    ///
    /// # Errors
    ///
    /// Returns an error for a token URL without TLS, except on loopback. Also returns an error for an `https` URL
    /// without the feature `rustls`.
    pub fn into_key_source(self) -> Result<KeySource, InvalidConfig> {
        self.into_key_source_with(|builder| builder.client())
    }

    /// Like [`into_key_source`](Self::into_key_source), with a client that the closure creates. The closure receives
    /// the builder for the token URL, with the client credentials. Do not give it a limiter whose requests wait for the
    /// token: a token request would then wait for them.
    ///
    /// Use it to set a proxy or root certificates for the token endpoint, to share connections between key sources, or
    /// to change the timeouts. A fetch takes at most 90 s, even if the timeouts are longer.
    ///
    /// ```
    /// use tower_outbound::{ApiKey, adapter::ClientCredentials, transport::TransportConfig};
    ///
    /// // Each call of `client_with_service` with a clone of `transport` uses the same connections.
    /// let transport = TransportConfig::new().build()?;
    /// let secret = ApiKey::new("s3cret")?;
    /// let tokens = ClientCredentials::new("https://login.example.com/oauth2/token", "orders-app", secret)?
    ///     .into_key_source_with(|builder| builder.with_name("login").client_with_service(transport.clone()))?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of the closure.
    pub fn into_key_source_with(
        self,
        client: impl FnOnce(StackBuilder) -> Result<Client, InvalidConfig>,
    ) -> Result<KeySource, InvalidConfig> {
        let form = Bytes::from(self.form());
        let encoded_secret = encoded(self.secret.expose());
        let header = basic(&encoded(&self.client_id), &encoded_secret);
        // A server may repeat the secret as it is, or as it was sent.
        let secrets = [Secret::new(self.secret.expose()), with_basic(&Secret::new(&encoded_secret), &header)];
        let header = (!self.in_body).then(|| sensitive(&header));
        let builder = self.builder.with_authorize(move |head| {
            if let Some(header) = &header {
                head.headers.insert(AUTHORIZATION, header.clone());
            }
            if let Some(call) = head.extensions.get::<CallContext>() {
                secrets.iter().for_each(|secret| call.conceal(secret, false));
            }
            Ok(())
        });
        let (client, url) = (client(builder)?, self.token_url);
        let tokens = RefreshingKey::new(move || fetch(client.clone(), Arc::clone(&url), form.clone()));
        Ok(tokens.with_timeout(FETCH_TIMEOUT)?.into())
    }

    /// Returns the body of the token request.
    fn form(&self) -> String {
        let credentials = [("client_id", &*self.client_id), ("client_secret", self.secret.expose())];
        let parameters = self.parameters.iter().map(|(name, value)| (&**name, &**value));
        let pairs = parameters.chain(credentials.into_iter().filter(|_| self.in_body));
        pairs.fold("grant_type=client_credentials".to_owned(), |form, (name, value)| {
            form + "&" + &encoded(name) + "=" + &encoded(value)
        })
    }
}

/// Encodes a text for a form. A space becomes `%20`, which every decoder of forms accepts.
fn encoded(text: &str) -> Zeroizing<String> {
    Zeroizing::new(utf8_percent_encode(text, ENCODED).to_string())
}

async fn fetch(client: Client, url: Arc<str>, form: Bytes) -> Result<FreshKey, KeyError> {
    // The URL is absolute, so that a client of another server rejects the request.
    let request = client.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded");
    let call = request.header(ACCEPT, "application/json").idempotent().body(form);
    let response =
        call.await.map_err(|error| KeyError::new("the token endpoint did not respond").with_source(error))?;
    let status = response.status();
    let body = response.bytes().await;
    let body = body
        .map_err(|error| KeyError::new("could not read the body of the token response").with_source(error))?;
    read_token(status, &body)
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCredentials")
            .field("origin", &self.builder.base.origin)
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

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
const CODES: &str = "access_denied invalid_client invalid_grant invalid_request invalid_scope invalid_target \
    server_error temporarily_unavailable unauthorized_client unsupported_grant_type";

/// The longest lifetime of a token in seconds: a century.
const LONGEST_LIFETIME: f64 = 3_155_760_000.0;

/// The delay after an error that another request cannot fix.
const LASTING_DELAY: Duration = Duration::from_secs(60);

/// Returns the token of a response.
fn read_token(status: StatusCode, body: &[u8]) -> Result<FreshKey, KeyError> {
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
    let code = code.and_then(|code| CODES.split(' ').find(|known| *known == code));
    let shown = code.map_or_else(String::new, |code| format!("the error `{code}`, "));
    let error = KeyError::new(format!("the token endpoint returned {shown}status {status}"));
    let is_temporary = status.is_server_error()
        || matches!(status.as_u16(), 408 | 425 | 429)
        || matches!(code, Some("server_error" | "temporarily_unavailable"));
    if is_temporary { error } else { error.with_retry_in(LASTING_DELAY) }
}
