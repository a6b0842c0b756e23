//! The ready client: a preset's stack over hyper-util's pooled client, with one type for all of them.
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
//! # Surprises
//!
//! - An answer is a response, whatever its status.
//! - Paths are joined below the base URL's path, with or without a leading slash. What would leave the base, by
//!   dots or by naming another host, is [`Error::is_invalid_request`](crate::Error::is_invalid_request).
//! - Redirects are answers, too: none is followed.
//! - It runs inside a tokio runtime with its timer and I/O on.
//! - The body of an answer is not covered by the timeouts, but where `get_json` and its like read it;
//!   [`Body::collect`](crate::Body::collect) bounds its size.

mod connect;
mod future;
#[cfg(feature = "json")]
mod json;
mod redact;
mod service;
mod stack;

pub use self::connect::Transport;
pub use self::future::ResponseFuture;
#[cfg(feature = "json")]
pub use self::json::JsonError;
pub use self::service::Client;
