//! Tests retries after transport failures. The servers fail in many ways and count the requests that they process. The
//! tests verify three rules:
//!
//! - No POST is processed twice.
//! - A request that was provably not sent is retried, whatever its method.
//! - A GET is retried until it succeeds.
//!
//! `tests/stacks/reqwest` runs the same tests over reqwest.

mod faults;
mod http2;
mod server;
mod stack;

use hyper_util::{
    client::legacy::{Client as HyperClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower_outbound::{Body, Client, body::ReplayBody, stack::StackBuilder, transport::TransportConfig};

use self::stack::Wire;
use super::support::server::{settle, within};

/// The HTTP client inside the retry layer.
type Inner = HyperClient<HttpConnector, ReplayBody<Body>>;

fn inner(wire: Wire) -> Inner {
    HyperClient::builder(TokioExecutor::new()).http2_only(wire == Wire::Http2).build_http()
}

fn ready_client(preset: &StackBuilder, wire: Wire) -> Client {
    let transport = match wire {
        Wire::Http1 => TransportConfig::new(),
        Wire::Http2 => TransportConfig::new().with_http2_prior_knowledge(),
    };
    preset.client_with_transport(transport).unwrap()
}
