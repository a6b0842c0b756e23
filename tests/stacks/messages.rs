//! Checks the compiler's messages for the mistakes in mistakes.rs. Only the named types and this crate's own texts are
//! checked, because the compiler's other text may change.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::{path::Path, process::Command};

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
#[ignore = "runs cargo check; .ci/run runs it"]
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
