//! The keys that a call has sent, for what is to be kept out of what it tells.

use std::sync::{Arc, Mutex, PoisonError};

use super::ApiKey;

/// In the extensions of a request, put there by whoever has to hide the keys of its call: those that its attempts
/// carried, of which there is another one after a 401.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentKeys(Arc<Mutex<Vec<ApiKey>>>);

impl SentKeys {
    /// A call sends one, and another one after a 401, each as often as there are layers that do. The latest are kept.
    const MOST: usize = 8;

    pub(super) fn add(&self, key: &ApiKey) {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        keys.retain(|other| other != key);
        if keys.len() == Self::MOST {
            keys.remove(0);
        }
        keys.push(key.clone());
    }

    pub(crate) fn all(&self) -> Vec<ApiKey> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_latest_is_kept_once() {
        let key = |number: usize| ApiKey::new(number.to_string()).unwrap();
        let sent = SentKeys::default();
        for number in [1, 2, 1] {
            sent.clone().add(&key(number));
        }
        assert_eq!(sent.all(), [key(2), key(1)]);
        (0..100).for_each(|number| sent.add(&key(number)));
        assert_eq!(sent.all(), (100 - SentKeys::MOST..100).map(key).collect::<Vec<_>>());
    }
}
