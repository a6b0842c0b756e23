//! The connections to one origin, and the requests that wait for one.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use http::uri::Scheme;
use hyper::{
    client::conn::{http1, http2},
    rt::Executor,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{runtime::Handle, sync::oneshot};

pub(super) use super::origin::Granted;
use super::origin::{State, Waiter};
use super::{
    config::{TransportConfig, Version},
    connect::{Connected, Connector},
    connection::{Connection, Http1, Http1Stream, Http2, RequestBody, UNKNOWN},
    origin::Target,
};
use crate::{
    call::CallContext,
    clock::{self, Instant},
    error::{ConnectError, ConnectPhase},
};

/// How many HTTP/2 streams a connection remembers after it has reset them, and for how long. h2 counts late frames of
/// other closed streams as an error, and ends the connection after 1,024 errors. The server sends at most 5 MiB before
/// it reads the reset. At 4 Mbit/s, sending these takes 10 s, so resets are remembered that long.
const REMEMBERED_RESETS: (usize, Duration) = (10_000, Duration::from_secs(10));

/// The connections to one origin.
pub(super) struct Host<B: RequestBody> {
    pub(super) target: Target,
    connector: Arc<Connector>,
    config: Arc<TransportConfig>,
    state: Mutex<State<B>>,
}

/// A connection, or the result of the wait for one.
pub(super) enum Lookup<B> {
    Found(Connection<B>),
    Wait(oneshot::Receiver<Granted<B>>),
}

impl<B: RequestBody> Host<B> {
    pub(super) fn new(target: Target, connector: &Arc<Connector>, config: &Arc<TransportConfig>) -> Self {
        let is_http2 = match config.http {
            Version::Negotiated if target.scheme == Scheme::HTTPS => None,
            version => Some(version == Version::Http2),
        };
        Self {
            target,
            connector: Arc::clone(connector),
            config: Arc::clone(config),
            state: Mutex::new(State::new(is_http2)),
        }
    }

    // Ignores the poisoning of the lock, because the code under the lock does not panic.
    fn lock(&self) -> MutexGuard<'_, State<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_unused(&self) -> bool {
        self.lock().connections == 0
    }

    /// Takes a connection or a stream. If none is free, the request waits behind all earlier requests.
    pub(super) fn find(self: &Arc<Self>, now: Instant, call: Option<&CallContext>) -> Lookup<B> {
        let mut state = self.lock();
        while state.waiters.front().is_some_and(|waiter| waiter.grant.is_closed()) {
            state.waiters.pop_front();
        }
        if state.waiters.is_empty() {
            if let Some(found) = state.take(now, self.config.idle_timeout.0) {
                return Lookup::Found(found);
            }
        }
        let (grant, granted) = oneshot::channel();
        state.waiters.push_back(Waiter { grant, call: call.cloned(), runtime: Handle::current() });
        wait(call, true);
        if !self.open(state) {
            wait(call, false);
        }
        Lookup::Wait(granted)
    }

    /// Opens the connections that the waiters need. Returns whether the last waiter waits for a new connection, and not
    /// for other requests.
    fn open<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State<B>>) -> bool {
        state.waiters.retain(|waiter| !waiter.grant.is_closed());
        state.shared.retain(|connection| !connection.is_over());
        let is_paused = state.paused_until.is_some_and(|until| clock::now() < until);
        if is_paused && !state.shared.is_empty() {
            return false;
        }
        let wanted = match state.is_http2 {
            Some(false) => state.waiters.len(),
            // The pool opens one connection at a time, because it may serve all waiters.
            _ if state.shared.iter().any(|connection| connection.is_new()) => 0,
            _ => state.waiters.len().min(1),
        };
        let is_starting = !state.starting.is_empty();
        while state.opening < wanted && state.connections < self.config.max_connections {
            let Some(waiter) = state.waiters.get(state.opening) else { break };
            let runtime = waiter.runtime.clone();
            state.starting.push_back(runtime);
            state.opening += 1;
            state.connections += 1;
        }
        let is_connecting = match state.is_http2 {
            Some(false) => state.opening >= state.waiters.len(),
            _ => state.opening > 0 && state.shared.is_empty(),
        };
        // A runtime that is shutting down drops a task immediately, which calls this function again. The lock is
        // therefore released first. The outer call starts the further tasks, because one call inside another for each
        // waiter would overflow the stack.
        if is_starting {
            return is_connecting;
        }
        while let Some(runtime) = state.starting.front().cloned() {
            drop(state);
            let slot = Slot(Arc::downgrade(self));
            let mut opening = Opening { host: Arc::clone(self), result: None };
            runtime.spawn(async move {
                opening.result = Some(opening.host.connect(slot).await);
                drop(opening);
            });
            state = self.lock();
            state.starting.pop_front();
        }
        is_connecting
    }

    async fn connect(&self, slot: Slot<B>) -> Granted<B> {
        let Connected { stream, is_http2, times } =
            self.connector.connect(&self.target.scheme, &self.target.authority).await?;
        let failed = |error| ConnectError::new(ConnectPhase::Connect, error).with_times(times);
        if !is_http2 && self.config.http != Version::Http2 {
            let (stream, unsent) = Http1Stream::new(stream);
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
            let (idle_timeout, connection) = (self.config.idle_timeout.0, connection.with_upgrades());
            let driver = tokio::spawn(async move { slot.run(connection, idle_timeout).await }).abort_handle();
            let connection = Http1 { sender, unsent, driver, reused: false, idle_timeout };
            return Ok((Connection::Http1(connection), Some(times)));
        }
        let slot = Arc::new(slot);
        let mut builder = http2::Builder::new(Tasks(Arc::clone(&slot)));
        builder.timer(TokioTimer::new()).initial_max_send_streams(UNKNOWN);
        let (remembered, duration) = REMEMBERED_RESETS;
        builder.max_concurrent_reset_streams(remembered).reset_stream_duration(duration);
        if let Some(interval) = self.config.http2_ping_interval.0.0 {
            builder.keep_alive_interval(interval).keep_alive_timeout(self.config.http2_ping_timeout.0);
            builder.keep_alive_while_idle(self.config.http2_ping_while_idle);
        }
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(failed)?;
        let (shared, driven) = Http2::new(sender);
        let idle_timeout = self.config.idle_timeout.0;
        tokio::spawn(async move {
            slot.run(driven.drive(connection, || slot.serve()), idle_timeout).await;
            // The connection takes no further requests, but its streams may continue.
            slot.serve();
        });
        Ok((Connection::Http2(shared), Some(times)))
    }

    fn opened(self: &Arc<Self>, opened: Granted<B>) {
        let mut state = self.lock();
        state.opening -= 1;
        match opened {
            Ok((Connection::Http1(connection), times)) => {
                state.is_http2 = Some(false);
                state.put(connection, times);
            }
            Ok((Connection::Http2(connection), times)) => {
                state.is_http2 = Some(true);
                state.shared.push(connection);
                state.serve(times);
                // The others now wait for the streams of this connection.
                for waiter in state.waiters.iter().filter(|waiter| !waiter.grant.is_closed()) {
                    wait(waiter.call.as_ref(), false);
                }
            }
            Err(error) => match state.is_http2 {
                Some(false) => state.fail(1, &error),
                _ if state.shared.is_empty() => state.fail(usize::MAX, &error),
                // The waiters still wait for the streams of the other connections.
                _ => {
                    let host = Arc::downgrade(self);
                    state.pause(move || host.upgrade().iter().for_each(|host| _ = host.open(host.lock())));
                }
            },
        }
        self.open(state);
    }

    /// Returns an HTTP/1.1 connection that can take another request.
    pub(super) fn give_back(&self, connection: Http1<B>) {
        self.lock().put(connection, None);
    }

    /// Ends the use of a stream.
    pub(super) fn end_stream(self: &Arc<Self>, connection: &Http2<B>) {
        let mut state = self.lock();
        connection.end();
        state.serve(None);
        if !state.waiters.is_empty() {
            self.open(state);
        }
    }

    /// Closes the connections that have been idle for too long.
    fn close_idle(&self) {
        let (mut state, now) = (self.lock(), clock::now());
        state
            .idle
            .retain(|(connection, since)| now.saturating_duration_since(*since) < connection.idle_timeout);
        let idle_timeout = self.config.idle_timeout.0;
        state.shared.retain(|connection| !connection.is_over() && !connection.is_idle_for(now, idle_timeout));
    }

    /// Closes the connections that have been idle since `time`.
    pub(super) fn close_idle_since(&self, time: Instant) {
        self.lock().idle.retain(|(_, since)| *since > time);
    }
}

fn wait(call: Option<&CallContext>, is_new: bool) {
    if let Some(call) = call {
        call.wait(is_new);
    }
}

/// A connection that is being opened. If its runtime shuts down, the waiters fail instead of waiting forever.
struct Opening<B: RequestBody> {
    host: Arc<Host<B>>,
    result: Option<Granted<B>>,
}

impl<B: RequestBody> Drop for Opening<B> {
    fn drop(&mut self) {
        let lost = "the runtime that opened the connection has shut down";
        let lost = || Err(ConnectError::new(ConnectPhase::Connect, lost));
        self.host.opened(self.result.take().unwrap_or_else(lost));
    }
}

/// The place of a connection among those of its origin, from the moment at which the connection begins to open.
struct Slot<B: RequestBody>(Weak<Host<B>>);

impl<B: RequestBody> Slot<B> {
    /// Runs a connection until its end. Meanwhile closes the idle connections of the origin.
    async fn run(&self, connection: impl Future, idle_timeout: Duration) {
        let (mut connection, mut timer) = (pin!(connection), pin!(tokio::time::sleep(idle_timeout)));
        let mut is_set = false;
        poll_fn(|cx| {
            // Each request wakes the task several times. The timer keeps the waker of the task, and is not polled again
            // until it has expired. It is polled first, because tokio sets no timer for a task that has used up its
            // budget.
            while !is_set || timer.is_elapsed() {
                is_set = timer.as_mut().poll(cx).is_pending();
                if !is_set {
                    self.0.upgrade().iter().for_each(|host| host.close_idle());
                    timer.as_mut().reset(clock::after(clock::now(), idle_timeout));
                }
            }
            connection.as_mut().poll(cx)
        })
        .await;
    }

    /// Gives the streams that the server now allows to the waiters.
    fn serve(&self) {
        if let Some(host) = self.0.upgrade() {
            let mut state = host.lock();
            state.serve(None);
            host.open(state);
        }
    }
}

impl<B: RequestBody> Drop for Slot<B> {
    fn drop(&mut self) {
        if let Some(host) = self.0.upgrade() {
            let mut state = host.lock();
            state.connections -= 1;
            // The connection of this place, too. Its task may be the last one of the origin.
            state.idle.retain(|(connection, _)| !connection.sender.is_closed());
            host.open(state);
        }
    }
}

/// Runs the tasks of an HTTP/2 connection. The connection keeps its place until all of them have ended, because one of
/// them owns the stream.
struct Tasks<B: RequestBody>(Arc<Slot<B>>);

impl<B: RequestBody> Clone for Tasks<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B, F> Executor<F> for Tasks<B>
where
    B: RequestBody,
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        let slot = Arc::clone(&self.0);
        tokio::spawn(async move {
            task.await;
            drop(slot);
        });
    }
}
