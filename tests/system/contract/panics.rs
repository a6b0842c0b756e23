//! A panic below: it comes out as it is, and takes nobody along.

use super::{
    capture::Capture,
    crew::{Schedule, Task, crew},
    moody::{Mood, Moody, PANIC, Place},
    row::Row,
    rows::rows,
    sent::{request, sent, still_works},
};

const CALLS: usize = 3;

/// Three calls in a line, of which one meets with the panic; none does when it comes too late.
async fn one_of_three_panics(row: &Row, place: Place, before: u32) -> bool {
    let (capture, _guard) = Capture::all();
    let moody = Moody::once_after(before, Mood::Panics(place)).over(|probe| probe.with_permits(2));
    let (service, books) = row.over(&moody);
    let start = tokio::time::Instant::now();
    let calls = (0..CALLS).map(|task| -> Task<_> {
        let request = request(&moody.plan, row.uri, task, "503:10 200:5");
        Box::pin(sent(service.clone(), request, start))
    });
    let ends = crew(calls.collect(), Schedule::default()).await;
    let at = format!("{}, {place:?} after {before} times", row.label);
    let struck = moody.plan.is_over();
    let lost = u32::from(ends.iter().any(Result::is_err));
    let (panicked, others): (Vec<_>, Vec<_>) = ends.into_iter().partition(Result::is_err);
    let panicked: Vec<_> = panicked.into_iter().filter_map(Result::err).collect();
    assert_eq!(panicked, vec![PANIC; usize::from(struck)], "{at}");
    let status = if row.resends() { 200 } else { 503 };
    for end in others {
        let told = end.unwrap().unwrap_or_else(|error| panic!("{at}: {error:?}"));
        assert_eq!(told.status, status, "{at}");
    }
    books.are_even(row, &moody, 1, lost);
    assert_eq!(capture.open_spans(), [""; 0], "{at}: spans are open");
    if struck {
        still_works(&service, &moody, row.uri).await;
        drop(service);
        books.are_even(row, &moody, 0, lost);
    }
    struck
}

async fn at(place: Place) {
    for row in rows() {
        let mut before = 0;
        while one_of_three_panics(&row, place, before).await {
            before += 1;
        }
        assert!(before >= CALLS as u32, "{}: {place:?} came only {before} times", row.label);
    }
}

#[tokio::test(start_paused = true)]
async fn in_poll_ready() {
    at(Place::Ready).await;
}

#[tokio::test(start_paused = true)]
async fn in_call() {
    at(Place::Call).await;
}

#[tokio::test(start_paused = true)]
async fn in_the_future() {
    at(Place::Poll).await;
}

#[tokio::test(start_paused = true)]
async fn in_the_body_of_the_request() {
    at(Place::Request).await;
}

#[tokio::test(start_paused = true)]
async fn in_the_body_of_the_answer() {
    at(Place::Answer).await;
}
