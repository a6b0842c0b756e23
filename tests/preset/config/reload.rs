//! Tests the change of a running client to another configuration.

use tower::layer::util::Identity;
use tower_outbound::{
    Client,
    limit::{Keyed, LocalLimiter},
    preset::StackConfig,
};

use super::{builder, errors::assert_names_no_method, parse_with_defaults};

fn client(text: &str) -> Client {
    parse_with_defaults(text).client().unwrap()
}

#[track_caller]
fn error(client: &Client, text: &str) -> String {
    parse_with_defaults(text).reconfigure(client).unwrap_err().to_string()
}

#[test]
fn client_applies_each_setting_of_a_file_that_can_change() {
    let client = client("");
    for text in [
        "limit = { quota = '7/60s', max_wait = '1s', max_queue = 3, longest_pause = '1m', throttle_pause = '2s' }",
        "limit = { quota = [], initial_burst = 0, hold_after_cancel = '1s' }",
        "timeout = { total = '20s', attempt = '2s', body_idle = '3s' }",
        "retry = { max_attempts = 1, budget = { enabled = false }, retry_on = [409] }",
        "api_key = 'another-key'\nkey_placement = 'header:x-api-key'\nname = 'renamed'",
        "preset = 'custom'\nallowed_origins = ['https://other.example.com']",
        "request_id.header = 'x-id'\nattempt_span.header = 'x-attempt'\ndialect.throttle_statuses = [400]",
        "transport = { connect_timeout = '5s', max_connections = 256 }",
        "",
    ] {
        parse_with_defaults(text).reconfigure(&client).unwrap();
    }
}

#[test]
fn errors_name_the_field_of_the_file_and_keep_the_settings() {
    let client = client("limit.max_in_flight = 4");
    let transport = "transport: invalid transport `other settings`: expected that of the client, because connections \
                     cannot be reconfigured at run time";
    for (text, expected) in [
        (
            "base_url = 'https://moved.example.com'",
            "base_url: invalid base url `https://moved.example.com/`: expected https://rates.example.com/, that of the client",
        ),
        ("transport.max_connections = 9", transport),
        ("transport.http = 'http1'", transport),
        (
            "timeout.attempt = '2m'\nlimit.max_in_flight = 4",
            "timeout.attempt: invalid attempt timeout `120s`: expected at most 60s (the total timeout)",
        ),
        (
            "name = 'x'",
            "limit.max_in_flight: invalid max in flight `none`: expected a number, because the limit cannot be added or removed at run time",
        ),
        ("key_placement = 'nowhere'", "key_placement: invalid"),
    ] {
        let error = error(&client, text);
        assert!(error.starts_with(expected), "{text}: {error}");
        assert_names_no_method(&error);
    }
    let same: StackConfig = parse_with_defaults("limit.max_in_flight = 5");
    same.reconfigure(&client).unwrap();
}

/// A file has no field for what code has added to the client.
#[test]
fn errors_about_settings_of_code_name_no_method() {
    let in_code = "the client's, because a file cannot change what code has set";
    let keyed = Keyed::new(|_| true, |_| LocalLimiter::without_quota());
    for (builder, expected) in [
        (builder("").with_limiter(LocalLimiter::without_quota()), "limit: invalid limiter `another limiter`"),
        (builder("").with_endpoint_limits(keyed), "invalid endpoint limits `other limits`"),
        (builder("").with_outer_layer(Identity::new()), "invalid outer layers `0 layers`"),
    ] {
        let error = error(&builder.client().unwrap(), "");
        assert_eq!(error, format!("{expected}: expected {in_code}"));
        assert_names_no_method(&error);
    }
}

#[cfg(feature = "decompression")]
#[test]
fn change_of_decompression_is_rejected_whatever_layers_code_has_added() {
    let expected = "decompression: invalid decompression `true`: expected false, that of the client";
    for builder in [builder(""), builder("").with_transport_layer(Identity::new())] {
        assert_eq!(error(&builder.client().unwrap(), "decompression = true"), expected);
    }
    let error = error(&client("decompression = true"), "");
    assert_eq!(error, "decompression: invalid decompression `false`: expected true, that of the client");
}

#[cfg(feature = "proxy")]
#[test]
fn another_proxy_is_rejected_without_its_password() {
    let client = client("transport.proxy = 'http://user:s3cret@one.example.com'");
    let error = error(&client, "transport.proxy = 'http://user:s3cret@two.example.com'");
    assert!(error.starts_with("transport: ") && !error.contains("s3cret"), "{error}");
    parse_with_defaults("transport.proxy = 'http://user:s3cret@one.example.com'")
        .reconfigure(&client)
        .unwrap();
}
