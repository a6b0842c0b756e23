//! Tests of errors whose delivery does not depend on the feature `hyper`.

mod texts;
#[cfg(feature = "hyper")]
mod transport;

use std::fmt;

use io::ErrorKind::{
    AddrNotAvailable, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable,
};

use super::*;
/// The error of an unknown client or body.
#[derive(Debug)]
struct Unknown(BoxError);

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unknown")
    }
}

impl StdError for Unknown {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

fn refused() -> io::Error {
    ConnectionRefused.into()
}

fn not_sent() -> DeliveryError {
    DeliveryError::not_sent("no free connection")
}

fn maybe() -> DeliveryError {
    DeliveryError::maybe_processed(refused())
}

fn check(table: impl IntoIterator<Item = (&'static str, BoxError, Proof)>) {
    for (name, error, expected) in table {
        let error = Error::from_service(error);
        assert_eq!(error.failed(), Failed::Service(expected), "{name}: {error:?}");
    }
}

#[test]
fn delivery_error_determines_the_delivery_if_no_transport_error_exists() {
    check([
        ("connection refused", refused().into(), NOT_SENT),
        ("connection reset", io::Error::from(ConnectionReset).into(), MAYBE),
        ("connection refused, in an unknown error", Unknown(refused().into()).into(), MAYBE),
        ("connection refused, in an I/O error", io::Error::other(refused()).into(), MAYBE),
        ("marked not sent", not_sent().into(), NOT_SENT),
        ("marked not sent, in an unknown error", Unknown(not_sent().into()).into(), MAYBE),
        ("marked not sent, in an I/O error", io::Error::other(not_sent()).into(), MAYBE),
        ("marked maybe processed", maybe().into(), MAYBE),
        ("marked maybe processed, in an unknown error", Unknown(maybe().into()).into(), MAYBE),
        ("marked maybe processed, around not sent", DeliveryError::maybe_processed(not_sent()).into(), MAYBE),
        ("marked not sent, around maybe processed", DeliveryError::not_sent(maybe()).into(), NOT_SENT),
        (
            "marked maybe processed, in a refused connection",
            io::Error::new(ConnectionRefused, maybe()).into(),
            MAYBE,
        ),
        ("rejected by `LoadShed`", Overloaded::new().into(), NOT_SENT),
        ("rejected by `LoadShed`, in an I/O error", io::Error::other(Overloaded::new()).into(), MAYBE),
        ("no transport error", "text".into(), MAYBE),
        (
            "error of an inner retry layer, after an attempt that may have been processed",
            Unknown(after_processing(Error::from_service(refused())).into()).into(),
            MAYBE,
        ),
    ]);
}

fn after_processing(mut error: Error) -> Error {
    error.set_after_processing();
    error
}

#[test]
fn unreachable_address_error_proves_nothing_about_delivery() {
    for kind in [HostUnreachable, NetworkUnreachable, AddrNotAvailable] {
        let error = || io::Error::from(kind);
        check([
            ("unreachable, of the service itself", error().into(), MAYBE),
            ("unreachable, in an unknown error", Unknown(error().into()).into(), MAYBE),
            ("unreachable, in an I/O error", io::Error::other(error()).into(), MAYBE),
        ]);
    }
}
