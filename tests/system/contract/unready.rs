//! A service below that fails to get ready, once or for ever: what its caller is told, and that nothing was sent.

use std::error::Error as _;

use tokio::time::Instant;
use tower::{BoxError, Service, ServiceExt};
use tower_outbound::{Error, call::Outcome};

use super::{
    moody::{Mood, Moody},
    probe::{Broken, cause},
    row::{Row, Unready},
    rows::rows,
    sent::{Client, request, sent, still_works},
};

/// The error, and whether it came from `poll_ready`.
async fn fails(service: &Client, moody: &Moody, row: &Row) -> (BoxError, bool) {
    let mut service = service.clone();
    match service.ready().await {
        Err(error) => (error, true),
        Ok(ready) => {
            let call = ready.call(request(&moody.plan, row.uri, 0, "200:5"));
            (call.await.map(|_| ()).unwrap_err(), false)
        }
    }
}

fn told(row: &Row, (error, early): (BoxError, bool)) {
    let at = &row.label;
    let Unready::Passes = row.unready else {
        let error = error.downcast::<Error>().unwrap();
        assert!(error.is_service() && !error.is_timeout() && !error.is_rate_limited(), "{at}: {error:?}");
        assert_eq!(cause::<Broken>(&error), Some(&Broken), "{at}");
        assert!(error.source().is_some_and(|source| source.is::<Broken>()), "{at}: wrapped twice");
        let says = match row.unready {
            Unready::InCall(says) | Unready::AfterAttempts(says) => says,
            _ => "other",
        };
        assert_eq!((error.kind().as_str(), early), (says, row.unready == Unready::Fails), "{at}");
        if let (true, Some(report)) = (row.resends(), error.report()) {
            let outcomes: Vec<_> = report.attempts().iter().filter_map(|attempt| attempt.outcome).collect();
            assert_eq!(outcomes, [Outcome::NotSent; 3], "{at}");
        }
        return;
    };
    assert!(error.is::<Broken>() && early, "{at}: {error:?}");
}

#[tokio::test(start_paused = true)]
async fn for_ever_its_error_is_told_and_nothing_sent() {
    for row in rows() {
        let moody = Moody::times(0, u32::MAX, Mood::Fails);
        let (service, books) = row.over(&moody);
        told(&row, fails(&service, &moody, &row).await);
        assert_eq!(moody.probe.calls(), 0, "{}", row.label);
        drop(service);
        // Three calls' worth of retries, for a service that answers none.
        books.are_even(&row, &moody, 0, 2);
    }
}

/// A layer that sends again takes a fresh clone for it; of the others, their caller does.
#[tokio::test(start_paused = true)]
async fn once_a_fresh_clone_works() {
    for row in rows() {
        let moody = Moody::once_after(0, Mood::Fails);
        let (service, books) = row.over(&moody);
        if row.resends() {
            let call = sent(service.clone(), request(&moody.plan, row.uri, 0, "200:5"), Instant::now());
            let outcomes: Vec<_> =
                call.await.unwrap().attempts.iter().filter_map(|attempt| attempt.outcome).collect();
            let ok = Outcome::Response(http::StatusCode::OK);
            assert_eq!(outcomes, [Outcome::NotSent, ok], "{}", row.label);
        } else {
            told(&row, fails(&service, &moody, &row).await);
            assert_eq!(moody.probe.calls(), 0, "{}", row.label);
        }
        assert!(moody.plan.is_over());
        still_works(&service, &moody, row.uri).await;
        drop(service);
        books.are_even(&row, &moody, 0, 0);
    }
}
