//! Tests requests that hyper reports as canceled because the connection closed before hyper wrote the request.
//!
//! If the connection was used before, hyper-util itself retries a canceled request. The tests disable that retry, so
//! that the retry layer receives the error. The tests also pause hyper-util's tasks to control the order of events.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use http::Method;
use hyper::rt::Executor;
use hyper_util::{client::legacy::Client as HyperClient, rt::TokioExecutor};
use tokio::net::{TcpListener, TcpStream};
use tower_outbound::call::Outcome;

use super::{
    server::{Behavior, Server},
    stack::{CallResult, METHODS, OK, Stack, Wire, settle, within},
};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An executor that polls its tasks only while the gate is open.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    closed: bool,
    wakers: Vec<Waker>,
}

impl Gate {
    fn close(&self) {
        self.0.lock().unwrap().closed = true;
    }

    fn open(&self) {
        let mut state = self.0.lock().unwrap();
        state.closed = false;
        state.wakers.drain(..).for_each(Waker::wake);
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Gate {
    fn execute(&self, future: F) {
        TokioExecutor::new().execute(Gated { gate: self.clone(), task: Box::pin(future) });
    }
}

struct Gated {
    gate: Gate,
    task: Task,
}

impl Future for Gated {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.gate.0.lock().unwrap();
        if state.closed {
            state.wakers.push(cx.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        self.task.as_mut().poll(cx)
    }
}

fn stack(server: &Server, gate: &Gate) -> Stack {
    let client = HyperClient::builder(gate.clone()).retry_canceled_requests(false).build_http();
    Stack::retry_layer(client, server.url())
}

/// Opens a connection and waits for its events, so that the runtime has processed all earlier socket events.
async fn process_socket_events() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (client, server) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    drop((client.unwrap(), server.unwrap()));
}

/// Sends a request while the gate is closed, and opens the gate after the connection has ended.
async fn send_through(
    stack: &mut Stack,
    gate: &Gate,
    connection_ended: impl Future,
    method: &Method,
) -> CallResult {
    let opening = async {
        settle().await;
        connection_ended.await;
        process_socket_events().await;
        settle().await;
        gate.open();
    };
    within(async { tokio::join!(stack.send(method.clone()), opening) }).await.0
}

#[tokio::test]
async fn retry_layer_retries_any_method_if_reused_connection_closes_before_the_request() {
    for method in METHODS {
        let (gate, server) =
            (Gate::default(), Server::start(Wire::Http1, &[Behavior::RespondThenWait]).await);
        let mut stack = stack(&server, &gate);
        assert_eq!(stack.send(Method::HEAD).await.outcomes, [OK]);
        settle().await;
        gate.close();
        server.close_connection();
        let call = send_through(&mut stack, &gate, server.connection_ended(), &method).await;
        call.assert_retried_after(Outcome::NotSent, method.as_str());
        assert_eq!((server.processed(&method), server.connections()), (1, 2));
    }
}

#[tokio::test]
async fn retry_layer_retries_any_method_if_new_connection_closes_before_the_request() {
    for method in METHODS {
        let (gate, server) = (Gate::default(), Server::start(Wire::Http1, &[Behavior::CloseAtOnce]).await);
        let mut stack = stack(&server, &gate);
        gate.close();
        let call = send_through(&mut stack, &gate, server.connection_ended(), &method).await;
        call.assert_retried_after(Outcome::NotSent, method.as_str());
        assert_eq!((server.processed(&method), server.connections()), (1, 2));
    }
}
