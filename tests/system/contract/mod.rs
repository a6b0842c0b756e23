//! Tests of tower's `Service` contract, for every layer of the crate and several of its configurations.
//!
//! [`all_layers`] lists the layers. Every other file tests one part of the contract on all of them, over a service with
//! scripted faults. A new layer needs an entry in the list; otherwise [`completeness`] fails.

mod after_completion;
mod all_layers;
mod call;
mod cancellation;
mod completeness;
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
/// Has another origin than [`URI`]. Requests to it get no credential.
const FOREIGN_URI: &str = "https://other.example.com/v1";
