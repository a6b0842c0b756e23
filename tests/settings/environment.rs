//! The same settings from variables.

use tower_outbound::{
    ApiKey,
    settings::{InvalidVariable, RetrySettings, ServiceSettings, from_env, from_variables},
};

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
        ("RATES_KEY_PLACEMENT", "query:api;key"),
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
        key_placement = 'query:api;key'
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

#[test]
fn the_variable_of_the_preset_is_no_setting_where_the_key_is_read_from_it() {
    // A prefix that is a part of it, and who names the preset: the file or another variable.
    for (prefix, preset, variable) in [
        ("EMAIL", "email_delivery", "EMAIL_DELIVERY_API_KEY"),
        ("EMAIL_", "email_delivery", "EMAIL_DELIVERY_API_KEY"),
        ("CURRENCY", "currency_rates", "CURRENCY_RATES_API_KEY"),
        ("REALTIME", "realtime_messaging", "REALTIME_MESSAGING_API_KEY"),
        ("REALTIME_MESSAGING", "realtime_messaging", "REALTIME_MESSAGING_API_KEY"),
        ("API", "custom", "API_KEY"),
    ] {
        let timeout = format!("{}_TIMEOUT_TOTAL", prefix.trim_end_matches('_'));
        let given = variables(&[(variable, KEY), (&timeout, "20s")]);
        let file = toml(&format!("preset = '{preset}'"));
        let mut expected = toml(&format!("preset = '{preset}'\ntimeout.total = '20s'"));
        if prefix == "REALTIME_MESSAGING" {
            expected.api_key = Some(ApiKey::new(KEY).unwrap().into());
        }
        assert_eq!(file.with_variables(prefix, &given).unwrap(), expected, "{prefix}");
        let name = format!("{}_PRESET", prefix.trim_end_matches('_'));
        let given = [given, variables(&[(&name, preset)])].concat();
        assert_eq!(ServiceSettings::default().with_variables(prefix, &given).unwrap(), expected, "{prefix}");
    }
    let given = variables(&[("API_KEY", KEY), ("API_NAME", "mine")]);
    assert_eq!(ServiceSettings::default().with_variables("API", &given).unwrap(), toml("name = 'mine'"));
}

#[test]
fn a_preset_s_variable_from_which_no_key_is_read_is_an_error() {
    let key = ("EMAIL_DELIVERY_API_KEY", KEY);
    for (file, given, source) in [
        ("preset = 'email_delivery'\nkey_file = '/run/key'", vec![key], "key_file"),
        ("preset = 'email_delivery'\nkey_env = 'MAIL_KEY'", vec![key], "key_env"),
        ("preset = 'email_delivery'", vec![key, ("EMAIL_KEY_FILE", "/run/key")], "key_file"),
        ("preset = 'email_delivery'", vec![key, ("EMAIL_API_KEY", "another")], "api_key"),
        (
            "preset = 'email_delivery'",
            vec![key, ("EMAIL_PRESET", "currency_rates")],
            "CURRENCY_RATES_API_KEY",
        ),
        ("", vec![key], "API_KEY"),
    ] {
        let error = toml(file).with_variables("EMAIL", &variables(&given)).unwrap_err();
        let expected =
            format!("EMAIL_DELIVERY_API_KEY: there is no such setting, and the key comes from {source}");
        assert_eq!((error.to_string(), error.name()), (expected, key.0), "{file} {source}");
    }
    // The mistake goes before what follows from it.
    let given = variables(&[key, ("EMAIL_PRESET", "email")]);
    assert_eq!(
        ServiceSettings::default().with_variables("EMAIL", &given).unwrap_err().name(),
        "EMAIL_PRESET"
    );
    // What is named is, even where another source makes it idle.
    let given = variables(&[key, ("EMAIL_KEY_FILE", "/run/key")]);
    toml("key_env = 'EMAIL_DELIVERY_API_KEY'").with_variables("EMAIL", &given).unwrap();
}

/// As the manual has it.
#[test]
fn services_in_one_environment() {
    let given = variables(&[
        ("RATES_PRESET", "currency_rates"),
        ("CURRENCY_RATES_API_KEY", KEY),
        ("EMAIL_PRESET", "email_delivery"),
        ("EMAIL_DELIVERY_API_KEY", KEY),
        ("API_NAME", "mine"),
        ("API_KEY", KEY),
    ]);
    let read = |prefix: &str, more: &[(&str, &str)]| {
        let given = [&given[..], &variables(more)].concat();
        ServiceSettings::default().with_variables(prefix, &given)
    };
    for (prefix, expected) in [
        ("RATES", "preset = 'currency_rates'"),
        ("EMAIL", "preset = 'email_delivery'"),
        ("API", "name = 'mine'"),
    ] {
        assert_eq!(read(prefix, &[]).unwrap(), toml(expected));
    }
    let longer = [("EMAIL_BULK_BASE_URL", "https://bulk.example.com")];
    assert_eq!(read("EMAIL", &longer).unwrap_err().name(), "EMAIL_BULK_BASE_URL");
    assert!(read("EMAIL_BULK", &longer).is_ok());
    assert_eq!(read("EMAIL", &[("EMAIL_KEY_FILE", "f")]).unwrap_err().name(), "EMAIL_DELIVERY_API_KEY");
    assert_eq!(read("CURRENCY", &[]).unwrap_err().name(), "CURRENCY_RATES_API_KEY");
}

#[test]
fn an_empty_list_is_written_with_its_brackets() {
    const LISTS: [(&str, &str, &str); 5] = [
        ("ALLOWED_ORIGINS", "allowed_origins", "an origin such as https://api.example.com"),
        ("LIMIT_QUOTA", "limit.quota", "a quota such as 100/60s"),
        ("RETRY_RETRY_ON", "retry.retry_on", "a status such as 409"),
        ("RETRY_NEVER_ON", "retry.never_on", "a status such as 409"),
        ("REQUEST_ID_SERVER_HEADERS", "request_id.server_headers", "the name of a header"),
    ];
    for (variable, field, expected) in LISTS {
        let variable = format!("RATES_{variable}");
        let none = toml(&format!("{field} = []"));
        assert_ne!(none, ServiceSettings::default());
        for value in ["[]", " [] "] {
            assert_eq!(read(&[(&variable, value)]).unwrap(), none, "{variable}");
            assert_eq!(toml(&format!("{field} = '{value}'")), none, "{field}");
        }
        for value in ["", "  "] {
            assert_eq!(
                read(&[(&variable, value)]).unwrap_err().to_string(),
                format!("{variable}: nothing is given: expected {expected}, or [] for none")
            );
        }
        assert!(read(&[(&variable, "[];[]")]).is_err() && read(&[(&variable, ";")]).is_err());
    }
    // It takes back what stands below.
    let file = with("limit.quota = '1/1s'");
    let given = variables(&[("RATES_LIMIT_QUOTA", "[]")]);
    assert!(file.with_variables("RATES", &given).unwrap().preset().unwrap().quotas().is_empty());
}

/// Of a process of its own, in which somebody has set them; one of them is no Unicode, which is somebody else's affair.
#[test]
fn the_process_has_them() {
    if std::env::var_os("SETTINGS_CHILD_NAME").is_some() {
        let settings: ServiceSettings = from_env("SETTINGS_CHILD").unwrap();
        assert_eq!(settings.name.as_deref(), Some("child"));
        let file = toml("name = 'file'\ntimeout.total = '1s'").with_env("SETTINGS_CHILD").unwrap();
        assert_eq!(file, toml("name = 'child'\ntimeout.total = '1s'"));
        let mail = toml("base_url = 'https://host'\npreset = 'email_delivery'").with_env("EMAIL").unwrap();
        assert_eq!(mail.attempt.header.as_ref().unwrap(), "x-attempt");
        mail.layer().unwrap();
        mail.auth_layer().unwrap();
        let error = from_env::<ServiceSettings>("SETTINGS_BROKEN");
        #[cfg(unix)]
        assert_eq!(error.unwrap_err().to_string(), "SETTINGS_BROKEN_NAME: invalid value: expected unicode");
        #[cfg(not(unix))]
        drop(error);
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["environment::the_process_has_them", "--exact"]).env("SETTINGS_CHILD_NAME", "child");
    child.env("EMAIL_ATTEMPT_HEADER", "x-attempt").env("EMAIL_DELIVERY_API_KEY", KEY);
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStringExt;
        let broken = || std::ffi::OsString::from_vec(b"\xff".to_vec());
        child.env("SETTINGS_BROKEN_NAME", broken()).env(broken(), "of no concern");
    }
    let output = child.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
