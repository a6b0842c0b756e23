//! Tests of two limiters that take their permits from one store.

use super::*;
use tower_outbound::limit::{Amounts, PermitSource};

/// A store whose permits arrive later: it has no forecast.
#[derive(Clone, Default)]
struct Store(Arc<AtomicUsize>);

impl PermitSource for Store {
    fn take(&mut self, cost: NonZeroU32, _: &Amounts, _: u64) -> bool {
        let rest = |permits: usize| permits.checked_sub(cost.get() as usize);
        self.0.fetch_update(Relaxed, Relaxed, rest).is_ok()
    }

    fn forecast(&self, start: u64, _: u64, _: u32) -> u64 {
        start
    }

    fn available(&self, _: u64) -> u32 {
        self.0.load(Relaxed) as u32
    }
}

#[tokio::test(start_paused = true)]
async fn two_limiters_share_the_late_permits_of_a_store_without_exceeding_a_window() {
    const CALLS: usize = 40;
    // One permit arrives every 100 ms, at most 10 in each window of 900 ms.
    let (store, quota) = (Store::default(), quota(10, 900, 1));
    let limiters = [(); 2].map(|()| LocalLimiter::from_source(store.clone(), quota));
    let (sender, granted) = mpsc::channel();
    for call in 0..CALLS {
        let (limiter, sender) = (limiters[call % 2].clone(), sender.clone());
        tokio::spawn(async move {
            drop(limiter.acquire().await.unwrap());
            sender.send((call, Instant::now())).unwrap();
        });
    }
    yield_now().await;
    assert!(limiters.iter().all(|limiter| limiter.demand().permits == CALLS as u64 / 2));
    let (start, mut grants) = (Instant::now(), Vec::new());
    for permit in 1..=CALLS {
        sleep_until(start + millis(100) * permit as u32).await;
        assert_eq!(granted.try_iter().count(), 0, "a grant before permit {permit} arrives");
        store.0.fetch_add(1, Relaxed);
        // The limiters learn of the permit in turn. The other one finds none.
        limiters[permit % 2].source_changed();
        limiters[(permit + 1) % 2].source_changed();
        let waiting: u64 = limiters.iter().map(|limiter| limiter.demand().permits).sum();
        assert_eq!(waiting, (CALLS - permit) as u64);
        sleep(millis(1)).await;
        grants.extend(granted.try_iter());
        assert_eq!(grants.len(), permit, "each permit is granted once, when it arrives");
    }
    grants.iter().map(|(_, at)| *at).collect::<Arrivals>().assert_within(quota);
    for own in 0..2 {
        let calls: Vec<_> = grants.iter().map(|(call, _)| *call).filter(|call| call % 2 == own).collect();
        assert!(calls.len() == CALLS / 2 && calls.is_sorted(), "not first in, first out: {calls:?}");
    }
}
