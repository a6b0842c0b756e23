//! The primitives under what is lock-free here: std's, or loom's, which tries every interleaving.
//! `RUSTFLAGS="--cfg outbound_loom" cargo test --release --lib limit::model` runs the models.

#[cfg(outbound_loom)]
pub(super) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(outbound_loom))]
pub(super) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
