//! The synchronization primitives of the lock-free code: those of std, or those of loom, which run every interleaving.
//! `RUSTFLAGS="--cfg outbound_loom" cargo test --release --lib limit::queue::loom_tests` runs the models.

#[cfg(outbound_loom)]
pub(in crate::limit) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(outbound_loom))]
pub(in crate::limit) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
