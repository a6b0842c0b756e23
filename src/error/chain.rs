use std::{error::Error as StdError, fmt, io, iter};

/// Any error that can be sent between threads, such as an error of tower's layers or of an inner service.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// Returns the cause of `error`. Unlike `source()`, it also returns the error that an I/O error wraps.
pub(super) fn cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(wrapped) => Some(wrapped),
        None => error.source(),
    }
}

/// Returns an iterator over `error` and its causes.
pub(crate) fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    iter::successors(Some(error), |error| cause(*error))
}

/// Writes each cause of `error` after a colon.
pub(crate) fn write_causes(error: &dyn StdError, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut next = error.source();
    while let Some(cause) = next {
        write!(f, ": {cause}")?;
        next = cause.source();
    }
    Ok(())
}
