//! The synchronization primitives of the lock-free code. They come from std, or from loom, which runs every
//! interleaving of the threads. `RUSTFLAGS="--cfg outbound_loom" cargo test --release --lib limit::queue::loom_tests`
//! runs the loom tests.

#[cfg(outbound_loom)]
pub(in crate::limit) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
#[cfg(outbound_loom)]
pub(in crate::limit) use loom::thread_local;
#[cfg(not(outbound_loom))]
pub(in crate::limit) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
#[cfg(not(outbound_loom))]
pub(in crate::limit) use std::thread_local;
