//! Converts the errors of reqwest. If an error proves that the request was not sent or not processed, the converted
//! error proves it, too.

use std::{error::Error as StdError, time::Duration};

use hyper_util::client::legacy;

use crate::error::{DeliveryError, Error, ErrorKind};

/// Converts the error of a call that failed after `elapsed`. `redirects` is `true` if the client may have sent more
/// than one request.
pub(super) fn of(error: ::reqwest::Error, elapsed: Duration, redirects: bool) -> Error {
    if error.is_redirect() {
        // Drops the source, because it may contain a URL that `without_url` does not remove.
        return followed();
    }
    let error = error.without_url();
    // The cause is either reqwest's setting `https_only` or a redirect to another scheme. The error does not
    // show which.
    if error.is_builder() {
        return Error::from_service(DeliveryError::maybe_processed(error).lasting());
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
    let why = "reqwest followed a redirect: build its client with redirect::Policy::none()";
    Error::from_service(DeliveryError::maybe_processed(why).lasting())
}
