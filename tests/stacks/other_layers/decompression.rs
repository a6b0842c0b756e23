//! Tests tower-http's `Decompression` around and inside the preset's stack.

use std::{
    convert::Infallible,
    io::Write as _,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneService};
use tower_http::decompression::DecompressionLayer;
use tower_outbound::{Report, body::ReplayBody};

use super::{
    URI, rates,
    support::{Content, request},
};

fn gzip(text: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap().into()
}

/// A body in frames of 64 bytes. The server counts the bodies that the client read to the end.
struct CountedBody {
    rest: Bytes,
    ended: Option<Arc<AtomicUsize>>,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            // A decoder polls the body again after its end, so the end must be counted only once.
            if let Some(ended) = self.ended.take() {
                ended.fetch_add(1, Relaxed);
            }
            return Poll::Ready(None);
        }
        let length = self.rest.len().min(64);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }
}

#[derive(Clone, Default)]
struct Server {
    seen: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    ended: Arc<AtomicUsize>,
}

type Inner = BoxCloneService<Request<ReplayBody<Content>>, Response<CountedBody>, tower::BoxError>;

impl Server {
    /// Responds first with 503 and the body `failure`, and later with 200 and `hello`. Both bodies are compressed.
    fn service(&self, failure: &[u8]) -> Inner {
        let (server, failure) = (self.clone(), gzip(failure));
        BoxCloneService::new(service_fn(move |request: Request<ReplayBody<Content>>| {
            let (server, failure) = (server.clone(), failure.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let mut seen = server.seen.lock().unwrap();
                seen.push((head.headers, body));
                let (status, rest) = if seen.len() == 1 { (503, failure) } else { (200, gzip(b"hello")) };
                let response = Response::builder().status(status).header("content-encoding", "gzip");
                let response = response.header("content-length", rest.len());
                Ok(response.body(CountedBody { rest, ended: Some(Arc::clone(&server.ended)) })?)
            }
        }))
    }
}

async fn check<B: Body<Data: bytes::Buf, Error: std::fmt::Debug>>(server: &Server, response: Response<B>) {
    assert_eq!(response.status(), 200);
    assert!(
        !response.headers().contains_key("content-encoding")
            && !response.headers().contains_key("content-length")
    );
    assert_eq!(Report::from_response(&response).unwrap().attempt_count(), 2);
    let text = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(text, "hello");
    // Both attempts sent the same body and the same `content-length`.
    let seen = server.seen.lock().unwrap().clone();
    for (headers, body) in &seen {
        assert_eq!(body, "hello");
        // Other codecs follow if another package of the workspace enables them.
        assert!(headers["accept-encoding"].to_str().unwrap().starts_with("gzip"));
        assert_eq!(headers["content-length"], "5");
    }
    assert_eq!(seen.len(), 2);
}

fn put() -> Request<Content> {
    let mut request = request("PUT", URI);
    request.headers_mut().insert("content-length", 5.into());
    request
}

/// The body of the failed response has 1 MiB, or about 1 KiB compressed. The retry layer reads the compressed body to
/// its end, so the connection can be reused.
#[tokio::test(start_paused = true)]
async fn stack_inside_decompression_drains_the_compressed_body_of_a_failed_response() {
    let server = Server::default();
    let layer = rates().layer().unwrap();
    let service = DecompressionLayer::new().layer(layer.layer(server.service(&[0; 1 << 20])));
    let response = service.oneshot(put()).await.unwrap();
    assert_eq!(server.ended.load(Relaxed), 1);
    check(&server, response).await;
}

#[tokio::test(start_paused = true)]
async fn drain_limit_counts_decompressed_bytes_if_decompression_is_inside_the_stack() {
    for (failure, ended) in [(vec![0; 1 << 20], 0), (vec![0; 1 << 10], 1)] {
        let server = Server::default();
        let service = DecompressionLayer::new().layer(server.service(&failure));
        let response = rates().layer().unwrap().layer(service).oneshot(put()).await.unwrap();
        assert_eq!(server.ended.load(Relaxed), ended, "{} bytes", failure.len());
        check(&server, response).await;
    }
}
