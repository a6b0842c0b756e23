use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response,
    header::{
        ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, PROXY_AUTHORIZATION, TRANSFER_ENCODING,
        USER_AGENT,
    },
    uri::Authority,
};
use http_body::{Body, SizeHint};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    auth::{NOT_FRAMING, frames_request},
    config::InvalidConfig,
    error::{BoxError, Error, MaybeRejected},
    headers,
};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Adds the default headers of a stack to each request that does not contain them. A request with a body also gets a
/// `content-type`. [`StackLayer`](super::StackLayer) contains this layer.
#[derive(Clone, Default)]
pub struct DefaultHeadersLayer(pub(crate) Arc<HeaderMap>);

/// The headers that other layers of a stack set.
pub(super) struct SetHeaders<'a> {
    pub(super) request_id: &'a HeaderName,
    pub(super) attempt: Option<&'a HeaderName>,
    pub(super) idempotency_key: Option<&'a HeaderName>,
}

impl DefaultHeadersLayer {
    /// Rejects a header that frames a request, contains a credential, or that the stack also sets to another value.
    /// `key` is the header of the stack's own key. The key would not be sent if an outer layer set the same header.
    pub(super) fn check(&self, key: Option<&HeaderName>, set: &SetHeaders<'_>) -> Result<(), InvalidConfig> {
        let all_set = [Some(set.request_id), set.attempt, set.idempotency_key];
        let is_default = |name: &HeaderName| [ACCEPT, CONTENT_TYPE, USER_AGENT].contains(name);
        let is_credential = |name: &HeaderName| [AUTHORIZATION, PROXY_AUTHORIZATION].contains(name);
        if let Some(name) = key.filter(|name| is_default(name) || all_set.contains(&Some(*name))) {
            let expected = "a header that the stack does not set itself, such as x-api-key";
            return Err(InvalidConfig::new("key header", name.to_string(), expected).at("key_placement"));
        }
        // The request id may be the idempotency key, because both are the same for all attempts of a call.
        let is_taken = [Some(set.request_id), set.idempotency_key].contains(&set.attempt);
        for (field, name, is_taken, path) in [
            ("request id header", Some(set.request_id), false, &["request_id"] as &[_]),
            ("attempt header", set.attempt, is_taken, &["attempt_span"]),
            ("idempotency key header", set.idempotency_key, false, &["honoured_idempotency_key", "retry"]),
        ] {
            let Some(name) = name else { continue };
            let expected = if frames_request(name) {
                NOT_FRAMING
            } else if is_credential(name) {
                "a header other than authorization and proxy-authorization"
            } else if is_taken || is_default(name) {
                "a header that the stack does not also set to another value"
            } else {
                continue;
            };
            let error = InvalidConfig::new(field, name.to_string(), expected).at("header");
            return Err(path.iter().fold(error, |error, outer: &&str| error.at(*outer)));
        }
        for name in self.0.keys() {
            let expected = if frames_request(name) {
                NOT_FRAMING
            } else if key == Some(name) || is_credential(name) {
                "a header that contains no credential: use with_api_key or with_authorize for the credential"
            } else if all_set.contains(&Some(name)) {
                "any header except those of the request id, the attempt and the idempotency key, because a layer sets these"
            } else {
                continue;
            };
            return Err(InvalidConfig::new("header", name.to_string(), expected));
        }
        Ok(())
    }

    fn put_on(&self, headers: &mut HeaderMap, has_body: bool) -> Result<(), Error> {
        headers::check_room(headers)?;
        for (name, value) in self.0.iter() {
            headers::get_or_insert_with(headers, name, || value.clone())?;
        }
        if has_body && !self.0.contains_key(CONTENT_TYPE) {
            headers::get_or_insert_with(headers, &CONTENT_TYPE, || JSON)?;
        }
        Ok(())
    }
}

impl<S> Layer<S> for DefaultHeadersLayer {
    type Service = DefaultHeaders<S>;

    fn layer(&self, inner: S) -> Self::Service {
        DefaultHeaders { inner, headers: self.clone() }
    }
}

/// Writes the names of the headers, but not their values.
impl fmt::Debug for DefaultHeadersLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The service of [`DefaultHeadersLayer`]: see [`StackBuilder::with_header`](super::StackBuilder::with_header).
///
/// # Errors
///
/// Returns an error with [`Error::is_invalid_request`] if a request has more than 6,000 header fields, or a header that
/// [contradicts its URL or its body](crate::stack#headers). Otherwise returns the inner service's error. The maximum
/// leaves room for the header fields that the inner layers and the client add.
#[derive(Debug, Clone)]
pub struct DefaultHeaders<S> {
    inner: S,
    headers: DefaultHeadersLayer,
}

impl<S> DefaultHeaders<S> {
    inner_service!();
}

impl<S, B, R> Service<Request<B>> for DefaultHeaders<S>
where
    S: Service<Request<B>, Response = Response<R>, Error: Into<BoxError>>,
    B: Body,
{
    type Response = Response<R>;
    type Error = Error;
    type Future = MaybeRejected<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(cx).map_err(Error::from_readiness)
    }

    // Not inlined, so that the compiler constructs the future in its final place.
    #[inline(never)]
    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let has_body = !request.body().is_end_stream();
        let checked = check_framing(&request);
        match checked.and_then(|()| self.headers.put_on(request.headers_mut(), has_body)) {
            Ok(()) => MaybeRejected::Calling { future: self.inner.call(request) },
            Err(error) => MaybeRejected::rejected(error),
        }
    }
}

static CHECKED: [HeaderName; 3] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING];

/// Returns an error if `host`, `content-length` or `transfer-encoding` contradicts the URL or the body. HTTP clients
/// send these headers unchanged. The server would then read too few bytes, or wait for bytes that never arrive.
fn check_framing<B: Body>(request: &Request<B>) -> Result<(), Error> {
    let headers = request.headers();
    // One iteration over the names costs less than a lookup for each of the three.
    match headers.keys().any(|name| CHECKED.contains(name)) {
        true => check_present(headers, request.uri().authority(), &request.body().size_hint()),
        false => Ok(()),
    }
}

#[inline(never)]
fn check_present(headers: &HeaderMap, url: Option<&Authority>, body: &SizeHint) -> Result<(), Error> {
    // A connection of hyper without a pool needs the header.
    let of_url = |host: &HeaderValue| {
        url.is_some_and(|url| host.as_bytes().eq_ignore_ascii_case(url.as_str().as_bytes()))
    };
    if headers.contains_key(HOST) && !single(headers, &HOST).is_some_and(of_url) {
        return Err(invalid("header `host`: expected none, or the host and port of the url"));
    }
    let has_length = headers.contains_key(CONTENT_LENGTH);
    if headers.contains_key(TRANSFER_ENCODING) {
        let is_chunked = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"chunked");
        if has_length || !single(headers, &TRANSFER_ENCODING).is_some_and(is_chunked) {
            return Err(invalid("header `transfer-encoding`: expected `chunked`, and no `content-length`"));
        }
    }
    if !has_length {
        return Ok(());
    }
    let Some(length) = single(headers, &CONTENT_LENGTH).and_then(parse_length) else {
        return Err(invalid("header `content-length`: expected one decimal number, the length of the body"));
    };
    if (body.lower()..=body.upper().unwrap_or(u64::MAX)).contains(&length) {
        return Ok(());
    }
    let expected = match (body.exact(), body.upper()) {
        (Some(exact), _) => format!("{exact}"),
        (None, Some(upper)) if length > upper => format!("at most {upper}"),
        _ => format!("at least {}", body.lower()),
    };
    Err(invalid(format!("header `content-length: {length}`: expected {expected}, the length of the body")))
}

fn invalid(text: impl Into<String>) -> Error {
    Error::invalid_request(text.into())
}

/// Returns the value of the header, unless the header has several values.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

fn parse_length(value: &HeaderValue) -> Option<u64> {
    // `parse` would also accept a plus sign.
    value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}
