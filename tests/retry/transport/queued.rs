//! A request that waits for a connection which is closed before it is written: what hyper calls cancelled.
//!
//! hyper-util sends such a request again by itself when the connection was used before. Here it does not, so that the
//! error comes out. The tasks of its connections stand still while a test puts things in their order.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
};

use http::Method;
use hyper::rt::Executor;
use hyper_util::{client::legacy::Client as Connections, rt::TokioExecutor};
use tokio::net::{TcpListener, TcpStream};
use tower_outbound::call::Outcome;

use super::{
    server::{Act, Server},
    stack::{Came, METHODS, OK, Stack, Wire, settle, within},
};

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs hyper-util's tasks, while it is open.
#[derive(Clone, Default)]
struct Gate(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    shut: bool,
    waiting: Vec<Waker>,
}

impl Gate {
    fn shut(&self) {
        self.0.lock().unwrap().shut = true;
    }

    fn open(&self) {
        let mut state = self.0.lock().unwrap();
        state.shut = false;
        state.waiting.drain(..).for_each(Waker::wake);
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
        if state.shut {
            state.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        drop(state);
        self.task.as_mut().poll(cx)
    }
}

fn stack(server: &Server, gate: &Gate) -> Stack {
    let connections = Connections::builder(gate.clone()).retry_canceled_requests(false).build_http();
    Stack::layer(connections, server.url())
}

/// Whatever happened to a socket of this process before is known to the runtime after it.
async fn know_all_sockets() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    drop((one.unwrap(), other.unwrap()));
}

/// Sends while the gate is shut, and opens it once the request can't come further.
async fn send_through(stack: &mut Stack, gate: &Gate, closed: impl Future, method: &Method) -> Came {
    let opening = async {
        settle().await;
        closed.await;
        know_all_sockets().await;
        settle().await;
        gate.open();
    };
    within(async { tokio::join!(stack.send(method.clone()), opening) }).await.0
}

#[tokio::test]
async fn a_request_that_waited_for_a_kept_connection_that_closed_is_sent_again_and_processed_once() {
    for method in METHODS {
        let (gate, server) = (Gate::default(), Server::start(Wire::Http1, &[Act::AnswerAndLeave]).await);
        let mut stack = stack(&server, &gate);
        assert_eq!(stack.send(Method::HEAD).await.outcomes, [OK]);
        settle().await;
        gate.shut();
        server.leave();
        let came = send_through(&mut stack, &gate, server.closed(), &method).await;
        came.assert_sent_again_after(Outcome::NotSent, method.as_str());
        assert_eq!((server.processed(&method), server.connections()), (1, 2));
    }
}

#[tokio::test]
async fn a_request_whose_new_connection_closes_at_once_is_sent_again_and_processed_once() {
    for method in METHODS {
        let (gate, server) = (Gate::default(), Server::start(Wire::Http1, &[Act::Leave]).await);
        let mut stack = stack(&server, &gate);
        gate.shut();
        let came = send_through(&mut stack, &gate, server.closed(), &method).await;
        came.assert_sent_again_after(Outcome::NotSent, method.as_str());
        assert_eq!((server.processed(&method), server.connections()), (1, 2));
    }
}
