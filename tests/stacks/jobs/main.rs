//! Compiles and runs the programs of the guide's pages about jobs, against servers on loopback.
#![allow(clippy::unwrap_used, reason = "a test")]

mod conditional_requests;
mod github;
mod pagination;
mod services;
mod tenants;

use tower_outbound::{
    Client,
    stack::StackBuilder,
    test_util::{ScriptedResponse, ScriptedServer, ScriptedService},
};

/// Starts a server that responds as the script does.
async fn server(
    script: impl IntoIterator<Item: Into<ScriptedResponse>>,
) -> (ScriptedService, ScriptedServer) {
    let service = ScriptedService::new(script);
    (service.clone(), ScriptedServer::start(service).await.unwrap())
}

fn builder(server: &ScriptedServer) -> StackBuilder {
    Client::builder(server.url()).unwrap().without_credential()
}

/// Returns the paths of the requests that arrived, with their queries.
fn paths(service: &ScriptedService) -> Vec<String> {
    service.seen().iter().map(|seen| seen.head.uri.path_and_query().unwrap().to_string()).collect()
}

/// Creates a response with a JSON body.
fn json(value: &serde_json::Value) -> ScriptedResponse {
    ScriptedResponse::status(200).with_body(value.to_string())
}
