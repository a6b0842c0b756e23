//! Tests that errors about invalid keys and URLs name the setting, but do not show its value.

use std::{env, ffi::OsString, fs, path::PathBuf, process::Command};

use http::Request;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tower_outbound::{
    Body, InvalidConfig,
    auth::{AppCredentials, AuthLayer, KeyPlacement, KeySource, Origin},
};

use super::*;

/// Asserts that the value is rejected and that the error does not show the key.
#[track_caller]
fn check_rejection<T>(result: Result<T, InvalidConfig>) {
    match result {
        Ok(_) => panic!("the value is accepted"),
        Err(error) => {
            check_error_chain(&error);
            check_display(&format!("{} {}", error.field(), error.value()));
        }
    }
}

/// Keys that cannot be a header value.
fn invalid_keys() -> Vec<String> {
    vec![
        format!("{KEY}\n{KEY}"),
        format!("{KEY} "),
        format!("\t{KEY}"),
        format!("{KEY}ü"),
        format!("{KEY}\0"),
    ]
}

#[test]
fn errors_about_urls_with_a_key_do_not_show_the_key() {
    let percent = utf8_percent_encode(KEY, NON_ALPHANUMERIC).to_string();
    let without_slash = KEY.replace('/', "");
    run_with_sockets(async move {
        for key in [KEY, &percent, &without_slash] {
            let base_urls = [
                format!("https://me:{key}@host/v1"),
                format!("https://{key}@host/v1"),
                format!("me:{key}@host"),
                format!("https://host/v1?api_key={key}"),
                format!("https://host/v1#{key}"),
                format!("ftp://host/?api_key={key}"),
                format!("/v1?api_key={key}"),
            ];
            let client = stack_builder(CLIENT_URL, Placement::Bearer).client().unwrap();
            for url in base_urls {
                check_rejection(preset::currency_rates(&url));
                if url.contains('@') || !url.starts_with("https://") {
                    check_rejection(Origin::parse(&url));
                }
                // A client rejects request URLs outside its base URL.
                let elsewhere = url.replace("//host", "//elsewhere.test").replace("@host", "@elsewhere.test");
                let urls = [format!("/../v1?{url}"), format!("//{url}"), format!("/a b?{url}")];
                for url in urls.iter().chain(url.contains("://").then_some(&elsewhere)) {
                    check_error(&client.get(url).await.unwrap_err());
                    if let Ok(request) = Request::get(url).body(Body::empty()) {
                        check_error(&client.execute(request).await.unwrap_err());
                    }
                }
            }
        }
    });
}

#[test]
fn errors_about_a_key_without_tls_do_not_show_the_key() {
    run_paused(async {
        for placement in PLACEMENTS {
            let builder = preset::realtime_messaging("http://host").unwrap().with_api_key(key());
            let builder = placement.apply_to(builder);
            check_debug(&builder);
            check_rejection(builder.layer());
            check_rejection(builder.client());
            check_rejection(AuthLayer::new(key(), Origin::parse("http://host").unwrap()));
            check_debug(&builder.with_plaintext().layer().unwrap());
        }
    });
}

#[test]
fn errors_about_invalid_keys_do_not_show_the_keys() {
    for key in invalid_keys() {
        check_rejection(ApiKey::new(&key));
        check_rejection(AppCredentials::new("", ApiKey::new(KEY).unwrap(), ApiKey::new(KEY).unwrap()));
    }
    // A caller may pass the key as a user name or as the name of a header.
    for user in [format!("me:{KEY}"), format!("me:{KEY}\n")] {
        check_rejection(KeyPlacement::basic(&user));
        check_rejection(format!("basic:{user}").parse::<KeyPlacement>());
    }
    for kind in ["bearer", "header", "query", "cookie"] {
        check_rejection(format!("{kind}:{KEY}").parse::<KeyPlacement>());
        check_rejection(format!("{kind}:name={KEY}").parse::<KeyPlacement>());
    }
    check_rejection(KEY.parse::<KeyPlacement>());
    check_rejection(KeyPlacement::query(""));
    check_rejection(KeyPlacement::header(http::header::HOST));
}

/// A path for a temporary file, which is deleted on drop.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("tower-outbound-leaks-{name}-{}", std::process::id())))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn errors_about_key_files_do_not_show_the_key() {
    let file = TempFile::new("invalid");
    check_rejection(KeySource::from_file(&file.0));
    let mut contents: Vec<_> = invalid_keys().into_iter().map(String::into_bytes).collect();
    contents.push([KEY.as_bytes(), b"\xff\xfe"].concat());
    contents.push(KEY.repeat(2_000).into_bytes());
    for content in contents {
        // White space around the key is valid in a file.
        if String::from_utf8_lossy(&content).trim() == KEY {
            continue;
        }
        fs::write(&file.0, content).unwrap();
        check_rejection(ApiKey::from_file(&file.0));
        check_rejection(KeySource::from_file(&file.0));
        check_rejection(preset::currency_rates("https://host").unwrap().with_api_key_file(&file.0).layer());
    }
}

#[test]
fn errors_about_a_changed_key_file_do_not_show_the_key() {
    run_paused(async {
        let file = TempFile::new("changing");
        fs::write(&file.0, KEY).unwrap();
        let keys = KeySource::from_file(&file.0).unwrap();
        let contents = [Some(numbered_key(2)), Some(format!("{KEY} {KEY}")), None, Some(KEY.to_owned())];
        for content in contents {
            check_debug(&(&keys, keys.current().await.unwrap()));
            match content {
                Some(content) => fs::write(&file.0, content).unwrap(),
                None => fs::remove_file(&file.0).unwrap(),
            }
            tokio::time::advance(KeySource::FILE_INTERVAL).await;
            let current = keys.current().await.unwrap();
            check_debug(&current);
            if let Some(error) = keys.last_error() {
                check_error_chain(&error);
            }
            check_debug(&keys.reject(&current));
        }
    });
}

/// This test runs itself again in a child process in which the environment variable is set. The parent searches the
/// whole output of the child.
#[test]
fn errors_about_environment_variables_do_not_show_the_key() {
    const VARIABLE: &str = "LEAKS_INVALID_KEY";
    if env::var_os(VARIABLE).is_some() {
        let builder = || preset::currency_rates("https://host").unwrap().with_api_key_env(VARIABLE);
        println!("{:?} {:?}", ApiKey::from_env(VARIABLE).unwrap_err(), builder().layer().unwrap_err());
        panic!("{} {:?} {:?}", builder().client().unwrap_err(), builder(), builder().layer());
    }
    // The value of an environment variable cannot contain NUL. A key with white space around it is valid.
    let mut values: Vec<_> = invalid_keys().into_iter().map(|key| key.replace('\0', "\n x")).collect();
    values.retain(|value| value.trim() != KEY);
    let mut values: Vec<_> = values.into_iter().map(OsString::from).collect();
    #[cfg(unix)]
    values.push(std::os::unix::ffi::OsStringExt::from_vec([KEY.as_bytes(), b"\xff"].concat()));
    for value in values {
        let mut child = Command::new(env::current_exe().unwrap());
        let name = "settings::errors_about_environment_variables_do_not_show_the_key";
        let output = child.args([name, "--exact", "--nocapture"]).env(VARIABLE, value).output().unwrap();
        let output = format!("{output:?}");
        assert!(output.contains("visible ascii") && output.contains(VARIABLE), "{output}");
        check_text("the output of a process", &output);
    }
}
