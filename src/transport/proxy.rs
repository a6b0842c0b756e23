use std::{env, fmt, sync::Arc};

use http::{
    HeaderValue, StatusCode, Uri,
    uri::{Authority, Scheme},
};
use hyper_util::{
    client::{
        legacy::connect::proxy::SocksV5,
        proxy::matcher::{self, Matcher},
    },
    rt::TokioIo,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_service::Service;

use super::{TransportConfig, connection::Stream};
#[cfg(feature = "serde")]
use crate::config::text::InlineKey;
use crate::{
    config::InvalidConfig,
    error::{BoxError, NO_COMMON_METHOD, ProxyRejection, is_rejected_by_proxy},
    uri::{is_loopback, quoted},
};

impl TransportConfig {
    /// Sends the requests through a proxy. Replaces the proxy and the exceptions of a file.
    pub fn with_proxy(mut self, proxy: Proxy) -> Self {
        (self.proxy, self.no_proxy) = (Some(ProxyChoice::Given(proxy)), None);
        self
    }

    /// Returns the proxy with its exceptions.
    pub(super) fn proxy(&self) -> Result<Option<Proxy>, InvalidConfig> {
        let proxy = self.proxy.as_ref().map(ProxyChoice::get).transpose()?;
        Ok(match &self.no_proxy {
            Some(hosts) => proxy.map(|proxy| proxy.with_no_proxy(hosts)),
            None => proxy,
        })
    }
}

/// The proxy of a configuration.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ProxyChoice {
    Given(Proxy),
    /// The URL in a file, or `environment`. Read when the transport is built, because a parser of files quotes the line
    /// of a value that cannot be deserialized, and this line may contain a password.
    #[cfg(feature = "serde")]
    Written(InlineKey),
}

impl ProxyChoice {
    fn get(&self) -> Result<Proxy, InvalidConfig> {
        match self {
            Self::Given(proxy) => Ok(proxy.clone()),
            #[cfg(feature = "serde")]
            Self::Written(url) => {
                let proxy = match url.text() {
                    Ok("environment") => Proxy::from_env(),
                    Ok(url) => Proxy::new(url),
                    Err(_) => Err(InvalidConfig::new("proxy", "…", "a string")),
                };
                proxy.map_err(|error| error.at("proxy"))
            }
        }
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for ProxyChoice {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        InlineKey::deserialize(from).map(Self::Written)
    }
}

/// The proxies through which a [`Transport`](super::Transport) sends its requests.
///
/// ```
/// use tower_outbound::transport::{Proxy, TransportConfig};
///
/// # fn run() -> Result<(), tower_outbound::InvalidConfig> {
/// // `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY`, as curl reads them.
/// let from_environment = TransportConfig::new().with_proxy(Proxy::from_env()?);
/// let explicit = Proxy::new("http://proxy.example.com:3128")?.with_no_proxy("internal.example.com, 10.0.0.0/8");
/// # Ok(())
/// # }
/// ```
///
/// | scheme of the proxy | `https` requests | `http` requests |
/// |---|---|---|
/// | `http`, `https` | a tunnel (`CONNECT`), inside which TLS runs to the server | sent to the proxy with an absolute URI |
/// | `socks5`, `socks5h` | a tunnel. The proxy resolves the host name | a tunnel |
///
/// User and password of the URL are sent to the proxy only, with basic authentication or SOCKS authentication. The
/// credential of the API goes through the tunnel, so the proxy never sees it.
///
/// # Notes
///
/// - Requests to `localhost` and loopback addresses never go through a proxy.
/// - For a SOCKS proxy, user, password and the host of the server may have at most 249 bytes together. A longer host
///   fails the call.
/// - The proxy reads a plain `http` request. A stack sends its credential without TLS only after
///   [`with_plaintext`](crate::stack::StackBuilder::with_plaintext).
/// - A proxy that rejects the password (407 or 401), or requires one, fails the call without a retry, because several
///   logins with a wrong password can lock an account. The 407 to a plain request is an ordinary response.
#[derive(Clone)]
pub struct Proxy {
    urls: Urls,
    matcher: Arc<Matcher>,
}

/// The URLs of the proxies, and the hosts that need none. Each text may be empty.
#[derive(Clone, Default, PartialEq)]
struct Urls {
    http: String,
    https: String,
    no: String,
}

impl PartialEq for Proxy {
    fn eq(&self, other: &Self) -> bool {
        self.urls == other.urls
    }
}

impl Proxy {
    /// Sends all requests through the proxy with this URL. A URL without a scheme names an HTTP proxy.
    ///
    /// # Errors
    ///
    /// Returns an error unless `url` has a host and one of the schemes `http`, `https`, `socks5` and `socks5h`. Also
    /// returns an error if user and password of a SOCKS proxy have more than 248 bytes together. The error does not
    /// quote user and password.
    pub fn new(url: &str) -> Result<Self, InvalidConfig> {
        let url = checked(url, "proxy")?;
        Ok(Self::of(Urls { http: url.clone(), https: url, no: String::new() }))
    }

    /// Reads the proxies from the environment: `HTTPS_PROXY`, `HTTP_PROXY` and `ALL_PROXY`, and the exceptions from
    /// `NO_PROXY`. The names may also be in lower case. Without these variables, no proxy is used.
    ///
    /// `HTTP_PROXY` is ignored if `REQUEST_METHOD` is set, because a CGI server sets it from a header of its client.
    ///
    /// # Errors
    ///
    /// Returns an error with the name of the variable if a URL is invalid, as in [`new`](Self::new).
    pub fn from_env() -> Result<Self, InvalidConfig> {
        Self::from_variables(|name| env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidConfig> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let is_cgi = variable("REQUEST_METHOD").is_some();
        let url = |names: &[&'static str]| {
            let names = names.iter().filter(|name| !(is_cgi && **name == "HTTP_PROXY"));
            let found = names.filter_map(|name| Some((*name, set(name)?))).next();
            found.map_or(Ok(String::new()), |(name, url)| checked(&url, name))
        };
        Ok(Self::of(Urls {
            http: url(&["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])?,
            https: url(&["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])?,
            no: set("NO_PROXY").or_else(|| set("no_proxy")).unwrap_or_default(),
        }))
    }

    /// Sends requests to these hosts without the proxy: names with their subdomains, IP addresses, and networks such as
    /// `10.0.0.0/8`, separated by commas. `*` matches every host.
    pub fn with_no_proxy(self, hosts: &str) -> Self {
        Self::of(Urls { no: hosts.to_owned(), ..self.urls })
    }

    fn of(urls: Urls) -> Self {
        // hyper-util's `*` does not match IP addresses.
        let is_unused = urls.no.split(',').any(|host| host.trim() == "*");
        let [http, https] = [&urls.http, &urls.https].map(|url| if is_unused { "" } else { url.as_str() });
        let builder = Matcher::builder().http(http).https(https);
        let matcher = Arc::new(builder.no(urls.no.as_str()).build());
        Self { urls, matcher }
    }

    /// Returns the proxy for requests to this URI, if they need one.
    pub(super) fn intercept(&self, uri: &Uri) -> Option<Intercept> {
        if is_loopback(uri.host()?) {
            return None;
        }
        self.matcher.intercept(uri).map(Intercept)
    }

    /// Returns `Some` if plain requests to this origin are sent to the proxy itself, with the value of
    /// `proxy-authorization`.
    pub(super) fn forward(&self, scheme: &Scheme, authority: &Authority) -> Option<Option<HeaderValue>> {
        let uri = Uri::builder().scheme(scheme.clone()).authority(authority.clone()).path_and_query("/");
        let proxy = self.intercept(&uri.build().ok()?)?;
        // hyper-util marks the value as sensitive.
        (*scheme == Scheme::HTTP && !proxy.is_socks()).then(|| proxy.0.basic_auth().cloned())
    }
}

/// Shows the schemes, hosts and ports of the proxies.
impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("http", &quoted(&self.urls.http))
            .field("https", &quoted(&self.urls.https))
            .field("no_proxy", &self.urls.no)
            .finish()
    }
}

/// The length of `user:password`, in bytes. hyper-util writes both and the host of the server, which has at least one
/// byte, into one buffer of the SOCKS handshake.
const LONGEST_LOGIN: usize = 249;

/// Returns the URL with its scheme.
fn checked(url: &str, field: &'static str) -> Result<String, InvalidConfig> {
    const EXPECTED: &str = "the url of a proxy with a host, such as http://proxy.example.com:3128. The schemes are http, https, socks5 and socks5h";
    let invalid = |expected| InvalidConfig::new(field, quoted(url), expected);
    let url = url.trim();
    let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
    let uri: Uri = url.parse().map_err(|_| invalid(EXPECTED))?;
    let is_known = ["http", "https", "socks5", "socks5h"].contains(&uri.scheme_str().unwrap_or_default());
    let authority = uri.authority().map_or("", Authority::as_str);
    let has_valid_port =
        uri.port().is_some() == authority.rsplit(['@', ']']).next().unwrap_or_default().contains(':');
    let is_valid = is_known
        && has_valid_port
        && uri.host().is_some_and(|host| !host.is_empty())
        && uri.path() == "/"
        && uri.query().is_none()
        && !url.contains('#');
    if !is_valid {
        return Err(invalid(EXPECTED));
    }
    let scheme = uri.scheme_str().unwrap_or_default();
    let is_socks = scheme.starts_with("socks");
    let authority = match authority.rsplit_once('@') {
        Some((user_info, host)) => {
            let length = user_info.len().saturating_sub(2 * user_info.matches('%').count());
            if is_socks && length > LONGEST_LOGIN {
                return Err(invalid("at most 248 bytes of user and password for a socks proxy"));
            }
            // The host begins after the last `@`, but hyper-util splits at the first one.
            format!("{}@{host}", user_info.replace('@', "%40"))
        }
        None => authority.to_owned(),
    };
    // The client of hyper-util would connect to port 80.
    let port = if is_socks && uri.port().is_none() { ":1080" } else { "" };
    Ok(format!("{scheme}://{authority}{port}"))
}

/// The length of the head of a proxy's response, in bytes.
const LONGEST_HEAD: usize = 8 * 1024;

/// The proxy for one request.
pub(super) struct Intercept(pub(super) matcher::Intercept);

impl Intercept {
    pub(super) fn uri(&self) -> &Uri {
        self.0.uri()
    }

    pub(super) fn is_socks(&self) -> bool {
        self.uri().scheme_str().is_some_and(|scheme| scheme.starts_with("socks"))
    }

    /// Asks the proxy, to which `stream` is connected, to connect to the server.
    pub(super) async fn tunnel(&self, stream: Stream, server: &Uri) -> Result<Stream, BoxError> {
        let server = with_port(server.clone())?;
        if !self.is_socks() {
            return self.connect(stream, server.authority().map_or("", Authority::as_str)).await;
        }
        let mut stream = Some(TokioIo::new(stream));
        let lost = || std::io::Error::other("the connection to the proxy was already used");
        let connected = tower::service_fn(move |_: Uri| std::future::ready(stream.take().ok_or_else(lost)));
        let mut socks = SocksV5::new(self.uri().clone(), connected);
        if let Some((user, password)) = self.0.raw_auth() {
            socks = socks.with_auth(user.to_owned(), password.to_owned());
        }
        Ok(socks.call(server).await.map_err(rejected)?.into_inner())
    }

    /// Sends `CONNECT`. hyper-util's `Tunnel` does not return the status of the proxy.
    async fn connect(&self, mut stream: Stream, authority: &str) -> Result<Stream, BoxError> {
        let mut request = format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n").into_bytes();
        if let Some(authorization) = self.0.basic_auth() {
            request.extend([b"proxy-authorization: ", authorization.as_bytes(), b"\r\n"].concat());
        }
        request.extend(b"\r\n");
        stream.write_all(&request).await?;
        stream.flush().await?;
        // Reads single bytes, because the bytes after the head belong to the server.
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() == LONGEST_HEAD {
                return Err("the headers of the proxy's response are too long".into());
            }
            let mut byte = [0];
            if stream.read(&mut byte).await? == 0 {
                return Err("the proxy closed the connection".into());
            }
            head.push(byte[0]);
        }
        match StatusCode::from_bytes(head.get(9..12).unwrap_or_default()) {
            Ok(status) if status.is_success() && head.starts_with(b"HTTP/1.") => Ok(stream),
            // Some proxies respond 401 to a wrong password, such as tinyproxy.
            Ok(StatusCode::PROXY_AUTHENTICATION_REQUIRED | StatusCode::UNAUTHORIZED) => {
                Err(ProxyRejection::Login.into())
            }
            Ok(status) => Err(format!("the proxy responded with status {}", status.as_u16()).into()),
            Err(_) => Err("the response of the proxy is not http".into()),
        }
    }
}

/// Marks the error of a proxy that rejects the login.
fn rejected(error: impl Into<BoxError>) -> BoxError {
    let error = error.into();
    match error.to_string().as_str() {
        NO_COMMON_METHOD => ProxyRejection::Methods.into(),
        text if is_rejected_by_proxy(text) => ProxyRejection::Login.into(),
        _ => error,
    }
}

/// Adds the default port of the scheme.
fn with_port(uri: Uri) -> Result<Uri, http::Error> {
    if uri.port().is_some() {
        return Ok(uri);
    }
    let port = if uri.scheme() == Some(&Scheme::HTTPS) { 443 } else { 80 };
    let authority = format!("{}:{port}", uri.host().unwrap_or_default());
    let scheme = uri.scheme_str().unwrap_or_default();
    Uri::builder().scheme(scheme).authority(authority).path_and_query("/").build()
}

#[cfg(test)]
mod tests;
