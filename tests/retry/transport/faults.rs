//! Tests connection failures over HTTP/1 and HTTP/2. A connection is refused, or ends before, within or after the
//! response headers.

use std::sync::{Arc, Mutex};

use http::{Method, request};
use tower_outbound::{
    ApiKey,
    call::{Outcome, StopReason},
    preset,
};

use super::{
    ready_client,
    server::{
        CLOSE_AFTER_REQUEST, CLOSE_IN_BODY, RESET_IN_HEADERS, Script, Server,
        Step::{Close, IgnoreNext, Process, Respond},
        refusing,
    },
    settle,
    stack::{CASES, OK, SETUPS, Stack, assert_only_get_is_retried, quick_retry},
};

#[tokio::test]
async fn client_returns_the_error_if_every_connection_is_refused() {
    for (wire, method) in CASES {
        let socket = refusing();
        for setup in SETUPS {
            let mut stack = Stack::new(setup, &format!("http://{}", socket.local_addr().unwrap()), wire);
            let call = stack.send(method.clone()).await;
            assert_eq!(
                (&call.outcomes[..], call.stop_reason),
                (&[Outcome::NotSent; 3][..], Some(StopReason::Exhausted))
            );
        }
    }
}

/// The authorize closure runs once before each attempt, and starts the server before the second attempt.
#[tokio::test]
async fn client_retries_any_method_after_a_refused_connection() {
    for (wire, method) in CASES {
        let socket = refusing();
        let url = format!("http://{}", socket.local_addr().unwrap());
        let (attempts_and_socket, started) = (Mutex::new((0, Some(socket))), Arc::new(Mutex::new(None)));
        let starting = Arc::clone(&started);
        let preset = preset::realtime_messaging(&url)
            .unwrap()
            .with_api_key(ApiKey::new("key").unwrap())
            .with_retry(quick_retry())
            .with_authorize(move |_: &mut request::Parts| {
                let (attempts, socket) = &mut *attempts_and_socket.lock().unwrap();
                *attempts += 1;
                if *attempts == 2 {
                    let listener = socket.take().unwrap().listen(16)?;
                    *starting.lock().unwrap() = Some(Server::over(listener, wire, &[]));
                }
                Ok(())
            });
        let mut stack = Stack::Client(ready_client(&preset, wire));
        stack
            .send(method.clone())
            .await
            .assert_retried_after(Outcome::NotSent, &format!("{wire:?} {method}"));
        assert_eq!(started.lock().unwrap().as_ref().unwrap().processed(&method), 1);
    }
}

#[tokio::test]
async fn client_does_not_reuse_a_connection_that_the_server_closed() {
    for (wire, method) in CASES {
        for setup in SETUPS {
            let server = Server::start(wire, &[&[&[Process, Respond, Close]]]).await;
            let mut stack = Stack::new(setup, server.url(), wire);
            assert_eq!(stack.send(Method::HEAD).await.outcomes, [OK]);
            server.connection_ended().await;
            settle().await;
            assert_eq!(stack.send(method.clone()).await.outcomes, [OK], "{wire:?} {method}");
            assert_eq!((server.processed(&method), server.connections()), (1, 2));
        }
    }
}

/// The server may have read a request that it does not respond to, also if it closes a reused connection.
#[tokio::test]
async fn client_retries_get_but_not_post_if_the_connection_ends_without_a_response() {
    const RESPOND_THEN_IGNORE: Script = &[&[Process, Respond, IgnoreNext]];
    for (reused, script, processed) in
        [(true, RESPOND_THEN_IGNORE, 0), (false, CLOSE_AFTER_REQUEST, 1), (false, RESET_IN_HEADERS, 1)]
    {
        for ((wire, method), setup) in
            CASES.into_iter().flat_map(|case| SETUPS.map(|setup| (case.clone(), setup)))
        {
            let server = Server::start(wire, &[script]).await;
            let mut stack = Stack::new(setup, server.url(), wire);
            if reused {
                assert_eq!(stack.send(Method::HEAD).await.outcomes, [OK]);
                settle().await;
            }
            let call = stack.send(method.clone()).await;
            let case = format!("{wire:?} {script:?} {method}");
            assert_only_get_is_retried(&server, &method, &call, processed, &case);
        }
    }
}

#[tokio::test]
async fn client_returns_a_response_with_a_truncated_body_without_a_retry() {
    for (wire, method) in CASES {
        for setup in SETUPS {
            let server = Server::start(wire, &[CLOSE_IN_BODY]).await;
            let call = Stack::new(setup, server.url(), wire).send(method.clone()).await;
            assert_eq!(call.outcomes, [OK], "{wire:?} {method}");
            assert_eq!((server.processed(&method), server.connections()), (1, 1));
        }
    }
}
