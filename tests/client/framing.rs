//! Tests which `host`, `content-length` and `transfer-encoding` headers of a request are sent.

use http_body::SizeHint;
use tower_outbound::Body;

use super::*;

type Headers = &'static [(&'static str, &'static str)];
type Case = (Headers, fn() -> Body, &'static str);

/// Returns a body whose length only the caller knows.
fn stream_of(text: &'static str) -> Body {
    let frames = [Ok::<_, Infallible>(Frame::data(Bytes::from(text)))];
    Body::new(StreamBody::new(stream::iter(frames)))
}

/// A body with a length from 3 to 7 bytes.
struct Bounded;

impl http_body::Body for Bounded {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_lower(3);
        hint.set_upper(7);
        hint
    }
}

fn request(headers: Headers, body: Body) -> Request<Body> {
    let mut request = Request::post("/v1").body(body).unwrap();
    for (name, value) in headers {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn request_with_contradictory_framing_or_a_host_header_is_not_sent() {
    let hello: fn() -> Body = || "hello".into();
    let streamed: fn() -> Body = || stream_of("hello");
    let bounded: fn() -> Body = || Body::new(Bounded);
    let (not_a_number, not_chunked) = (
        "`content-length`: expected one decimal number",
        "`transfer-encoding`: expected `chunked`, and no `content-length`",
    );
    let cases: &[Case] = &[
        (&[("host", "other.example.com")], hello, "`host`: expected none"),
        (&[("host", "127.0.0.1")], Body::empty, "`host`: expected none"),
        (&[("host", "127.0.0.1:9"), ("host", "127.0.0.1:9")], Body::empty, "`host`: expected none"),
        (&[("content-length", "3")], hello, "`content-length: 3`: expected 5, the length of the body"),
        (&[("content-length", "100")], hello, "`content-length: 100`: expected 5"),
        (&[("content-length", "1")], Body::empty, "`content-length: 1`: expected 0"),
        (&[("content-length", "2")], bounded, "`content-length: 2`: expected at least 3"),
        (&[("content-length", "8")], bounded, "`content-length: 8`: expected at most 7"),
        (&[("content-length", "5"), ("content-length", "6")], streamed, not_a_number),
        (&[("content-length", "5"), ("content-length", "5")], hello, not_a_number),
        (&[("content-length", "5, 6")], streamed, not_a_number),
        (&[("content-length", "+5")], streamed, not_a_number),
        (&[("content-length", "-5")], streamed, not_a_number),
        (&[("content-length", "")], streamed, not_a_number),
        (&[("content-length", "18446744073709551616")], streamed, not_a_number),
        (&[("transfer-encoding", "chunked"), ("content-length", "5")], streamed, not_chunked),
        (&[("transfer-encoding", "gzip")], streamed, not_chunked),
        (&[("transfer-encoding", "chunked, identity")], hello, not_chunked),
        (&[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")], hello, not_chunked),
    ];
    let service = ScriptedService::new([200].map(ScriptedResponse::status));
    let mut client = preset("http://127.0.0.1:9").client_with_service(service.clone()).unwrap();
    for (headers, body, shown) in cases {
        let built = client.post("/v1").body(body());
        let built = headers.iter().fold(built, |post, (name, value)| post.header(name, *value)).await;
        let executed = client.execute(request(headers, body())).await;
        let called = client.ready().await.unwrap().call(request(headers, body())).await;
        for error in [built.unwrap_err(), executed.unwrap_err(), called.unwrap_err()] {
            let text = format!("{error:#}");
            assert!(error.is_invalid_request() && text.contains(shown), "{headers:?}: {text}");
        }
    }
    assert_eq!(service.calls(), 0);
}

#[tokio::test]
async fn client_sends_framing_and_connection_headers_that_match_the_body() {
    let cases: &[Case] = &[
        (&[("content-length", "5")], || "hello".into(), "hello"),
        (&[("content-length", "5")], || stream_of("hello"), "hello"),
        (&[("content-length", "0")], Body::empty, ""),
        (&[("transfer-encoding", "chunked")], || "hello".into(), "hello"),
        (&[("transfer-encoding", "Chunked")], || stream_of("hello"), "hello"),
        (&[("expect", "100-continue"), ("te", "trailers")], || "hello".into(), "hello"),
        (&[("trailer", "x-sum"), ("connection", "close")], || stream_of("hello"), "hello"),
        (&[("connection", "upgrade"), ("upgrade", "websocket")], Body::empty, ""),
    ];
    for (wire, transport) in versions() {
        let is_http2 = matches!(wire, Wire::Http2);
        let server = Server::with_statuses(wire, [200]).await;
        let client = preset(&server.url()).client_with_transport(transport).unwrap();
        for (headers, body, sent) in cases {
            let response = within(client.execute(request(headers, body()))).await;
            assert_eq!(response.unwrap().status(), StatusCode::OK, "{headers:?}");
            let seen = server.seen().pop().unwrap();
            assert_eq!(seen.body, sent, "{headers:?}");
            // HTTP/2 has no headers for the connection and for chunks.
            for (name, value) in headers.iter().filter(|(name, _)| !is_http2 || *name == "content-length") {
                assert_eq!(seen.header(name), Some(*value));
            }
        }
    }
}
