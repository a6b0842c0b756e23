//! Bodies pass as they come, both ways, under a retry layer that records the request's.

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::{Notify, mpsc, oneshot};
use tower::{Layer, ServiceExt};
use tower_outbound::{
    BoxError,
    adapter::{Reqwest, ReqwestBody},
};

use super::{
    Site, builder, inner,
    stack::{Wire, quick_retry, within},
};

const WIRES: [Wire; 2] = [Wire::Http1, Wire::Http2];

async fn post(
    wire: Wire,
    url: &str,
    body: impl Body<Data = Bytes, Error = BoxError> + Send + 'static,
) -> Response<ReqwestBody> {
    let mut request = Request::post(url).body(body).unwrap();
    // HTTP/1 has trailers only for who says that there will be some.
    request.headers_mut().insert("trailer", "x-sum".parse().unwrap());
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    within(quick_retry().layer(inner(wire)).oneshot(request)).await.unwrap()
}

/// Sends back what comes, as it comes.
async fn echo() -> Site {
    Site::start(|_, body| async {
        let body = body.map_err(BoxError::from).boxed_unsync();
        Response::builder().header("trailer", "x-sum").body(body).unwrap()
    })
    .await
}

#[tokio::test]
async fn each_frame_passes_before_the_next_one_is_there_and_trailers_last() {
    for wire in WIRES {
        let site = echo().await;
        let (send, receive) = mpsc::unbounded_channel::<Frame<Bytes>>();
        let frames = stream::unfold(receive, |mut receive| async {
            let frame = receive.recv().await?;
            Some((Ok::<_, BoxError>(frame), receive))
        });
        let mut body = post(wire, &site.url, StreamBody::new(frames)).await.into_body();
        for text in ["one", "two"] {
            send.send(Frame::data(Bytes::from(text))).unwrap();
            let frame = within(body.frame()).await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), text, "{wire:?}");
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "6".parse().unwrap());
        send.send(Frame::trailers(trailers.clone())).unwrap();
        drop(send);
        let frame = within(body.frame()).await.unwrap().unwrap();
        assert_eq!(frame.into_trailers().unwrap(), trailers, "{wire:?}");
        assert!(within(body.frame()).await.is_none());
    }
}

fn zipped(text: &str) -> Bytes {
    let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    zip.write_all(text.as_bytes()).unwrap();
    zip.finish().unwrap().into()
}

/// Over HTTP/2 as gRPC has them, and over HTTP/1.
#[tokio::test]
async fn trailers_come_after_a_body_that_was_decompressed_and_one_that_was_not() {
    for wire in WIRES {
        for (zip, unzip) in [(false, false), (false, true), (true, false), (true, true)] {
            let site = Site::start(move |_, _| async move {
                let data = if zip { zipped("hello") } else { Bytes::from("hello") };
                let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "5".parse().unwrap())]);
                let frames = [Frame::data(data), Frame::trailers(trailers)].map(Ok::<_, BoxError>);
                let mut answer = Response::new(StreamBody::new(stream::iter(frames)).boxed_unsync());
                answer.headers_mut().insert("trailer", "x-sum".parse().unwrap());
                if zip {
                    answer.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
                }
                answer
            })
            .await;
            let case = format!("{wire:?}, zipped {zip}, to be unzipped {unzip}");
            let client = if wire == Wire::Http2 { builder().http2_prior_knowledge() } else { builder() };
            let client = Reqwest::new(if unzip { client } else { client.no_gzip() }).unwrap();
            let request =
                Request::get(&site.url).header("te", "trailers").body(tower_outbound::Body::empty()).unwrap();
            let answer = within(quick_retry().layer(client).oneshot(request)).await.unwrap();
            let body = within(answer.into_body().collect()).await.unwrap();
            assert_eq!(
                body.trailers().map(|trailers| trailers["x-sum"].to_str().unwrap()),
                Some("5"),
                "{case}"
            );
            let expected = if zip && !unzip { zipped("hello") } else { Bytes::from("hello") };
            assert_eq!(body.to_bytes(), expected, "{case}");
        }
    }
}

#[tokio::test]
async fn a_length_that_is_known_is_sent_and_told() {
    for wire in WIRES {
        let site = Site::start(|head, body| async move {
            assert_eq!(head.headers["content-length"], "5");
            assert_eq!(body.collect().await.unwrap().to_bytes(), "hello");
            Response::new(super::text("hello"))
        })
        .await;
        let body = http_body_util::Full::from("hello").map_err(BoxError::from);
        let body = post(wire, &site.url, body).await.into_body();
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(5), false));
        assert_eq!(within(body.collect()).await.unwrap().to_bytes(), "hello");
    }
}

#[tokio::test]
async fn an_answer_that_is_dropped_ends_at_the_server() {
    struct Dropped(Option<oneshot::Sender<()>>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.take().unwrap().send(());
        }
    }

    for wire in WIRES {
        let (told, dropped) = oneshot::channel();
        let told = Arc::new(std::sync::Mutex::new(Some(told)));
        let site = Site::start(move |_, _| {
            let guard = Dropped(told.lock().unwrap().take());
            let frames = stream::repeat(()).then(move |()| {
                let _held = &guard;
                async { Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"more"))) }
            });
            async { Response::new(StreamBody::new(frames).boxed_unsync()) }
        })
        .await;
        let mut body = post(wire, &site.url, tower_outbound::Body::empty()).await.into_body();
        within(body.frame()).await.unwrap().unwrap();
        drop(body);
        within(dropped).await.unwrap();
    }
}

const CHUNK: usize = 64 * 1024;
/// 256 MiB, which neither sockets nor windows hold.
const CHUNKS: usize = 4096;

/// Counts the chunks as they are taken.
fn large(taken: &Arc<AtomicUsize>) -> impl Body<Data = Bytes, Error = BoxError> + Send + use<> {
    let (taken, chunk) = (Arc::clone(taken), Bytes::from(vec![7; CHUNK]));
    StreamBody::new(stream::iter(0..CHUNKS).map(move |_| {
        taken.fetch_add(1, SeqCst);
        Ok(Frame::data(chunk.clone()))
    }))
}

/// Waits until no more is taken.
async fn stands(taken: &AtomicUsize) -> usize {
    let mut last = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let now = taken.load(SeqCst);
        if now > 0 && now == last {
            return now;
        }
        last = now;
    }
}

async fn length(mut body: impl Body<Data = Bytes, Error: std::fmt::Debug> + Unpin) -> usize {
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        length += frame.unwrap().into_data().map_or(0, |data| data.len());
    }
    length
}

#[tokio::test]
async fn a_large_upload_waits_for_who_reads_it() {
    for wire in WIRES {
        let (taken, read) = (Arc::<AtomicUsize>::default(), Arc::new(Notify::new()));
        let reading = Arc::clone(&read);
        let site = Site::start(move |_, body| {
            let read = Arc::clone(&reading);
            async move {
                read.notified().await;
                assert_eq!(length(body).await, CHUNK * CHUNKS);
                Response::new(super::text("all"))
            }
        })
        .await;
        let reader = async {
            let stood = within(stands(&taken)).await;
            assert!(stood < CHUNKS / 4, "{wire:?}: {stood} chunks taken");
            read.notify_one();
        };
        let (response, ()) = tokio::join!(post(wire, &site.url, large(&taken)), reader);
        assert_eq!((response.status().as_u16(), taken.load(SeqCst)), (200, CHUNKS));
    }
}

#[tokio::test]
async fn a_large_answer_waits_for_who_reads_it() {
    for wire in WIRES {
        let taken = Arc::<AtomicUsize>::default();
        let giving = Arc::clone(&taken);
        let site = Site::start(move |_, _| {
            let body = large(&giving);
            async { Response::new(body.boxed_unsync()) }
        })
        .await;
        let body = post(wire, &site.url, tower_outbound::Body::empty()).await.into_body();
        let stood = within(stands(&taken)).await;
        assert!(stood < CHUNKS / 4, "{wire:?}: {stood} chunks taken");
        assert_eq!(within(length(body)).await, CHUNK * CHUNKS);
    }
}
