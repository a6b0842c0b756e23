//! A client for one service: the whole stack over a [`transport`](crate::transport).
//!
//! ```no_run
//! use tower_outbound::{Client, Quota};
//!
//! # async fn call() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let client = Client::builder("https://api.example.com/v2")?
//!     .with_api_key_env("ORDERS_KEY")
//!     .with_quota(Quota::per_minute(300)?)
//!     .client()?;
//!
//! let response = client.post("/orders").body(r#"{"item":"lamp"}"#).await?;
//! println!("{}", response.error_for_status().await?.text().await?);
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `json`:
//!
#![cfg_attr(not(feature = "json"), doc = "```ignore")]
#![cfg_attr(feature = "json", doc = "```no_run")]
//! # async fn call(client: tower_outbound::Client) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Order {
//!     item: String,
//! }
//!
//! let order: Order = client.get("/orders/7").fetch_json().await?;
//! client.put("/orders/8").json(&order).await?.error_for_status().await?;
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
//! [`PathSegment`] encodes a string that the caller inserts into a path.
//!
//! The client returns an error with [`is_invalid_request`](crate::Error::is_invalid_request) for a rejected URL, and
//! sends nothing. To call two paths of one server, choose a base URL above both, or share a limiter between two
//! clients.
//!
//! # Notes
//!
//! - Every HTTP status is returned as `Ok`. [`Response::error_for_status`] converts a status other than 2xx to an
//!   error.
//! - The client does not follow redirects. An [outer layer](crate::stack::StackBuilder::with_outer_layer) can follow
//!   them. Each redirect must also stay below the base URL.
//! - The client must run inside a tokio runtime whose timer and I/O are enabled.
//! - The total timeout also covers the reading of a body with `text`, `bytes` or `json` of [`Response`]. It does not
//!   cover a body from [`Response::into_body`].

mod error;
mod excerpt;
mod outer_call;
mod request;
mod response;
pub(crate) mod service;
mod settings;

// After the modules whose methods the documentation lists first.
mod json;
mod reconfigure;

pub use self::error::ResponseError;
pub use self::request::{PathSegment, RequestBuilder};
pub use self::response::{Response, ResponseFuture};
#[cfg(feature = "serde")]
pub(crate) use self::service::Client;
