mod request;
mod service;

pub use self::service::{Reqwest, ReqwestBody};

use std::pin::Pin;

use ::reqwest::{Body, RequestBuilder, Response, ResponseBuilderExt};
use tower_service::Service;

use self::request::invalid_request;
use crate::{call::Deadline, error::Error, stack::StackService};

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response, Error>> + Send>>;

/// Sends a `reqwest::RequestBuilder`'s request through a stack.
///
/// ```no_run
/// use tower_outbound::{BoxError, Client, Quota, adapter::SendWith};
///
/// # async fn run() -> Result<(), BoxError> {
/// let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
/// let orders = Client::builder("https://api.example.com/v2")?
///     .with_api_key_env("ORDERS_KEY")
///     .with_quota(Quota::per_minute(300)?)
///     .reqwest(client.clone())?;
///
/// let response = client.get("https://api.example.com/v2/orders").send_with(&orders).await?;
/// println!("{}", response.error_for_status()?.text().await?);
/// # Ok(())
/// # }
/// ```
pub trait SendWith: sealed::Sealed {
    /// Sends the request through `stack` instead of directly.
    ///
    /// The URL must be absolute. The credential is sent only to the origin of the stack's base URL. The response has
    /// the same URL as the request. The response's extensions contain a [`Report`](crate::Report).
    ///
    /// A `timeout` of the request limits each attempt, as it does without a stack. It also limits the whole call until
    /// the response headers arrive.
    ///
    /// # Errors
    ///
    /// Returns an [`Error`] if the request is invalid or no response arrived. Every HTTP status is returned as `Ok`.
    ///
    /// # Cancellation
    ///
    /// Nothing is sent before the first poll. Dropping the future cancels the call. The future owns its data, so it can
    /// be passed to `tokio::spawn`.
    fn send_with(self, stack: &StackService<Reqwest>) -> ResponseFuture;
}

impl SendWith for RequestBuilder {
    fn send_with(self, stack: &StackService<Reqwest>) -> ResponseFuture {
        let mut stack = stack.clone();
        Box::pin(async move {
            let request = self.build().map_err(invalid_request)?;
            let (url, timeout) = (request.url().clone(), request.timeout().copied());
            let mut request = http::Request::<Body>::try_from(request).map_err(invalid_request)?;
            if let Some(limit) = timeout {
                request.extensions_mut().insert(Deadline::after(limit));
            }
            // The stack is always ready, because the retry layer waits for its inner service in the call's future.
            let mut response = stack.call(request).await?;
            if let Ok(located) = http::Response::builder().url(url).body(()) {
                response.extensions_mut().extend(located.into_parts().0.extensions);
            }
            Ok(response.map(Body::wrap).into())
        })
    }
}

mod sealed {
    pub trait Sealed {}

    impl Sealed for ::reqwest::RequestBuilder {}
}
