//! Tests what the server receives, what the caller receives, and that the key is redacted.

use std::{
    io,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, StatusCode, Version, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::StreamBody;
use tower_outbound::{
    ApiKey, Body, BoxError, InvalidConfig,
    body::BodyTooLarge,
    call::{Outcome, StopReason},
    preset,
    stack::StackBuilder,
    transport::TransportConfig,
};
use tracing::dispatcher::{self, Dispatch};
use tracing_subscriber::fmt::MakeWriter;

use super::{
    KEY, chain, client, outcomes, report,
    support::server::{Server, Wire, cut_off, reply, within},
    text,
};

type PresetFn = fn(&str) -> Result<StackBuilder, InvalidConfig>;

const PRESETS: [(&str, PresetFn); 3] = [
    ("currency_rates", |url| preset::currency_rates(url)),
    ("email_delivery", |url| preset::email_delivery(url)),
    ("realtime_messaging", |url| preset::realtime_messaging(url)),
];

#[tokio::test]
async fn every_preset_sends_a_key_and_content_type_and_request_id() {
    for (name, preset) in PRESETS {
        let server = Server::start(Wire::Http1, |_, seen| async move {
            let mut reply = reply(200, format!("to {}", seen.method));
            reply.headers_mut().insert("x-request-id", "id-of-the-server".parse().unwrap());
            Some(reply)
        })
        .await;
        let client = preset(&server.url()).unwrap().with_api_key(ApiKey::new(KEY).unwrap()).client().unwrap();

        let get = within(client.get("/v1/resources?q=1")).await.unwrap();
        let post = within(client.post("v1/resources").body(r#"{"hello":"world"}"#)).await.unwrap();

        let seen = server.seen();
        assert_eq!(seen.len(), 2, "{name}");
        assert_eq!((&seen[0].method, seen[0].path_and_query()), (&Method::GET, "/v1/resources?q=1"));
        assert_eq!((&seen[1].method, seen[1].path_and_query()), (&Method::POST, "/v1/resources"));
        assert_eq!((&seen[0].body[..], &seen[1].body[..]), (&b""[..], &br#"{"hello":"world"}"#[..]));
        assert_eq!(seen[1].header("content-length"), Some("17"));
        for (seen, response) in seen.iter().zip([get, post]) {
            assert_eq!(seen.version, Version::HTTP_11);
            assert_eq!(seen.header("host"), server.url().strip_prefix("http://"));
            assert_eq!(seen.header("authorization").unwrap(), format!("Bearer {KEY}"));
            assert_eq!(seen.header("content-type"), Some("application/json"));
            let id = seen.header("x-request-id").unwrap();
            assert_eq!(id.len(), 36, "{id}");

            assert_eq!(response.status(), StatusCode::OK);
            let report = report(&response);
            assert_eq!(report.request_id().unwrap(), id);
            assert_eq!(report.server_request_id().unwrap(), "id-of-the-server");
            assert_eq!(outcomes(report), [Outcome::Response(StatusCode::OK)]);
            assert_eq!(report.stop_reason(), Some(StopReason::Success));
            assert_eq!(text(response).await, format!("to {}", seen.method));
        }
        assert_ne!(
            seen[0].header("x-request-id"),
            seen[1].header("x-request-id"),
            "each call has its own request id"
        );
    }
}

#[tokio::test]
async fn client_keeps_headers_that_the_caller_has_set() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let request = Request::patch("/v1")
        .header(CONTENT_TYPE, "text/csv")
        .header("x-request-id", "mine")
        .header("authorization", "Basic mine")
        .body("a,b")
        .unwrap();
    let response = within(client(&server).execute(request)).await.unwrap();
    assert_eq!(report(&response).request_id().unwrap(), "mine");

    let seen = &server.seen()[0];
    assert_eq!((&seen.method, &seen.body[..]), (&Method::PATCH, &b"a,b"[..]));
    assert_eq!(seen.header("content-type"), Some("text/csv"));
    assert_eq!(seen.header("x-request-id"), Some("mine"));
    assert_eq!(seen.header("authorization"), Some("Basic mine"));
    for name in ["content-type", "x-request-id", "authorization"] {
        assert_eq!(seen.headers.get_all(name).iter().count(), 1, "{name}");
    }
}

#[tokio::test]
async fn client_sends_a_body_of_unknown_length_in_chunks() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let frames = ["a", "", "bc"].map(|data| Ok::<_, BoxError>(Frame::data(Bytes::from(data))));
    let body = Body::new(StreamBody::new(stream::iter(frames)));
    within(client(&server).post("/v1").body(body)).await.unwrap();
    let seen = &server.seen()[0];
    assert_eq!((&seen.body[..], seen.header("transfer-encoding")), (&b"abc"[..], Some("chunked")));
}

#[tokio::test]
async fn response_to_a_head_request_has_a_content_length_and_no_body() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let request = Request::head("/v1").body(tower_outbound::Body::empty()).unwrap();
    let response = within(client(&server).execute(request)).await.unwrap();
    assert_eq!(response.headers()["content-length"], "8");
    assert!(within(text(response)).await.is_empty());
}

#[tokio::test]
async fn collect_fails_with_body_too_large_if_the_body_exceeds_the_limit() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let response = within(client(&server).get("/")).await.unwrap();
    let error = within(response.into_body().bytes_up_to(7)).await.unwrap_err();
    assert_eq!(error.downcast_ref::<BodyTooLarge>().unwrap().limit(), 7);
}

#[tokio::test]
async fn truncated_body_is_an_error_and_is_not_retried_if_the_caller_streams_it() {
    let server = Server::start(Wire::Http1, |_, _| async { Some(cut_off(200)) }).await;
    let response = within(client(&server).get("/")).await.unwrap();
    assert!(within(response.into_body().bytes_up_to(1024)).await.is_err());
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn spawned_call_can_outlive_its_client() {
    let server = Server::with_statuses(Wire::Http1, [200]).await;
    let call = tokio::spawn(client(&server).get("/").send());
    assert_eq!(within(call).await.unwrap().unwrap().status(), 200);
}

/// The URI that hyper-util receives may contain the key. Errors of hyper-util become sources of the call's error.
#[tokio::test]
async fn no_error_shows_the_key() {
    // The port refuses connections, because the socket is bound but does not listen.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let refusing_url = format!("http://{}", socket.local_addr().unwrap());
    let closing = Server::start(Wire::Http1, |_, _| async { None }).await;
    for url in [refusing_url, closing.url()] {
        let bearer = super::preset(&url);
        for preset in [bearer.clone().with_key_placement("query:key".parse().unwrap()), bearer] {
            let error = within(preset.client().unwrap().post("/v1").body(KEY)).await.unwrap_err();
            assert!(error.is_service() && !chain(&error).contains(KEY), "{error:?}");
        }
    }
}

/// Checks the log events of all crates, because hyper-util also logs.
#[tokio::test]
async fn no_log_event_shows_the_key() {
    let calls = || async {
        for (wire, transport) in [
            (Wire::Http1, TransportConfig::new()),
            (Wire::Http2, TransportConfig::new().with_http2_prior_knowledge()),
        ] {
            let server = Server::with_statuses(wire, [503, 200]).await;
            let client = super::preset(&server.url()).client_with_transport(transport).unwrap();
            assert_eq!(within(client.get("/v1?token=also-s3cret")).await.unwrap().status(), 200);
            assert!(server.seen()[1].headers.contains_key("authorization"));
        }
    };
    let log = Log::default();
    let subscriber = || {
        let fmt = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE);
        Dispatch::new(fmt.with_writer(log.clone()).finish())
    };
    // While only one subscriber exists, the first thread that reaches an event determines for all threads whether the
    // event is enabled. Threads of other tests have no subscriber, so they would disable the event. Creating a second
    // subscriber after the first calls makes `tracing` evaluate every event again.
    let _first = subscriber();
    calls().await;
    let second = subscriber();
    let _guard = dispatcher::set_default(&second);
    calls().await;
    let log = log.text();
    for target in ["tower_outbound::call", "tower_outbound::retry", "hyper_util::client"] {
        assert!(log.contains(target), "{target}: {log}");
    }
    assert!(!log.contains(KEY));
    assert!(!log.lines().any(|line| line.contains("tower_outbound") && line.contains("s3cret")), "{log}");
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl io::Write for Log {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
