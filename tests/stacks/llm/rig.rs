//! The layers below rig, which takes an implementation of its trait for clients.

use rig_core::{completion::CompletionRequest, providers::openai::OpenAI};
use tower_outbound::BoxError;

pub use self::program::rig;

/// The rig program that the crate's guide shows.
mod program {
    use bytes::Bytes;
    use futures_util::TryStreamExt;
    use http::{
        Request, Response,
        header::{AUTHORIZATION, CONTENT_TYPE},
    };
    use http_body_util::BodyExt;
    use rig_core::{
        http_client::{self, BoxedStream, Error, HttpClientExt, LazyBody, MultipartForm, StreamingResponse},
        providers::openai::{OpenAI, OpenAIConfig},
        wasm_compat::WasmCompatSend,
    };
    use tower::Service;
    use tower_outbound::{Body, Client, InvalidConfig, stack::StackBuilder};

    pub fn rig(service: &StackBuilder) -> Result<OpenAI, InvalidConfig> {
        let config = OpenAIConfig::new("unused").with_base_url(service.base_url().to_string());
        Ok(config.connect(Outbound(service.client()?)))
    }

    /// Reads a response of at most 16 MiB.
    async fn collect<U: From<Bytes>>(body: Body) -> http_client::Result<U> {
        Ok(body.bytes_up_to(16 << 20).await.map_err(Error::Instance)?.into())
    }

    struct Outbound(Client);

    impl Outbound {
        fn call(
            &self,
            request: Request<Bytes>,
        ) -> impl Future<Output = http_client::Result<Response<Body>>> + use<> {
            let (mut head, body) = request.into_parts();
            // The auth layer keeps a credential that the request already has.
            head.headers.remove(AUTHORIZATION);
            let response = self.0.clone().call(Request::from_parts(head, body.into()));
            async { response.await.map_err(Error::instance) }
        }
    }

    impl HttpClientExt for Outbound {
        fn send<T, U>(
            &self,
            request: Request<T>,
        ) -> impl Future<Output = http_client::Result<Response<LazyBody<U>>>> + WasmCompatSend + 'static
        where
            T: Into<Bytes> + WasmCompatSend,
            U: From<Bytes> + WasmCompatSend + 'static,
        {
            let response = self.call(request.map(Into::into));
            async {
                let response = response.await?;
                Ok(response.map(|body| Box::pin(collect(body)) as LazyBody<U>))
            }
        }

        fn send_multipart<U>(
            &self,
            request: Request<MultipartForm>,
        ) -> impl Future<Output = http_client::Result<Response<LazyBody<U>>>> + WasmCompatSend + 'static
        where
            U: From<Bytes> + WasmCompatSend + 'static,
        {
            let (mut head, form) = request.into_parts();
            let (boundary, body) = form.encode();
            let kind = format!("multipart/form-data; boundary={boundary}");
            // The boundary is visible ASCII.
            if let Ok(kind) = kind.parse() {
                head.headers.insert(CONTENT_TYPE, kind);
            }
            self.send(Request::from_parts(head, body))
        }

        async fn send_streaming<T>(&self, request: Request<T>) -> http_client::Result<StreamingResponse>
        where
            T: Into<Bytes> + WasmCompatSend,
        {
            let response = self.call(request.map(Into::into)).await?;
            Ok(response.map(|body| Box::pin(body.into_data_stream().map_err(Error::Instance)) as BoxedStream))
        }
    }
}

pub async fn chat(client: &OpenAI) -> Result<String, BoxError> {
    Ok(client.chat("example").call(CompletionRequest::new("hello")).await?.text())
}

pub async fn stream(client: &OpenAI) -> Result<String, BoxError> {
    Ok(client.chat("example").stream(CompletionRequest::new("hello"))?.finish().await?.text())
}
