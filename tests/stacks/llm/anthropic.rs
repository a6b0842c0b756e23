//! A meter for a service that counts input tokens and output tokens, with Anthropic's responses.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower_outbound::{
    Client, Quota,
    limit::{Amounts, Metered, Settlement, Unit},
    test_util::{ScriptedResponse, ScriptedServer, ScriptedService},
};

fn amounts(input: u32, output: u32) -> Amounts {
    Amounts::of(Unit::InputTokens, input).with(Unit::OutputTokens, output)
}

/// Reads the tokens from each event of a stream, or from a whole message.
fn usage() -> impl FnMut(&[u8]) -> Option<Metered> + Send + Sync {
    let (mut rest, mut input, mut output) = (Vec::new(), 0, 0);
    let mut read = move |data: &[u8]| {
        let message: Value = serde_json::from_slice(data).ok()?;
        let usage = message["message"].get("usage").or(message.get("usage"))?;
        let number = |name: &str, last| usage[name].as_u64().map_or(last, |tokens| tokens as u32);
        (input, output) = (number("input_tokens", input), number("output_tokens", output));
        let is_final = message["delta"]["stop_reason"].is_string();
        let amounts = amounts(input, output);
        Some(if is_final { Metered::Final(amounts) } else { amounts.into() })
    };
    move |data| {
        rest.extend_from_slice(data);
        let mut metered = None;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = rest.drain(..=end).collect();
            metered = line.strip_prefix(b"data:").and_then(&mut read).or(metered);
        }
        read(&rest).or(metered)
    }
}

fn events(events: &[Value]) -> String {
    events.iter().map(|event| format!("event: {}\ndata: {event}\n\n", event["type"])).collect()
}

#[tokio::test]
async fn meter_reads_the_tokens_of_both_units() {
    let usage_of = |input: u32, output: u32| json!({ "input_tokens": input, "output_tokens": output });
    let start =
        json!({ "type": "message_start", "message": { "role": "assistant", "usage": usage_of(300, 1) } });
    let text = json!({ "type": "content_block_delta", "delta": { "type": "text_delta", "text": "hello" } });
    let delta = |output: u32, stop: Option<&str>| {
        let usage = json!({ "output_tokens": output });
        json!({ "type": "message_delta", "delta": { "stop_reason": stop }, "usage": usage })
    };
    let complete = events(&[
        start.clone(),
        text.clone(),
        delta(21, Some("end_turn")),
        json!({ "type": "message_stop" }),
    ]);
    let broken = events(&[start, text, delta(9, None)]);
    let whole =
        json!({ "type": "message", "stop_reason": "end_turn", "usage": usage_of(300, 21) }).to_string();
    let with_body = |body: &str| ScriptedResponse::status(200).with_body(body.to_owned());
    for (response, charged) in [
        (with_body(&whole), [300, 21]),
        (with_body(&complete), [300, 21]),
        (with_body(&complete).with_body_stalled(), [300, 21]),
        // A broken stream keeps the larger amount of each unit.
        (with_body(&broken).with_body_stalled(), [1_000, 9]),
    ] {
        let server = ScriptedServer::start(ScriptedService::new([response])).await.unwrap();
        let minute = Duration::from_secs(60);
        let bucket = |limit, unit| Quota::bucket(limit, limit, minute).unwrap().with_unit(unit).unwrap();
        let client = Client::builder(server.url())
            .unwrap()
            .without_credential()
            .with_quotas([
                bucket(50, Unit::Requests),
                bucket(30_000, Unit::InputTokens),
                bucket(8_000, Unit::OutputTokens),
            ])
            .with_limit(|limit| limit.with_estimate(|_| amounts(1_000, 5)).with_meter(|_, _| usage()))
            .client()
            .unwrap();
        let response = client.post("/v1/messages").await.unwrap();
        let settlement = response.extensions().get::<Settlement>().unwrap().clone();
        let (mut body, mut text) = (response.into_body(), Vec::new());
        while !text.ends_with(b"\n\n") {
            let Some(frame) = body.frame().await else { break };
            text.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        drop(body);
        let units = [Unit::InputTokens, Unit::OutputTokens].map(|unit| settlement.charged().get(unit));
        assert_eq!(units, charged, "{}", String::from_utf8_lossy(&text));
    }
}
