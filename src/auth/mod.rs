//! Adds a credential to each attempt, but only if the request goes to the credential's own origin.
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
//! | headers that a closure computes from the request's head | [`AuthLayer::from_fn`] |
//! | a signature that depends on the body, or is computed asynchronously | [`AuthLayer::from_sign`] with a [`Sign`] |
//!
//! # After a 401
//!
//! If a request with a key from a file or a [`RefreshingKey`] receives a 401, the key is replaced. Concurrent requests
//! share one replacement. The auth layer marks the response with [`KeyReplaced`](crate::call::KeyReplaced). It does not
//! retry by itself, because its retry would bypass the limiter. The [`retry`](crate::retry#after-a-401) layer resends
//! the request once with the new key, whatever its method, because the server did not process the request. Without a
//! retry layer, the 401 is returned, and the next request uses the new key.
//!
//! gRPC's `UNAUTHENTICATED` (HTTP 200 with `grpc-status: 16` in the headers) also replaces the key. In this case only
//! an idempotent request is resent, because a gRPC server may have processed the request. The layer does not read a
//! status in the trailers.
//!
//! If no new key can be fetched, requests send the rejected key again, so that their callers receive the server's 401.
//! In a [`Pool`](crate::stack::Pool#members), they go to the other members.
//!
//! # Order
//!
//! Place the layer inside the retry and rate limit layers, so that each attempt uses the current key. The layer is
//! ready when the key source has a key or has failed. If a permit expires while the layer waits for the key, the rate
//! limit layer acquires another permit. Every request waits for the first key, including requests to other origins.
//!
//! This table shows the effect of a layer that follows redirects, such as tower-http's `FollowRedirect`, above or below
//! the auth layer:
//!
//! | placement | redirects followed above | below, by tower-http 0.7 | below, by tower-http 0.6 |
//! |---|---|---|---|
//! | bearer, basic | safe | not sent to other origins: `Authorization` is removed | **leaks** after a second hop, whatever the policy |
//! | any other header | safe | **leaks**, unless the policy is `FilterCredentials::new().remove_all()` | **leaks**, whatever the policy |
//! | query parameter | safe | not sent after a redirect, not even to its own origin | the same |
//!
//! "Safe" means that the auth layer checks the origin of each hop. Place the redirect layer not only above the auth
//! layer, but also above the retry layer. Otherwise a 401 at the second hop repeats the first hop. tower-http 0.6
//! copies the headers of the first request to each hop. It removes these headers only from a hop whose origin differs
//! from the previous hop's origin.
//!
//! # Redaction
//!
//! - The `Debug` output of layers, keys and key sources contains no key. The log events of the target
//!   `tower_outbound::auth`, listed under [the log](crate::request_id#the-log), contain no key either.
//! - Header values with a key are marked sensitive, so that `Debug` of the request does not show them and HTTP/2 does
//!   not index them. `Debug` of the request's URI shows a key in the query, however. hyper-util, h2 and rustls do not
//!   log URIs at any level, but other layers may.
//! - A server's request id that contains the key is omitted from the log and from the [`Report`](crate::Report). The
//!   base64 of basic authentication is also found. The layers do not know a credential from a closure or a [`Sign`], so
//!   they cannot find it in an id.
//! - A key's memory is overwritten when the key is dropped, but its copies in requests are not: see [`ApiKey`].
//!
//! # Notes
//!
//! - A request to another origin is sent without the credential. A request whose URI has no origin is rejected.
//! - If the caller has set the key's header or query parameter, that value is kept. A 401 to such a request does not
//!   replace the key.
//! - An origin without TLS is rejected. Exceptions are loopback hosts and origins with [`Origin::with_plaintext`].

mod credential;
pub(crate) mod key;
mod layer;
mod origin;
mod placement;
mod refresh;
mod refreshing;
mod service;
mod sign;
mod source;

pub(crate) use self::credential::Credential;
pub(crate) use self::key::ApiKey;
pub use self::key::{AppCredentials, KeyError};
pub use self::layer::AuthLayer;
pub use self::origin::Origin;
pub use self::placement::KeyPlacement;
pub(crate) use self::placement::{NOT_FRAMING, frames_request};
#[cfg(feature = "oauth2")]
pub(crate) use self::placement::{basic, with_basic};
pub use self::refreshing::{FreshKey, RefreshingKey};
pub(crate) use self::service::rejects_key;
pub use self::service::{Auth, ResponseFuture};
pub use self::sign::{AnySign, BoxSignFuture, Sign};
pub use self::source::KeySource;
