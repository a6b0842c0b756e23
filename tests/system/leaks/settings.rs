//! Invalid keys and URLs: the error names their source, never their value.

use std::{env, ffi::OsString, fs, path::PathBuf, process::Command};

use http::Request;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tower_outbound::{
    Body, InvalidConfig,
    auth::{AppCredentials, AuthLayer, KeyPlacement, KeySource, Origin},
};

use super::*;

#[track_caller]
fn refused<T>(result: Result<T, InvalidConfig>) {
    match result {
        Ok(_) => panic!("it can't be used"),
        Err(error) => {
            chain(&error);
            unsaid(&format!("{} {}", error.field(), error.value()));
        }
    }
}

/// What no header can carry.
fn bad_keys() -> Vec<String> {
    vec![
        format!("{KEY}\n{KEY}"),
        format!("{KEY} "),
        format!("\t{KEY}"),
        format!("{KEY}ü"),
        format!("{KEY}\0"),
    ]
}

#[test]
fn of_a_url_that_holds_the_key() {
    let percent = utf8_percent_encode(KEY, NON_ALPHANUMERIC).to_string();
    let as_it_is = KEY.replace('/', "");
    live(async move {
        for key in [KEY, &percent, &as_it_is] {
            let urls = [
                format!("https://me:{key}@host/v1"),
                format!("https://{key}@host/v1"),
                format!("me:{key}@host"),
                format!("https://host/v1?api_key={key}"),
                format!("https://host/v1#{key}"),
                format!("ftp://host/?api_key={key}"),
                format!("/v1?api_key={key}"),
            ];
            let client = preset(SITE, Place::Bearer).client().unwrap();
            for url in urls {
                refused(preset::currency_rates(&url));
                if url.contains('@') || !url.starts_with("https://") {
                    refused(Origin::parse(&url));
                }
                // Those of a request: what is no path below the base is an error.
                let elsewhere = url.replace("//host", "//elsewhere.test").replace("@host", "@elsewhere.test");
                let urls = [format!("/../v1?{url}"), format!("//{url}"), format!("/a b?{url}")];
                for url in urls.iter().chain(url.contains("://").then_some(&elsewhere)) {
                    failed(&client.get(url).await.unwrap_err());
                    if let Ok(request) = Request::get(url).body(Body::empty()) {
                        failed(&client.request(request).await.unwrap_err());
                    }
                }
            }
        }
    });
}

#[test]
fn without_tls() {
    paused(async {
        for place in PLACES {
            let preset = place.of(preset::realtime_messaging("http://host").unwrap().with_api_key(key()));
            hidden(&preset);
            refused(preset.layer());
            refused(preset.client());
            refused(AuthLayer::new(key(), Origin::parse("http://host").unwrap()));
            hidden(&preset.with_plaintext().layer().unwrap());
        }
    });
}

#[test]
fn of_a_key_that_no_request_can_carry() {
    for bad in bad_keys() {
        refused(ApiKey::new(&bad));
        // Mistaken for what is no secret.
        refused(AppCredentials::new("", ApiKey::new(KEY).unwrap(), ApiKey::new(KEY).unwrap()));
    }
    for user in [format!("me:{KEY}"), format!("me:{KEY}\n")] {
        refused(KeyPlacement::basic(&user));
        refused(format!("basic:{user}").parse::<KeyPlacement>());
    }
    for kind in ["bearer", "header", "query", "cookie"] {
        refused(format!("{kind}:{KEY}").parse::<KeyPlacement>());
        refused(format!("{kind}:name={KEY}").parse::<KeyPlacement>());
    }
    refused(KEY.parse::<KeyPlacement>());
    refused(KeyPlacement::query(""));
    refused(KeyPlacement::header(http::header::HOST));
}

struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        Self(env::temp_dir().join(format!("tower-outbound-leaks-{name}-{}", std::process::id())))
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn of_a_file_that_holds_no_key() {
    let file = File::new("bad");
    refused(KeySource::from_file(&file.0));
    let mut contents: Vec<_> = bad_keys().into_iter().map(String::into_bytes).collect();
    contents.push([KEY.as_bytes(), b"\xff\xfe"].concat());
    contents.push(KEY.repeat(2_000).into_bytes());
    for content in contents {
        // White space around a key does not count.
        if String::from_utf8_lossy(&content).trim() == KEY {
            continue;
        }
        fs::write(&file.0, content).unwrap();
        refused(ApiKey::from_file(&file.0));
        refused(KeySource::from_file(&file.0));
        refused(preset::currency_rates("https://host").unwrap().with_key_file(&file.0).layer());
    }
}

#[test]
fn of_a_file_that_changes() {
    paused(async {
        let file = File::new("changes");
        fs::write(&file.0, KEY).unwrap();
        let keys = KeySource::from_file(&file.0).unwrap();
        let contents = [Some(another_key(2)), Some(format!("{KEY} {KEY}")), None, Some(KEY.to_owned())];
        for content in contents {
            hidden(&(&keys, keys.current().await.unwrap()));
            match content {
                Some(content) => fs::write(&file.0, content).unwrap(),
                None => fs::remove_file(&file.0).unwrap(),
            }
            tokio::time::advance(KeySource::FILE_INTERVAL).await;
            let current = keys.current().await.unwrap();
            hidden(&current);
            if let Some(error) = keys.last_error() {
                chain(&error);
            }
            hidden(&keys.reject(&current));
        }
    });
}

/// A process of its own has variables of its own; all that it prints is searched, not only what it is asked for.
#[test]
fn of_a_variable_that_holds_no_key() {
    const BAD: &str = "LEAKS_BAD_KEY";
    if env::var_os(BAD).is_some() {
        let preset = || preset::currency_rates("https://host").unwrap().with_key_env(BAD);
        println!("{:?} {:?}", ApiKey::from_env(BAD).unwrap_err(), preset().layer().unwrap_err());
        panic!("{} {:?} {:?}", preset().client().unwrap_err(), preset(), preset().layer());
    }
    let mut values: Vec<_> = bad_keys().into_iter().map(|key| key.replace('\0', "\n x")).collect();
    values.retain(|value| value.trim() != KEY);
    let mut values: Vec<_> = values.into_iter().map(OsString::from).collect();
    #[cfg(unix)]
    values.push(std::os::unix::ffi::OsStringExt::from_vec([KEY.as_bytes(), b"\xff"].concat()));
    for value in values {
        let mut child = Command::new(env::current_exe().unwrap());
        let name = "leaks::settings::of_a_variable_that_holds_no_key";
        let output = child.args([name, "--exact", "--nocapture"]).env(BAD, value).output().unwrap();
        let output = format!("{output:?}");
        assert!(output.contains("visible ascii") && output.contains(BAD), "{output}");
        search("what a process prints", &output);
    }
}
