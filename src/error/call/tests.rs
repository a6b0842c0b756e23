use std::{error::Error as _, io, time::Duration};

use super::*;
use crate::error::{DeliveryError, ErrorKind, Reason, Refusal};

#[test]
fn error_of_this_crate_is_not_wrapped_again() {
    let inner = Error::new(ErrorKind::AttemptTimeout, Some(Duration::from_secs(1)), None);
    let outer = Error::from_service(Box::new(inner) as BoxError);
    assert!(outer.is_timeout());
    assert!(outer.source().is_none());
}

#[test]
fn source_can_be_downcast_to_the_error_of_the_service() {
    let error = Error::from_service(std::io::Error::other("broken"));
    assert!(error.is_service());
    assert!(error.source().unwrap().downcast_ref::<std::io::Error>().is_some());
    assert_eq!(error.to_string(), "service failed", "Display omits the cause");
    assert_eq!(format!("{error:#}"), "service failed: broken");
    assert_eq!(format!("{error:?}"), "service failed: broken");
}

/// What an error proves: whether the server may have processed the request, whether no attempt was sent, whether
/// the inner service was not called, and whether the service failed below the layers.
fn facts(error: &Error) -> [bool; 4] {
    [error.may_have_been_processed(), error.proves_not_sent(), error.was_not_called(), error.is_service()]
}

#[test]
fn each_error_proves_the_delivery_unless_an_earlier_attempt_was_processed() {
    let own = |kind| Error::new(kind, Some(Duration::from_secs(1)), None);
    let refused = |reason| Error::refused(Refusal::new(reason, None));
    let not_connected = || io::Error::from(io::ErrorKind::ConnectionRefused);
    let open = || DeliveryError::circuit_open("too many failures");
    for (name, error, expected) in [
        ("refused", refused(Reason::QueueFull), [false, true, true, false]),
        ("too costly", refused(Reason::TooCostly { largest: 1 }), [false, true, true, false]),
        ("no key", own(ErrorKind::Auth), [false, true, false, false]),
        ("invalid request", Error::invalid_request("path"), [false, true, false, false]),
        ("no response in time", own(ErrorKind::AttemptTimeout), [true, false, false, false]),
        ("deadline", own(ErrorKind::Deadline), [true, false, false, false]),
        ("stalled body", own(ErrorKind::BodyTimeout), [true, false, false, false]),
        ("deadline before an attempt", own(ErrorKind::Deadline).not_sent(), [false, true, false, false]),
        ("no connection in time", Error::not_connected_within(Duration::ZERO), [false, true, false, true]),
        ("not ready", Error::from_readiness("text"), [false, true, true, true]),
        ("not ready: own error", Error::from_readiness(own(ErrorKind::Auth)), [false, true, false, false]),
        ("not ready: open breaker", Error::from_readiness(open()), [false, true, false, true]),
        ("open breaker", Error::from_service(open()), [false, true, false, true]),
        ("not connected", Error::from_service(not_connected()), [false, true, false, true]),
        ("unknown", Error::from_service("text"), [true, false, false, true]),
    ] {
        assert_eq!(facts(&error), expected, "{name}");
        let mut error = error;
        error.set_after_processing();
        assert_eq!(facts(&error), [true, false, false, expected[3]], "{name}, after another attempt");
    }
}
