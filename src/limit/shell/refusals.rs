//! The number of requests that were refused without the lock.
//!
//! Each thread counts in one of a few cache lines. With one counter for all threads, a refusal by two threads takes 1.7
//! times as long as a check of governor, and 1.1 times with these (bench `limiter`, section `refusal`).

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

const LINES: usize = 8;

/// A counter in a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line(AtomicU64);

/// The lines are allocated with the first refusal, because most keys of a `Keyed` never refuse a request.
#[derive(Debug, Default)]
pub(super) struct Refusals(OnceLock<Box<[Line; LINES]>>);

static THREADS: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    static LINE: usize = THREADS.fetch_add(1, Ordering::Relaxed) % LINES;
}

impl Refusals {
    pub(super) fn add(&self) {
        // Without thread locals, such as at the end of a thread, the first line counts.
        let line = LINE.try_with(|line| *line).unwrap_or(0);
        if let Some(Line(count)) = self.0.get_or_init(Box::default).get(line) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn sum(&self) -> u64 {
        let lines = self.0.get().into_iter().flat_map(|lines| lines.iter());
        lines.map(|Line(count)| count.load(Ordering::Relaxed)).sum()
    }
}
