//! Tests streamed request and response bodies under a retry layer that records the request's body.

use std::{
    io::{self, Write},
    sync::Mutex,
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::mpsc;
use tower::{Layer, ServiceExt};
use tower_outbound::{
    BoxError,
    adapter::{Reqwest, ReqwestBody},
};

use super::{
    Site, builder_of, inner, reply,
    site::{self, Reply},
    stack::{Wire, quick_retry},
    within,
};

/// The protocol of the server and of the client.
const WIRES: [(site::Wire, Wire); 2] = [(site::Wire::Http1, Wire::Http1), (site::Wire::Http2, Wire::Http2)];

async fn post(
    wire: Wire,
    url: &str,
    body: impl Body<Data = Bytes, Error = BoxError> + Send + 'static,
) -> Response<ReqwestBody> {
    let mut request = Request::post(url).body(body).unwrap();
    // HTTP/1 sends trailers only if the request's `trailer` header announces them.
    request.headers_mut().insert("trailer", "x-sum".parse().unwrap());
    request.headers_mut().insert("te", "trailers".parse().unwrap());
    within(quick_retry().layer(inner(wire)).oneshot(request)).await.unwrap()
}

#[tokio::test]
async fn each_body_frame_is_forwarded_before_the_next_frame_exists() {
    for (served, wire) in WIRES {
        // The server streams each request's body back.
        let site = Site::raw(served, |_, request| async move {
            let mut reply =
                reply(200, "").map(|_| request.into_body().map_err(io::Error::other).boxed_unsync());
            reply.headers_mut().insert("trailer", "x-sum".parse().unwrap());
            reply
        })
        .await;
        let (send, receive) = mpsc::unbounded_channel::<Frame<Bytes>>();
        let frames = stream::unfold(receive, |mut receive| async {
            let frame = receive.recv().await?;
            Some((Ok::<_, BoxError>(frame), receive))
        });
        let mut body = post(wire, &site.url(), StreamBody::new(frames)).await.into_body();
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

fn gzip(text: &str) -> Bytes {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap().into()
}

#[tokio::test]
async fn trailers_arrive_after_compressed_and_plain_bodies() {
    for (served, wire) in WIRES {
        for (compress, decompress) in [(false, false), (false, true), (true, false), (true, true)] {
            let site = Site::raw(served.clone(), move |_, _| async move {
                let data = if compress { gzip("hello") } else { Bytes::from("hello") };
                let trailers = HeaderMap::from_iter([("x-sum".parse().unwrap(), "5".parse().unwrap())]);
                let frames = [Frame::data(data), Frame::trailers(trailers)].map(Ok);
                let mut response: Reply = Response::new(StreamBody::new(stream::iter(frames)).boxed_unsync());
                response.headers_mut().insert("trailer", "x-sum".parse().unwrap());
                if compress {
                    response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
                }
                response
            })
            .await;
            let case = format!("{wire:?}, server compresses: {compress}, client decompresses: {decompress}");
            let client = builder_of(wire);
            let client = Reqwest::new(if decompress { client } else { client.no_gzip() }).unwrap();
            let request = Request::get(site.url())
                .header("te", "trailers")
                .body(tower_outbound::Body::empty())
                .unwrap();
            let response = within(quick_retry().layer(client).oneshot(request)).await.unwrap();
            let body = within(response.into_body().collect()).await.unwrap();
            assert_eq!(
                body.trailers().map(|trailers| trailers["x-sum"].to_str().unwrap()),
                Some("5"),
                "{case}"
            );
            let expected = if compress && !decompress { gzip("hello") } else { Bytes::from("hello") };
            assert_eq!(body.to_bytes(), expected, "{case}");
        }
    }
}

#[tokio::test]
async fn known_lengths_of_request_and_response_bodies_are_forwarded() {
    for (served, wire) in WIRES {
        let site = Site::start(served, |_, seen| async move {
            assert_eq!((seen.header("content-length"), &seen.body[..]), (Some("5"), &b"hello"[..]));
            Some(reply(200, "hello"))
        })
        .await;
        let body = http_body_util::Full::from("hello").map_err(BoxError::from);
        let body = post(wire, &site.url(), body).await.into_body();
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(5), false));
        assert_eq!(within(body.collect()).await.unwrap().to_bytes(), "hello");
    }
}

#[tokio::test]
async fn server_stops_sending_after_the_client_drops_the_response_body() {
    for (served, wire) in WIRES {
        // The body of the response owns the sender, so that dropping the body closes the channel.
        let (sender, mut dropped) = mpsc::channel::<()>(1);
        let sender = Mutex::new(Some(sender));
        let site = Site::raw(served, move |_, _| {
            let sender = sender.lock().unwrap().take();
            let frames = stream::repeat(()).then(move |()| {
                let _moved_in = &sender;
                async { Ok(Frame::data(Bytes::from_static(b"more"))) }
            });
            async { Response::new(StreamBody::new(frames).boxed_unsync()) }
        })
        .await;
        let mut body = post(wire, &site.url(), tower_outbound::Body::empty()).await.into_body();
        within(body.frame()).await.unwrap().unwrap();
        drop(body);
        assert_eq!(within(dropped.recv()).await, None);
    }
}
