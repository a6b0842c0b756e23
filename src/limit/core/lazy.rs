//! A part of the core that takes no memory until it is first changed, because most keys of a
//! [`Keyed`](crate::limit::Keyed) never need it.

use std::ops::{Deref, DerefMut};

#[derive(Debug, Clone)]
pub(super) struct Lazy<T: 'static> {
    value: Option<Box<T>>,
    /// The value until the first change, which copies it.
    initial: &'static T,
}

impl<T> Lazy<T> {
    pub(super) const fn new(initial: &'static T) -> Self {
        Self { value: None, initial }
    }
}

impl<T> Deref for Lazy<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value.as_deref().unwrap_or(self.initial)
    }
}

impl<T: Clone> DerefMut for Lazy<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.value.get_or_insert_with(|| Box::new(self.initial.clone()))
    }
}
