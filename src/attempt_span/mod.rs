//! A span for each attempt, as OpenTelemetry wants an HTTP client to have one; and, by choice, the number of the attempt
//! and the span's context on the wire.
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
//!     // … retry and limit stand here …
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
//! [`request_id`](crate::request_id) documents the fields and the level of the span, with every other span and log
//! event.
//!
//! # Order
//!
//! Below the limiter, for a span that covered the wait would call a server slow that was never asked; the wait has its
//! event. Above auth, so that the credential is put on when the span has been made, and a signature may cover
//! the headers that are written here.
//!
//! # Surprises
//!
//! - The span ends with the head of the answer; what is read of the body afterwards is not in it.
//! - The span is current whenever the layers and the client below are polled, and where they are dropped: their spans and
//!   events are its children. A task that they spawn is not.
//! - An attempt that its caller drops ends without a status, for that is no failure of the server's.
//! - A request that the limiter refuses, or that a layer above does not hand down, has no span.
//! - Without a subscriber, or with one that does not want the span, nothing is made, formatted or allocated.

mod future;
mod layer;
mod service;

pub use self::future::ResponseFuture;
pub use self::layer::AttemptSpanLayer;
pub use self::service::AttemptSpan;
