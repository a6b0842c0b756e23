//! Runs several processes that share a quota through Redis, and a server that counts their requests.
//!
//! Each process runs the same executable as its parent. The example `shared_limit` and the tests include this module
//! with `#[path = "../../examples/support/fleet/mod.rs"] mod fleet;`.
#![allow(dead_code, unused_imports, reason = "the example and the tests each use a part of it")]

mod arrivals;
mod config;
mod counting_server;
mod script_calls;
mod worker;
mod workers;

pub(crate) use self::{
    arrivals::ArrivalLog,
    config::{Algorithm, WorkerConfig},
    counting_server::{Arrival, CountingServer},
    script_calls::script_calls,
    worker::run,
    workers::{Event, Message, Workers, first_seen},
};
