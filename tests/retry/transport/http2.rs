//! What an HTTP/2 server says of a request, and whether that is proof.

use bytes::Bytes;
use futures_util::stream;
use http::Method;
use http_body_util::StreamBody;
use tower_outbound::{Body, BoxError, call::Outcome};

use super::{
    frames::{
        ANSWER, Frame,
        Frame::{Close, EarlyHints, GoAway, Process, Reset, Scripted},
        HIGHEST_ID,
    },
    server::{Act, Server},
    stack::{Came, METHODS, OK, Stack, Wire, assert_maybe, settle},
};

const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

const REFUSED: &[Frame] = &[Reset(REFUSED_STREAM)];

/// The last id is that of the stream before the request's.
const BELOW: i64 = -2;

/// A POST and a GET, on a connection of their own or after another request.
async fn calls(kept: bool, acts: &'static [Act], mut check: impl FnMut(&Server, &Method, &Came)) {
    for method in METHODS {
        for at in 0..2 {
            let server = Server::start(Wire::Http2, acts).await;
            let mut stack = Stack::number(at, server.url(), Wire::Http2);
            if kept {
                assert_eq!(stack.send(Method::HEAD).await.outcomes, [OK]);
                settle().await;
            }
            let came = stack.send(method.clone()).await;
            check(&server, &method, &came);
        }
    }
}

#[tokio::test]
async fn a_refused_stream_is_sent_again_whatever_the_method_and_processed_once() {
    for (kept, acts) in [(false, &[Act::Say(&[REFUSED])] as &[Act]), (true, &[Act::Say(&[ANSWER, REFUSED])])]
    {
        calls(kept, acts, |server, method, came| {
            came.assert_sent_again_after(Outcome::NotSent, &format!("{method} {kept}"));
            assert_eq!((server.processed(method), server.connections()), (1, 1), "on the same connection");
        })
        .await;
    }
}

/// A 103 contradicts a refusal (RFC 9113 §8.7). hyper does not expose the 103, so the layer sees only the refusal.
#[tokio::test]
async fn retries_after_a_refused_stream_even_if_the_server_sent_103_before() {
    const ACTS: &[Act] = &[Act::Say(&[&[EarlyHints, Reset(REFUSED_STREAM)]])];
    calls(false, ACTS, |server, method, came| {
        came.assert_sent_again_after(Outcome::NotSent, &format!("{method}"));
        assert_eq!((server.processed(method), server.connections()), (1, 1), "on the same connection");
    })
    .await;
}

/// The 103 is neither a failure nor the response: the 200 after it is the response.
#[tokio::test]
async fn a_103_before_the_response_changes_nothing() {
    const ACTS: &[Act] = &[Act::Say(&[&[EarlyHints, Process, Scripted]])];
    calls(false, ACTS, |server, method, came| {
        assert_eq!(came.outcomes, [OK], "{method}");
        assert_eq!((server.processed(method), server.connections()), (1, 1));
    })
    .await;
}

/// As when an upload is passed on that comes from elsewhere: that stream was refused there, and not this one here.
#[tokio::test]
async fn a_request_whose_body_broke_on_a_refused_stream_may_have_been_sent() {
    for wire in [Wire::Http1, Wire::Http2] {
        let elsewhere = Server::start(Wire::Http2, &[Act::Say(&[REFUSED; 3])]).await;
        let refused = Stack::number(0, elsewhere.url(), Wire::Http2).send(Method::GET).await;
        assert_eq!(refused.outcomes, [Outcome::NotSent; 3]);

        let server = Server::start(wire, &[]).await;
        let error = BoxError::from(refused.result.unwrap_err());
        let body = Body::new(StreamBody::new(stream::iter([Err::<http_body::Frame<Bytes>, _>(error)])));
        let came = Stack::number(0, server.url(), wire).send_body(Method::POST, body).await;
        assert_eq!((&came.outcomes[..], server.processed(&Method::POST)), (&[Outcome::Failed][..], 0));
    }
}

#[tokio::test]
async fn a_stream_that_is_reset_for_another_reason_proves_nothing() {
    for acts in [
        &[Act::Say(&[&[Process, Reset(INTERNAL_ERROR)]])] as &[Act],
        &[Act::Say(&[&[Process, Reset(ENHANCE_YOUR_CALM)]])],
        &[Act::Say(&[&[Process, Reset(NO_ERROR)]])],
    ] {
        calls(false, acts, |server, method, came| {
            assert_maybe(server, method, came, 1, &format!("{acts:?}"))
        })
        .await;
    }
}

/// The server said that it did not process it, and its word is good; but which stream it spoke of does not reach us.
#[tokio::test]
async fn a_goaway_below_the_request_is_taken_for_no_proof() {
    for (kept, acts) in [
        (false, &[Act::Say(&[&[GoAway { reason: NO_ERROR, beyond: BELOW }]])] as &[Act]),
        (false, &[Act::Say(&[&[GoAway { reason: ENHANCE_YOUR_CALM, beyond: BELOW }]])]),
        (true, &[Act::Say(&[ANSWER, &[GoAway { reason: NO_ERROR, beyond: BELOW }]])]),
        // As a server says it that shuts down gracefully: first that it will, then what it took.
        (
            true,
            &[Act::Say(&[
                ANSWER,
                &[
                    GoAway { reason: NO_ERROR, beyond: HIGHEST_ID },
                    GoAway { reason: NO_ERROR, beyond: BELOW },
                    Close,
                ],
            ])],
        ),
    ] {
        calls(kept, acts, |server, method, came| assert_maybe(server, method, came, 0, &format!("{acts:?}")))
            .await;
    }
}

#[tokio::test]
async fn a_goaway_at_or_above_the_request_and_then_the_end_proves_nothing() {
    for acts in [
        &[Act::Say(&[ANSWER, &[Process, GoAway { reason: NO_ERROR, beyond: 0 }, Close]])] as &[Act],
        &[Act::Say(&[ANSWER, &[Process, GoAway { reason: NO_ERROR, beyond: 2 }, Close]])],
        &[Act::Say(&[ANSWER, &[Process, GoAway { reason: NO_ERROR, beyond: HIGHEST_ID }, Close]])],
        &[Act::Say(&[ANSWER, &[Process, GoAway { reason: ENHANCE_YOUR_CALM, beyond: 0 }, Close]])],
    ] {
        calls(true, acts, |server, method, came| assert_maybe(server, method, came, 1, &format!("{acts:?}")))
            .await;
    }
}

#[tokio::test]
async fn a_request_that_is_answered_after_the_goaway_is_done_and_the_next_one_takes_another_connection() {
    const ACTS: &[Act] = &[Act::Say(&[&[Process, GoAway { reason: NO_ERROR, beyond: 0 }, Scripted]])];
    for method in METHODS {
        for at in 0..2 {
            let server = Server::start(Wire::Http2, ACTS).await;
            let mut stack = Stack::number(at, server.url(), Wire::Http2);
            for number in 1..=2 {
                assert_eq!(stack.send(method.clone()).await.outcomes, [OK], "{method}");
                assert_eq!((server.processed(&method), server.connections()), (number, number));
                settle().await;
            }
        }
    }
}
