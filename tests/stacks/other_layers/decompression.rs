//! Tests which bytes of a failed response the retry layer reads above and below tower-http's `Decompression`.

use std::{
    convert::Infallible,
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use tower::{BoxError, Layer, ServiceExt, service_fn};
use tower_http::decompression::DecompressionLayer;
use tower_outbound::{Body, body::ReplayBody};

use super::{
    URI, rates,
    support::{Content, get},
};

fn gzip(length: usize) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![0; length]).unwrap();
    encoder.finish().unwrap().into()
}

/// Returns whether the stack read the compressed body of a 503 to its end, so that the connection can be reused.
async fn is_drained(length: usize, is_above: bool) -> bool {
    let (ended, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let end = Arc::clone(&ended);
    let service = service_fn(move |_: Request<ReplayBody<Content>>| {
        let (is_first, end) = (calls.fetch_add(1, SeqCst) == 0, Arc::clone(&end));
        let status = if is_first { 503 } else { 200 };
        let body = gzip(if is_first { length } else { 5 });
        let chunks = (0..body.len()).step_by(64).map(|at| body.slice(at..body.len().min(at + 64)));
        let chunks: Vec<_> = chunks.map(|chunk| Ok::<_, Infallible>(Frame::data(chunk))).collect();
        let frames = chunks.into_iter().chain(std::iter::from_fn(move || {
            end.store(is_first || end.load(SeqCst), SeqCst);
            None
        }));
        let response = Response::builder().status(status).header("content-encoding", "gzip");
        std::future::ready(response.body(Body::new(StreamBody::new(stream::iter(frames)))))
    });
    let (stack, decompression) = (rates().layer().unwrap(), DecompressionLayer::new());
    let (status, body): (_, Result<Bytes, BoxError>) = if is_above {
        let response = decompression.layer(stack.layer(service)).oneshot(get(URI)).await.unwrap();
        (response.status(), Body::new(response.into_body()).bytes_up_to(9).await)
    } else {
        let response = stack.layer(decompression.layer(service)).oneshot(get(URI)).await.unwrap();
        (response.status(), Body::new(response.into_body()).bytes_up_to(9).await)
    };
    assert_eq!((status.as_u16(), body.unwrap().len()), (200, 5));
    ended.load(SeqCst)
}

#[tokio::test(start_paused = true)]
async fn retry_layer_reads_the_compressed_body_of_a_failed_response_or_64_kib_of_the_decompressed_one() {
    assert!(is_drained(1 << 20, true).await, "1 KiB, compressed");
    assert!(!is_drained(1 << 20, false).await && is_drained(1 << 10, false).await);
}
