//! Tests gRPC streams of requests and of responses, with trailers.

use tonic::{client::Grpc, codegen::http::uri::PathAndQuery, metadata::MetadataMap};

use super::*;

/// Calls `Watch`. Returns the streamed messages, and the trailers of a success or the status of a failure.
async fn watch(server: &Server) -> (Vec<i32>, Result<Option<MetadataMap>, Status>) {
    let uri = server.uri();
    // The override declares the call idempotent, so only the stream that is already open can prevent a retry.
    let stack = stack(uri.clone(), retry().with_idempotent(|_| true), Duration::from_secs(10));
    let mut stream = HealthClient::with_origin(stack, uri).watch(request()).await.unwrap().into_inner();
    let mut messages = Vec::new();
    loop {
        match stream.message().await {
            Ok(Some(message)) => messages.push(message.status),
            Ok(None) => return (messages, stream.trailers().await),
            Err(status) => return (messages, Err(status)),
        }
    }
}

#[tokio::test]
async fn response_stream_arrives_with_all_messages_and_trailers() {
    let server = Server::start([Scripted::Success]).await;
    let (messages, end) = watch(&server).await;
    assert!(end.unwrap().is_some(), "the response stream had no trailers");
    assert_eq!((messages.as_slice(), server.calls()), ([1, 2, 3].as_slice(), 1));
}

#[tokio::test]
async fn error_in_the_trailers_is_returned_without_a_retry() {
    let server = Server::start([Scripted::Pushback(Code::Unavailable, "10"), Scripted::Success]).await;
    let (messages, end) = watch(&server).await;
    let status = end.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "as scripted"));
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "10");
    assert_eq!((messages.as_slice(), server.calls()), ([1, 2, 3].as_slice(), 1));
}

#[tokio::test]
async fn retry_resends_a_request_stream_from_its_first_message() {
    let server = Server::start([Scripted::Failure(Code::Unavailable), Scripted::Success]).await;
    let uri = server.uri();
    let stack = stack(uri.clone(), retry().with_idempotent(|_| true), Duration::from_secs(10));
    let mut client = Grpc::with_origin(stack, uri);
    client.ready().await.unwrap();
    let messages = ["a", "b", "c"].map(|service| HealthCheckRequest { service: service.to_owned() });
    let response: Response<HealthCheckResponse> = client
        .client_streaming(
            Request::new(tokio_stream::iter(messages)),
            PathAndQuery::from_static("/test.Tally/Count"),
            tonic_prost::ProstCodec::default(),
        )
        .await
        .unwrap();
    assert_eq!(response.get_ref().status, 3);
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|call| call.services == ["a", "b", "c"]), "{seen:?}");
}
