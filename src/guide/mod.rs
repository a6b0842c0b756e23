//! Guide pages about the use of the layers in a program. These modules contain only text.
//!
//! - [`adaptive_limits`]: how a limiter learns an unknown quota, and how much of the quota it uses.
//! - [`other_layers`]: the positions of the layers of tower, tower-http and tower-resilience in a stack.
//! - [`other_clients`]: the layers in tonic, kube and octocrab, and a client in the state of an axum server.

#[doc = include_str!("adaptive_limits.md")]
pub mod adaptive_limits {}
#[doc = include_str!("other_clients.md")]
pub mod other_clients {}
#[doc = include_str!("other_layers.md")]
pub mod other_layers {}
