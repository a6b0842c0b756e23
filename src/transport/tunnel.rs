//! The tunnel through a proxy to a server.

use http::{
    StatusCode, Uri,
    uri::{Authority, Scheme},
};
use hyper_util::{
    client::{legacy::connect::proxy::SocksV5, proxy::matcher},
    rt::TokioIo,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tower_service::Service;

use super::stream::Stream;
use crate::error::{BoxError, ProxyRejectedPassword};

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
                Err(ProxyRejectedPassword.into())
            }
            Ok(status) => Err(format!("the proxy responded with status {}", status.as_u16()).into()),
            Err(_) => Err("the response of the proxy is not http".into()),
        }
    }
}

/// Marks the error of a proxy that rejects the password. The types of the errors have no public name, so their texts
/// are compared. If hyper-util changes the texts, the call is retried.
fn rejected(error: impl Into<BoxError>) -> BoxError {
    let error = error.into();
    match error.to_string().as_str() {
        "SOCKS error: credentials not accepted" => ProxyRejectedPassword.into(),
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
