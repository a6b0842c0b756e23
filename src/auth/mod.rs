//! Puts a credential on each attempt, for its own origin only.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_outbound::{ApiKey, auth::{AuthLayer, Origin}};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let key = ApiKey::new("s3cret")?;
//! let layer = AuthLayer::new(key, Origin::parse("https://api.example.com")?)?;
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
//! # Credentials
//!
//! | credential | layer |
//! |---|---|
//! | a key, as a [`KeySource`], in a [`KeyPlacement`] | [`AuthLayer::new`] |
//! | headers that a closure makes from the request's head | [`AuthLayer::from_fn`] |
//! | a signature that needs the body, or awaits | [`SignLayer`] with a [`Sign`] |
//!
//! # After a 401
//!
//! A key from a file or a [`RefreshingKey`] is replaced, once for all concurrent requests with a 401. The layer marks the
//! response with [`KeyReplaced`](crate::call::KeyReplaced). It does not retry, because it is inside the limiter. The
//! [`retry`](crate::retry#after-a-401) layer retries the request once with the new key, whatever its method, because the
//! server did not process it. Without a retry layer, the 401 is returned and the next request has the new key.
//!
//! gRPC's `UNAUTHENTICATED` (HTTP 200 with `grpc-status: 16` in the headers) does the same, but only an idempotent request
//! is retried: gRPC does not guarantee that it was not processed. The layer does not see a status in the trailers.
//!
//! If no other key can be fetched, the rejected key is sent again, and the caller sees the server's 401.
//!
//! # Order
//!
//! Inside retry and rate limit, so that each attempt has the current key. The layer becomes ready when the key source has
//! a key or has failed. The rate limit layer replaces a permit that expires during this wait. Every request waits for the
//! first key, also one to another origin.
//!
//! Above or below a layer that follows redirects, for example tower-http's `FollowRedirect`:
//!
//! | placement | redirects followed above | below, by tower-http 0.7 | below, by tower-http 0.6 |
//! |---|---|---|---|
//! | bearer, basic | safe | not sent to other origins: `Authorization` is removed | **leaks** after a second hop, whatever the policy |
//! | any other header | safe | **leaks**, unless the policy is `FilterCredentials::new().remove_all()` | **leaks**, whatever the policy |
//! | query parameter | safe | not sent after a redirect, not even to its own origin | the same |
//!
//! Safe means that the layer checks the origin of each hop. Follow redirects above the retry layer, too: otherwise a 401 at
//! the second hop repeats the first one. tower-http 0.6 copies the first request's headers to each hop, and removes them
//! only if the origin differs from that of the hop before.
//!
//! # Redaction
//!
//! - `Debug` of the layers, keys and key sources, and the log events of the target `tower_outbound::auth`, contain no key.
//!   [The log](crate::request_id#the-log) lists them.
//! - Header values are marked sensitive: `Debug` of the request does not show them, and HTTP/2 does not index them. `Debug`
//!   of its URI shows a key in the query. hyper-util, h2 and rustls log no URI at any level, but other layers may.
//! - A server's request id that contains the key is neither logged nor in the [`Report`](crate::Report). The layers do not
//!   know what a closure or a [`Sign`] sends, and do not look for it.
//! - A key's memory is overwritten when it is dropped, but not its copies in requests: see [`ApiKey`].
//!
//! # Notes
//!
//! - A request to another origin passes without the credential. A request whose URI names no origin is an error.
//! - The caller's own header or query parameter of that name is kept. A 401 to it does not replace the key.
//! - An origin without TLS is an error, except loopback and [`Origin::with_plaintext`].

mod credential;
mod future;
pub(crate) mod key;
mod key_error;
mod layer;
mod origin;
mod placed_key;
mod placement;
mod refresh;
mod refreshing;
mod service;
mod sign;
mod source;
#[cfg(feature = "serde")]
mod text;

pub use self::future::ResponseFuture;
pub(crate) use self::key::ApiKey;
pub use self::key::AppCredentials;
pub use self::key_error::KeyError;
pub use self::layer::AuthLayer;
pub use self::origin::Origin;
pub(crate) use self::origin::quoted;
pub use self::placement::KeyPlacement;
pub(crate) use self::placement::{NOT_FRAMING, frames_request};
pub use self::refreshing::{FreshKey, RefreshingKey};
pub use self::service::Auth;
pub use self::sign::{Sign, SignFuture, SignLayer, SignService, Signing};
pub use self::source::KeySource;
