//! The layers behind genai, which takes a `reqwest::Client` and a base URL.

use futures_util::StreamExt;
use genai::{
    Client,
    chat::{ChatOptions, ChatRequest, ChatStreamEvent},
};
use tower_outbound::BoxError;

pub use self::program::gen_ai;

/// The genai program that the crate's guide shows.
mod program {
    use std::{future::IntoFuture, path::Path};

    use axum::{Router, extract::Request, http::StatusCode};
    use genai::{
        Client,
        adapter::AdapterKind,
        resolver::{AuthData, Endpoint},
    };
    use http::header::{AUTHORIZATION, HOST};
    use tokio::net::UnixListener;
    use tower::Service;
    use tower_outbound::{Body, BoxError, stack::StackBuilder};

    /// Every process that can open the socket can use the key.
    pub fn gen_ai(service: &StackBuilder, socket: &Path) -> Result<Client, BoxError> {
        let stack = service.client()?;
        let forward = |request: Request| async move {
            let mut request = request.map(Body::new);
            request.headers_mut().remove(HOST);
            // The auth layer keeps a credential that the request already has.
            request.headers_mut().remove(AUTHORIZATION);
            let response = stack.clone().call(request).await;
            response.map_err(|error| (StatusCode::BAD_GATEWAY, format!("{error:#}")))
        };
        let server = axum::serve(UnixListener::bind(socket)?, Router::new().fallback(forward));
        tokio::spawn(server.into_future());

        let to_socket =
            reqwest::Client::builder().unix_socket(socket).redirect(reqwest::redirect::Policy::none());
        let endpoint = (Endpoint::from_static("http://localhost/"), AuthData::from_single("unused"));
        let client = Client::builder().with_reqwest(to_socket.build()?);
        Ok(client
            .with_adapter_kind(AdapterKind::OpenAI)
            .append_provider_config(AdapterKind::OpenAI, endpoint)
            .build()?)
    }
}

pub async fn chat(client: &Client) -> Result<String, BoxError> {
    let response = client.exec_chat("example", ChatRequest::from_user("hello"), None).await?;
    Ok(response.first_text().unwrap_or_default().to_owned())
}

pub async fn stream(client: &Client) -> Result<String, BoxError> {
    let options = ChatOptions::default().with_capture_usage(true);
    let request = ChatRequest::from_user("hello");
    let mut events = client.exec_chat_stream("example", request, Some(&options)).await?.stream;
    let mut text = String::new();
    while let Some(event) = events.next().await {
        if let ChatStreamEvent::Chunk(chunk) = event? {
            text.push_str(&chunk.content);
        }
    }
    Ok(text)
}
