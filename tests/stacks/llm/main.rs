//! Tests the layers below the clients of language models, against a scripted server on loopback.
#![allow(clippy::unwrap_used, reason = "a test")]

mod anthropic;
mod callers;
mod gen_ai;
mod openai;
mod permanent;
mod rig;
mod server;
mod service;

use std::{
    env, fs,
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    process,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};
use tower_outbound::{
    ApiKey, BoxError,
    limit::LocalLimiter,
    stack::StackBuilder,
    test_util::{ScriptedResponse, ScriptedServer, ScriptedService},
};

use self::{permanent::with_permanent_429, service::service};

const KEY: &str = "s3cret-0123456789";
const TOKENS: u32 = 30_000;
const IDLE: Duration = Duration::from_millis(200);

/// A client over the layers.
enum Chat {
    OpenAi(Box<async_openai::Client<async_openai::config::OpenAIConfig>>),
    Rig(Box<rig_core::providers::openai::OpenAI>),
    GenAi(genai::Client),
}

impl Chat {
    async fn chat(&self) -> Result<String, BoxError> {
        match self {
            Self::OpenAi(client) => openai::chat(client).await,
            Self::Rig(client) => rig::chat(client).await,
            Self::GenAi(client) => gen_ai::chat(client).await,
        }
    }

    async fn stream(&self) -> Result<String, BoxError> {
        let stream = async {
            match self {
                Self::OpenAi(client) => openai::stream(client).await,
                Self::Rig(client) => rig::stream(client).await,
                Self::GenAi(client) => gen_ai::stream(client).await,
            }
        };
        timeout(Duration::from_secs(20), stream).await.expect("a stream that stalls must fail")
    }
}

/// A client, its settings, and the server that it calls.
struct Setup {
    name: &'static str,
    chat: Chat,
    service: StackBuilder,
    script: ScriptedService,
    _server: ScriptedServer,
    _folder: Folder,
}

impl Setup {
    /// Starts a server with this script for each of the clients.
    async fn each(script: impl Fn() -> Vec<ScriptedResponse>) -> Vec<Self> {
        let names = ["async-openai", "rig", "genai"];
        join_all(names.map(|name| Self::start(name, ScriptedService::new(script())))).await
    }

    async fn start(name: &'static str, script: ScriptedService) -> Self {
        let server = ScriptedServer::start(script.clone()).await.unwrap();
        let service = service(&format!("{}/v1", server.url()), ApiKey::new(KEY).unwrap()).unwrap();
        // A sliding window counts each token for a minute, so the test reads what a request takes.
        let limiter = LocalLimiter::sliding_window(service.quotas().to_vec());
        let service = with_permanent_429(service.with_limiter(limiter).with_body_idle_timeout(IDLE));
        let folder = Folder::new();
        let chat = match name {
            "async-openai" => Chat::OpenAi(openai::open_ai(&service).unwrap().into()),
            "rig" => Chat::Rig(rig::rig(&service).unwrap().into()),
            _ => Chat::GenAi(gen_ai::gen_ai(&service, &folder.0.join("socket")).unwrap()),
        };
        Self { name, chat, service, script, _server: server, _folder: folder }
    }

    fn limiter(&self) -> &LocalLimiter {
        self.service.limiter().downcast_ref().unwrap()
    }

    /// Returns the tokens that are charged.
    fn charged(&self) -> u32 {
        TOKENS - self.limiter().snapshot().units[0].available
    }

    /// Returns the estimated tokens of the last request.
    fn estimate(&self) -> u32 {
        self.script.seen().last().unwrap().body.as_ref().unwrap().len() as u32 / 4 + 1_000
    }
}

/// A folder that only the current user can read.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("outbound-llm-{}-{}", process::id(), COUNT.fetch_add(1, Relaxed));
        let path = env::temp_dir().join(name);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn completion_body(text: &str, tokens: u32) -> String {
    let body = serde_json::json!({
        "id": "chat-1", "object": "chat.completion", "created": 1, "model": "example",
        "choices": [{
            "index": 0, "finish_reason": "stop", "message": { "role": "assistant", "content": text },
        }],
        "usage": { "prompt_tokens": tokens - 1, "completion_tokens": 1, "total_tokens": tokens },
    });
    body.to_string()
}

fn completion(text: &str, tokens: u32) -> ScriptedResponse {
    let body = completion_body(text, tokens);
    ScriptedResponse::status(200).with_header("content-type", "application/json").with_body(body)
}

fn event(choices: serde_json::Value, usage: serde_json::Value) -> String {
    let event = serde_json::json!({
        "id": "chat-1", "object": "chat.completion.chunk", "created": 1, "model": "example",
        "choices": choices, "usage": usage,
    });
    format!("data: {event}\n\n")
}

fn text_event(text: &str, end: Option<&str>) -> String {
    let choice = serde_json::json!({ "index": 0, "delta": { "role": "assistant", "content": text }, "finish_reason": end });
    event(serde_json::json!([choice]), serde_json::Value::Null)
}

/// Returns the last events of a stream.
fn usage_events(tokens: u32) -> String {
    let usage =
        serde_json::json!({ "prompt_tokens": tokens - 1, "completion_tokens": 1, "total_tokens": tokens });
    event(serde_json::json!([]), usage) + "data: [DONE]\n\n"
}

/// Returns a stream of "hello" with its usage of 321 tokens.
fn completion_events() -> String {
    [text_event("hel", None), text_event("lo", Some("stop")), usage_events(321)].concat()
}

fn stream(events: String) -> ScriptedResponse {
    ScriptedResponse::status(200).with_header("content-type", "text/event-stream").with_body(events)
}

#[tokio::test]
async fn post_is_retried_after_the_delay_that_a_429_requests() {
    let throttled = || ScriptedResponse::status(429).with_header("retry-after", "1");
    let setups = Setup::each(|| vec![throttled(), completion("hi", 640)]).await;
    join_all(setups.iter().map(|setup| async move {
        let (name, seen) = (setup.name, || setup.script.seen());
        assert_eq!(setup.chat.chat().await.unwrap(), "hi", "{name}");
        let seen = seen();
        assert!(seen.len() == 2 && seen[1].at - seen[0].at >= Duration::from_secs(1), "{name}: {seen:?}");
        assert!(seen[0].header("x-request-id").is_some(), "{name}: {seen:?}");
        assert_eq!(seen[0].header("x-request-id"), seen[1].header("x-request-id"), "{name}");
        assert_eq!(seen[0].body, seen[1].body, "{name}");
    }))
    .await;
}

#[tokio::test]
async fn tokens_of_a_response_replace_its_estimate() {
    for setup in Setup::each(|| vec![completion("hi", 640)]).await {
        setup.chat.chat().await.unwrap();
        assert_eq!(setup.charged(), 640, "{}", setup.name);
    }
}

#[tokio::test]
async fn tokens_at_the_end_of_a_stream_replace_its_estimate() {
    for setup in Setup::each(|| vec![stream(completion_events())]).await {
        assert_eq!(setup.chat.stream().await.unwrap(), "hello", "{}", setup.name);
        let body = setup.script.seen()[0].body.clone().unwrap();
        assert!(String::from_utf8_lossy(&body).contains("\"include_usage\":true"), "{}", setup.name);
        assert_eq!(setup.charged(), 321, "{}", setup.name);
    }
}

/// async-openai and genai drop the body after `[DONE]`. rig reads it to its end.
#[tokio::test]
async fn tokens_of_a_stream_count_although_the_client_drops_it_before_its_end() {
    let setups = Setup::each(|| vec![stream(completion_events()).with_body_stalled()]).await;
    for setup in setups.iter().filter(|setup| setup.name != "rig") {
        assert_eq!(setup.chat.stream().await.unwrap(), "hello", "{}", setup.name);
        assert_eq!(setup.charged(), 321, "{}", setup.name);
    }
}

#[tokio::test]
async fn post_is_not_retried_after_a_permanent_429() {
    let body = r#"{"error":{"message":"no credit","type":"insufficient_quota","code":"insufficient_quota"}}"#;
    let json = ScriptedResponse::status(429).with_header("content-type", "application/json").with_body(body);
    for setup in Setup::each(|| vec![json.clone()]).await {
        let error = setup.chat.chat().await.unwrap_err();
        assert!(format!("{error:?}").contains("no credit"), "{}: {error:?}", setup.name);
        assert_eq!(
            (setup.script.calls(), setup.limiter().snapshot().paused_until),
            (1, None),
            "{}",
            setup.name
        );
    }
}

#[tokio::test]
async fn stream_that_stalls_fails_and_keeps_its_estimate() {
    let stalled = || vec![stream(text_event("hel", None)).with_body_stalled()];
    for setup in Setup::each(stalled).await {
        let start = Instant::now();
        let error = setup.chat.stream().await.unwrap_err();
        assert!(start.elapsed() >= IDLE, "{}: {error:?}", setup.name);
        assert_eq!((setup.charged(), setup.script.calls()), (setup.estimate(), 1), "{}", setup.name);
    }
}

#[tokio::test]
async fn key_is_sent_once_with_each_attempt_and_not_after_a_redirect() {
    let elsewhere = ScriptedService::new([200]);
    let other = ScriptedServer::start(elsewhere.clone()).await.unwrap();
    let redirect = || ScriptedResponse::status(307).with_header("location", &other.url());
    let unavailable = || ScriptedResponse::status(429).with_header("retry-after-ms", "1");
    for setup in Setup::each(|| vec![unavailable(), redirect()]).await {
        let error = setup.chat.chat().await.unwrap_err();
        let seen = setup.script.seen();
        assert_eq!(seen.len(), 2, "{}: {error:?}", setup.name);
        for seen in seen {
            let keys: Vec<_> = seen.head.headers.get_all("authorization").iter().collect();
            assert_eq!(keys, [&format!("Bearer {KEY}")], "{}", setup.name);
            assert_eq!(
                seen.head.headers.values().filter(|value| value.to_str().unwrap().contains(KEY)).count(),
                1
            );
            assert_eq!(seen.head.uri.path(), "/v1/chat/completions", "{}", setup.name);
        }
        assert_eq!(elsewhere.calls(), 0, "{}", setup.name);
    }
}
