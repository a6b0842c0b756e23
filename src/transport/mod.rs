//! The transport at the end of a client: connections to servers, as a tower service over hyper.
//!
//! [`Client`](crate::Client) uses a transport with the defaults. [`TransportConfig`] changes them, and
//! [`Transport`] is the service alone, for a custom stack:
//!
//! ```no_run
//! use http::Request;
//! use http_body_util::Empty;
//! use tower::ServiceExt;
//! use tower_outbound::transport::{Transport, TransportConfig};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let transport: Transport<Empty<bytes::Bytes>> = TransportConfig::new().build()?;
//! let request = Request::get("https://api.example.com/v1").body(Empty::new())?;
//! let response = transport.oneshot(request).await?;
//! println!("{}", response.status());
//! # Ok(())
//! # }
//! ```
//!
//! # Phases
//!
//! The transport knows whether it has handed a request to a connection. A request that fails before is "not sent",
//! whatever ended it, and is retried for every method.
//!
//! | phase | limited by | evidence | delivery | retried |
//! |---|---|---|---|---|
//! | resolve the name | connect timeout | no connection | not sent: `dns`, `connect_timeout`; `proxy` if it is the name of a proxy | every method, unless the name is unknown |
//! | open TCP, and a tunnel through the proxy | connect timeout | no connection | not sent: `connect_refused`, `connect_timeout`, `connect`; only `proxy` with a proxy | every method, unless the proxy rejects the password or requires one |
//! | TLS handshake | connect timeout | no connection | not sent: `tls`, `connect_timeout` | every method, unless a certificate is invalid or the server rejects the client |
//! | wait for a connection or an HTTP/2 stream | deadline | no connection was assigned | not sent: `deadline` | never, because the deadline has passed |
//! | hand the request to a connection | | hyper returns the request | not sent: `closed` | on another connection, then every method |
//! | send the request, wait for the headers | attempt timeout | none | maybe processed: `attempt_timeout`, `reset`, `closed` | idempotent requests |
//! | the server refuses the HTTP/2 stream | | `REFUSED_STREAM` | not sent: `reset` | every method |
//! | read the body | body idle timeout | a response | processed | idempotent requests, by `bytes`, `text`, `json` and the `fetch` methods |
//!
//! The attempt timeout applies twice: to opening a connection, and from the moment at which the request was handed to a
//! connection until the response headers. While the body of a request is sent, each frame restarts it. The report of an
//! attempt ([`AttemptReport`](crate::call::AttemptReport)) and its log event contain the times of the phases.
//!
//! # Dead connections
//!
//! A path that drops all packets shows no error. The transport notices it in five ways:
//!
//! - An attempt timeout removes its HTTP/2 connection from the pool, unless the connection has delivered another
//!   response, or a part of one, since the middle of the attempt. Over HTTP/1.1, it removes all connections that have
//!   been idle since the request was sent. The next attempt therefore opens a new connection.
//! - The idle timeout of a response body does the same, counted from the start of the stall, if its
//!   [layer](crate::timeout::BodyIdleTimeoutLayer) is above the request id layer.
//! - HTTP/2 pings close a connection whose server does not respond to a ping.
//! - TCP keep-alive probes close a connection whose host does not respond.
//! - The idle timeout closes connections before common servers close them.
//!
//! [`guide::networks`](crate::guide::networks) explains the choices.
//!
//! # Notes
//!
//! - A connection belongs to the runtime of the request that opened it, and ends with that runtime.
//! - If an HTTP/2 server raises its limit of streams, waiting requests use the further streams only after another
//!   request was sent or has ended, because hyper reports no change of the limit.
//! - A `POST`, `PUT` or `PATCH` without a body is sent with `content-length: 0` (RFC 9110 §8.6).

mod config;
mod connect;
mod connection;
mod lease;
mod origin;
mod pool;
#[cfg(feature = "proxy")]
mod proxy;
mod service;
#[cfg(feature = "rustls")]
mod tls;
mod upload;

pub use self::config::TransportConfig;
pub use self::connection::RequestBody;
#[cfg(feature = "proxy")]
pub use self::proxy::Proxy;
pub use self::service::{Transport, TransportFuture};
