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
    use http::{Request, header::AUTHORIZATION};
    use http_body_util::BodyExt;
    use tower::Service;
    use tower_outbound::{Body, InvalidConfig, stack::StackBuilder};

    pub fn open_ai(service: &StackBuilder) -> Result<Client<OpenAIConfig>, InvalidConfig> {
        let config = OpenAIConfig::new().with_api_base(service.base_url().to_string());
        let stack = service.client()?;
        let send = tower::service_fn(move |request: HttpRequestFactory| {
            let mut stack = stack.clone();
            async move {
                let mut request = Request::<reqwest::Body>::try_from(request.build().await?)?;
                // The auth layer keeps a credential that the request already has.
                request.headers_mut().remove(AUTHORIZATION);
                let response = stack.call(request.map(Body::new)).await;
                let response = response.map_err(|error| OpenAIError::Boxed(error.into()))?;
                let response = response.map(|body| reqwest::Body::wrap_stream(body.into_data_stream()));
                Ok::<_, OpenAIError>(reqwest::Response::from(response))
            }
        });
        Ok(Client::with_config(config).with_http_service(send))
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
