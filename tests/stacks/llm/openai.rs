//! The layers below async-openai, which takes a tower service.

use async_openai::{
    Client,
    config::OpenAIConfig,
    types::chat::{
        ChatCompletionRequestUserMessage, ChatCompletionStreamOptions, CreateChatCompletionRequest,
    },
};
use futures_util::StreamExt;
use tower_outbound::BoxError;

pub use self::program::open_ai;

/// The async-openai program that the crate's guide shows.
mod program {
    use async_openai::{Client, config::OpenAIConfig, error::OpenAIError, middleware::HttpRequestFactory};
    use http::header::{AUTHORIZATION, CONTENT_LENGTH};
    use reqwest::RequestBuilder;
    use tower_outbound::{InvalidConfig, adapter::SendWith, stack::StackBuilder};

    /// Build `http` with `redirect::Policy::none()`, because the layers do not see the redirects that reqwest follows.
    pub fn open_ai(
        service: &StackBuilder,
        http: reqwest::Client,
    ) -> Result<Client<OpenAIConfig>, InvalidConfig> {
        let config = OpenAIConfig::new().with_api_base(service.base_url().to_string());
        let (stack, client) = (service.reqwest(http.clone())?, http.clone());
        let send = tower::service_fn(move |request: HttpRequestFactory| {
            let (stack, client) = (stack.clone(), client.clone());
            async move {
                let mut request = request.build().await?;
                // The auth layer keeps a credential that the request already has.
                request.headers_mut().remove(AUTHORIZATION);
                if let Some(body) = request.body().and_then(|body| body.as_bytes()) {
                    let length = body.len();
                    request.headers_mut().insert(CONTENT_LENGTH, length.into());
                }
                let response = RequestBuilder::from_parts(client, request).send_with(&stack).await;
                response.map_err(|error| OpenAIError::Boxed(error.into()))
            }
        });
        Ok(Client::build(http, config).with_http_service(send))
    }
}

fn request(options: Option<ChatCompletionStreamOptions>) -> CreateChatCompletionRequest {
    CreateChatCompletionRequest {
        model: "example".to_owned(),
        messages: vec![ChatCompletionRequestUserMessage::from("hello").into()],
        stream_options: options,
        ..Default::default()
    }
}

pub async fn chat(client: &Client<OpenAIConfig>) -> Result<String, BoxError> {
    let response = client.chat().create(request(None)).await?;
    Ok(response.choices[0].message.content.clone().unwrap_or_default())
}

pub async fn stream(client: &Client<OpenAIConfig>) -> Result<String, BoxError> {
    let options = ChatCompletionStreamOptions { include_usage: Some(true), include_obfuscation: None };
    let mut parts = client.chat().create_stream(request(Some(options))).await?;
    let mut text = String::new();
    while let Some(part) = parts.next().await {
        text.extend(part?.choices.iter().filter_map(|choice| choice.delta.content.as_deref()));
    }
    Ok(text)
}
