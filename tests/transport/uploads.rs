//! Tests uploads over real connections. Each test advances tokio's clock itself, after the server has received data.

use http_body::Frame;
use http_body_util::BodyExt;
use tokio::{sync::mpsc, time::advance};
use tower_outbound::{Body, BoxError};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// Keeps a paused clock from advancing by itself while a test waits for the network. tokio does not advance the clock
/// while a blocking task runs. The clock advances again after 30 s, so that a test fails instead of hanging.
pub(crate) fn manual_clock() -> std::sync::mpsc::Sender<()> {
    let (held, wait) = std::sync::mpsc::channel();
    tokio::task::spawn_blocking(move || wait.recv_timeout(Duration::from_secs(30)));
    held
}

fn client(server: &Server, transport: TransportConfig) -> Client {
    let builder = builder(&server.url()).with_attempt_timeout(ATTEMPT_TIMEOUT);
    builder.client_with_transport(transport).unwrap()
}

/// When a server responds to an upload.
#[derive(Clone, Copy)]
enum Responds {
    AfterBody,
    /// Responds with this status.
    BeforeBody(u16),
}

/// Starts a server that reports each frame of a request's body, and `None` if the body breaks.
async fn reporting_server(
    settings: Settings,
    responds: Responds,
) -> (Server, mpsc::UnboundedReceiver<Option<usize>>) {
    let (report, reports) = mpsc::unbounded_channel();
    let server = Server::raw(settings, move |_, request| {
        let report = report.clone();
        let reading = async move {
            let mut body = request.into_body();
            while let Some(frame) = body.frame().await {
                let data = frame.ok().map(|frame| frame.into_data().unwrap().len());
                let _ = report.send(data);
                if data.is_none() {
                    break;
                }
            }
        };
        async move {
            let reading = tokio::spawn(reading);
            match responds {
                Responds::AfterBody => reading.await.unwrap(),
                Responds::BeforeBody(status) => return reply(status, "stored"),
            }
            reply(200, "stored")
        }
    })
    .await;
    (server, reports)
}

/// Returns a body whose frames the test sends.
fn channel() -> (mpsc::UnboundedSender<Bytes>, Body) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let frames = stream::unfold(receiver, |mut receiver: mpsc::UnboundedReceiver<Bytes>| async {
        let part = receiver.recv().await?;
        Some((Ok::<_, BoxError>(Frame::data(part)), receiver))
    });
    (sender, Body::new(StreamBody::new(frames)))
}

#[tokio::test(start_paused = true)]
async fn stalled_upload_times_out_and_counts_as_maybe_processed() {
    let _clock = manual_clock();
    for (settings, transport) in super::versions() {
        let (server, mut reports) = reporting_server(settings, Responds::AfterBody).await;
        let (parts, body) = channel();
        let call = tokio::spawn(client(&server, transport).post("/file").body(body).send());
        for _ in 0..2 {
            parts.send(Bytes::from_static(b"part")).unwrap();
            assert_eq!(reports.recv().await.unwrap(), Some(4));
            advance(2 * SECOND).await;
        }
        assert!(!call.is_finished());
        advance(2 * SECOND).await;
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AttemptTimeout);
        assert_eq!(outcomes(error.report().unwrap()), [Outcome::Timeout]);
        assert_eq!(reports.recv().await.unwrap(), None, "the server notices that the upload has ended");
        parts.closed().await;
    }
}

#[tokio::test(start_paused = true)]
async fn dropped_upload_drops_its_body_and_creates_no_other() {
    let _clock = manual_clock();
    for (settings, transport) in super::versions() {
        let (server, mut reports) = reporting_server(settings, Responds::AfterBody).await;
        let (parts, body) = channel();
        let made = std::sync::Mutex::new(vec![body]);
        let put = client(&server, transport).put("/file");
        // The factory panics if it is called a second time.
        let call = tokio::spawn(put.body_with(move || made.lock().unwrap().pop().unwrap()).send());
        parts.send(Bytes::from_static(b"part")).unwrap();
        assert_eq!(reports.recv().await.unwrap(), Some(4));
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        assert_eq!(reports.recv().await.unwrap(), None);
        parts.closed().await;
        assert_eq!(server.requests(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn upload_continues_after_an_early_response() {
    let _clock = manual_clock();
    for (settings, transport) in super::versions() {
        let (server, mut reports) = reporting_server(settings, Responds::BeforeBody(200)).await;
        let (parts, body) = channel();
        let client = client(&server, transport.without_http2_pings());
        assert_eq!(text(client.post("/file").body(body)).await, "stored");
        for _ in 0..5 {
            parts.send(Bytes::from_static(b"part")).unwrap();
            assert_eq!(reports.recv().await.unwrap(), Some(4));
            advance(SECOND * 9).await;
        }
    }
}

/// The server reads 1 MB each second. The buffers of an HTTP/1.1 connection hold more, so that the client sends nothing
/// for seconds.
#[tokio::test(start_paused = true)]
async fn upload_continues_after_an_early_response_while_the_server_reads_slowly() {
    const STEP: usize = 1024 * 1024;
    const STEPS: usize = 30;
    let _clock = manual_clock();
    for (settings, transport) in super::versions() {
        let (permits, (report, mut reports)) = (Arc::new(Semaphore::new(0)), mpsc::unbounded_channel());
        let granted = Arc::clone(&permits);
        let server = Server::raw(settings, move |_, request| {
            let (permits, report) = (Arc::clone(&granted), report.clone());
            tokio::spawn(async move {
                let (mut body, mut read) = (request.into_body(), 0);
                for step in 1..=STEPS {
                    permits.acquire().await.unwrap().forget();
                    while read < step * STEP {
                        match body.frame().await {
                            Some(Ok(frame)) => read += frame.into_data().unwrap().len(),
                            _ => return report.send(None),
                        }
                    }
                    report.send(Some(step))?;
                }
                Ok(())
            });
            async { reply(200, "stored") }
        })
        .await;
        let post = client(&server, transport).post("/file").body(vec![7; STEPS * STEP]);
        assert_eq!(text(post).await, "stored");
        for step in 1..=STEPS {
            permits.add_permits(1);
            assert_eq!(within(reports.recv()).await.unwrap(), Some(step));
            advance(SECOND).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn upload_ends_after_an_early_response_if_it_stalls_or_the_response_is_an_error() {
    let _clock = manual_clock();
    for (status, sent, step) in [(200, 1, SECOND * 10), (413, 2, SECOND / 2)] {
        let (server, mut reports) = reporting_server(Settings::default(), Responds::BeforeBody(status)).await;
        let (parts, body) = channel();
        let client = client(&server, TransportConfig::new().with_max_connections(1));
        assert_eq!(text(client.post("/file").body(body)).await, "stored");
        let (start, next) = (Instant::now(), tokio::spawn(text(client.get("/next"))));
        for part in 0..2 {
            if part < sent {
                parts.send(Bytes::from_static(b"part")).unwrap();
                assert_eq!(reports.recv().await.unwrap(), Some(4));
            }
            assert!(!parts.is_closed());
            settle().await;
            advance(step).await;
        }
        assert_eq!(within(reports.recv()).await.unwrap(), None);
        within(parts.closed()).await;
        assert_eq!(start.elapsed(), step * 2);
        assert_eq!(within(next).await.unwrap(), "stored");
        assert_eq!((server.paths(), server.connections()), (vec!["/file".into(), "/next".into()], 2));
    }
}

#[tokio::test(start_paused = true)]
async fn http2_upload_ends_with_an_early_error_response() {
    let _clock = manual_clock();
    let (server, mut reports) = reporting_server(Settings::streams(1), Responds::BeforeBody(413)).await;
    let (parts, body) = channel();
    let client = client(&server, http2().with_max_connections(1).without_http2_pings());
    assert_eq!(text(client.post("/file").body(body)).await, "stored");
    assert_eq!(within(reports.recv()).await.unwrap(), None);
    within(parts.closed()).await;
    assert_eq!(within(text(client.get("/next"))).await, "stored");
    assert_eq!((server.paths(), server.connections()), (vec!["/file".into(), "/next".into()], 2));
}

/// The server reads 4 MB each second. The buffers of the connection hold less than the server reads in 3 s.
#[tokio::test(start_paused = true)]
async fn upload_of_bytes_in_memory_outlasts_the_attempt_timeout_while_the_server_reads() {
    const STEP: usize = 4 * 1024 * 1024;
    const STEPS: usize = 12;
    let _clock = manual_clock();
    for (settings, transport) in super::versions() {
        let (permits, (report, mut reports)) = (Arc::new(Semaphore::new(0)), mpsc::unbounded_channel());
        let granted = Arc::clone(&permits);
        let server = Server::raw(settings, move |_, request| {
            let (permits, report) = (Arc::clone(&granted), report.clone());
            async move {
                let (mut body, mut read) = (request.into_body(), 0);
                for step in 1..=STEPS {
                    permits.acquire().await.unwrap().forget();
                    while read < step * STEP {
                        read += body.frame().await.unwrap().unwrap().into_data().unwrap().len();
                    }
                    report.send(read).unwrap();
                }
                reply(200, "stored")
            }
        })
        .await;
        let start = Instant::now();
        let call = client(&server, transport).post("/file").body(vec![7; STEPS * STEP]);
        let call = tokio::spawn(call.send());
        for step in 1..=STEPS {
            permits.add_permits(1);
            assert!(within(reports.recv()).await.unwrap() >= step * STEP);
            if step < STEPS {
                advance(SECOND).await;
            }
        }
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
        assert_eq!(start.elapsed().as_secs(), STEPS as u64 - 1);
    }
}
