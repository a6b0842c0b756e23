//! Anthropic's service, which counts input tokens and output tokens.

use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower_outbound::{
    ApiKey,
    limit::Unit,
    test_util::{ScriptedResponse, ScriptedServer, ScriptedService},
};

pub use self::program::messages;
use super::KEY;

/// The program for Anthropic's service that the crate's guide shows.
mod program {
    use std::time::Duration;

    use http::HeaderName;
    use serde_json::Value;
    use tower_outbound::{
        ApiKey, Client, InvalidConfig, Quota,
        auth::KeyPlacement,
        call::RequestHead,
        limit::{Amounts, Metered, Unit},
        stack::StackBuilder,
    };

    pub fn messages(base_url: &str, key: ApiKey) -> Result<StackBuilder, InvalidConfig> {
        let bucket = |limit, unit| Quota::bucket(limit, limit, Duration::from_secs(60))?.with_unit(unit);
        let quotas = [
            bucket(50, Unit::Requests)?,
            bucket(30_000, Unit::InputTokens)?,
            bucket(8_000, Unit::OutputTokens)?,
        ];
        let service = Client::builder(base_url)?
            .with_api_key(key)
            .with_key_placement(KeyPlacement::header(HeaderName::from_static("x-api-key"))?)
            .with_header("anthropic-version", "2023-06-01")
            .with_quotas(quotas)
            .with_limit(|limit| limit.with_estimate(estimate).with_meter(|_status, _headers| usage()));
        Ok(service)
    }

    /// An input token has about four bytes, and the response at most 1,000 tokens.
    fn estimate(head: RequestHead<'_>) -> Amounts {
        let input = head.body_size().unwrap_or(4_000) / 4;
        amounts(input.try_into().unwrap_or(u32::MAX), 1_000)
    }

    fn amounts(input: u32, output: u32) -> Amounts {
        Amounts::of(Unit::InputTokens, input).with(Unit::OutputTokens, output)
    }

    /// Reads the tokens from each event of a stream, or from a message that is one line.
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
}

fn usage(input: u32, output: u32) -> Value {
    json!({ "input_tokens": input, "output_tokens": output })
}

/// Returns a message that is not a stream.
pub fn message(input: u32, output: u32) -> String {
    json!({ "type": "message", "stop_reason": "end_turn", "usage": usage(input, output) }).to_string()
}

fn event(event: &Value) -> String {
    format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap())
}

/// Returns the first two events of a stream.
pub fn first_events(input: u32) -> String {
    let message = json!({ "role": "assistant", "stop_reason": null, "usage": usage(input, 1) });
    let text = json!({ "type": "content_block_delta", "delta": { "type": "text_delta", "text": "hello" } });
    [json!({ "type": "message_start", "message": message }), text].iter().map(event).collect()
}

/// Returns an event with all output tokens so far.
pub fn tokens_so_far(output: u32, stop: Option<&str>) -> String {
    let usage = json!({ "output_tokens": output });
    event(&json!({ "type": "message_delta", "delta": { "stop_reason": stop }, "usage": usage }))
}

pub fn last_event() -> String {
    event(&json!({ "type": "message_stop" }))
}

#[tokio::test]
async fn meter_reads_the_tokens_of_both_units() {
    let complete = [first_events(300), tokens_so_far(21, Some("end_turn")), last_event()].concat();
    let broken = [first_events(300), tokens_so_far(9, None)].concat();
    let with_body = |body: &str| ScriptedResponse::status(200).with_body(body.to_owned());
    // The estimate of the input is 2,000 tokens.
    for (response, charged) in [
        (with_body(&message(300, 21)), [300, 21]),
        (with_body(&complete), [300, 21]),
        (with_body(&complete).with_body_stalled(), [300, 21]),
        // A broken stream keeps the larger amount of each unit.
        (with_body(&broken).with_body_stalled(), [2_000, 1_000]),
        (with_body(&broken.replace(":9}", ":1009}")).with_body_stalled(), [2_000, 1_009]),
    ] {
        let script = ScriptedService::new([response]);
        let server = ScriptedServer::start(script.clone()).await.unwrap();
        let client = messages(&server.url(), ApiKey::new(KEY).unwrap()).unwrap().client().unwrap();
        let response = client.post("/v1/messages").body("x".repeat(8_000)).await.unwrap();
        let settlement = response.settlement().unwrap().clone();
        assert_eq!(script.seen()[0].header("x-api-key"), Some(KEY));
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
