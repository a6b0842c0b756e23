//! Faults of a connection: refused, and ended before, after and within an answer. Over HTTP/2 as well, where the
//! fault is TCP's.

use std::sync::{Arc, Mutex};

use http::{Method, request};
use tower_outbound::{
    ApiKey,
    call::{Outcome, StopReason},
    preset,
};

use super::{
    ready,
    server::{Act, Server, refusing},
    stack::{CASES, OK, Stack, assert_maybe, quick_retry, settle},
};

#[tokio::test]
async fn a_connection_that_is_always_refused_ends_in_the_error() {
    for (wire, method) in CASES {
        let socket = refusing();
        for mut stack in Stack::both(&format!("http://{}", socket.local_addr().unwrap()), wire) {
            let came = stack.send(method.clone()).await;
            assert_eq!(
                (&came.outcomes[..], came.ended),
                (&[Outcome::NotSent; 3][..], Some(StopReason::Exhausted))
            );
        }
    }
}

/// The credential is asked for once an attempt, before it leaves: there the second attempt finds the server up.
#[tokio::test]
async fn a_request_whose_connection_was_refused_is_sent_again_and_processed_once() {
    for (wire, method) in CASES {
        let socket = refusing();
        let url = format!("http://{}", socket.local_addr().unwrap());
        let (socket, started) = (Mutex::new((0, Some(socket))), Arc::new(Mutex::new(None)));
        let starting = Arc::clone(&started);
        let preset = preset::realtime_messaging(&url)
            .unwrap()
            .with_api_key(ApiKey::new("key").unwrap())
            .with_retry(quick_retry())
            .with_authorize(move |_: &mut request::Parts| {
                let (attempts, socket) = &mut *socket.lock().unwrap();
                *attempts += 1;
                if *attempts == 2 {
                    let listener = socket.take().unwrap().listen(16)?;
                    *starting.lock().unwrap() = Some(Server::over(listener, wire, &[]));
                }
                Ok(())
            });
        let mut stack = Stack::Ready(ready(&preset, wire));
        stack
            .send(method.clone())
            .await
            .assert_sent_again_after(Outcome::NotSent, &format!("{wire:?} {method}"));
        assert_eq!(started.lock().unwrap().as_ref().unwrap().processed(&method), 1);
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_client_saw_closing_is_not_used() {
    for (wire, method) in CASES {
        for at in 0..2 {
            let server = Server::start(wire, &[Act::AnswerAndClose]).await;
            let mut stack = Stack::number(at, server.url(), wire);
            assert_eq!(stack.send(Method::HEAD).await.outcomes, [OK]);
            server.closed().await;
            settle().await;
            assert_eq!(stack.send(method.clone()).await.outcomes, [OK], "{wire:?} {method}");
            assert_eq!((server.processed(&method), server.connections()), (1, 2));
        }
    }
}

/// The request is in the server's hands, who says nothing of it: from here it looks as if it was processed.
#[tokio::test]
async fn a_kept_connection_that_is_closed_when_the_request_is_there_and_unread_proves_nothing() {
    for (wire, method) in CASES {
        for at in 0..2 {
            let server = Server::start(wire, &[Act::AnswerAndIgnore]).await;
            let mut stack = Stack::number(at, server.url(), wire);
            assert_eq!(stack.send(Method::HEAD).await.outcomes, [OK]);
            settle().await;
            let came = stack.send(method.clone()).await;
            assert_maybe(&server, &method, &came, 0, &format!("{wire:?} {method}"));
            assert_eq!(server.connections(), if method == Method::GET { 2 } else { 1 });
        }
    }
}

#[tokio::test]
async fn a_connection_that_ends_after_the_request_was_read_proves_nothing() {
    for (wire, method) in CASES {
        for acts in [&[Act::Process][..], &[Act::ResetInHead]] {
            for at in 0..2 {
                let server = Server::start(wire, acts).await;
                let came = Stack::number(at, server.url(), wire).send(method.clone()).await;
                assert_maybe(&server, &method, &came, 1, &format!("{wire:?} {acts:?} {method}"));
            }
        }
    }
}

#[tokio::test]
async fn an_answer_that_ends_after_its_head_is_the_callers_and_not_asked_for_again() {
    for (wire, method) in CASES {
        for at in 0..2 {
            let server = Server::start(wire, &[Act::CloseInBody]).await;
            let came = Stack::number(at, server.url(), wire).send(method.clone()).await;
            assert_eq!(came.outcomes, [OK], "{wire:?} {method}");
            assert_eq!((server.processed(&method), server.connections()), (1, 1));
        }
    }
}
