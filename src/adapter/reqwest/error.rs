//! Converts the errors of reqwest. If an error proves that the request was not sent or not processed, the converted
//! error proves it, too.

use std::{error::Error as StdError, fmt, time::Duration};

use hyper_util::client::legacy;

use crate::error::{DeliveryError, Error, ErrorKind, chain::chain, transport::findings::Findings};

/// Converts the error of a call that failed after `elapsed`. `redirects` is `true` if the client may have sent more
/// than one request.
pub(super) fn of(error: ::reqwest::Error, elapsed: Duration, redirects: bool) -> Error {
    if error.is_redirect() {
        // Drops the source, because it may contain a URL that `without_url` does not remove.
        return followed();
    }
    let error = error.without_url();
    // reqwest's error does not show which of these is the cause.
    if error.is_builder() {
        return Lasting::error(
            "reqwest's setting `https_only` forbids the url, or the location of a redirect is invalid or has another scheme",
        );
    }
    // If connecting or the open connection timed out, the source is an error of hyper. Otherwise the client's own
    // `timeout` or `read_timeout` was exceeded.
    let of_connection = error.source().is_some_and(|source| source.is::<legacy::Error>());
    if error.is_timeout() && !of_connection {
        return Error::new(ErrorKind::AttemptTimeout, Some(elapsed), Some(error.into()));
    }
    match redirects {
        true => Error::from_service(DeliveryError::maybe_processed(error)),
        false => Error::from_service(error),
    }
}

/// Creates the error of a client that followed a redirect.
pub(super) fn followed() -> Error {
    Lasting::error("reqwest followed a redirect: build its client with redirect::Policy::none()")
}

/// Converts the error of a request that reqwest cannot create. The innermost cause contains no URL.
pub(super) fn invalid(error: ::reqwest::Error) -> Error {
    let error = error.without_url();
    Error::invalid_request(chain(&error).last().map_or_else(String::new, ToString::to_string))
}

/// A failure that every further attempt would repeat. reqwest may have sent the request.
#[derive(Debug)]
struct Lasting(&'static str);

impl Lasting {
    fn error(why: &'static str) -> Error {
        Error::from_service(Self(why)).showing_source()
    }
}

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl StdError for Lasting {}

impl Findings {
    /// Updates the findings if `error` comes from reqwest or this module. The result has the same meaning as that of
    /// [`read_hyper_error`](Self::read_hyper_error).
    pub(crate) fn read_reqwest_error(
        &mut self,
        error: &(dyn StdError + 'static),
    ) -> Option<Option<ErrorKind>> {
        if error.is::<Lasting>() {
            self.last();
            return Some(Some(ErrorKind::Other));
        }
        let error = error.downcast_ref::<::reqwest::Error>()?;
        if error.is_body() {
            return Some(Some(ErrorKind::Body));
        }
        let client = error.source().is_some_and(|source| source.is::<legacy::Error>());
        if error.is_timeout() && !client {
            return Some(Some(ErrorKind::AttemptTimeout));
        }
        if error.is_connect() {
            self.connect();
        }
        Some(None)
    }
}
