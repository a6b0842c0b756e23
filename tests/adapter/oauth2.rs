//! Tests OAuth 2 client credentials against a real token endpoint and a real service.

use std::{error::Error as _, time::Duration};

use futures_util::future::join_all;
use tower_outbound::{
    ApiKey, Client, ExponentialBackoff, InvalidConfig, Quota,
    adapter::ClientCredentials,
    auth::{KeyError, KeySource},
    client::ResponseError,
    limit::LocalLimiter,
    retry::RetryLayer,
    stack::StackBuilder,
};

use crate::support::server::{Reply, Server, Wire, endless, reply, within};

const SECRET: &str = "s3cret";

fn credentials(token_url: &str) -> ClientCredentials {
    ClientCredentials::new(token_url, "app", ApiKey::new(SECRET).unwrap()).unwrap()
}

/// Creates a client with short backoffs and without a quota, so that no test waits.
fn quick(builder: StackBuilder) -> Result<Client, InvalidConfig> {
    let unlimited = LocalLimiter::paced_window(Quota::per_second(1_000_000)?);
    let builder = builder.with_limiter(unlimited.with_throttle_pause(Duration::ZERO)?);
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(5)).unwrap();
    builder.with_retry(RetryLayer::new().with_backoff(backoff).with_throttled_backoff(backoff)).client()
}

fn token(number: usize, lifetime: &str) -> Reply {
    let lifetime = format!(r#""token_type":"Bearer","expires_in":{lifetime}"#);
    reply(200, format!(r#"{{"access_token":"token-{number}",{lifetime},"scope":"orders.read"}}"#))
}

/// Starts a token endpoint whose tokens are numbered and valid for an hour.
async fn token_endpoint() -> Server {
    Server::start(Wire::Http1, |number, _| async move { Some(token(number, "3600")) }).await
}

/// Starts a token endpoint that always returns this response.
async fn constant_endpoint(status: u16, body: &'static str) -> (Server, KeySource) {
    let server = Server::start(Wire::Http1, move |_, _| async move { Some(reply(status, body)) }).await;
    let keys = credentials(&server.url()).into_key_source_with(quick).unwrap();
    (server, keys)
}

fn service(server: &Server, keys: &KeySource) -> Client {
    quick(Client::builder(server.url()).unwrap().with_keys(keys.clone())).unwrap()
}

async fn failure(keys: &KeySource) -> KeyError {
    within(keys.current()).await.unwrap_err()
}

/// Moves the clock of the current runtime forward. Connections still use real I/O afterwards.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn fifty_concurrent_calls_share_one_token_request() {
    let (tokens, api) = (token_endpoint().await, Server::with_statuses(Wire::Http1, [200]).await);
    let keys = credentials(&(tokens.url() + "/oauth2/token")).into_key_source().unwrap();
    let client = service(&api, &keys);
    let calls = (0..50).map(|_| async { client.get("/orders").await.unwrap().status() });
    assert!(within(join_all(calls)).await.iter().all(|status| *status == 200));
    let sent = api.seen();
    assert_eq!(sent.len(), 50);
    assert!(sent.iter().all(|seen| seen.header("authorization") == Some("Bearer token-1")));

    let requests = tokens.seen();
    assert_eq!(requests.len(), 1);
    let request = &requests[0];
    assert_eq!((request.method.as_str(), request.path_and_query()), ("POST", "/oauth2/token"));
    assert_eq!(request.header("authorization"), Some("Basic YXBwOnMzY3JldA=="));
    assert_eq!(request.header("content-type"), Some("application/x-www-form-urlencoded"));
    assert_eq!(request.header("accept"), Some("application/json"));
    assert_eq!(request.body, "grant_type=client_credentials");
}

#[tokio::test]
async fn client_credentials_are_form_encoded_in_the_header_or_in_the_body() {
    for in_body in [false, true] {
        let tokens = token_endpoint().await;
        let secret = ApiKey::new("s3+/%&~\"").unwrap();
        let mut credentials = ClientCredentials::new(tokens.url() + "/t?p=1&q", "my app:1", secret)
            .unwrap()
            .with_scope("replaced")
            .unwrap()
            .with_scope("orders.read orders.write")
            .unwrap()
            .with_parameter("resource", "https://a?b&c=ü")
            .unwrap()
            .with_parameter("resource", "urn:d")
            .unwrap();
        if in_body {
            credentials = credentials.with_credentials_in_body();
        }
        let keys = credentials.into_key_source().unwrap();
        assert_eq!(within(keys.current()).await.unwrap().expose(), "token-1");

        let request = &tokens.seen()[0];
        assert_eq!(request.path_and_query(), "/t?p=1&q");
        let mut body = "grant_type=client_credentials&scope=orders.read%20orders.write&resource=\
             https%3A%2F%2Fa%3Fb%26c%3D%C3%BC&resource=urn%3Ad"
            .to_owned();
        let mut header = Some("Basic bXklMjBhcHAlM0ExOnMzJTJCJTJGJTI1JTI2fiUyMg==");
        if in_body {
            header = None;
            body += "&client_id=my%20app%3A1&client_secret=s3%2B%2F%25%26~%22";
        }
        assert_eq!((request.header("authorization"), &request.body[..]), (header, body.as_bytes()));
    }
}

#[tokio::test]
async fn token_is_refreshed_five_minutes_before_it_expires_while_calls_use_the_old_token() {
    let (tokens, api) = (token_endpoint().await, Server::with_statuses(Wire::Http1, [200]).await);
    let keys = credentials(&tokens.url()).into_key_source().unwrap();
    let client = service(&api, &keys);
    for (time, requests) in [(0, 1), (3_200, 1), (101, 2)] {
        pass(secs(time)).await;
        within(client.get("/orders")).await.unwrap();
        assert_eq!(api.seen().last().unwrap().header("authorization"), Some("Bearer token-1"));
        // The refresh runs in the background.
        let refreshed = format!("token-{requests}");
        let is_current = async || keys.current().await.unwrap().expose() == refreshed;
        within(async {
            while !is_current().await {
                tokio::task::yield_now().await
            }
        })
        .await;
        assert_eq!(tokens.seen().len(), requests, "after {time} s more");
    }
    within(client.get("/orders")).await.unwrap();
    assert_eq!(api.seen().last().unwrap().header("authorization"), Some("Bearer token-2"));
}

#[tokio::test]
async fn token_without_lifetime_is_used_until_a_401() {
    let tokens = Server::start(Wire::Http1, |number, _| async move { Some(token(number, "null")) }).await;
    let keys = credentials(&tokens.url()).into_key_source().unwrap();
    within(keys.current()).await.unwrap();
    pass(secs(365 * 24 * 3_600)).await;
    assert_eq!(within(keys.current()).await.unwrap().expose(), "token-1");

    // The service revokes the first token. All calls then share one token request, also the POSTs.
    let api = Server::start(Wire::Http1, |_, seen| async move {
        Some(reply(if seen.header("authorization") == Some("Bearer token-1") { 401 } else { 200 }, ""))
    })
    .await;
    let client = service(&api, &keys);
    let calls = (0..10).map(|_| async { client.post("/orders").await.unwrap().status() });
    assert!(within(join_all(calls)).await.iter().all(|status| *status == 200));
    assert_eq!((tokens.seen().len(), within(keys.current()).await.unwrap().expose()), (2, "token-2"));
}

#[tokio::test]
async fn token_request_is_resent_after_a_temporary_failure() {
    let tokens = Server::start(Wire::Http1, |number, _| async move {
        match number {
            1 => None,
            2 => Some(reply(503, "")),
            3 => Some(token(number, "\"3600\"")),
            _ => Some(token(number, "3599.5")),
        }
    })
    .await;
    let keys = credentials(&tokens.url()).into_key_source_with(quick).unwrap();
    assert_eq!(within(keys.current()).await.unwrap().expose(), "token-3");
    // The lifetime was a string.
    pass(secs(3_601)).await;
    assert_eq!(within(keys.current()).await.unwrap().expose(), "token-4");
    // The lifetime was a fraction.
    pass(secs(3_601)).await;
    assert_eq!(within(keys.current()).await.unwrap().expose(), "token-5");
}

#[tokio::test]
async fn token_response_without_end_is_an_error() {
    for status in [200, 400] {
        let server = Server::start(Wire::Http1, move |_, _| async move { Some(endless(status)) }).await;
        let keys = credentials(&server.url()).into_key_source_with(quick).unwrap();
        let error = failure(&keys).await;
        let source = error.source().and_then(|source| source.downcast_ref::<ResponseError>());
        assert!(source.is_some_and(ResponseError::is_too_large), "{error:?}");
        assert!(error.to_string().starts_with("could not read the body of the token response"), "{error}");
    }
}

#[tokio::test]
async fn failed_token_request_is_retried_after_a_minute_or_within_a_second_if_temporary() {
    const MALFORMED: &str = "is not json, or has no `access_token`";
    const NO_NUMBER: &str = "the `expires_in` of the token response is not a number of seconds";
    const NOT_BEARER: &str = "the `token_type` of the token response is not `Bearer`";
    const CLIENT: &str = r#"{"error":"invalid_client","error_description":"x"}"#;
    let (minute, second) = (secs(60), secs(1));
    for (status, body, message, pause) in [
        (401, CLIENT, "the error `invalid_client`, status 401", minute),
        (400, r#"{"error":"invalid_scope"}"#, "the error `invalid_scope`, status 400", minute),
        (200, r#"{"error":"unauthorized_client"}"#, "the error `unauthorized_client`, status 200", minute),
        (400, r#"{"error":"own_code"}"#, "returned status 400 Bad Request", minute),
        (404, "<html>", "returned status 404 Not Found", minute),
        (302, "", "returned status 302 Found", minute),
        (
            400,
            r#"{"error":"temporarily_unavailable"}"#,
            "the error `temporarily_unavailable`, status 400",
            second,
        ),
        (429, r#"{"error":"own_code"}"#, "status 429", second),
        (503, "", "status 503", second),
        (200, "", MALFORMED, second),
        (200, "<html>", MALFORMED, second),
        (200, "[]", MALFORMED, second),
        (200, r#"{"access_token":7,"token_type":"Bearer"}"#, MALFORMED, second),
        (200, r#"{"access_token":"t","token_type":"mac"}"#, NOT_BEARER, second),
        (200, r#"{"access_token":"t"}"#, NOT_BEARER, second),
        (200, r#"{"access_token":"t t","token_type":"bearer"}"#, "has an invalid token", second),
        (200, r#"{"access_token":"t","token_type":"bearer","expires_in":-1}"#, NO_NUMBER, second),
        (200, r#"{"access_token":"t","token_type":"bearer","expires_in":"soon"}"#, NO_NUMBER, second),
        (200, r#"{"access_token":"t","token_type":"bearer","expires_in":0}"#, "has expired", second),
    ] {
        let (server, keys) = constant_endpoint(status, body).await;
        let error = failure(&keys).await;
        let (shown, retry_in) = (error.to_string(), error.retry_in().unwrap());
        assert!(shown.contains(message), "{body}: {shown}");
        if pause == minute {
            assert!(shown.starts_with("the token endpoint returned ") && error.source().is_none(), "{shown}");
            assert_eq!(retry_in, pause, "{shown}");
            pass(secs(40)).await;
            assert!(failure(&keys).await.to_string().contains(message));
            assert_eq!(server.seen().len(), 1, "{shown}");
        }
        assert!(retry_in <= pause, "{body}: {error}");
        let before = server.seen().len();
        // 40 of the 60 seconds have passed.
        pass(if pause == minute { secs(20) } else { pause }).await;
        failure(&keys).await;
        assert!(server.seen().len() > before, "{body}");
    }
    // The type of a token is not case-sensitive.
    let (_server, keys) = constant_endpoint(200, r#"{"access_token":"t","token_type":"bEARER"}"#).await;
    assert_eq!(within(keys.current()).await.unwrap().expose(), "t");
}

/// The secret of the body would otherwise go to another server.
#[tokio::test]
async fn client_of_another_server_sends_no_token_request() {
    let (tokens, other) = (token_endpoint().await, token_endpoint().await);
    let client = Client::builder(other.url()).unwrap().without_credential().client().unwrap();
    let credentials = credentials(&tokens.url()).with_credentials_in_body();
    let keys = credentials.into_key_source_with(|_| Ok(client)).unwrap();
    assert!(failure(&keys).await.to_string().starts_with("the token endpoint did not respond"));
    assert_eq!((tokens.seen().len(), other.seen().len()), (0, 0));
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn token_is_fetched_over_tls_with_the_roots_of_a_given_transport() {
    use crate::support::certificate::{certificate, trusting, wire};

    let certificate = certificate();
    let wire = wire(&certificate, &["h2", "http/1.1"]);
    let tokens = Server::start(wire, |number, _| async move { Some(token(number, "60")) }).await;
    let trusted = credentials(&tokens.url())
        .into_key_source_with(|builder| builder.client_with_transport(trusting(&certificate)))
        .unwrap();
    assert_eq!(within(trusted.current()).await.unwrap().expose(), "token-1");
    let untrusted = credentials(&tokens.url()).into_key_source_with(quick).unwrap();
    assert!(format!("{:?}", failure(&untrusted).await).contains("certificate"));
    assert_eq!(tokens.seen().len(), 1);
}

#[test]
fn invalid_settings_are_rejected() {
    let new = |url: &str, id: &str| ClientCredentials::new(url, id, ApiKey::new(SECRET).unwrap());
    for url in [
        "login.example.com",
        "https://a:b@host/",
        "https://host/t#f",
        "https://host/t?a#f",
        "https://h/t?ü",
        "https://h/t?a b",
        "",
    ] {
        let error = new(url, "app").unwrap_err().to_string();
        assert!(error.starts_with("token url: invalid base url"), "{error}");
    }
    for url in
        ["https://host", "https://host?a=b", "https://host/t/", "https://host/t/?a", "http://[::1]:8080/t"]
    {
        new(url, "app").unwrap().into_key_source().unwrap();
    }
    for in_body in [false, true] {
        let mut insecure = new("http://login.example.com/t", "app").unwrap();
        if in_body {
            insecure = insecure.with_credentials_in_body();
        }
        let error = insecure.into_key_source().unwrap_err();
        assert_eq!((error.field(), error.value()), ("origin", "http://login.example.com:80"));
    }
    for id in ["", "a\nb", "ä"] {
        assert_eq!(new("https://host", id).unwrap_err().field(), "client id");
    }
    for scope in ["", " a", "a ", "a  b", "a\"b", "a\\b", "ä", "a\tb"] {
        let error = credentials("https://host").with_scope(scope).unwrap_err();
        assert_eq!((error.field(), error.value()), ("scope", scope.escape_debug().to_string().as_str()));
    }
    for name in ["", "grant_type", "scope", "client_id", "client_secret"] {
        let error = credentials("https://host").with_parameter(name, SECRET).unwrap_err();
        assert_eq!((error.field(), error.value()), ("token request parameter", name));
        assert!(!error.to_string().contains(SECRET), "{error}");
    }
}
