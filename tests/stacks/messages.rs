//! Checks the compiler's messages for the mistakes in mistakes.rs. Only the named types and this crate's own texts are
//! checked, because the compiler's other text may change.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

const EXPECTED: &[&str] = &[
    // Messages that this crate defines:
    "`Quota` is not a limiter",
    "create a limiter",
    "`Mine` does not classify attempts",
    "`Duration` is not a custom backoff",
    "`&str` does not sign requests",
    // The compiler's own messages about closures and about the bounds of a service:
    "expected a `Fn()` closure",
    "expected a `Fn(&mut http::request::Parts)` closure",
    "expected a `Fn(&tracing::span::Span, &mut HeaderMap)` closure",
    "`Mine: std::error::Error` is not satisfied",
    "`Mine: Clone` is not satisfied",
    "expected `Result<Response<_>, _>`, found `Result<&str,",
    "`Mine: http_body::Body` is not satisfied",
    "`http_body_util::Empty<bytes::Bytes>: From<bytes::Bytes>` is not satisfied",
    "expected closure signature `fn(http::Request<ReplayBody<",
];

#[test]
#[ignore = "runs cargo check; .ci/run slow runs it"]
fn compiler_message_explains_each_mistake() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(env!("CARGO"))
        // The options equal those of clippy in .ci/run, so that the dependencies are already built.
        .args(["check", "--locked", "--all-features", "--test", "mistakes"])
        .current_dir(package.join("../.."))
        .env("RUSTC_WORKSPACE_WRAPPER", package.join("compilers/mistaken-rustc"))
        .env("CARGO_TERM_COLOR", "never")
        .output()
        .unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{messages}");
    let missing: Vec<_> = EXPECTED.iter().filter(|phrase| !messages.contains(**phrase)).collect();
    assert!(missing.is_empty(), "missing compiler messages: {missing:#?}\n{messages}");
}

/// Calls methods of absent features, each on a line of its own. The last one has a type of this crate as its argument.
const ABSENT: &str = "
use tower_outbound::{stack::StackBuilder, transport::TransportConfig};
pub fn build(builder: StackBuilder, transport: TransportConfig) {
    let _ = builder.clone().with_decompression();
    let _ = builder.reqwest(());
    let _ = transport.clone().with_native_roots();
    let _ = transport.clone().with_client_certificate(b\"\", b\"\");
    let _ = transport.with_proxy(());
}
pub fn configure(config: &tower_outbound::preset::StackConfig) {}
pub async fn call(client: tower_outbound::Client) -> Option<u8> {
    let response = client.post(\"/\").json(&7).await.ok()?;
    let number: u8 = response.json().await.ok()?;
    let other: u8 = client.get(\"/\").fetch_json().await.ok()?;
    Some(number + other)
}";

#[test]
#[ignore = "runs cargo check; .ci/run slow runs it"]
fn compiler_message_names_the_absent_feature() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(env!("CARGO"))
        .args(["check", "--locked", "-p", "tower-outbound", "--lib", "--message-format", "json"])
        .args(["--no-default-features", "--features", "client"])
        .current_dir(root)
        .output()
        .unwrap();
    let artifacts = String::from_utf8(output.stdout).unwrap();
    let library =
        artifacts.split('"').find(|part| part.contains("libtower_outbound-") && part.ends_with(".rmeta"));
    let library = Path::new(library.unwrap());
    let mut rustc = Command::new("rustc")
        .args(["--edition", "2024", "--crate-type", "lib", "--emit", "metadata", "-o", "/dev/null", "-"])
        .arg(format!("--extern=tower_outbound={}", library.display()))
        .arg(format!("-Ldependency={}", library.parent().unwrap().display()))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    rustc.stdin.take().unwrap().write_all(ABSENT.as_bytes()).unwrap();
    let output = rustc.wait_with_output().unwrap();
    let messages = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        messages.matches("this method needs the feature `json` of tower-outbound").count(),
        3,
        "{messages}"
    );
    assert!(messages.contains("cargo add tower-outbound --features json"), "{messages}");
    for feature in ["decompression", "reqwest", "native-roots", "rustls", "proxy"] {
        let message = format!("this method needs the feature `{feature}` of tower-outbound");
        assert_eq!(messages.matches(&message).count(), 1, "{messages}");
        assert!(messages.contains(&format!("cargo add tower-outbound --features {feature}`")), "{messages}");
    }
    assert!(messages.contains("the item is gated behind the `serde` feature"), "{messages}");
}
