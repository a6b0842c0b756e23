//! Streams in both directions, and the trailers after them.

use tonic::{client::Grpc, codegen::http::uri::PathAndQuery, metadata::MetadataMap};

use super::*;

/// The messages, and then the trailers of a success or what they say of a failure.
async fn watched(server: &Server) -> (Vec<i32>, Result<Option<MetadataMap>, Status>) {
    let uri = server.uri();
    // Even where it may be sent again.
    let stack = stack(uri.clone(), retry().with_idempotent(|_| true), Duration::from_secs(10));
    let mut stream = HealthClient::with_origin(stack, uri).watch(question()).await.unwrap().into_inner();
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
async fn a_stream_of_answers_comes_through_to_its_end() {
    let server = Server::start([Scripted::Status]).await;
    let (messages, end) = watched(&server).await;
    assert!(end.unwrap().is_some(), "no trailers");
    assert_eq!((messages.as_slice(), server.calls()), ([1, 2, 3].as_slice(), 1));
}

#[tokio::test]
async fn an_error_in_the_trailers_is_handed_over_and_not_tried_again() {
    let server = Server::start([Scripted::Pushes(Code::Unavailable, "10"), Scripted::Status]).await;
    let (messages, end) = watched(&server).await;
    let status = end.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "as scripted"));
    assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "10");
    assert_eq!((messages.as_slice(), server.calls()), ([1, 2, 3].as_slice(), 1));
}

#[tokio::test]
async fn a_stream_of_requests_is_sent_again_whole() {
    let server = Server::start([Scripted::Fails(Code::Unavailable), Scripted::Status]).await;
    let uri = server.uri();
    let stack = stack(uri.clone(), retry().with_idempotent(|_| true), Duration::from_secs(10));
    let mut client = Grpc::with_origin(stack, uri);
    client.ready().await.unwrap();
    let messages = ["a", "b", "c"].map(|service| HealthCheckRequest { service: service.to_owned() });
    let answer: Response<HealthCheckResponse> = client
        .client_streaming(
            Request::new(tokio_stream::iter(messages)),
            PathAndQuery::from_static("/test.Tally/Count"),
            tonic_prost::ProstCodec::default(),
        )
        .await
        .unwrap();
    assert_eq!(answer.get_ref().status, 3);
    let seen = server.seen();
    assert_eq!(seen.len(), 2);
    assert!(seen.iter().all(|call| call.services == ["a", "b", "c"]), "{seen:?}");
}
