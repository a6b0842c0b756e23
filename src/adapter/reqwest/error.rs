//! Converts the errors of reqwest. If an error proves that the request was not sent or not processed, the converted
//! error proves it, too.

use std::{error::Error as StdError, time::Duration};

use hyper_util::client::legacy;

use crate::error::{
    DeliveryError, Error, ErrorKind, Failed, chain::chain, delivery::Proof, transport::findings::Findings,
};

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
pub(super) fn followed() -> Error {
    lasting("reqwest followed a redirect: build its client with redirect::Policy::none()")
}

/// Converts the error of a request that reqwest cannot create. The innermost cause contains no URL.
pub(super) fn invalid(error: ::reqwest::Error) -> Error {
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
