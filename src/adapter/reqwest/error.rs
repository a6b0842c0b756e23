//! What a failure of reqwest proves.

use std::{error::Error as StdError, time::Duration};

use hyper_util::client::legacy;

use crate::error::{DeliveryError, Error, ErrorKind};

/// Of a call that failed after `elapsed`. `redirects` tells whether there may have been more than one request.
pub(super) fn of(error: ::reqwest::Error, elapsed: Duration, redirects: bool) -> Error {
    if error.is_redirect() {
        // Its source may have a URL of its own, where `without_url` does not reach.
        return followed();
    }
    let error = error.without_url();
    // `https_only`, or an answer that sent it on to another scheme: nothing tells one from the other.
    if error.is_builder() {
        return Error::from_service(DeliveryError::maybe_processed(error).lasting());
    }
    // Of the client's `timeout` or `read_timeout`. One of a connection, or of connecting, has hyper's error above it.
    let of_connection = error.source().is_some_and(|source| source.is::<legacy::Error>());
    if error.is_timeout() && !of_connection {
        return Error::new(ErrorKind::AttemptTimeout, Some(elapsed), Some(error.into()));
    }
    match redirects {
        true => Error::from_service(DeliveryError::maybe_processed(error)),
        false => Error::from_service(error),
    }
}

/// Of a client that did what it must not.
pub(super) fn followed() -> Error {
    let why = "reqwest followed a redirect by itself: build its client with redirect::Policy::none()";
    Error::from_service(DeliveryError::maybe_processed(why).lasting())
}
