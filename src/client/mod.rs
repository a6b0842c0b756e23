//! A ready client for one service: the stack of a preset over hyper-util's pooled client.
//!
//! ```no_run
//! use tower_outbound::{ApiKey, preset};
//!
//! # async fn call() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let mail = preset::email_delivery("https://mail.example.com")?
//!     .with_api_key(ApiKey::from_env("MAIL_KEY")?)
//!     .client()?;
//!
//! let response = mail.post("/v1/resources", r#"{"hello":"world"}"#).await?;
//! if !response.status().is_success() {
//!     let report = response.extensions().get::<tower_outbound::Report>();
//!     eprintln!("{} after {report:?}", response.status());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # URLs
//!
//! A call takes a path, or an absolute URL such as a link to the next page. Every request must stay below the base URL:
//!
//! | given | with the base `https://api.example.com/v1` |
//! |---|---|
//! | `/rates?base=EUR`, `rates?base=EUR` | sent to `/v1/rates?base=EUR` |
//! | `https://api.example.com/v1/rates` | sent unchanged |
//! | `https://api.example.com/v2/rates`, `https://other.example.com/v1` | rejected |
//! | `../admin`, `%2e%2e/admin`, `https://api.example.com/v1/../admin` | rejected |
//! | `//other.example.com`, `a b`, `ü`, `a\b` | rejected |
//! | `/rates#top` | sent to `/v1/rates`: a fragment is dropped, never sent |
//!
//! A rejected URL gives [`Error::is_invalid_request`](crate::Error::is_invalid_request), and nothing is sent. To call
//! two paths of one server, choose a base URL above both.
//!
//! # Notes
//!
//! - Every HTTP status is returned as `Ok`.
//! - The client does not follow redirects. A layer above it that follows them is also restricted to the base URL.
//! - The client must run inside a tokio runtime whose timer and I/O are enabled.
//! - The timeouts do not cover the body of a response, except in the JSON calls.
//!   [`Body::collect`](crate::Body::collect) limits its size.

mod connect;
#[cfg(feature = "json")]
mod json;
pub(crate) mod service;

pub use self::connect::Transport;
#[cfg(feature = "json")]
pub use self::json::JsonError;
#[cfg(any(feature = "json", feature = "serde"))]
pub(crate) use self::service::Client;
pub use self::service::ResponseFuture;
