//! The methods of the feature `json` without it, so that the compiler's message names the feature.

use std::future::pending;

use super::{RequestBuilder, Response, ResponseError};

/// No type implements this trait, so these methods cannot be called.
#[diagnostic::on_unimplemented(
    message = "this method needs the feature `json` of tower-outbound",
    label = "the feature `json` is not enabled",
    note = "enable it with `cargo add tower-outbound --features json`"
)]
pub trait Json {}

impl RequestBuilder {
    #[doc(hidden)]
    pub fn json<T: Json + ?Sized>(self, _: &T) -> Self {
        self
    }

    #[doc(hidden)]
    pub async fn fetch_json<T: Json>(self) -> Result<T, ResponseError> {
        pending().await
    }
}

impl Response {
    #[doc(hidden)]
    pub async fn json<T: Json>(self) -> Result<T, ResponseError> {
        pending().await
    }
}
