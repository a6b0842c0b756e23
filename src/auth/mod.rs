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
//! # Where the key comes from
//!
//! | [`KeySource`] from | read | a 401 |
//! |---|---|---|
//! | [`ApiKey`]: a value, an environment variable, a file | once, now | is handed over |
//! | [`KeyFile`] | by the first request after the interval, when the file looks different | makes it look at once; sent once more when the file holds another key |
//! | [`RefreshingKey`]: a [`KeyProvider`], or a closure | by the first request, and ahead of the expiry | makes it ask at once; sent once more |
//!
//! [`Rotating`] sends a key from any of them in any [`Form`]: bearer, a header, Basic, a query parameter. For a key that
//! never changes [`Bearer`], [`HeaderKey`], [`Basic`] and [`QueryKey`] are shorter.
//!
//! ```
//! use std::time::Duration;
//! use tower_outbound::{
//!     ApiKey, BoxError,
//!     auth::{AuthLayer, Form, FreshKey, Origin, RefreshingKey, Rotating},
//! };
//!
//! let token = RefreshingKey::new(|| async {
//!     // From the token endpoint, by a client of its own.
//!     Ok::<_, BoxError>(FreshKey::new(ApiKey::new("t0ken")?).with_lifetime(Duration::from_secs(3_600)))
//! });
//! let layer =
//!     AuthLayer::with(Rotating::new(Form::bearer(), token), Origin::parse("https://api.example.com")?)?;
//! # Ok::<(), tower_outbound::InvalidConfig>(())
//! ```
//!
//! A refresh is one, however many requests wait for it. It runs in a task, on the runtime of the request that began it,
//! and ends whatever becomes of those who wait; where that runtime goes away before, the next request begins another one.
//! While it runs, the old key goes out for as long as it is valid. After a failure the provider is left alone for a
//! back-off; without a valid key the requests then fail, with [`KeyError`] as the source of an error whose
//! [`Error::is_auth`](crate::Error::is_auth) holds.
//!
//! # After a 401
//!
//! The key is given up, unless another one has come since it was sent, so that many requests refused together cause one
//! refresh. The layer doesn't send again by itself, for it stands inside the limiter, which has to admit that request
//! as any other: it puts [`KeyReplaced`] into the extensions of the answer, and the [`retry`](crate::retry) layer outside
//! the limiter sends the request once more with the new key, once, whatever its method: a request that was refused for
//! its credentials has not been applied. Without a retry layer the 401 is handed over, and the next request has the new
//! key. A key that is refused as soon as it was fetched is kept for a back-off, and its 401 handed over.
//!
//! A gRPC server says it by `UNAUTHENTICATED`, HTTP 200 with `grpc-status: 16` in the head. That replaces the key as well
//! and has the mark, but only an idempotent request is sent once more for it: gRPC does not promise that nothing was done.
//! In the trailers after a message it comes too late to be seen.
//!
//! # Order
//!
//! Inside retry and limit, so that each attempt carries the key that is current when it leaves. The wait for a key is
//! part of readiness, which a limiter allows for: what waited there leaves in the window that it was counted in.
//!
//! Above or below a layer that follows redirects, for instance tower-http's `FollowRedirect`:
//!
//! | form | followed above | below, by tower-http 0.7 | below, by tower-http 0.6 |
//! |---|---|---|---|
//! | bearer, Basic | safe | not sent to another origin: `Authorization` is stripped | **leaks** after a second hop, whatever the policy |
//! | any other header | safe | **leaks**, unless the policy is `FilterCredentials::new().remove_all()` | **leaks**, whatever the policy |
//! | query parameter | safe | not sent to where the redirect leads, not even to its own origin | the same |
//!
//! Safe means that each hop is looked at anew: the key goes to its own origin and those that
//! [`AuthLayer::with_allowed_origin`] names, and nowhere else. So follow redirects above, and above the retry layer, too:
//! a 401 at the second hop would have it send the first once more.
//!
//! 0.6 makes each hop of the headers that the first request had, and strips them only where the origin is another than
//! that of the hop before: who redirects to himself once more has the key.
//!
//! # Events
//!
//! Those of target `tower_outbound::auth` in [the log](crate::request_id#the-log). Nothing of the key is in them.
//!
//! # Surprises
//!
//! - A request to another origin (scheme, host or port differ) is passed on *without* the key, as a browser
//!   does after a redirect. A request whose URI names no origin is an error.
//! - While there is no key yet, every request waits for it, those too that will carry none: where a request goes is not
//!   known before it is there.
//! - The caller's own header of that name, or query parameter, is kept, and a 401 to it says nothing of the key.
//! - An origin without TLS that is not loopback is refused when the layer is made, unless
//!   [`Origin::allow_plaintext`] was said.
//! - An id of the server's that repeats the key is marked sensitive in the answer, and is in no report and no log. What a
//!   closure or a [`Sign`] sends is not known here, and not looked for.
//! - Header values are marked sensitive, so that `Debug` hides them and HTTP/2 doesn't index them.
//! - A query parameter can't be hidden so: `Debug` of the request that the inner service gets, and of its URI, shows the
//!   key. hyper-util, h2 and rustls log none of it at any level; a layer below this one that logs URIs does.
//! - When the server refuses a key and no other can be had, that key goes out again after all, and the caller sees the
//!   server's 401.
//! - Keys are overwritten in memory when they are dropped. Copies that were made to be sent are not: see [`ApiKey`].
//! - Other ways to prove who you are: a closure over the request's head, or [`Sign`], which may await something and see
//!   the body.

mod authorize;
mod file;
mod future;
mod header;
mod key;
mod key_error;
mod keys;
mod layer;
mod origin;
mod placement;
mod provided;
mod provider;
mod query;
mod refresh;
mod rotating;
#[cfg(feature = "json")]
mod sent;
mod service;
mod sign;
mod signed;
#[cfg(feature = "serde")]
mod text;
mod written;

pub use self::authorize::{AnyAuthorize, Authorize};
pub use self::file::KeyFile;
pub use self::future::ResponseFuture;
pub use self::header::{Basic, Bearer, HeaderKey};
pub(crate) use self::header::{NOT_FRAMING, frames_request};
pub use self::key::{ApiKey, AppCredentials};
pub use self::key_error::KeyError;
pub use self::keys::{CurrentKey, KeySource};
pub use self::layer::{AuthLayer, BearerAuthLayer};
pub use self::origin::Origin;
pub(crate) use self::origin::quoted;
pub use self::placement::KeyPlacement;
pub use self::provider::{FreshKey, KeyFuture, KeyProvider, RefreshingKey};
pub use self::query::QueryKey;
pub use self::rotating::{Form, Rotating};
#[cfg(feature = "json")]
pub(crate) use self::sent::SentKeys;
pub use self::service::Auth;
pub use self::sign::{AnySign, Sign, SignLayer, Signing};
pub use self::signed::{SignService, SignedFuture};
pub(crate) use self::written::Pattern;
pub use crate::call::KeyReplaced;
