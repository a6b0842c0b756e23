//! A call that is dropped, after each of its polls: nothing is left of it, and who waits behind it goes on.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use super::{
    capture::Capture,
    crew::{Schedule, Task, crew},
    moody::Moody,
    probe::millis,
    row::Row,
    rows::rows,
    sent::{request, sent, still_works},
};

/// Drops the task when it was polled so often and is not over; then nothing comes of it.
pub(crate) struct Cut<T> {
    pub(crate) task: Option<Task<T>>,
    pub(crate) polls: u32,
}

impl<T> Future for Cut<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let polls = self.polls;
        let Some(task) = self.task.as_mut().filter(|_| polls > 0) else {
            self.task = None;
            return Poll::Ready(None);
        };
        if let Poll::Ready(end) = task.as_mut().poll(cx) {
            self.task = None;
            return Poll::Ready(Some(end));
        }
        self.polls -= 1;
        match self.polls {
            0 => Poll::Ready(self.task.take().and(None)),
            _ => Poll::Pending,
        }
    }
}

/// Cuts the call that stands at `victim` in a line of three; whether it was over before.
async fn cut(row: &Row, victim: usize, polls: u32) -> bool {
    let (capture, _guard) = Capture::all();
    let moody = Moody::well().over(|probe| probe.with_permits(2));
    let (service, books) = row.over(&moody);
    let start = tokio::time::Instant::now();
    let at = format!("{}, call {victim} dropped after {polls} polls", row.label);
    let calls = (0..3).map(|task| -> Task<_> {
        let request = request(&moody.plan, row.uri, task, "503:10 200:5");
        let polls = if task == victim { polls } else { u32::MAX };
        Box::pin(Cut { task: Some(Box::pin(sent(service.clone(), request, start))), polls })
    });
    let ends = crew(calls.collect(), Schedule::default()).await;
    let mut over = true;
    for (task, end) in ends.into_iter().enumerate() {
        let end = end.unwrap_or_else(|panic| panic!("{at}: {panic}"));
        let status = if row.resends() { 200 } else { 503 };
        match end {
            None => over = false,
            Some(told) => assert_eq!(told.map(|told| told.status).ok(), Some(status), "{at}: {task}"),
        }
    }
    let lost = u32::from(!over);
    books.are_even(row, &moody, 1, lost);
    assert_eq!(capture.open_spans(), [""; 0], "{at}: spans are open");
    still_works(&service, &moody, row.uri).await;
    // A refresh of a key that nobody waits for any more runs to its end.
    tokio::time::sleep(millis(100)).await;
    books.are_even(row, &moody, 1, lost);
    over
}

#[tokio::test(start_paused = true)]
async fn at_every_point_nothing_is_left() {
    for row in rows() {
        for victim in 0..3 {
            let mut polls = 0;
            while !cut(&row, victim, polls).await {
                polls += 1;
            }
            // Readiness, the request's body, the answer, the answer's body: each was waited for.
            assert!(polls >= 6, "{}: over after {polls} polls", row.label);
        }
    }
}
