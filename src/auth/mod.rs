//! Layer 1: the credential goes on the request, to its own origin and nowhere else.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_outbound::{ApiKey, auth::{BearerAuthLayer, Origin}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let key = ApiKey::new("s3cret")?;
//! let layer = BearerAuthLayer::new(key, Origin::parse("https://api.example.com")?)?;
//! let service = ServiceBuilder::new().layer(layer).service_fn(
//!     |request: http::Request<()>| async move {
//!         assert_eq!(request.headers()["authorization"], "Bearer s3cret");
//!         Ok::<_, std::convert::Infallible>(http::Response::new(()))
//!     },
//! );
//!
//! service.oneshot(http::Request::get("https://api.example.com/v1/resources").body(())?).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//!
//! Inside retry and limit, so that each attempt carries the key that is current when it leaves; under anything
//! that follows redirects, so that the next origin is looked at anew.
//!
//! # Surprises
//!
//! - A request to another origin (scheme, host or port differ) is passed on *without* the key, as a browser
//!   does after a redirect. A request whose URI names no origin is an error.
//! - The caller's own `Authorization` header, or query parameter, is kept.
//! - An origin without TLS that is not loopback is refused when the layer is made, unless
//!   [`Origin::allow_plaintext`] was said.
//! - Header values are marked sensitive, so that `Debug` hides them and HTTP/2 doesn't index them.
//! - Other ways to prove who you are: [`QueryKey`], or a closure over the request's head.

mod authorize;
mod future;
mod key;
mod layer;
mod origin;
mod service;

pub use self::authorize::{Authorize, Bearer, QueryKey};
pub use self::future::ResponseFuture;
pub use self::key::{ApiKey, AppCredentials};
pub use self::layer::{AuthLayer, BearerAuthLayer};
pub use self::origin::Origin;
pub(crate) use self::origin::redact;
pub use self::service::Auth;
