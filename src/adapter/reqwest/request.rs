//! Converts an `http::Request` to a `reqwest::Request`, and the errors of reqwest. Rejects a request that reqwest would
//! change. If an error proves that the request was not sent or not processed, the converted error proves it, too.

use std::{
    error::Error as StdError,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use ::reqwest::{Body as Content, Url};
use bytes::{Buf, Bytes};
use http::{Request, Uri};
use http_body::{Body, Frame, SizeHint};
use hyper_util::client::legacy;

use crate::{
    error::{
        BoxError, DeliveryError, Error, ErrorKind, Failed, chain::chain, delivery::Proof, transport::Findings,
    },
    headers,
};

pub(super) fn translate<B>(request: Request<B>) -> Result<::reqwest::Request, Error>
where
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    // reqwest adds its default headers with methods that panic if the header map is full.
    headers::check_room(request.headers())?;
    let uri = request.uri().clone();
    // Streams the body, because reqwest can clone a body in memory and would then resend the request without this
    // crate's layers. reqwest resends even after a GOAWAY, although the server may have processed the request.
    let request = request.map(|body| Content::wrap(Shared(Mutex::new(Box::pin(body)))));
    let request = ::reqwest::Request::try_from(request).map_err(invalid_request)?;
    match difference(&uri, request.url()) {
        None => Ok(request),
        Some(part) => Err(Error::invalid_request(format!("reqwest would change the {part}"))),
    }
}

/// Returns the part of the URI that `Url` has rewritten. Like browsers, `Url` resolves dot segments, percent-encodes
/// some characters, and parses numbers as IPv4 addresses.
fn difference(uri: &Uri, url: &Url) -> Option<&'static str> {
    let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"));
    let host = uri.host().zip(url.host_str());
    let default = if scheme == Some("https") { 443 } else { 80 };
    [
        ("scheme", scheme == Some(url.scheme())),
        ("host", host.is_some_and(|(given, sent)| given.eq_ignore_ascii_case(sent))),
        ("port", url.port_or_known_default() == Some(uri.port_u16().unwrap_or(default))),
        ("path, so remove its dot segments and percent-encode it", url.path() == uri.path()),
        ("query, so percent-encode it", url.query() == uri.query()),
    ]
    .into_iter()
    .find_map(|(part, same)| (!same).then_some(part))
}

/// Makes the body of a request `Sync`, as reqwest requires. reqwest never uses the body from two threads at once, so
/// the lock is always free.
struct Shared<B>(Mutex<Pin<Box<B>>>);

impl<B> Shared<B> {
    fn look(&self) -> MutexGuard<'_, Pin<Box<B>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<B: Body> Body for Shared<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let inner = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        // `copy_to_bytes` does not copy if the data is `Bytes`.
        let bytes = |mut data: B::Data| data.copy_to_bytes(data.remaining());
        inner.as_mut().poll_frame(cx).map(|frame| frame.map(|frame| frame.map(|frame| frame.map_data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.look().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.look().size_hint()
    }
}

/// Converts the error of a call that failed after `elapsed`. `redirects` is `true` if the client may have sent more
/// than one request.
pub(super) fn convert_error(error: ::reqwest::Error, elapsed: Duration, redirects: bool) -> Error {
    if error.is_redirect() {
        // Drops the source, because it may contain a URL that `without_url` does not remove.
        return followed_redirect();
    }
    let error = error.without_url();
    // reqwest's error does not show which of these is the cause.
    if error.is_builder() {
        return lasting(
            "reqwest's setting `https_only` forbids the url, or the location of a redirect is invalid or has another scheme",
        );
    }
    if is_own_timeout(&error) {
        return Error::new(ErrorKind::AttemptTimeout, Some(elapsed), Some(error.into()));
    }
    match redirects {
        true => Error::from_service(DeliveryError::maybe_processed(error)),
        false => Error::from_service(error),
    }
}

/// Creates the error of a client that may have sent the request, and would fail in each further attempt.
fn lasting(why: &'static str) -> Error {
    let failed = Failed::Service(Proof { not_sent: false, lasting: true });
    Error::of(failed, ErrorKind::Other, None, Some(why.into())).showing_source()
}

/// Creates the error of a client that followed a redirect.
pub(super) fn followed_redirect() -> Error {
    lasting("reqwest followed a redirect: build its client with redirect::Policy::none()")
}

/// Converts the error of a request that reqwest cannot create. The innermost cause contains no URL.
pub(super) fn invalid_request(error: ::reqwest::Error) -> Error {
    let error = error.without_url();
    Error::invalid_request(chain(&error).last().map_or_else(String::new, ToString::to_string))
}

/// Returns whether the client's own `timeout` or `read_timeout` was exceeded. The source is an error of hyper if
/// connecting or the open connection timed out instead.
fn is_own_timeout(error: &::reqwest::Error) -> bool {
    error.is_timeout() && !error.source().is_some_and(|source| source.is::<legacy::Error>())
}

impl Findings {
    /// Updates the findings if `error` comes from reqwest. The result has the same meaning as that of
    /// [`read_hyper_error`](Self::read_hyper_error).
    pub(crate) fn read_reqwest_error(
        &mut self,
        error: &(dyn StdError + 'static),
    ) -> Option<Option<ErrorKind>> {
        let error = error.downcast_ref::<::reqwest::Error>()?;
        if error.is_body() {
            return Some(Some(ErrorKind::Body));
        }
        if is_own_timeout(error) {
            return Some(Some(ErrorKind::AttemptTimeout));
        }
        if error.is_connect() {
            self.connect();
        }
        Some(None)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;

    use super::*;

    fn translated(uri: &str) -> Result<String, String> {
        let request = Request::get(uri).body(Empty::<bytes::Bytes>::new()).unwrap();
        translate(request).map(|request| request.url().to_string()).map_err(|error| {
            assert!(error.is_invalid_request(), "{error:?}");
            format!("{error:#}")
        })
    }

    #[test]
    fn reqwest_adapter_rejects_a_request_with_more_than_6000_header_fields() {
        let mut request = Request::get("http://host/").body(Empty::<bytes::Bytes>::new()).unwrap();
        for number in 0..6_001 {
            let name = http::HeaderName::try_from(format!("x-{number}")).unwrap();
            request.headers_mut().insert(name, http::HeaderValue::from_static("1"));
        }
        let error = translate(request).unwrap_err();
        assert!(error.is_invalid_request(), "{error:?}");
    }

    #[test]
    fn rejects_a_uri_that_reqwest_would_change() {
        for uri in [
            "http://api.example.com/v1?q=a%20b&empty=#not-sent",
            "https://API.example.com:443/v1",
            "https://api.example.com:8443?q",
            "http://127.0.0.1:8080/a//b/%2F",
            "http://[::1]:8080/",
        ] {
            assert!(translated(uri).is_ok(), "{uri}: {:?}", translated(uri));
        }
        for (uri, part) in [
            ("http://api.example.com/a/../b", "path"),
            ("http://api.example.com/a/%2e%2E/b", "path"),
            ("http://api.example.com/a\"b", "path"),
            ("http://api.example.com/a?q='s3cret'", "query"),
            ("http://127.1/", "host"),
            ("http://0x7f000001/", "host"),
            ("ftp://api.example.com/", "scheme"),
        ] {
            let error = translated(uri).unwrap_err();
            assert!(error.contains(part) && !error.contains("s3cret"), "{uri}: {error}");
        }
        assert!(translated("/v1?key=s3cret").is_err_and(|error| !error.contains("s3cret")));
    }
}
