//! Tests which HTTP/2 resets, GOAWAY frames and interim responses prove that a request was not processed.

use bytes::Bytes;
use futures_util::stream;
use http::Method;
use http_body_util::StreamBody;
use tower_outbound::{Body, BoxError, call::Outcome};

use super::{
    frames::{
        HIGHEST_ID, PROCESS_AND_RESPOND, Step,
        Step::{Close, EarlyHints, GoAway, Process, Reset, Respond},
    },
    server::{Behavior, Server},
    stack::{CallResult, METHODS, OK, SETUPS, Setup, Stack, Wire, assert_only_get_is_retried, settle},
};

const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

const REFUSED: &[Step] = &[Reset(REFUSED_STREAM)];

/// The offset from the request's stream id to the id of the client's previous stream.
const PREVIOUS_STREAM: i64 = -2;

/// Sends a POST and a GET through each setup. If `reused` is true, the connection has served another request before.
async fn check_calls(
    reused: bool,
    behaviors: &'static [Behavior],
    mut check: impl FnMut(&Server, &Method, &CallResult),
) {
    for method in METHODS {
        for setup in SETUPS {
            let server = Server::start(Wire::Http2, behaviors).await;
            let mut stack = Stack::new(setup, server.url(), Wire::Http2);
            if reused {
                assert_eq!(stack.send(Method::HEAD).await.outcomes, [OK]);
                settle().await;
            }
            let call = stack.send(method.clone()).await;
            check(&server, &method, &call);
        }
    }
}

#[tokio::test]
async fn client_retries_any_method_after_a_refused_stream() {
    for (reused, behaviors) in [
        (false, &[Behavior::Steps(&[REFUSED])] as &[Behavior]),
        (true, &[Behavior::Steps(&[PROCESS_AND_RESPOND, REFUSED])]),
    ] {
        check_calls(reused, behaviors, |server, method, call| {
            call.assert_retried_after(Outcome::NotSent, &format!("{method}, reused connection: {reused}"));
            assert_eq!(
                (server.processed(method), server.connections()),
                (1, 1),
                "the retry should use the same connection"
            );
        })
        .await;
    }
}

/// A 103 response contradicts the refusal of a stream (RFC 9113 §8.7). hyper does not expose the 103 response, so the
/// layer sees only the refusal.
#[tokio::test]
async fn client_retries_after_a_refused_stream_even_if_a_103_arrived_first() {
    const BEHAVIORS: &[Behavior] = &[Behavior::Steps(&[&[EarlyHints, Reset(REFUSED_STREAM)]])];
    check_calls(false, BEHAVIORS, |server, method, call| {
        call.assert_retried_after(Outcome::NotSent, &format!("{method}"));
        assert_eq!(
            (server.processed(method), server.connections()),
            (1, 1),
            "the retry should use the same connection"
        );
    })
    .await;
}

#[tokio::test]
async fn client_skips_a_103_before_the_final_response() {
    const BEHAVIORS: &[Behavior] = &[Behavior::Steps(&[&[EarlyHints, Process, Respond]])];
    check_calls(false, BEHAVIORS, |server, method, call| {
        assert_eq!(call.outcomes, [OK], "{method}");
        assert_eq!((server.processed(method), server.connections()), (1, 1));
    })
    .await;
}

/// The body of a POST fails because another server has refused the stream from which the body is read. The server that
/// receives the POST refuses nothing.
#[tokio::test]
async fn client_does_not_retry_post_whose_body_fails_with_refused_stream() {
    for wire in [Wire::Http1, Wire::Http2] {
        let source = Server::start(Wire::Http2, &[Behavior::Steps(&[REFUSED; 3])]).await;
        let refused = Stack::new(Setup::RetryLayer, source.url(), Wire::Http2).send(Method::GET).await;
        assert_eq!(refused.outcomes, [Outcome::NotSent; 3]);

        let server = Server::start(wire, &[]).await;
        let error = BoxError::from(refused.result.unwrap_err());
        let body = Body::new(StreamBody::new(stream::iter([Err::<http_body::Frame<Bytes>, _>(error)])));
        let call = Stack::new(Setup::RetryLayer, server.url(), wire).send_body(Method::POST, body).await;
        assert_eq!((&call.outcomes[..], server.processed(&Method::POST)), (&[Outcome::Failed][..], 0));
    }
}

#[tokio::test]
async fn client_retries_get_but_not_post_after_a_reset_other_than_refused_stream() {
    for behaviors in [
        &[Behavior::Steps(&[&[Process, Reset(INTERNAL_ERROR)]])] as &[Behavior],
        &[Behavior::Steps(&[&[Process, Reset(ENHANCE_YOUR_CALM)]])],
        &[Behavior::Steps(&[&[Process, Reset(NO_ERROR)]])],
    ] {
        check_calls(false, behaviors, |server, method, call| {
            assert_only_get_is_retried(server, method, call, 1, &format!("{behaviors:?}"))
        })
        .await;
    }
}

/// A GOAWAY proves that a request was not processed if the last stream id is lower than the request's stream id. The
/// layer does not know the last stream id, because h2's error does not contain that id.
#[tokio::test]
async fn client_retries_get_but_not_post_if_goaway_last_stream_id_is_below_request_id() {
    for (reused, behaviors) in [
        (
            false,
            &[Behavior::Steps(&[&[GoAway { reason: NO_ERROR, id_offset: PREVIOUS_STREAM }]])]
                as &[Behavior],
        ),
        (false, &[Behavior::Steps(&[&[GoAway { reason: ENHANCE_YOUR_CALM, id_offset: PREVIOUS_STREAM }]])]),
        (
            true,
            &[Behavior::Steps(&[
                PROCESS_AND_RESPOND,
                &[GoAway { reason: NO_ERROR, id_offset: PREVIOUS_STREAM }],
            ])],
        ),
        // In a graceful shutdown, the first GOAWAY announces the shutdown. The second GOAWAY contains the last stream
        // id.
        (
            true,
            &[Behavior::Steps(&[
                PROCESS_AND_RESPOND,
                &[
                    GoAway { reason: NO_ERROR, id_offset: HIGHEST_ID },
                    GoAway { reason: NO_ERROR, id_offset: PREVIOUS_STREAM },
                    Close,
                ],
            ])],
        ),
    ] {
        check_calls(reused, behaviors, |server, method, call| {
            assert_only_get_is_retried(server, method, call, 0, &format!("{behaviors:?}"))
        })
        .await;
    }
}

#[tokio::test]
async fn client_retries_get_but_not_post_if_goaway_last_stream_id_is_at_least_request_id() {
    for behaviors in [
        &[Behavior::Steps(&[
            PROCESS_AND_RESPOND,
            &[Process, GoAway { reason: NO_ERROR, id_offset: 0 }, Close],
        ])] as &[Behavior],
        &[Behavior::Steps(&[
            PROCESS_AND_RESPOND,
            &[Process, GoAway { reason: NO_ERROR, id_offset: 2 }, Close],
        ])],
        &[Behavior::Steps(&[
            PROCESS_AND_RESPOND,
            &[Process, GoAway { reason: NO_ERROR, id_offset: HIGHEST_ID }, Close],
        ])],
        &[Behavior::Steps(&[
            PROCESS_AND_RESPOND,
            &[Process, GoAway { reason: ENHANCE_YOUR_CALM, id_offset: 0 }, Close],
        ])],
    ] {
        check_calls(true, behaviors, |server, method, call| {
            assert_only_get_is_retried(server, method, call, 1, &format!("{behaviors:?}"))
        })
        .await;
    }
}

#[tokio::test]
async fn client_returns_a_response_after_goaway_and_reconnects_for_next_call() {
    const BEHAVIORS: &[Behavior] =
        &[Behavior::Steps(&[&[Process, GoAway { reason: NO_ERROR, id_offset: 0 }, Respond]])];
    for method in METHODS {
        for setup in SETUPS {
            let server = Server::start(Wire::Http2, BEHAVIORS).await;
            let mut stack = Stack::new(setup, server.url(), Wire::Http2);
            for number in 1..=2 {
                assert_eq!(stack.send(method.clone()).await.outcomes, [OK], "{method}");
                assert_eq!((server.processed(&method), server.connections()), (number, number));
                settle().await;
            }
        }
    }
}
