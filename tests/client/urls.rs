//! Tests URLs below the base URL, and the client as a tower service.

use tower_outbound::{Body, client::PathSegment};

use super::*;

#[tokio::test]
async fn client_appends_paths_to_the_base_url() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let client = preset(&format!("{}/api/v1/", server.url())).client().unwrap();
    let absolute = format!("{}/api/v1/rates?page=2#top", server.url());
    let paths =
        ["rates?at=2024-01-01T00:00", "/rates#top", "?q", "", "a%20b/%2F?q=https://evil.test/", &absolute];
    for path in paths {
        assert_eq!(within(status(client.get(path))).await, 200, "{path}");
    }
    let seen: Vec<_> = server.seen().iter().map(|seen| seen.path_and_query().to_owned()).collect();
    let expected = [
        "/api/v1/rates?at=2024-01-01T00:00",
        "/api/v1/rates",
        "/api/v1/?q",
        "/api/v1/",
        "/api/v1/a%20b/%2F?q=https://evil.test/",
        "/api/v1/rates?page=2",
    ];
    assert_eq!(seen, expected);
    assert!(server.seen().iter().all(|seen| seen.header("authorization").is_some()));
}

#[tokio::test]
async fn path_segment_adds_no_query_and_selects_no_other_path() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let client = preset(&server.url()).client().unwrap();
    for (text, sent) in [
        ("7", "/orders/7/lines"),
        ("7/cancel?now=1#x", "/orders/7%2Fcancel%3Fnow%3D1%23x/lines"),
        ("ü %2e\\", "/orders/%C3%BC%20%252e%5C/lines"),
        ("...", "/orders/.../lines"),
    ] {
        let path = format!("/orders/{}/lines", PathSegment(text));
        assert_eq!(within(status(client.get(path))).await, 200, "{text}");
        assert_eq!(server.seen().last().unwrap().path_and_query(), sent);
    }
    for text in [".", ".."] {
        let error = within(client.get(format!("/orders/{}/lines", PathSegment(text)))).await.unwrap_err();
        assert!(error.is_invalid_request(), "{text}: {error:?}");
    }
}

#[tokio::test]
async fn client_sends_nothing_to_a_url_outside_of_the_base_url() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let other = Server::with_statuses(Wire::Http1, [200]).await;
    let (authority, foreign) = (other.url().replace("http:", ""), other.url());
    let mut client = preset(&format!("{}/api", server.url())).client().unwrap();

    let of_server = |path: &str| format!("{}{path}", server.url());
    let at_port_443 = server.url().replace("http:", "https:");
    let urls = [of_server("/api/%2e%2e/secret"), of_server("/apis"), of_server(""), foreign, at_port_443];
    let paths = ["..", "a/../../x", "%2e%2e/x", "a/..;x/b", &authority, "//evil.test/", "a b"];
    for path in paths.into_iter().chain(urls.iter().map(String::as_str)) {
        let error = within(client.post(path).body("x")).await.unwrap_err();
        assert!(error.is_invalid_request(), "{path}: {error:?}");
    }
    for uri in urls.iter().map(String::as_str).chain(["/../x", "//evil.test/x", "evil.test:80"]) {
        let request = || Request::get(uri).body(Body::empty()).unwrap();
        let executed = within(client.execute(request())).await.unwrap_err();
        let called = within(client.ready().await.unwrap().call(request())).await.unwrap_err();
        assert!(executed.is_invalid_request() && called.is_invalid_request(), "{uri}: {executed:?}");
    }
    assert_eq!((server.connections(), other.connections()), (0, 0));
}

#[tokio::test]
async fn the_client_works_below_tower_layers() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let client = preset(&server.url()).client().unwrap();
    let stack = tower::ServiceBuilder::new()
        .boxed_clone()
        .concurrency_limit(1)
        .map_request(|path: &str| Request::get(path).body(Body::empty()).unwrap())
        .service(client);
    let response = within(stack.oneshot("/v1")).await.unwrap();
    assert_eq!((response.status().as_u16(), server.seen()[0].path_and_query()), (200, "/v1"));
}
