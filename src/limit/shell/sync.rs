//! The synchronization primitives of the shell. They come from std, or from loom, which runs every interleaving of the
//! threads: `RUSTFLAGS="--cfg outbound_loom" cargo test --release --lib limit::shell::loom_tests`.

#[cfg(outbound_loom)]
pub(super) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, AtomicU64, Ordering},
};
#[cfg(not(outbound_loom))]
pub(super) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, AtomicU64, Ordering},
};
