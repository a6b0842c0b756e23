//! The causes of an error of a call.

use std::error::Error as StdError;

use super::{call::Error, chain::chain};

impl Error {
    /// Returns the cause that the message shows, if it has the type `E`: a [`Refusal`](super::Refusal) of the limiter,
    /// a [`KeyError`](crate::auth::KeyError), or a [`BodyTooLarge`](crate::body::BodyTooLarge) of a signature.
    ///
    /// ```
    /// use tower_outbound::{Error, error::{Reason, Refusal}};
    ///
    /// fn is_queue_full(error: &Error) -> bool {
    ///     error.shown_cause::<Refusal>().is_some_and(|refusal| refusal.reason() == Reason::QueueFull)
    /// }
    /// ```
    pub fn shown_cause<E: StdError + 'static>(&self) -> Option<&E> {
        self.inner.source.as_deref().filter(|_| self.inner.shows_source)?.downcast_ref()
    }

    /// Finds an `Error` in `error` or its causes.
    ///
    /// Call `as_ref()` on a [`BoxError`](super::BoxError), an `anyhow::Error` or an `eyre::Report` and pass the result.
    /// The method cannot look into an error that `anyhow::Error::from_boxed` has made.
    ///
    /// ```
    /// use tower_outbound::{BoxError, Error};
    ///
    /// fn report(error: &BoxError) {
    ///     match Error::find_in(error.as_ref()) {
    ///         Some(failed) => eprintln!("{}: {failed}", failed.kind()),
    ///         None => eprintln!("{error}"),
    ///     }
    /// }
    /// ```
    pub fn find_in<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        chain(error).find_map(Self::of_call)
    }

    /// Returns `error` if it is an `Error`, or the `Error` of a `ResponseError`, whose `source()` omits it.
    pub(super) fn of_call<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        #[cfg(feature = "client")]
        if let Some(call) = Self::of_response(error) {
            return Some(call);
        }
        error.downcast_ref()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.inner.source.as_deref()?;
        if self.inner.shows_source { source.source() } else { Some(source) }
    }
}
