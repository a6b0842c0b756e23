use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;

use crate::stack::StackBuilder;

/// Makes the calls of a stack repeatable: the jitter is drawn from `seed`, and the request ids are `req-1`, `req-2` and
/// so on.
///
/// All clones of the builder, and all layers built from it, share one sequence of jitter and one sequence of ids.
/// Idempotency keys and the jitter in the backoff of a key provider stay random.
///
/// ```
/// use tower_outbound::{preset, test_util};
///
/// let rates = test_util::deterministic(preset::currency_rates("https://rates.example.com")?, 7);
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
#[must_use]
pub fn deterministic(mut builder: StackBuilder, seed: u64) -> StackBuilder {
    let count = AtomicU64::new(0);
    let make = move || {
        let number = count.fetch_add(1, Ordering::Relaxed) + 1;
        HeaderValue::try_from(format!("req-{number}")).unwrap_or_else(|_| HeaderValue::from(number))
    };
    builder.request_id = builder.request_id.with_maker(make);
    builder.map_retry(|retry| retry.with_seed(seed))
}
