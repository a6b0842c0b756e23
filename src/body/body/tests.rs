use http_body_util::{Empty, Full, StreamBody};
use tokio_test::{assert_pending, task::spawn};

use super::{super::BodyTooLarge, *};
use crate::body::{
    replay::ReplayBody,
    test_body::{Failure, Script, Step},
};

#[tokio::test]
async fn body_reports_the_length_of_bytes_and_does_not_copy_them() {
    let bytes = Bytes::from(vec![7; 9]);
    let mut body = Body::from(bytes.clone());
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(9), false));
    let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(data.as_ptr(), bytes.as_ptr());
    assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn empty_body_is_at_its_end() {
    let nothing = [Body::default(), "".into(), Vec::new().into(), Body::new(Empty::<Bytes>::new())];
    for mut body in nothing {
        assert_eq!(body.name(), "empty");
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
        assert!(body.frame().await.is_none());
    }
}

#[test]
fn body_new_does_not_box_a_boxed_body_again() {
    assert_eq!(Body::new(Body::from("x")).name(), "full");
    assert_eq!(Body::new(Body::new(Full::from("x"))).name(), "boxed");
}

#[tokio::test]
async fn body_returns_none_after_an_error() {
    let mut body = Body::new(ReplayBody::new(Script::new([Step::data(1), Step::Fail])));
    assert!(body.frame().await.unwrap().unwrap().is_data());
    assert!(body.frame().await.unwrap().unwrap_err().is::<Failure>());
    assert!(body.frame().await.is_none());
}

#[cfg(feature = "hyper")]
#[tokio::test]
async fn body_new_does_not_box_a_response_body_of_hyper() {
    use std::time::Duration;

    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    for idle in [false, true] {
        let (near, mut far) = tokio::io::duplex(1024);
        let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(near)).await.unwrap();
        tokio::spawn(connection);
        let server = async {
            assert_ne!(far.read(&mut [0; 1024]).await.unwrap(), 0);
            far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await.unwrap();
        };
        let (response, ()) = tokio::join!(send.send_request(http::Request::new(Body::empty())), server);
        let incoming = response.unwrap().into_body();
        let limit = Some(Duration::from_secs(1));
        let body = if idle { Body::new(IdleBody::new(incoming, limit)) } else { Body::new(incoming) };
        assert_eq!((body.name(), body.size_hint().exact()), ("incoming", Some(5)));
        assert_eq!(body.bytes_up_to(5).await.unwrap(), "hello");
    }
}

fn boxed(script: Script) -> Body {
    Body::new(ReplayBody::new(script))
}

#[tokio::test]
async fn bytes_up_to_returns_data_and_drops_trailers() {
    let steps = [Step::data(0), Step::data(3), Step::Wait, Step::data(0), Step::data(2), Step::trailers(9)];
    assert_eq!(boxed(Script::new(steps)).bytes_up_to(5).await.unwrap(), [0_u8, 1, 2, 0, 1].as_slice());
}

#[tokio::test]
async fn bytes_up_to_accepts_a_body_of_exactly_the_limit() {
    for (limit, fits) in [(7, true), (6, false), (3, false), (0, false), (usize::MAX, true)] {
        let whole = boxed(Script::new([Step::data(4), Step::data(3)])).bytes_up_to(limit).await;
        assert_eq!(whole.is_ok(), fits, "{limit}");
        if let Err(error) = whole {
            assert_eq!(error.downcast_ref(), Some(&BodyTooLarge { limit }));
            assert_eq!(error.to_string(), format!("body is larger than the limit of {limit} bytes"));
        }
    }
    assert!(Body::empty().bytes_up_to(0).await.unwrap().is_empty());
}

#[tokio::test]
async fn bytes_up_to_does_not_read_a_body_whose_length_exceeds_the_limit() {
    let script = Script::new([Step::data(9)]).knowing_its_size();
    let given = script.given();
    assert!(boxed(script).bytes_up_to(8).await.is_err());
    assert_eq!(given.get(), 0);
}

#[tokio::test]
async fn bytes_up_to_returns_the_error_of_the_body() {
    assert!(
        boxed(Script::new([Step::data(1), Step::Fail])).bytes_up_to(9).await.unwrap_err().is::<Failure>()
    );
}

#[tokio::test]
async fn bytes_up_to_does_not_copy_a_body_of_one_chunk() {
    let bytes = Bytes::from(vec![7; 9]);
    let whole = Body::new(Full::new(bytes.clone())).bytes_up_to(9).await.unwrap();
    assert_eq!(whole.as_ptr(), bytes.as_ptr());
}

#[test]
fn bytes_up_to_yields_during_endless_empty_frames() {
    let frames = std::iter::repeat_with(|| Ok::<_, Failure>(http_body::Frame::data(Bytes::new())));
    let mut task = spawn(Body::new(StreamBody::new(futures_util::stream::iter(frames))).bytes_up_to(9));
    for _ in 0..3 {
        assert_pending!(task.poll());
        assert!(task.is_woken());
    }
}
