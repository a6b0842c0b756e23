//! The same settings from variables.

use tower_outbound::settings::{InvalidVariable, RetrySettings, ServiceSettings, from_env, from_variables};

use crate::{KEY, toml, with};

fn variables(given: &[(&str, &str)]) -> Vec<(String, String)> {
    given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn read(given: &[(&str, &str)]) -> Result<ServiceSettings, InvalidVariable> {
    from_variables("RATES", &variables(given))
}

#[test]
fn names_are_those_of_the_file() {
    let settings = read(&[
        ("PATH", "/bin"),
        ("RATES", "not of ours"),
        ("RATES_PRESET", "currency_rates"),
        ("RATES_BASE_URL", "https://rates.example.com"),
        ("RATES_KEY_FILE", "/run/secrets/rates"),
        ("RATES_KEY_FILE_INTERVAL", "1m"),
        ("RATES_KEY_PLACE", "query:api;key"),
        ("RATES_ALLOW_PLAINTEXT", "true"),
        ("RATES_LIMIT_QUOTA", "10/1s; 100/60s, burst 20"),
        ("RATES_LIMIT_MAX_QUEUE", "7"),
        ("RATES_RETRY_MAX_ATTEMPTS", "5"),
        ("RATES_RETRY_RETRY_ON", "409; 425"),
        ("RATES_RETRY_BACKOFF_BASE", "1s500ms"),
        ("RATES_RETRY_BUDGET_ENABLED", "false"),
        ("RATES_RETRY_HONOURED_IDEMPOTENCY_KEY_FORM", "quoted"),
        ("RATES_REQUEST_ID_SERVER_HEADERS", "x-a;x-b"),
        ("RATES_ATTEMPT_HEADER", "x-attempt"),
        ("RATES_TRANSPORT_HTTP", "http1"),
    ]);
    let file = toml(
        "preset = 'currency_rates'
        base_url = 'https://rates.example.com'
        key_file = '/run/secrets/rates'
        key_file_interval = '60s'
        key_place = 'query:api;key'
        allow_plaintext = true
        limit = { quota = ['10/1s', '100/60s, burst 20'], max_queue = 7 }
        attempt.header = 'x-attempt'
        transport.http = 'http1'
        [retry]
        max_attempts = 5
        retry_on = [409, 425]
        backoff.base = '1500ms'
        budget.enabled = false
        honoured_idempotency_key.form = 'quoted'
        [request_id]
        server_headers = ['x-a', 'x-b']",
    );
    assert_eq!(settings.unwrap(), file);
    assert_eq!(read(&[]).unwrap(), ServiceSettings::default());
    assert_eq!(from_variables("RATES_", &variables(&[("RATES_NAME", "a")])), read(&[("RATES_NAME", "a")]));
}

#[test]
fn single_layers_have_theirs() {
    let given = variables(&[("APP_RETRY_MAX_ATTEMPTS", "4")]);
    let retry: RetrySettings = from_variables("APP_RETRY", &given).unwrap();
    assert_eq!(retry.max_attempts, Some(4));
}

#[test]
fn what_can_not_be_read() {
    for (name, value, expected) in [
        ("RATES_BASE_URI", "https://host", "RATES_BASE_URI: there is no such setting"),
        ("RATES_RETRY_MAX_ATTEMPT", "3", "RATES_RETRY_MAX_ATTEMPT: there is no such setting"),
        ("RATES_RETRY", "3", "RATES_RETRY: there is no such setting"),
        ("RATES_", "3", "RATES_: there is no such setting"),
        ("RATES_API_KEY_", "3", "RATES_API_KEY_: there is no such setting"),
        ("RATES_API_KEY_FILE", "/run/key", "RATES_API_KEY_FILE: there is no such setting"),
        ("RATES_TIMEOUT_TOTAL_MS", "3", "RATES_TIMEOUT_TOTAL_MS: there is no such setting"),
        ("RATES_KEY", "s3cret", "RATES_KEY: there is no such setting"),
        (
            "RATES_TIMEOUT_TOTAL",
            "60",
            "RATES_TIMEOUT_TOTAL: invalid duration `60`: expected a unit after the number, such as 60s or 60ms",
        ),
        (
            "RATES_LIMIT_QUOTA",
            "10/1s;0/60s",
            "RATES_LIMIT_QUOTA: invalid quota limit `0`: expected at least 1",
        ),
        (
            "RATES_RETRY_MAX_ATTEMPTS",
            "three",
            "RATES_RETRY_MAX_ATTEMPTS: invalid number `three`: expected digits",
        ),
        ("RATES_RETRY_MAX_ATTEMPTS", "+3", "RATES_RETRY_MAX_ATTEMPTS: invalid number `+3`: expected digits"),
        (
            "RATES_RETRY_MAX_ATTEMPTS",
            "4294967296",
            "RATES_RETRY_MAX_ATTEMPTS: invalid value: integer `4294967296`, expected u32",
        ),
        (
            "RATES_ALLOW_PLAINTEXT",
            "yes",
            "RATES_ALLOW_PLAINTEXT: invalid value `yes`: expected true or false",
        ),
        (
            "RATES_PRESET",
            "rates",
            "RATES_PRESET: unknown variant `rates`, expected one of `currency_rates`, `email_delivery`, `realtime_messaging`, `custom`",
        ),
    ] {
        let error = read(&[(name, value)]).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.name()), (expected, name));
    }
    for prefix in ["", "_"] {
        let error = from_env::<ServiceSettings>(prefix).unwrap_err().to_string();
        assert_eq!(error, "without a prefix every variable of the environment is meant");
    }
}

#[test]
fn variables_go_before_the_file() {
    let file = with("timeout.total = '30s'\nretry.max_attempts = 5\nlimit.quota = '1/1s'");
    let given = variables(&[("RATES_TIMEOUT_TOTAL", "20s"), ("RATES_KEY_FILE", "/run/key")]);
    let both = file.with_variables("RATES", &given).unwrap();
    let expected = "preset = 'currency_rates'\nbase_url = 'https://rates.example.com'\nkey_file = '/run/key'\n\
         timeout.total = '20s'\nretry.max_attempts = 5\nlimit.quota = '1/1s'";
    assert_eq!(both, toml(expected), "the file's key has made way");
    both.preset().unwrap();
}

#[test]
fn the_variable_that_holds_the_key_is_no_setting() {
    let given = variables(&[("RATES_KEY", KEY), ("RATES_TIMEOUT_TOTAL", "20s")]);
    let settings = toml("key_env = 'RATES_KEY'").with_variables("RATES", &given).unwrap();
    assert_eq!(settings, toml("key_env = 'RATES_KEY'\ntimeout.total = '20s'"));
    let given = [given, variables(&[("RATES_KEY_ENV", "RATES_KEY")])].concat();
    assert_eq!(ServiceSettings::default().with_variables("RATES", &given).unwrap(), settings);

    // The variable that a preset looks for by default, with that preset's name as the prefix.
    let given = variables(&[("CURRENCY_RATES_API_KEY", KEY)]);
    let settings = toml("preset = 'currency_rates'\nbase_url = 'https://host'");
    settings.with_variables("CURRENCY_RATES", &given).unwrap().layer().unwrap();
}

/// Of a process of its own, in which somebody has set them; one of them is no Unicode, which is somebody else's affair.
#[test]
fn the_process_has_them() {
    if std::env::var_os("SETTINGS_CHILD_NAME").is_some() {
        let settings: ServiceSettings = from_env("SETTINGS_CHILD").unwrap();
        assert_eq!(settings.name.as_deref(), Some("child"));
        let file = toml("name = 'file'\ntimeout.total = '1s'").with_env("SETTINGS_CHILD").unwrap();
        assert_eq!(file, toml("name = 'child'\ntimeout.total = '1s'"));
        let error = from_env::<ServiceSettings>("SETTINGS_BROKEN");
        #[cfg(unix)]
        assert_eq!(error.unwrap_err().to_string(), "SETTINGS_BROKEN_NAME: invalid value: expected unicode");
        #[cfg(not(unix))]
        drop(error);
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["environment::the_process_has_them", "--exact"]).env("SETTINGS_CHILD_NAME", "child");
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        let broken = || std::ffi::OsString::from_vec(b"\xff".to_vec());
        child.env("SETTINGS_BROKEN_NAME", broken()).env(broken(), "of no concern");
    }
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
