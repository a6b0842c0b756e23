//! The methods of requests and responses for JSON. Without the feature `json`, the compiler's message names the
//! feature.

#[cfg(not(feature = "json"))]
use std::future::pending;

#[cfg(feature = "json")]
use http::{HeaderValue, header::ACCEPT};
#[cfg(feature = "json")]
use serde::{Serialize, de::DeserializeOwned};

use super::{RequestBuilder, Response, ResponseError};
#[cfg(feature = "json")]
use super::{error::Kind, excerpt::excerpt, response::without_bom};
#[cfg(feature = "json")]
use crate::{error::Error, headers};

#[cfg(feature = "json")]
impl RequestBuilder {
    /// Sets the body to `value` as JSON. The `content-type` is that of any [`body`](Self::body): `application/json` by
    /// default.
    ///
    /// ```no_run
    /// # async fn call(mail: tower_outbound::Client) -> Result<(), tower_outbound::Error> {
    /// let email = std::collections::HashMap::from([("to", "ann@example.com"), ("text", "hello")]);
    /// let response = mail.post("/v1/messages").json(&email).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn json<T: Serialize + ?Sized>(self, value: &T) -> Self {
        self.change(|_, request| {
            let json = serde_json::to_vec(value).map_err(|error| {
                Error::invalid_request(format!("the body could not be serialized as json: {error}"))
            })?;
            *request.body_mut() = json.into();
            Ok(())
        })
    }

    /// Sends the request, and deserializes the JSON body of a 2xx response. An empty body is deserialized as `null`.
    ///
    /// The request has the header `accept: application/json`, unless the request itself or
    /// [`StackBuilder::with_header`](crate::stack::StackBuilder::with_header) sets another `accept`.
    ///
    /// ```no_run
    /// #[derive(serde::Deserialize)]
    /// struct Rate {
    ///     value: f64,
    /// }
    ///
    /// # async fn call(rates: tower_outbound::Client) {
    /// match rates.get("/v1/rates/EUR").fetch_json::<Rate>().await {
    ///     Ok(rate) => println!("{}", rate.value),
    ///     Err(error) if error.status() == Some(http::StatusCode::NOT_FOUND) => println!("no such rate"),
    ///     Err(error) => eprintln!("{error}"),
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if
    ///
    /// - no response arrived,
    /// - the status is not a 2xx,
    /// - the body fails, is larger than [`Response::MAX_BODY`](super::Response::MAX_BODY), or cannot be deserialized to
    ///   `T`.
    ///
    /// Retries an idempotent request if the body breaks: see [`Response`](super::Response#retries).
    pub async fn fetch_json<T: DeserializeOwned>(self) -> Result<T, ResponseError> {
        let accepting = self.change(|client, request| {
            // A default header may already set it.
            if !client.inner.current.get().builder.headers.0.contains_key(ACCEPT) {
                let json = || HeaderValue::from_static("application/json");
                headers::get_or_insert_with(request.headers_mut(), &ACCEPT, json)?;
            }
            Ok(())
        });
        accepting.send().await?.error_for_status().await?.json().await
    }
}

#[cfg(feature = "json")]
impl Response {
    /// Reads the body, and deserializes it from JSON. An empty body is deserialized as `null`. A byte order mark (BOM)
    /// at the start is skipped, as RFC 8259 §8.1 permits.
    ///
    /// The status is not checked. [`error_for_status`](Self::error_for_status) checks it.
    ///
    /// # Errors
    ///
    /// Returns an error as [described above](Self#reading-the-body), or if the body cannot be deserialized to `T`.
    pub async fn json<T: DeserializeOwned>(self) -> Result<T, ResponseError> {
        let (status, report) = (self.status(), self.report().cloned());
        let body = self.bytes().await?;
        let body = without_bom(&body);
        let json = if body.is_empty() { b"null" } else { body };
        serde_json::from_slice(json).map_err(|error| ResponseError {
            kind: Kind::Json(error),
            status: Some(status),
            excerpt: excerpt(body, report.as_ref()),
            report,
        })
    }
}

/// No type implements this trait, so these methods cannot be called.
#[cfg(not(feature = "json"))]
#[diagnostic::on_unimplemented(
    message = "this method needs the feature `json` of tower-outbound",
    label = "the feature `json` is not enabled",
    note = "enable it with `cargo add tower-outbound --features json`"
)]
pub trait Json {}

#[cfg(not(feature = "json"))]
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

#[cfg(not(feature = "json"))]
impl Response {
    #[doc(hidden)]
    pub async fn json<T: Json>(self) -> Result<T, ResponseError> {
        pending().await
    }
}
