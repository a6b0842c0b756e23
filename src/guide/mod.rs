//! Guide pages about the use of the layers in a program. These modules contain only text.
//!
//! - [`other_layers`]: the positions of the layers of tower, tower-http and tower-resilience in a stack.

#[doc = include_str!("other_layers.md")]
pub mod other_layers {}
