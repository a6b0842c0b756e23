//! Tests the values, errors, deadlines and size limits of JSON calls.

use std::collections::HashMap;

use futures_util::stream::{self, StreamExt};
use serde::{Deserialize, Deserializer, Serialize, de};
use tower_outbound::{call::Deadline, client::ResponseError};

use super::*;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Rate {
    code: String,
    value: f64,
}

/// Starts a server that responds to every request with `status` and `body`. Also returns a client of the server.
async fn server_and_client(status: u16, body: impl Into<Bytes>) -> (Server, Client) {
    let body = body.into();
    let server = Server::start(Wire::Http1, move |_, _| {
        let body = body.clone();
        async move { Some(reply(status, body)) }
    });
    let server = server.await;
    let client = client(&server);
    (server, client)
}

/// Returns whether the error contains a status that is not 2xx.
fn has_error_status(error: &ResponseError) -> bool {
    error.status().is_some_and(|status| !status.is_success())
}

/// Returns the error of a JSON call if the server responds with `status` and `body`.
async fn error_for(status: u16, body: impl Into<Bytes>) -> ResponseError {
    let (_server, client) = server_and_client(status, body).await;
    client.get("/v1/rate").fetch_json::<Rate>().await.unwrap_err()
}

#[tokio::test]
async fn client_sends_and_receives_json_values() {
    let (server, client) = server_and_client(200, r#"{"code":"EUR","value":1.5}"#).await;
    let euro = Rate { code: "EUR".to_owned(), value: 1.5 };
    assert_eq!(client.get("/v1/rate?of=EUR").fetch_json::<Rate>().await.unwrap(), euro);
    assert_eq!(client.post("/v1/rate").json(&euro).fetch_json::<Rate>().await.unwrap(), euro);
    let put = client.put("/v1/rate").body("{}");
    assert_eq!(put.fetch_json::<Rate>().await.unwrap(), euro);
    let seen = server.seen();
    let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
    assert_eq!(methods, ["GET", "POST", "PUT"]);
    assert_eq!(seen[1].header("content-type"), Some("application/json"));
    assert!(seen.iter().all(|seen| seen.header("accept") == Some("application/json")));
    assert_eq!(seen[1].body, r#"{"code":"EUR","value":1.5}"#);
}

#[tokio::test]
async fn client_keeps_the_accept_header_of_a_request_or_preset() {
    let (server, client) = server_and_client(200, "null").await;
    client.get("/").header("accept", "application/own+json").fetch_json::<()>().await.unwrap();
    let preset = preset(&server.url()).with_header("accept", "application/preset+json");
    preset.client().unwrap().get("/").fetch_json::<()>().await.unwrap();
    // By default, a call that does not use JSON sends no `accept` header.
    within(client.get("/")).await.unwrap();
    let accepted: Vec<_> =
        server.seen().iter().map(|seen| seen.header("accept").map(str::to_owned)).collect();
    let expected = [Some("application/own+json"), Some("application/preset+json"), None];
    assert_eq!(accepted.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn client_decodes_an_empty_response_body_as_json_null() {
    let (_server, client) = server_and_client(204, "").await;
    client.get("/").fetch_json::<()>().await.unwrap();
    assert_eq!(client.get("/").fetch_json::<Option<Rate>>().await.unwrap(), None);
    assert!(client.get("/").fetch_json::<Rate>().await.unwrap_err().decode_error().is_some());
}

#[tokio::test]
async fn client_skips_one_byte_order_mark_at_the_start_of_a_body() {
    let (_server, client) = server_and_client(200, "\u{feff}{\"code\":\"EUR\",\"value\":1.5}").await;
    let euro = Rate { code: "EUR".to_owned(), value: 1.5 };
    assert_eq!(client.get("/").fetch_json::<Rate>().await.unwrap(), euro);
    let text = client.get("/").await.unwrap().text().await.unwrap();
    assert_eq!(text, r#"{"code":"EUR","value":1.5}"#);
    let (_server, client) = server_and_client(200, "\u{feff}\u{feff}1").await;
    assert_eq!(client.get("/").await.unwrap().text().await.unwrap(), "\u{feff}1");
}

#[tokio::test]
async fn status_error_contains_the_request_id_and_an_excerpt_of_the_body() {
    let error = error_for(422, r#"{"error":"no such currency","hint":"ISO\u00204217"}"#).await;
    assert!(has_error_status(&error) && error.decode_error().is_none() && error.call().is_none());
    assert_eq!(error.status(), Some(StatusCode::UNPROCESSABLE_ENTITY));
    assert_eq!(error.report().unwrap().attempt_count(), 1);
    let id = error.request_id().unwrap();
    let id = id.to_str().unwrap();
    let expected = format!("the response is not a success, status 422 Unprocessable Entity, request id {id}");
    assert_eq!(error.to_string(), expected);
    assert_eq!(error.excerpt(), r#"{"error":"no such currency","hint":"ISO\u00204217"}"#);
}

#[tokio::test(start_paused = true)]
async fn status_error_shows_the_number_of_several_attempts() {
    let service = tower_outbound::test_util::ScriptedService::new([503]);
    let client = Client::builder("https://api.example.com")
        .unwrap()
        .without_credential()
        .client_with_service(service)
        .unwrap();
    let error = client.get("/").fetch_text().await.unwrap_err();
    let expected =
        "the response is not a success, status 503 Service Unavailable after 3 attempts, request id ";
    assert!(error.to_string().starts_with(expected), "{error}");
}

#[tokio::test]
async fn decode_error_shows_the_position_of_the_invalid_json() {
    let error = error_for(200, r#"{"code":"EUR","value":"much"}"#).await;
    assert!(error.decode_error().is_some() && !has_error_status(&error));
    assert_eq!((error.status(), error.excerpt()), (Some(StatusCode::OK), r#"{"code":"EUR","value":"much"}"#));
    assert!(error.to_string().contains("not the expected JSON, at line 1 column 28"), "{error}");
    assert!(error.decode_error().unwrap().to_string().ends_with("expected f64 at line 1 column 28"));

    let error = error_for(200, "<html>\nnot\tJSON\u{7}</html>").await;
    assert_eq!(error.excerpt(), "<html> not JSON </html>");
}

#[tokio::test]
async fn error_text_shows_no_response_body_and_the_excerpt_redacts_the_key() {
    let body = format!(r#"{{"error":"wrong key {KEY}","value":"{KEY}"}}"#);
    for status in [401, 200] {
        let error = error_for(status, body.clone()).await;
        let shown = chain(&error);
        assert!(!shown.contains("wrong") && !shown.contains("value"), "{shown}");
        assert_eq!(error.excerpt(), r#"{"error":"wrong key [redacted]","value":"[redacted]"}"#);
    }
}

/// Error messages of serde and of a custom `Deserialize` implementation may quote the response body.
#[tokio::test]
async fn error_text_shows_no_message_of_a_deserializer() {
    #[derive(Debug)]
    struct Quoting;
    impl<'de> Deserialize<'de> for Quoting {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let text = String::deserialize(deserializer)?;
            Err(de::Error::custom(format_args!("bad value {text}, expected no {text}")))
        }
    }
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Empty {}
    let (_server, client) = server_and_client(200, format!("{KEY:?}")).await;
    let quoting = client.get("/").fetch_json::<Quoting>().await.unwrap_err();
    let (_server, client) = server_and_client(200, format!("{{{KEY:?}: 1}}")).await;
    let unknown = client.get("/").fetch_json::<Empty>().await.unwrap_err();
    for error in [quoting, unknown] {
        assert!(
            error.decode_error().is_some() && error.to_string().contains("not the expected JSON"),
            "{error}"
        );
        assert!(!chain(&error).contains(KEY), "{error:?}");
        assert!(error.decode_error().unwrap().to_string().contains(KEY));
    }
}

/// Returns a client whose response bodies start immediately and never end.
fn stalled_client(status: u16, preset: StackBuilder) -> Client {
    let service = tower::service_fn(move |_: Request<_>| {
        let start = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from("[1,")))]);
        let mut response = http::Response::new(StreamBody::new(start.chain(stream::pending())));
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        ready(Ok::<_, Infallible>(response))
    });
    preset.client_with_service(service).unwrap()
}

#[tokio::test(start_paused = true)]
async fn deadline_of_a_json_call_covers_the_response_body() {
    let preset = preset("http://127.0.0.1:9").with_total_timeout(Duration::from_secs(7));
    let client = stalled_client(200, preset.clone());
    let start = Instant::now();
    let error = client.post("/v1").json("text").fetch_json::<Vec<u8>>().await.unwrap_err();
    assert_eq!((start.elapsed().as_secs(), error.status()), (7, Some(StatusCode::OK)));
    assert!(error.is_timeout() && !error.is_too_large() && error.call().is_none(), "{error:?}");
    assert!(chain(&error).contains("total timeout of 7s exceeded"), "{}", chain(&error));
    let limits: [fn(RequestBuilder) -> RequestBuilder; 2] = [
        |get| get.timeout(Duration::from_secs(2)),
        |get| get.extension(Deadline::after(Duration::from_secs(2))),
    ];
    for limit in limits {
        let start = Instant::now();
        assert!(limit(client.get("/v1")).fetch_json::<Vec<u8>>().await.unwrap_err().is_timeout());
        assert_eq!(start.elapsed(), Duration::from_secs(2));
    }

    // The client reads the excerpt of an error response for at most one second.
    for (limit, elapsed) in [(7_000, 1_000), (300, 300)] {
        let preset = preset.clone().with_total_timeout(Duration::from_millis(limit));
        let start = Instant::now();
        let error = stalled_client(404, preset).get("/v1").fetch_json::<u8>().await.unwrap_err();
        assert!(has_error_status(&error) && !error.is_timeout(), "{error:?}");
        assert_eq!((error.excerpt(), start.elapsed().as_millis() / 10 * 10), ("[1,", elapsed));
    }
}

#[tokio::test]
async fn error_excerpt_is_limited_to_1_kib_and_response_body_to_max_body() {
    let error = error_for(404, vec![b'a'; 3 * 1024 * 1024]).await;
    assert_eq!(error.excerpt(), format!("{}...", "a".repeat(1024)));
    let error = error_for(404, "é".repeat(2_000)).await;
    assert_eq!(error.excerpt(), format!("{}...", "é".repeat(512)));
    let error = error_for(200, vec![b' '; Response::MAX_BODY + 1]).await;
    assert!(error.is_too_large() && error.excerpt().is_empty(), "{error}");
}

#[tokio::test]
async fn json_error_reports_a_failed_call_or_an_unserializable_body() {
    let (server, client) = server_and_client(200, "null").await;
    let error = client.get("https://elsewhere.example.com/").fetch_json::<()>().await.unwrap_err();
    assert!(error.call().unwrap().is_invalid_request() && error.status().is_none(), "{error}");
    assert!(
        error.to_string().starts_with("no response: invalid request: url `https://elsewhere.example.com/…`")
    );
    assert_eq!(format!("{error:?}"), format!("{:?}", error.call().unwrap()));

    let unserializable = HashMap::from([((1, 2), 3)]);
    let error = client.post("/").json(&unserializable).await.unwrap_err();
    assert!(format!("{error:#}").contains("could not be serialized as json"), "{error:#}");
    assert!(error.is_invalid_request() && error.report().is_none() && server.seen().is_empty());

    drop(server);
    let error = client.get("/").fetch_json::<()>().await.unwrap_err();
    assert!(error.call().unwrap().is_service() && error.report().unwrap().attempt_count() > 0, "{error}");
    assert!(error.request_id().is_some());
}
