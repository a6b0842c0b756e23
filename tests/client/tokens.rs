//! Tests a client with a quota of tokens against a real server: the estimate, the meter of a stream, and the
//! settlement.

use tower_outbound::Body;

use super::*;

const LIMIT: u32 = 10_000;

fn of(tokens: u32) -> Amounts {
    Amounts::of(Unit::Tokens, tokens)
}

/// Responds with a stream whose last event has the tokens of the request.
fn streamed() -> Reply {
    let events = ["data: hello\n\n", "data: {\"total_tokens\":640}\n\n", "data: [DONE]\n\n"];
    let frames = events.map(|event| Ok(Frame::data(Bytes::from_static(event.as_bytes()))));
    http::Response::new(http_body_util::combinators::UnsyncBoxBody::new(StreamBody::new(stream::iter(
        frames,
    ))))
}

fn usage(data: &[u8]) -> Option<Amounts> {
    let (_, rest) = std::str::from_utf8(data).ok()?.split_once("\"total_tokens\":")?;
    Some(of(rest.split('}').next()?.parse().ok()?))
}

fn model(server: &Server, transport: TransportConfig) -> (Client, LocalLimiter) {
    let limiter = LocalLimiter::sliding_window([
        Quota::per_minute(500).unwrap(),
        Quota::per_minute(LIMIT).unwrap().with_unit(Unit::Tokens).unwrap(),
    ]);
    let limiter = limiter.with_throttle_pause(Duration::ZERO).unwrap();
    let builder = preset(&server.url()).with_limiter(limiter.clone());
    let builder = builder.with_limit(|limit| limit.with_meter(|_, _| usage));
    (builder.client_with_transport(transport).unwrap(), limiter)
}

#[track_caller]
fn assert_used(limiter: &LocalLimiter, used: u32) {
    assert_eq!(limiter.snapshot().units[0].available, LIMIT - used);
}

#[tokio::test]
async fn meter_settles_a_stream_at_its_end_over_both_versions() {
    for (wire, transport) in versions() {
        let server = Server::start(wire, |_, _| async { Some(streamed()) }).await;
        let (client, limiter) = model(&server, transport);
        let response = within(client.post("/chat").extension(of(1_000))).await.unwrap();
        assert_used(&limiter, 1_000);
        assert!(text(response).await.ends_with(b"[DONE]\n\n"));
        assert_used(&limiter, 640);
        // A dropped stream keeps its estimate.
        drop(within(client.post("/chat").extension(of(1_000))).await.unwrap());
        assert_used(&limiter, 1_640);
        // As a stream of the caller.
        let body: Body = within(client.post("/chat").extension(of(1_000))).await.unwrap().into_body();
        within(body.bytes_up_to(1_024)).await.unwrap();
        assert_used(&limiter, 2_280);
    }
}

#[tokio::test]
async fn caller_settles_a_response_whose_body_has_been_read() {
    let server = Server::start(Wire::Http1, |_, _| async { Some(reply(200, "640")) }).await;
    let limiter =
        LocalLimiter::sliding_window(Quota::per_minute(LIMIT).unwrap().with_unit(Unit::Tokens).unwrap());
    let client = preset(&server.url()).with_limiter(limiter.clone()).client().unwrap();
    let response = within(client.post("/chat").extension(of(1_000))).await.unwrap();
    let settlement = response.settlement().unwrap().clone();
    assert_used(&limiter, 1_000);
    let tokens = within(response.text()).await.unwrap().parse().unwrap();
    settlement.settle(of(tokens));
    assert_used(&limiter, 640);
    let response = within(client.get("/models")).await.unwrap();
    assert!(response.settlement().is_none(), "the request takes no amounts");
}

#[tokio::test]
async fn each_attempt_takes_its_estimate_and_a_failed_connection_takes_none() {
    let server = Server::start(Wire::Http1, |number, _| async move {
        Some(if number == 1 { reply(429, "") } else { streamed() })
    })
    .await;
    let (client, limiter) = model(&server, TransportConfig::new());
    // The server throttles the first attempt, which keeps its estimate.
    let response = within(client.post("/chat").extension(of(1_000))).await.unwrap();
    assert_eq!(report(&response).attempt_count(), 2);
    text(response).await;
    assert_used(&limiter, 1_640);

    let unreachable = server.url();
    drop(server);
    let limiter =
        LocalLimiter::sliding_window(Quota::per_minute(LIMIT).unwrap().with_unit(Unit::Tokens).unwrap());
    let client = preset(&unreachable).with_limiter(limiter.clone()).client().unwrap();
    let error = within(client.post("/chat").extension(of(1_000))).await.unwrap_err();
    assert!(error.report().is_some_and(|report| report.attempt_count() == 3), "{error:?}");
    assert_used(&limiter, 0);
}

#[tokio::test(start_paused = true)]
async fn call_that_ends_while_it_connects_takes_no_tokens_and_is_not_in_flight() {
    let connector =
        service_fn(|_: http::Uri| std::future::pending::<std::io::Result<tokio::io::DuplexStream>>());
    for ends_by in ["drop", "deadline"] {
        let tokens = Quota::per_minute(LIMIT).unwrap().with_unit(Unit::Tokens).unwrap();
        let limiter = LocalLimiter::sliding_window(tokens).with_max_in_flight(2).unwrap();
        let limiter = limiter.with_hold_after_cancel(Duration::from_secs(60));
        let total = Duration::from_secs(if ends_by == "drop" { 60 } else { 2 });
        let builder = preset("http://127.0.0.1:9").with_limiter(limiter.clone()).with_total_timeout(total);
        let transport = TransportConfig::new().with_connect_timeout(30 * total);
        let client = builder.client_with_service(transport.build_with_connector(connector).unwrap()).unwrap();
        let mut call = Box::pin(client.get("/").extension(of(9_000)).send());
        let ended = tokio::time::timeout(Duration::from_secs(3), &mut call).await;
        assert_eq!(ended.is_err(), ends_by == "drop");
        if ends_by == "drop" {
            assert_used(&limiter, 9_000);
            assert_eq!(limiter.snapshot().requests_in_flight, Some(1));
        }
        drop(call);
        assert_used(&limiter, 0);
        assert_eq!(limiter.snapshot().requests_in_flight, Some(0), "{ends_by}");
    }
}
