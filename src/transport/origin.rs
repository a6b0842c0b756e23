//! The origin of requests, its connections, and the requests that wait for one.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use http::{
    HeaderValue, Method, Request, Uri,
    header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING},
    uri::{Authority, Parts, PathAndQuery, Scheme},
};
use http_body::Body;
use tokio::{runtime::Handle, sync::oneshot};

use super::connection::{Connection, Http1, Http2, RequestBody};
use crate::{
    call::{CallContext, ConnectTimes},
    clock::{self, Instant},
    error::{ConnectError, Error},
    headers,
    uri::default_port,
};

/// The origin of requests, and the form of their heads.
pub(super) struct Target {
    pub(super) scheme: Scheme,
    pub(super) authority: Authority,
    host: HeaderValue,
    /// The authorization for the proxy that forwards plain requests, if there is such a proxy.
    forward: Option<Option<HeaderValue>>,
}

impl Target {
    pub(super) fn new(
        scheme: &Scheme,
        authority: &Authority,
        forward: Option<Option<HeaderValue>>,
    ) -> Result<Self, Error> {
        let host = host_header(scheme, authority)?;
        Ok(Self { scheme: scheme.clone(), authority: authority.clone(), host, forward })
    }

    /// Returns whether the texts are equal, as those of most requests.
    pub(super) fn is(&self, scheme: &Scheme, authority: &Authority) -> bool {
        self.scheme == *scheme && self.authority.as_str() == authority.as_str()
    }

    /// Returns whether scheme, host and port are equal, also if the texts differ.
    pub(super) fn is_same(&self, scheme: &Scheme, authority: &Authority) -> bool {
        let port = |authority: &Authority| authority.port_u16().unwrap_or(default_port(scheme));
        self.scheme == *scheme
            && self.authority.host().eq_ignore_ascii_case(authority.host())
            && port(&self.authority) == port(authority)
    }

    /// Gives the head of a request the form that the HTTP version and the proxy need. Keeps the request's own spelling
    /// of the authority, which its signature may contain. May be called again for the same request.
    pub(super) fn write_head<B: Body>(&self, request: &mut Request<B>, is_http2: bool) -> Result<(), Error> {
        let has_body = !request.body().is_end_stream();
        let is_connect = request.method() == Method::CONNECT;
        let is_absolute = is_http2 || self.forward.is_some();
        let own = request.uri().authority().filter(|own| own.as_str() != self.authority.as_str()).cloned();
        let parts = if is_connect && !is_http2 {
            Some(Uri::from(own.as_ref().unwrap_or(&self.authority).clone()).into_parts())
        } else if is_absolute == request.uri().authority().is_some() {
            None
        } else {
            let mut parts = Parts::default();
            let path = request.uri().path_and_query().filter(|path| !path.as_str().is_empty());
            parts.path_and_query = Some(path.cloned().unwrap_or(PathAndQuery::from_static("/")));
            if is_absolute {
                parts.scheme = Some(self.scheme.clone());
                parts.authority = Some(self.authority.clone());
            }
            Some(parts)
        };
        if let Some(parts) = parts {
            *request.uri_mut() = Uri::from_parts(parts).map_err(Error::invalid_request)?;
        }
        let defines_a_body = [Method::POST, Method::PUT, Method::PATCH].contains(request.method());
        let headers = request.headers_mut();
        if !is_http2 {
            let host = own.map_or_else(|| Ok(self.host.clone()), |own| host_header(&self.scheme, &own))?;
            headers::get_or_insert_with(headers, &HOST, || host)?;
        }
        // RFC 9110 §8.6. Some servers respond 411 without it.
        if defines_a_body && !has_body && !headers.contains_key(TRANSFER_ENCODING) {
            headers::get_or_insert_with(headers, &CONTENT_LENGTH, || HeaderValue::from_static("0"))?;
        }
        if let Some(Some(authorization)) = &self.forward {
            headers::insert(headers, &http::header::PROXY_AUTHORIZATION, authorization.clone())?;
        }
        Ok(())
    }
}

/// Returns the `Host` header, without the default port.
fn host_header(scheme: &Scheme, authority: &Authority) -> Result<HeaderValue, Error> {
    let host = match authority.port_u16().filter(|port| *port != default_port(scheme)) {
        Some(port) => format!("{}:{port}", authority.host()),
        None => authority.host().to_owned(),
    };
    HeaderValue::try_from(host).map_err(Error::invalid_request)
}

/// The time without further attempts after a further connection of an origin could not be opened.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The connections of a host, and the requests that wait for one.
pub(super) struct State<B> {
    /// Whether the server speaks HTTP/2. `None` before the first connection, if TLS negotiates the version.
    pub(super) is_http2: Option<bool>,
    /// The idle HTTP/1.1 connections, with the time since which each is idle. The last one was used most recently.
    pub(super) idle: Vec<(Http1<B>, Instant)>,
    pub(super) shared: Vec<Arc<Http2<B>>>,
    /// All connections that are open or being opened, including those that take no further requests.
    pub(super) connections: usize,
    pub(super) opening: usize,
    /// The runtimes on which connections begin to open. A runtime is removed after its task has started.
    pub(super) starting: VecDeque<Handle>,
    pub(super) waiters: VecDeque<Waiter<B>>,
    /// No further connection is opened before this time.
    pub(super) paused_until: Option<Instant>,
}

pub(super) struct Waiter<B> {
    pub(super) grant: oneshot::Sender<Granted<B>>,
    pub(super) call: Option<CallContext>,
    pub(super) runtime: Handle,
}

/// A connection for a waiting request, and the times of the connection if it is new.
pub(in crate::transport) type Granted<B> = Result<(Connection<B>, Option<ConnectTimes>), ConnectError>;

impl<B: RequestBody> State<B> {
    pub(super) fn new(is_http2: Option<bool>) -> Self {
        Self {
            is_http2,
            idle: Vec::new(),
            shared: Vec::new(),
            connections: 0,
            opening: 0,
            starting: VecDeque::new(),
            waiters: VecDeque::new(),
            paused_until: None,
        }
    }

    /// Opens no connection for a second, and then calls `open`. Nothing else would wake the waiters while all streams
    /// are in use.
    pub(super) fn pause(&mut self, open: impl FnOnce() + Send + 'static) {
        let until = clock::after(clock::now(), PAUSE_AFTER_FAILURE);
        self.paused_until = Some(until);
        let waiter = self.waiters.front().map(|waiter| waiter.runtime.clone());
        if let Some(runtime) = waiter.or_else(|| Handle::try_current().ok()) {
            runtime.spawn(async move {
                tokio::time::sleep_until(until).await;
                open();
            });
        }
    }

    pub(super) fn take(&mut self, now: Instant, idle_timeout: Duration) -> Option<Connection<B>> {
        // An expired connection closes immediately, because a further connection may need its place.
        self.shared.retain(|connection| !connection.is_over() && !connection.is_idle_for(now, idle_timeout));
        if let Some(free) = self.shared.iter().find(|connection| connection.begin()) {
            return Some(Connection::Http2(Arc::clone(free)));
        }
        while let Some((connection, since)) = self.idle.pop() {
            let is_fresh = now.saturating_duration_since(since) < connection.idle_timeout;
            if is_fresh && connection.sender.is_ready() {
                return Some(Connection::Http1(connection));
            }
        }
        None
    }

    /// Gives the connection to the first waiter, or stores it.
    pub(super) fn put(&mut self, connection: Http1<B>, times: Option<ConnectTimes>) {
        let mut granted = (Connection::Http1(connection), times);
        while let Some(waiter) = self.waiters.pop_front() {
            match waiter.grant.send(Ok(granted)) {
                Err(Ok(back)) => granted = back,
                _ => return,
            }
        }
        if let (Connection::Http1(connection), _) = granted {
            self.idle.push((connection, clock::now()));
        }
    }

    /// Gives free streams to the waiters. `times` are those of the newest connection.
    pub(super) fn serve(&mut self, times: Option<ConnectTimes>) {
        if self.waiters.is_empty() {
            return;
        }
        self.shared.retain(|connection| !connection.is_over());
        for connection in &self.shared {
            while !self.waiters.is_empty() && connection.begin() {
                let Some(waiter) = self.waiters.pop_front() else { break };
                if waiter.grant.send(Ok((Connection::Http2(Arc::clone(connection)), times))).is_err() {
                    connection.end();
                }
            }
        }
    }

    /// Fails the first `count` waiters.
    pub(super) fn fail(&mut self, count: usize, error: &ConnectError) {
        let mut left = count;
        while left > 0 {
            let Some(waiter) = self.waiters.pop_front() else { return };
            if waiter.grant.send(Err(error.clone())).is_ok() {
                left -= 1;
            }
        }
    }
}
