//! Tests the layers over reqwest, with the failing servers of `tests/retry`. Also tests what reqwest itself does inside
//! the layers, where the layers cannot see it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a test")]

mod bodies;
mod client_features;
mod failures;
#[path = "../../retry/transport/faults.rs"]
mod faults;
#[path = "../../retry/transport/http2.rs"]
mod http2;
#[allow(dead_code, reason = "the servers of another test binary")]
#[path = "../../error/peer.rs"]
mod peer;
mod preset;
#[path = "../../retry/transport/server.rs"]
mod server;
#[allow(dead_code, reason = "this binary uses a part of it")]
#[path = "../../support/server.rs"]
mod site;
#[path = "../../retry/transport/stack.rs"]
mod stack;

use tower_outbound::{Client, adapter::Reqwest, stack::StackBuilder};

use self::{
    site::{Server as Site, reply, settle, within},
    stack::Wire,
};

/// The service inside the layers.
type Inner = Reqwest;

fn builder() -> reqwest::ClientBuilder {
    reqwest::Client::builder().no_proxy()
}

fn builder_of(wire: Wire) -> reqwest::ClientBuilder {
    match wire {
        Wire::Http1 => builder(),
        Wire::Http2 => builder().http2_prior_knowledge(),
    }
}

fn inner(wire: Wire) -> Inner {
    Reqwest::new(builder_of(wire)).unwrap()
}

fn ready_client(preset: &StackBuilder, wire: Wire) -> Client {
    preset.client_with_service(inner(wire)).unwrap()
}

/// Starts a server that responds to every request with 200.
async fn ok_site() -> Site {
    Site::quick(site::Wire::Http1).await
}

/// Returns the `Display` and `Debug` texts of an error and of all of its causes.
fn error_texts(error: &(dyn std::error::Error + 'static)) -> String {
    let mut texts = format!("{error:#} {error:?}");
    let mut next = error.source();
    while let Some(cause) = next {
        texts += &format!(" {cause} {cause:?}");
        next = cause.source();
    }
    texts
}
