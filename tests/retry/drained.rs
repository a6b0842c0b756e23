//! The body of a failed response.

use std::{
    cell::Cell,
    future::Future,
    io,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_outbound::{
    ExponentialBackoff,
    body::ReplayBody,
    call::{KeyReplaced, StopReason::Success},
    retry::RetryLayer,
};

use super::{
    Headers, URI, report,
    support::{Content, get, millis, secs},
};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// This many frames of 1 KiB.
    Short(u32),
    /// Frames of 8 KiB without end or delay.
    Endless,
    /// 10 bytes every 10 ms.
    Dripping,
    /// 10 bytes after 10 ms, and then the end.
    Soon,
    /// No frame and no end.
    Stalled,
    /// 1 KiB, and then an error.
    Failing,
}

/// Records bodies of one kind: the bytes read, and when each was dropped.
#[derive(Clone)]
pub(crate) struct Recorded {
    kind: Kind,
    read: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
    dropped: Arc<Mutex<Vec<Instant>>>,
}

pub(crate) struct RecordedBody {
    frames: u32,
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
    recorded: Recorded,
}

impl Recorded {
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, read: Arc::default(), ended: Arc::default(), dropped: Arc::default() }
    }

    pub(crate) fn body(&self) -> RecordedBody {
        RecordedBody { frames: 0, timer: None, recorded: self.clone() }
    }

    fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    pub(crate) fn drops(&self) -> Vec<Instant> {
        self.dropped.lock().unwrap().clone()
    }
}

impl Body for RecordedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        let bytes = match this.recorded.kind {
            Kind::Stalled => return Poll::Pending,
            Kind::Soon if this.frames == 1 => {
                this.recorded.ended.fetch_add(1, Ordering::Relaxed);
                return Poll::Ready(None);
            }
            Kind::Short(frames) if this.frames == frames => {
                this.recorded.ended.fetch_add(1, Ordering::Relaxed);
                return Poll::Ready(None);
            }
            Kind::Failing if this.frames == 1 => {
                return Poll::Ready(Some(Err(io::Error::other("the body broke"))));
            }
            Kind::Short(_) | Kind::Failing => 1_024,
            Kind::Endless => 8_192,
            Kind::Dripping | Kind::Soon => {
                let timer = this.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(millis(10))));
                std::task::ready!(timer.as_mut().poll(cx));
                this.timer = None;
                10
            }
        };
        this.frames += 1;
        this.recorded.read.fetch_add(bytes, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; bytes as usize])))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::new()
    }
}

impl Drop for RecordedBody {
    fn drop(&mut self) {
        self.recorded.dropped.lock().unwrap().push(Instant::now());
    }
}

/// Responds 503 with a recorded body, then 200, and records when it was called.
pub(crate) fn failing_first(
    bodies: &Recorded,
    headers: Headers,
    starts: &Rc<Cell<Vec<Instant>>>,
) -> impl Service<Request<ReplayBody<Content>>, Response = Response<RecordedBody>, Error = http::Error> + Clone
{
    let (bodies, starts) = (bodies.clone(), Rc::clone(starts));
    service_fn(move |_: Request<ReplayBody<Content>>| {
        let mut all = starts.take();
        all.push(Instant::now());
        let mut response = Response::builder().status(if all.len() == 1 { 503 } else { 200 });
        starts.set(all);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        std::future::ready(response.body(bodies.body()))
    })
}

/// Returns when the failed body was dropped and when the next attempt started, counted from the failed response.
async fn drained(kind: Kind) -> (Duration, Duration, Recorded) {
    let (bodies, starts) = (Recorded::new(kind), Rc::new(Cell::new(Vec::new())));
    let service = failing_first(&bodies, &[("retry-after", "1")], &starts);
    let response = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
    assert_eq!(response.status(), 200);
    let (starts, drops) = (starts.take(), bodies.drops());
    assert_eq!(drops.len(), 1, "the second body belongs to the caller");
    (drops[0] - starts[0], starts[1] - starts[0], bodies)
}

#[tokio::test(start_paused = true)]
async fn reads_a_failed_body_to_its_end_and_drops_it_before_the_backoff() {
    for frames in [0, 1, 40, 64] {
        let (dropped, next, bodies) = drained(Kind::Short(frames)).await;
        assert_eq!(dropped, Duration::ZERO, "{frames} frames");
        assert_eq!(bodies.read(), u64::from(frames) * 1_024);
        assert_eq!(bodies.ended.load(Ordering::Relaxed), 1, "the body was read to its end");
        assert!(next >= secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn reads_64_kib_and_one_frame_of_an_endless_body() {
    let (dropped, _, bodies) = drained(Kind::Endless).await;
    assert_eq!(dropped, Duration::ZERO);
    assert!((64 * 1_024..=72 * 1_024).contains(&bodies.read()), "{}", bodies.read());
}

#[tokio::test(start_paused = true)]
async fn drops_a_stalled_or_slow_body_after_100_ms() {
    for kind in [Kind::Stalled, Kind::Dripping] {
        let (dropped, next, bodies) = drained(kind).await;
        assert!((millis(100)..=millis(101)).contains(&dropped), "{kind:?}: {dropped:?}");
        assert!(next >= secs(1) && bodies.read() <= 100, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn drops_a_body_that_fails_while_drained_and_continues_the_call() {
    let (dropped, next, _) = drained(Kind::Failing).await;
    assert_eq!(dropped, Duration::ZERO);
    assert!(next >= secs(1));
}

#[tokio::test(start_paused = true)]
async fn drops_a_stalled_body_at_the_end_of_the_backoff() {
    let (bodies, starts) = (Recorded::new(Kind::Stalled), Rc::new(Cell::new(Vec::new())));
    let backoff = ExponentialBackoff::new(millis(20), secs(1)).unwrap();
    let service = failing_first(&bodies, &[], &starts);
    RetryLayer::new().with_backoff(backoff).layer(service).oneshot(get(URI)).await.unwrap();
    let starts = starts.take();
    assert!(starts[1] - starts[0] <= millis(21), "{:?}", starts[1] - starts[0]);
    assert!(bodies.drops()[0] <= starts[1], "dropped before the next attempt");
}

#[tokio::test(start_paused = true)]
async fn drains_the_body_of_a_401_for_at_most_100_ms() {
    for (kind, within) in [(Kind::Short(40), 0..=1), (Kind::Soon, 10..=12), (Kind::Stalled, 100..=102)] {
        let (bodies, starts) = (Recorded::new(kind), Rc::new(Cell::new(Vec::new())));
        let service = failing_first(&bodies, &[], &starts);
        let service = service.map_response(|mut response: Response<RecordedBody>| {
            if response.status() == 503 {
                *response.status_mut() = StatusCode::UNAUTHORIZED;
                response.extensions_mut().insert(KeyReplaced);
            }
            response
        });
        RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
        let starts = starts.take();
        let between = u64::try_from((starts[1] - starts[0]).as_millis()).unwrap();
        assert!(within.contains(&between), "{kind:?}: {between} ms");
        assert_eq!(bodies.ended.load(Ordering::Relaxed), u64::from(kind != Kind::Stalled), "{kind:?}");
        assert!(bodies.drops()[0] <= starts[1], "dropped before the next attempt");
    }
}

#[tokio::test(start_paused = true)]
async fn returns_the_last_body_unread() {
    let bodies = Recorded::new(Kind::Short(3));
    let service = {
        let bodies = bodies.clone();
        service_fn(move |_: Request<ReplayBody<Content>>| {
            std::future::ready(Response::builder().status(503).body(bodies.body()))
        })
    };
    let layer = RetryLayer::new().with_max_attempts(1).unwrap();
    let response = layer.layer(service).oneshot(get(URI)).await.unwrap();
    assert_eq!((bodies.read(), bodies.drops().len()), (0, 0));
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes().len(), 3 * 1_024);
}

#[tokio::test(start_paused = true)]
async fn returns_a_101_unchanged_without_a_retry() {
    #[derive(Debug, Clone, PartialEq)]
    struct Upgrade;
    let bodies = Recorded::new(Kind::Stalled);
    let service = {
        let bodies = bodies.clone();
        service_fn(move |_: Request<ReplayBody<Content>>| {
            let response = Response::builder().status(101).header("retry-after", "1").extension(Upgrade);
            std::future::ready(response.body(bodies.body()))
        })
    };
    let response = RetryLayer::new().layer(service).oneshot(get(URI)).await.unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(response.extensions().get(), Some(&Upgrade));
    assert!(bodies.drops().is_empty());
    assert_eq!((report(&response).stop_reason(), report(&response).attempt_count()), (Some(Success), 1));
}
