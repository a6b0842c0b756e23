//! Tests tower's `Service` contract for every layer of the crate, in several configurations per layer.
//!
//! [`all_layers`] lists the layers. The test files apply each layer to a service with scripted faults, and each file
//! tests one part of the contract. A new layer needs a case there.

mod after_completion;
mod all_layers;
mod call;
mod cancellation;
mod executor;
mod faulty_service;
mod hedge;
mod layer_case;
mod layer_state;
mod panics;
mod readiness;
mod readiness_errors;
#[cfg(feature = "reqwest")]
mod reqwest_adapter;
mod slow_body;
mod wake_ups;

const URI: &str = "https://api.example.com/v1";
/// A URI with a different origin than [`URI`]. Requests to a foreign origin carry no credential.
const FOREIGN_URI: &str = "https://other.example.com/v1";
