//! Tests the errors for invalid configurations: their paths, their messages, and the redaction of keys.

use tower_outbound::preset::StackConfig;

use super::{parse, parse_with_defaults};

/// Returns the cases. Each case is the lines of a file, separated by ` ; `, and on the next line the error.
fn cases(text: &str) -> impl Iterator<Item = (String, &str)> {
    let lines: Vec<_> = text.trim().lines().collect();
    lines.chunks(2).map(|case| (case[0].replace(" ; ", "\n"), case[1].trim())).collect::<Vec<_>>().into_iter()
}

const PARSE_ERRORS: &str = r#"
timeout.total = 60
    invalid duration `60`: expected a unit after the number, such as 60s or 60ms
timeout.total = '1.5s'
    invalid duration `1.5s`: expected whole numbers with their units d, h, m, s or ms, such as 60s, 250ms or 1m30s
timeout.total = ['60s']
    invalid type: sequence, expected a duration such as 60s
timeout.total = true
    invalid type: boolean `true`, expected a duration such as 60s
limit.quota = 100
    invalid quota `100`: expected LIMIT/WINDOW, such as 100/60s, or LIMIT UNIT/WINDOW, such as 30000 tokens/60s, and optionally a burst and a margin: 100/60s, burst 10, margin 1s; or bucket CAPACITY, REFILL/TIME, such as bucket 40, 2/1s or bucket 1000 points, 50/1s
limit.quota = '0/60s'
    invalid quota limit `0`: expected at least 1
limit.quota = '100/60s, burst 100'
    invalid quota burst `100`: expected at most 99: a burst equal to the limit leaves no permits to refill
limit.quota = '100/60s, margin 61s'
    invalid quota margin `61s`: expected at most 60s (the window)
limit = { quota = '100/60s', margin = '250ms' }
    unknown field `margin`, expected one of `quota`, `initial_burst`, `longest_pause`, `throttle_pause`, `max_in_flight`, `hold_after_cancel`, `in_flight_until_head`, `max_wait`, `max_queue`
limit.longest_pause = '0s'
    invalid longest pause `0ns`: expected more than zero
limit.throttle_pause = '301s'
    invalid throttle pause `301s`: expected at most 300s
limit.quota = true
    invalid type: boolean `true`, expected a quota such as 100/60s, or a list of such values
retry.backoff.jitter = 50
    invalid jitter `50`: expected a whole number from 0 to 100 with a percent sign, such as 50%
retry.retry_rejected = 'Idempotent'
    invalid retry rejected `Idempotent`: expected any_method or idempotent
retry.backoff.jitter = '101%'
    invalid jitter percent `101`: expected 0 to 100
retry.max_attempts = 'three'
    invalid type: string "three", expected u32
retry.retry_on = 99
    invalid status `99`: expected 100 to 999
request_id.header = 'no header'
    invalid header `no header`: expected the name of a header, such as x-api-key
preset = 'currency-rates'
    unknown variant `currency-rates`, expected one of `currency_rates`, `email_delivery`, `realtime_messaging`, `custom`
transport.http = '2'
    unknown variant `2`, expected one of `negotiated`, `http1`, `http2`
timout.total = '60s'
    unknown field `timout`, expected one of `preset`, `name`, `base_url`, `allow_plaintext`, `allowed_origins`, `api_key`, `api_key_env`, `api_key_file`, `no_credential`, `key_placement`, `limit`, `dialect`, `retry`, `timeout`, `request_id`, `attempt_span`, `transport`, `decompression`
retry.backoff.bass = '60s'
    unknown field `bass`, expected one of `base`, `cap`, `jitter`
dialect.delay_headers = ['x-wait']
    invalid type: string "x-wait", expected a table
dialect.delay_headers = [{ millis = true }]
    missing field `name`
dialect.permanent_headers = [{ name = 'x-reason', status = 429 }]
    unknown field `status`, expected `name` or `value`
retry = '3 times'
    invalid type: string "3 times", expected a table
limit.quota = '4 concurrency/1s'
    invalid quota unit `concurrency`: expected a unit other than concurrency, which `max_in_flight` limits
"#;

/// The errors with the path of the field, as a crate that reads configuration files reports it.
const PATHS: &str = r#"
retry.max_attempts = 0
    retry.max_attempts: invalid max attempts `0`: expected at least 1: the first attempt counts
retry.backoff.base = '0s'
    retry.backoff.base: invalid backoff base `0ns`: expected more than zero and at most 20s (the cap)
retry.budget.capacity = 13
    retry.budget.capacity: invalid budget capacity `13`: expected at least 14, the cost of a retry
timeout.total = 60
    timeout.total: invalid duration `60`: expected a unit after the number, such as 60s or 60ms
limit.quota = ['10/1s', '0/60s']
    limit.quota[1]: invalid quota limit `0`: expected at least 1
dialect.quotas = [{ remaining = 'x left' }]
    dialect.quotas[0].remaining: invalid header `x left`: expected the name of a header, such as x-api-key
dialect.delay_headers = [{ name = 'x-wait' }, { name = 'x wait' }]
    dialect.delay_headers[1].name: invalid header `x wait`: expected the name of a header, such as x-api-key
dialect.permanent_headers = [{ name = 'x-reason', value = "spend\ncap" }]
    dialect.permanent_headers[0].value: invalid header value `spend\ncap`: expected visible ASCII characters and spaces
dialect.quotas = [{ remaining = 'x-left', unit = 'cookies' }]
    dialect.quotas[0].unit: invalid unit `cookies`: expected requests, tokens, input_tokens, output_tokens, points, bytes or concurrency
"#;

const CONSTRUCTION_ERRORS: &str = r#"
timeout.total = '0s'
    timeout.total: invalid total timeout `0ns`: expected more than zero
dialect.quotas = [{ remaining = 'x-left', window = '1s' }, { remaining = 'x-more', reset = 'x-left' }]
    dialect.quotas[1]: invalid quota header `x-left`: expected a header that appears only once in the dialect
dialect.throttle_statuses = [418, 302]
    dialect.throttle_statuses[1]: invalid throttle status `302`: expected at least 400
dialect.delay_headers = [{ name = 'x-wait' }, { name = 'X-Wait', millis = true }]
    dialect.delay_headers[1]: invalid delay header `x-wait`: expected a header that appears only once in the dialect
dialect.delay_headers = [{ name = 'x-wait' }] ; dialect.quotas = [{ remaining = 'x-left', reset = 'x-wait' }]
    dialect.quotas[0]: invalid quota header `x-wait`: expected a header that appears only once in the dialect
dialect.permanent_headers = [{ name = 'x-code', value = 1 }, { name = 'x-code', value = 2 }, { name = 'x-code' }]
    dialect.permanent_headers[2]: invalid permanent header `x-code`: expected each header once, or several times with different values
dialect.quotas = [{ remaining = 'x-left' }]
    dialect.quotas[0]: invalid quota header `x-left`: expected a header with the reset or the window, or a documented window
dialect.quotas = [{ used = 'x-used', window_header = 'x-window' }]
    dialect.quotas[0]: invalid quota header `x-used`: expected a header with the limit, or a documented window and no other header
dialect.quotas = [{ remaining = 'x-left', used = 'x-used', window = '1s' }]
    dialect.quotas[0]: invalid quota `both`: expected either `remaining` or `used`
timeout.attempt = '61s'
    timeout.attempt: invalid attempt timeout `61s`: expected at most 60s (the total timeout)
timeout.body_idle = '0s'
    timeout.body_idle: invalid body idle timeout `0ns`: expected more than zero
transport.idle_timeout = '0s'
    transport.idle_timeout: invalid idle timeout `0ns`: expected more than zero, at most 366 days
transport.tcp_keep_alive = '500ms'
    transport.tcp_keep_alive: invalid tcp keep-alive `500ms`: expected 1s to 9h6m7s (32,767 s), the range of Linux
transport.tcp_keep_alive = '12h'
    transport.tcp_keep_alive: invalid tcp keep-alive `43200s`: expected 1s to 9h6m7s (32,767 s), the range of Linux
request_id.header = 'content-length'
    request_id.header: invalid request id header `content-length`: expected a header other than connection, content-length, host, transfer-encoding and similar headers
request_id.header = 'authorization'
    request_id.header: invalid request id header `authorization`: expected a header other than authorization and proxy-authorization
request_id.header = 'user-agent'
    request_id.header: invalid request id header `user-agent`: expected a header that the stack does not also set to another value
request_id.header = 'content-type'
    request_id.header: invalid request id header `content-type`: expected a header that the stack does not also set to another value
attempt_span.header = 'content-length'
    attempt_span.header: invalid attempt header `content-length`: expected a header other than connection, content-length, host, transfer-encoding and similar headers
attempt_span.header = 'x-request-id'
    attempt_span.header: invalid attempt header `x-request-id`: expected a header that the stack does not also set to another value
retry.honoured_idempotency_key.header = 'authorization'
    retry.honoured_idempotency_key.header: invalid idempotency key header `authorization`: expected a header other than authorization and proxy-authorization
retry.honoured_idempotency_key.header = 'content-type'
    retry.honoured_idempotency_key.header: invalid idempotency key header `content-type`: expected a header that the stack does not also set to another value
attempt_span.header = 'x-key' ; key_placement = 'header:x-key'
    key_placement: invalid key header `x-key`: expected a header that the stack does not set itself, such as x-api-key
api_key_file = '/no/such/file'
    api_key_file: invalid api key `in file /no/such/file`: expected a readable file (No such file or directory (os error 2))
api_key_env = 'TOWER_OUTBOUND_NOT_SET'
    api_key_env: invalid api key `in environment variable TOWER_OUTBOUND_NOT_SET`: expected the environment variable to be set, another key (api_key or api_key_file), or no_credential = true
api_key_env = 's3cret-value-by-mistake'
    api_key_env: invalid api key `in an environment variable`: expected the name of an environment variable that is set (letters, digits and _), not the key itself
api_key_env = 'A' ; api_key_file = 'b'
    api_key_file: invalid api key `given by api_key_env and api_key_file`: expected only one of api_key, api_key_env, api_key_file and no_credential
api_key_file = 'b' ; no_credential = true
    no_credential: invalid api key `given by api_key_file and no_credential`: expected only one of api_key, api_key_env, api_key_file and no_credential
api_key = ''
    api_key: invalid api key `given as a value`: expected at least one character
api_key = 's3 cret'
    api_key: invalid api key `given as a value`: expected visible ascii characters only, but byte 2 is invalid
api_key = { s3 = 'cret' }
    api_key: invalid api key `given as a value`: expected a string
base_url = 'https://me:s3cret@host/'
    base_url: invalid base url `https://…`: expected an absolute http or https url without user info, such as https://api.example.com
key_placement = 'cookie'
    key_placement: invalid key placement `cookie`: expected bearer, header:NAME, query:NAME or basic:USER
key_placement = 'query:'
    key_placement: invalid query parameter ``: expected a name
key_placement = 'header:host'
    key_placement: invalid key header `host`: expected a header other than connection, content-length, host, transfer-encoding and similar headers
key_placement = 'header:x-api-key: s3cret'
    key_placement: invalid key placement `header...`: expected bearer, header:NAME, query:NAME or basic:USER
key_placement = 'query:api_key=s3cret'
    key_placement: invalid key placement `query...`: expected bearer, header:NAME, query:NAME or basic:USER
key_placement = 'basic:ann:s3cret'
    key_placement: invalid user `ann:…`: expected a name without colons or control characters
base_url = ['https://me:s3cret@host/']
    base_url: invalid base url `…`: expected an absolute http or https url without user info, query and fragment, such as https://api.example.com/v1
allowed_origins = ['https://a', 'https://me:s3cret@host']
    allowed_origins: invalid url `https://…`: expected an absolute http or https url without user info, such as https://api.example.com
key_placement = { header = 's3cret' }
    key_placement: invalid key placement `...`: expected bearer, header:NAME, query:NAME or basic:USER
name = ''
    name: invalid name ``: expected 1 to 253 visible ascii characters
base_url = 'http://api.example.com'
    base_url: invalid origin `http://api.example.com:80`: expected https, a loopback host or allow_plaintext = true, because a credential is sent to it
allowed_origins = 'http://10.0.0.1'
    allowed_origins: invalid origin `http://10.0.0.1:80`: expected https or a loopback host, because a credential is sent to it
"#;

/// Returns the message of the TOML parse error, without the excerpt of the file.
fn parse_error(text: &str) -> String {
    toml::from_str::<StackConfig>(text).unwrap_err().message().to_owned()
}

#[test]
fn parse_errors_name_the_invalid_value_and_the_expected_format() {
    for (text, expected) in cases(PARSE_ERRORS) {
        assert_eq!(parse_error(&text), expected, "{text}");
        assert_names_no_method(expected);
    }
}

/// Asserts that the error of a file names no method of a builder, which the author of the file cannot call.
#[track_caller]
pub(crate) fn assert_names_no_method(error: &str) {
    for part in ["with_", "without_", "::", "()", "struct "] {
        assert!(!error.contains(part), "{error}");
    }
}

#[test]
fn parse_errors_name_the_position_in_the_file() {
    let error = toml::from_str::<StackConfig>("name = 'rates'\n[timeout]\ntotal = 60\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "TOML parse error at line 3, column 9\n  |\n3 | total = 60\n  |         ^^\n\
         invalid duration `60`: expected a unit after the number, such as 60s or 60ms\n"
    );
    let error = serde_json::from_str::<StackConfig>(r#"{"timeout": {"total": 60}}"#).unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid duration `60`: expected a unit after the number, such as 60s or 60ms at line 1 column 24"
    );
}

/// A crate that reads configuration files, such as `config`, may report only the path of a table. The error of
/// `StackConfig` adds the name of the field to that path.
#[test]
fn parse_errors_name_the_path_of_the_field() {
    for (text, expected) in cases(PATHS) {
        let parsed: Result<StackConfig, _> =
            serde_path_to_error::deserialize(toml::Deserializer::parse(&text).unwrap());
        let error = parsed.unwrap_err();
        let (path, message) = (error.path().to_string(), error.inner().message().to_owned());
        let shown = [format!("{path}.{message}"), format!("{path}: {message}")];
        assert!(shown.iter().any(|shown| shown == expected), "{text}: {shown:?}");
    }
}

#[test]
fn construction_errors_name_the_path_of_the_field() {
    for (text, expected) in cases(CONSTRUCTION_ERRORS) {
        let config = parse_with_defaults(&text);
        // The test calls `layer` first, because `client` fails for every https URL without TLS.
        let error = config.layer().and_then(|_| config.client()).unwrap_err();
        assert_eq!(error.to_string(), expected, "{text}");
        assert_names_no_method(expected);
        assert_eq!(
            format!("{error:?} {error:#?}"),
            format!("{expected} {expected}"),
            "`main` prints `Debug`"
        );
        // Fields that may contain a key are checked only after parsing, because a parse error quotes the file.
        assert!(!format!("{config:?} {}", toml::to_string(&config).unwrap()).contains("s3cret@"), "{text}");
    }
    // Without a preset, the configuration has no variable for the key.
    let keyless = parse("base_url = 'https://api.example.com'").layer().unwrap_err();
    assert_eq!(
        keyless.to_string(),
        "api_key_env: invalid credential `none`: expected a key (api_key, api_key_env or api_key_file), or no_credential = true"
    );
    #[cfg(feature = "proxy")]
    for (proxy, value) in
        [("'ftp://proxy.test'", "ftp://proxy.test"), ("'ftp://ann:s3cret@proxy.test'", "ftp://…"), ("7", "…")]
    {
        let error = parse_with_defaults(&format!("transport.proxy = {proxy}")).client().unwrap_err();
        let expected = format!("transport.proxy: invalid proxy `{value}`: expected ");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
    #[cfg(feature = "decompression")]
    assert_eq!(
        parse_with_defaults("decompression = true").layer().unwrap_err().to_string(),
        "decompression: invalid decompression `true`: expected false, because only a client decompresses. Add a layer to the custom service"
    );
    #[cfg(feature = "rustls")]
    assert_eq!(
        parse_with_defaults("transport.root_certificates = '/no/such/file'")
            .client()
            .unwrap_err()
            .to_string(),
        "transport.root_certificates: invalid root certificates `/no/such/file`: expected a readable file (No such file or directory (os error 2))",
    );
    for (feature, is_enabled, fields) in [
        (
            "rustls",
            cfg!(feature = "rustls"),
            &["transport.bundled_roots = true", "transport.client_key = 'key.pem'"][..],
        ),
        ("native-roots", cfg!(feature = "native-roots"), &["transport.native_roots = true"]),
        ("proxy", cfg!(feature = "proxy"), &["transport.proxy = 'environment'", "transport.no_proxy = '*'"]),
        ("decompression", cfg!(feature = "decompression"), &["decompression = true"]),
    ] {
        for field in fields.iter().filter(|_| !is_enabled) {
            let expected = format!("this field needs the feature `{feature}` of tower-outbound");
            assert_eq!(parse_error(field), expected);
        }
    }
    assert_eq!(
        parse("").client().unwrap_err().to_string(),
        "base_url: invalid base url ``: expected an absolute http or https url without user info, query and fragment, such as https://api.example.com/v1",
    );
}
