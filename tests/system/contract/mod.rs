//! tower's contract, held by every layer over a service in every mood, and on every order of wake-ups.
//!
//! The [table](rows) has a row for each layer, in each of its ways; each file beside it is a mood, and goes through all
//! rows. Who adds a layer adds a row, or [`every`] fails.

mod again;
mod books;
mod crew;
mod dropped;
mod every;
mod hedged;
mod moody;
mod panics;
mod readiness;
#[cfg(feature = "reqwest")]
mod reqwests;
mod row;
mod rows;
mod sent;
mod shuffled;
mod slow;
mod unready;

const URI: &str = "https://api.example.com/v1";
const ELSEWHERE: &str = "https://other.example.com/v1";
use crate::support::{self as probe, capture, cases};
