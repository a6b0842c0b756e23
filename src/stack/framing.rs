//! Rejects requests whose headers contradict their URL or their body.

use http::{
    HeaderMap, HeaderName, HeaderValue, Request,
    header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING},
    uri::Authority,
};
use http_body::{Body, SizeHint};

use crate::error::Error;

static CHECKED: [HeaderName; 3] = [HOST, CONTENT_LENGTH, TRANSFER_ENCODING];

/// Returns an error if `host`, `content-length` or `transfer-encoding` contradicts the URL or the body. HTTP clients
/// send these headers unchanged. The server would then read too few bytes, or wait for bytes that never arrive.
pub(super) fn check<B: Body>(request: &Request<B>) -> Result<(), Error> {
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
