//! Creates a span for each attempt, as OpenTelemetry specifies for HTTP clients. Can also send the number of the
//! attempt and the span's context to the server.
//!
//! ```
//! use http::HeaderName;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_outbound::{attempt_span::AttemptSpanLayer, request_id::RequestIdLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let service = ServiceBuilder::new()
//!     .layer(RequestIdLayer::new())
//!     // … retry and limit …
//!     .layer(AttemptSpanLayer::new().with_attempt_header(HeaderName::from_static("x-attempt")))
//!     .service_fn(|request: http::Request<()>| async move {
//!         assert_eq!(request.headers()["x-attempt"], "1");
//!         Ok::<_, std::convert::Infallible>(http::Response::new(()))
//!     });
//!
//! service.oneshot(http::Request::get("https://api.example.com/v1").body(())?).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`request_id`](crate::request_id) documents the fields and the level of this span, together with all other spans and
//! log events.
//!
//! # Order
//!
//! - Place this layer inside the limit layer, so that the span does not include the wait for a permit. This wait has
//!   its own event.
//! - Place this layer outside the auth layer, so that the span is created before the credential is added. A signature
//!   can then cover the headers that this layer adds.
//!
//! # Notes
//!
//! - The span ends when the response headers arrive. It does not cover the body.
//! - The span is current while the inner layers and the client are polled or dropped, so their spans and events become
//!   its children. The spans of tasks that they spawn do not become its children.
//! - If the caller drops an attempt, its span has no status, because the server did not fail.
//! - A request that the limiter refuses, or that an outer layer does not forward, has no attempt span.
//! - If no subscriber enables the span, nothing is formatted or allocated.

mod future;
mod layer;
mod service;

pub use self::future::ResponseFuture;
pub use self::layer::AttemptSpanLayer;
pub use self::service::AttemptSpan;
