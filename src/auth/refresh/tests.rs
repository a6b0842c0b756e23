use super::*;
use crate::{
    error::BoxError,
    policy::{ExponentialBackoff, Jitter},
};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

async fn lease(refresher: &Arc<Refresher>) -> ApiKey {
    match refresher.lease() {
        Ok(outcome) => outcome.unwrap(),
        Err(refresh) => refresh.await.unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn refresh_that_returns_the_same_key_does_not_restart_the_rejection_backoff() {
    let backoff = ExponentialBackoff::new(secs(10), secs(10)).unwrap().with_jitter(Jitter::none());
    // The refresh starts after four fifths of the lifetime, 8 s.
    let fetch = || async { Ok::<_, BoxError>(FreshKey::new(ApiKey::new("a")?).with_lifetime(secs(10))) };
    let refresher = Arc::new(Refresher::new(RefreshingKey::new(fetch).with_backoff(backoff)));
    let key = lease(&refresher).await;
    assert!(refresher.reject(&key), "the first rejection starts a refresh immediately");
    lease(&refresher).await;
    tokio::time::sleep(secs(9)).await;
    assert!(!refresher.reject(&key), "a rejection during the backoff of 10 s starts no refresh");
    lease(&refresher).await;
    tokio::time::sleep(secs(2)).await;
    assert!(refresher.reject(&key), "the refresh after 9 s does not extend the backoff");
}
