//! A fleet: some processes, each this program once more, that share a quota through Redis, and a server that counts
//! what of them arrives.
//!
//! For an example, and for the tests: `#[path = "../../examples/support/fleet/mod.rs"] mod fleet;`
#![allow(dead_code, unused_imports, reason = "the example and the tests each use their own part of it")]

mod count;
mod counter;
mod job;
mod members;
mod process;
mod questions;

pub(crate) use self::{
    count::Count,
    counter::{Arrival, Counter},
    job::{Job, Kind},
    members::{Event, Members, Said, saw},
    process::run,
    questions::questions,
};
