//! Tests which HTTP/2 resets, GOAWAY frames and interim responses prove that a request was not processed.

use bytes::Bytes;
use futures_util::stream;
use http::Method;
use http_body_util::StreamBody;
use tower_outbound::{Body, BoxError, call::Outcome};

use super::{
    server::{
        HIGHEST_ID, PROCESS_AND_RESPOND, Script, Server, Step,
        Step::{Close, EarlyHints, GoAway, Process, Reset, Respond},
    },
    settle,
    stack::{METHODS, OK, SETUPS, Setup, Stack, Wire, assert_only_get_is_retried},
};

const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

const REFUSED: &[Step] = &[Reset(REFUSED_STREAM)];

/// The offset from the request's stream id to the id of the client's previous stream.
const PREVIOUS_STREAM: i64 = -2;

/// The first GOAWAY of a graceful shutdown announces it. The second GOAWAY contains the last stream id.
const GRACEFUL_SHUTDOWN: &[Step] = &[goaway(NO_ERROR, HIGHEST_ID), goaway(NO_ERROR, PREVIOUS_STREAM), Close];

const fn goaway(reason: u32, id_offset: i64) -> Step {
    GoAway { reason, id_offset }
}

/// What the client does after the steps of a case.
#[derive(Debug, Clone, Copy)]
enum Expected {
    /// It returns the response of the first attempt.
    Response,
    /// It retries any method on the same connection, because the server has not processed the request.
    Retry,
    /// It retries only a GET. The server has processed the first attempt this many times.
    OnlyGet(usize),
}
use Expected::*;

/// The client does not know the last stream id of a GOAWAY, because h2's error does not contain that id. Therefore it
/// retries no POST, although the request was not processed if its stream id is higher.
#[tokio::test]
async fn resets_and_goaways_decide_which_methods_are_retried() {
    /// Whether the connection has served another request before, and the steps of the server on its first connection.
    type Case = (bool, Script, Expected);
    const CASES: [Case; 14] = [
        (false, &[REFUSED], Retry),
        (true, &[PROCESS_AND_RESPOND, REFUSED], Retry),
        // A 103 response contradicts the refusal of a stream (RFC 9113 §8.7), but hyper does not expose it.
        (false, &[&[EarlyHints, Reset(REFUSED_STREAM)]], Retry),
        (false, &[&[EarlyHints, Process, Respond]], Response),
        (false, &[&[Process, Reset(INTERNAL_ERROR)]], OnlyGet(1)),
        (false, &[&[Process, Reset(ENHANCE_YOUR_CALM)]], OnlyGet(1)),
        (false, &[&[Process, Reset(NO_ERROR)]], OnlyGet(1)),
        (false, &[&[goaway(NO_ERROR, PREVIOUS_STREAM)]], OnlyGet(0)),
        (false, &[&[goaway(ENHANCE_YOUR_CALM, PREVIOUS_STREAM)]], OnlyGet(0)),
        (true, &[PROCESS_AND_RESPOND, &[goaway(NO_ERROR, PREVIOUS_STREAM)]], OnlyGet(0)),
        (true, &[PROCESS_AND_RESPOND, GRACEFUL_SHUTDOWN], OnlyGet(0)),
        (true, &[PROCESS_AND_RESPOND, &[Process, goaway(NO_ERROR, 0), Close]], OnlyGet(1)),
        (true, &[PROCESS_AND_RESPOND, &[Process, goaway(NO_ERROR, HIGHEST_ID), Close]], OnlyGet(1)),
        (true, &[PROCESS_AND_RESPOND, &[Process, goaway(ENHANCE_YOUR_CALM, 0), Close]], OnlyGet(1)),
    ];
    for (reused, script, expected) in CASES {
        for (method, setup) in
            METHODS.into_iter().flat_map(|method| SETUPS.map(|setup| (method.clone(), setup)))
        {
            let server = Server::start(Wire::Http2, &[script]).await;
            let mut stack = Stack::new(setup, server.url(), Wire::Http2);
            if reused {
                assert_eq!(stack.send(Method::HEAD).await.outcomes, [OK]);
                settle().await;
            }
            let call = stack.send(method.clone()).await;
            let case = format!("{method}, {script:?}");
            match expected {
                Response => assert_eq!(call.outcomes, [OK], "{case}"),
                Retry => call.assert_retried_after(Outcome::NotSent, &case),
                OnlyGet(processed) => assert_only_get_is_retried(&server, &method, &call, processed, &case),
            }
            if !matches!(expected, OnlyGet(_)) {
                assert_eq!((server.processed(&method), server.connections()), (1, 1), "{case}");
            }
        }
    }
}

/// The body of a POST fails because another server has refused the stream from which the body is read. The server that
/// receives the POST refuses nothing.
#[tokio::test]
async fn client_does_not_retry_post_whose_body_fails_with_refused_stream() {
    for wire in [Wire::Http1, Wire::Http2] {
        let source = Server::start(Wire::Http2, &[&[REFUSED; 3]]).await;
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
async fn client_returns_a_response_after_goaway_and_reconnects_for_next_call() {
    const SCRIPT: Script = &[&[Process, goaway(NO_ERROR, 0), Respond]];
    for method in METHODS {
        for setup in SETUPS {
            let server = Server::start(Wire::Http2, &[SCRIPT]).await;
            let mut stack = Stack::new(setup, server.url(), Wire::Http2);
            for number in 1..=2 {
                assert_eq!(stack.send(method.clone()).await.outcomes, [OK], "{method}");
                assert_eq!((server.processed(&method), server.connections()), (number, number));
                settle().await;
            }
        }
    }
}
