//! The settings of a client with the stack that applies them. They can change at run time.

use std::{
    mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use http::{Request, Response};

use crate::{body::Body, config::InvalidConfig, error::Error, stack::StackBuilder};

pub(super) type BoxFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Error>> + Send>>;

/// The whole stack, with its type erased.
type Stack = dyn Fn(Request<Body>) -> BoxFuture + Send + Sync;

/// The settings of a call. A call keeps them until its end.
pub(super) struct Settings<F: ?Sized = Stack> {
    pub(super) builder: StackBuilder,
    /// A call allocates one box, for its future.
    pub(super) stack: F,
}

/// Builds the stack of a builder over the transport of the client.
type Build = dyn Fn(StackBuilder) -> Result<Arc<Settings>, InvalidConfig> + Send + Sync;

/// The settings of the calls that start now.
pub(super) struct Current {
    settings: RwLock<Arc<Settings>>,
    build: Box<Build>,
    /// Held during a change, so that the settings and the quotas of the limiter are those of the same change.
    changing: Mutex<()>,
}

impl Current {
    pub(super) fn new(
        builder: StackBuilder,
        build: impl Fn(StackBuilder) -> Result<Arc<Settings>, InvalidConfig> + Send + Sync + 'static,
    ) -> Result<Self, InvalidConfig> {
        let settings = RwLock::new(build(builder)?);
        Ok(Self { settings, build: Box::new(build), changing: Mutex::new(()) })
    }

    #[inline]
    pub(super) fn get(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the settings, or returns an error and keeps them.
    pub(super) fn change(&self, builder: &StackBuilder) -> Result<(), InvalidConfig> {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let new = (self.build)(builder.for_running(&self.get().builder)?)?;
        builder.apply_to_limiter_of(&new.builder);
        // Dropped after the lock is released.
        let _old = mem::replace(&mut *self.settings.write().unwrap_or_else(PoisonError::into_inner), new);
        Ok(())
    }
}
