//! What the compiler says of the mistakes in mistakes.rs. Only our own words and the types are asked for, the rest of
//! its text being the compiler's to change.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

use std::{path::Path, process::Command};

const SAID: &[&str] = &[
    // Ours.
    "`Quota` is not a limiter",
    "made of a `Quota`",
    "`Mine` does not classify attempts",
    "`Duration` is not a custom backoff",
    "`&str` does not sign requests",
    // The compiler's, of closures and of what the layers ask of a service.
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
#[ignore = "checks this package once more; .ci/run runs it"]
fn each_mistake_is_named() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(env!("CARGO"))
        // As .ci/run calls clippy, so that the dependencies are there.
        .args(["check", "--locked", "--all-features", "--test", "mistakes"])
        .current_dir(package.join("../.."))
        .env("RUSTC_WORKSPACE_WRAPPER", package.join("compilers/mistaken-rustc"))
        .env("CARGO_TERM_COLOR", "never")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    let missing: Vec<_> = SAID.iter().filter(|phrase| !said.contains(**phrase)).collect();
    assert!(missing.is_empty(), "not said: {missing:#?}\n{said}");
}
