//! "Was it sent?": servers that fail in every way there is, and their own count of what they processed. Whatever
//! they do, a POST is never processed twice, one that was provably not sent is sent again, and a GET always arrives.
//!
//! tests/stacks/reqwest runs the same over reqwest, but for what is done to hyper-util's own tasks.

mod body;
mod faults;
mod frames;
mod http2;
mod queued;
mod server;
mod stack;

use hyper_util::{
    client::legacy::{Client as Connections, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower_outbound::{Body, Client, body::ReplayBody, client::Transport, stack::StackBuilder};

use self::stack::Wire;

/// What the layers go over here.
type Inner = Connections<HttpConnector, ReplayBody<Body>>;

fn inner(wire: Wire) -> Inner {
    Connections::builder(TokioExecutor::new()).http2_only(wire == Wire::Http2).build_http()
}

fn ready(preset: &StackBuilder, wire: Wire) -> Client {
    let transport = match wire {
        Wire::Http1 => Transport::new(),
        Wire::Http2 => Transport::new().with_http2_prior_knowledge(),
    };
    preset.client_with_transport(transport).unwrap()
}
