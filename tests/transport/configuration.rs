//! Tests that invalid settings of a transport are reported at construction, with their field and value.

use std::{fs, path::PathBuf};

use tower_outbound::InvalidConfig;

use super::{support::certificate::certificate, *};

#[track_caller]
fn error(config: TransportConfig) -> InvalidConfig {
    config.build::<Empty<Bytes>>().unwrap_err()
}

#[test]
fn zero_and_endless_limits_are_rejected() {
    const DAYS: Duration = Duration::from_secs(400 * 24 * 60 * 60);
    const SECOND: Duration = Duration::from_secs(1);
    type Set = fn(TransportConfig, Duration) -> TransportConfig;
    let setters: [(&str, Set); 5] = [
        ("connect timeout", TransportConfig::with_connect_timeout),
        ("idle timeout", TransportConfig::with_idle_timeout),
        ("tcp keep-alive", TransportConfig::with_tcp_keep_alive),
        ("http2 ping interval", |config, limit| config.with_http2_pings(limit, SECOND)),
        ("http2 ping timeout", |config, limit| config.with_http2_pings(SECOND, limit)),
    ];
    for (field, set) in setters {
        for (limit, value) in [(Duration::ZERO, "0ns"), (DAYS, "34560000s")] {
            let error = error(set(TransportConfig::new(), limit));
            assert_eq!((error.field(), error.value()), (field, value), "{error}");
        }
    }
    let error = error(TransportConfig::new().with_max_connections(0));
    assert_eq!((error.field(), error.value()), ("maximum connections", "0"), "{error}");
}

#[test]
fn invalid_certificates_are_rejected_without_the_key() {
    let (pair, other) = (certificate(), certificate());
    let (certificate, key) = (pair.cert.pem(), pair.signing_key.serialize_pem());
    let secret = key.lines().nth(1).unwrap();
    let config = |certificate: &str, key: &str| {
        TransportConfig::new().with_client_certificate(certificate.as_bytes(), key.as_bytes())
    };
    for (certificate, key, field) in [
        ("", key.as_str(), "client certificate"),
        (key.as_str(), key.as_str(), "client certificate"),
        ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", &key, "client certificate"),
        (&certificate, "", "client key"),
        (&certificate, &certificate, "client key"),
        (&certificate, &key.replace(secret, "!"), "client key"),
    ] {
        let error = error(config(certificate, key));
        assert_eq!(error.field(), field, "{error}");
        assert!(!format!("{error} {error:?}").contains(secret), "{error}");
    }
    let foreign = config(&certificate, &other.signing_key.serialize_pem());
    assert_eq!(error(foreign).field(), "client key", "the key belongs to another certificate");
    for pem in ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
        let config = TransportConfig::new().with_root_certificates(pem.as_bytes());
        assert_eq!(error(config).field(), "root certificates", "{pem}");
    }
    let valid = config(&certificate, &key);
    assert!(!format!("{valid:?}").contains(secret));
    valid.build::<Empty<Bytes>>().unwrap();
}

#[cfg(feature = "serde")]
mod files {

    use super::*;

    /// A directory with the PEM files of a certificate.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str) -> Self {
            let directory =
                std::env::temp_dir().join(format!("tower-outbound-{name}-{}", std::process::id()));
            fs::create_dir_all(&directory).unwrap();
            let pair = certificate();
            fs::write(directory.join("certificate.pem"), pair.cert.pem()).unwrap();
            fs::write(directory.join("key.pem"), pair.signing_key.serialize_pem()).unwrap();
            Self(directory)
        }

        fn path(&self, name: &str) -> String {
            self.0.join(name).display().to_string()
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn read(text: &str) -> TransportConfig {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn incomplete_and_unreadable_certificate_files_are_rejected() {
        let files = Files::new("certificates");
        let (certificate, key, missing) =
            (files.path("certificate.pem"), files.path("key.pem"), files.path("missing.pem"));
        for (text, field, value) in [
            (format!("client_certificate = '{certificate}'"), "client certificate", &certificate),
            (format!("client_key = '{key}'"), "client key", &key),
            (
                format!("client_certificate = '{missing}'\nclient_key = '{key}'"),
                "client certificate",
                &missing,
            ),
            (
                format!("client_certificate = '{certificate}'\nclient_key = '{missing}'"),
                "client key",
                &missing,
            ),
            (format!("root_certificates = '{missing}'"), "root certificates", &missing),
        ] {
            let error = error(read(&text));
            assert_eq!((error.field(), error.value()), (field, value.as_str()), "{text}: {error}");
        }
        let text = format!(
            "client_certificate = '{certificate}'\nclient_key = '{key}'\nroot_certificates = '{certificate}'"
        );
        read(&text).build::<Empty<Bytes>>().unwrap();
    }

    #[test]
    fn settings_survive_serialization() {
        let text = r#"
            connect_timeout = "3s"
            idle_timeout = "20s"
            max_connections = 7
            tcp_keep_alive = "off"
            http2_ping_interval = "off"
            http2_ping_timeout = "4s"
            http2_ping_while_idle = true
            http = "http2"
            bundled_roots = false
        "#;
        let config = read(text);
        let shown = format!("{config:?}");
        let written = toml::to_string(&config).unwrap();
        assert_eq!(format!("{:?}", read(&written)), shown, "{written}");
        for value in ["off", "3s", "20s", "4s"] {
            assert!(written.contains(&format!("\"{value}\"")), "{value}: {written}");
        }
        let built = TransportConfig::new()
            .with_connect_timeout(Duration::from_secs(3))
            .with_idle_timeout(Duration::from_secs(20))
            .with_max_connections(7)
            .without_tcp_keep_alive()
            .with_http2_pings(Duration::from_secs(1), Duration::from_secs(4))
            .with_http2_pings_while_idle()
            .without_http2_pings()
            .with_http2_prior_knowledge()
            .without_bundled_roots();
        assert_eq!(format!("{built:?}"), shown, "a file and the setters have the same effect");
        let defaults = read("");
        assert_eq!(format!("{defaults:?}"), format!("{:?}", TransportConfig::new()));
    }

    #[test]
    fn invalid_values_of_a_file_are_rejected() {
        for text in [
            "connect_timeout = \"5\"",
            "tcp_keep_alive = \"never\"",
            "http2_ping_interval = \"20\"",
            "max_connections = -1",
            "http = \"http3\"",
            "http2_ping = \"20s\"",
        ] {
            toml::from_str::<TransportConfig>(text).unwrap_err();
        }
    }
}

#[cfg(feature = "proxy")]
mod proxies {
    use tower_outbound::transport::Proxy;

    const PASSWORD: &str = "s3cret-of-the-proxy";

    #[test]
    fn invalid_proxy_urls_are_rejected_without_their_password() {
        for url in [
            format!("ftp://ann:{PASSWORD}@proxy.test"),
            format!("http://ann:{PASSWORD}@"),
            format!("http://ann:{PASSWORD}@proxy.test:port"),
            format!("http://ann:{PASSWORD}@proxy.test/path"),
            format!("http://ann:{PASSWORD}@proxy.test?query"),
            format!("ann:{PASSWORD}"),
            format!("ann:{PASSWORD}@"),
            format!("socks4://ann:{PASSWORD}@proxy.test"),
            format!("http://proxy.test:{PASSWORD}"),
            format!("http://ann {PASSWORD}@proxy.test"),
            format!("http://proxy.test#{PASSWORD}@"),
        ] {
            let error = Proxy::new(&url).expect_err(&url);
            assert_eq!(error.field(), "proxy");
            if url.contains('@') {
                assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error}");
            }
        }
    }

    #[test]
    fn socks_user_and_password_over_248_bytes_are_rejected() {
        for (scheme, password, is_valid) in [
            ("socks5", "p".repeat(244), true),
            ("socks5", "%70".repeat(244), true),
            ("socks5", "p".repeat(245), false),
            ("socks5h", "p".repeat(300), false),
            ("http", "p".repeat(300), true),
        ] {
            let proxy = Proxy::new(&format!("{scheme}://anna:{password}@proxy.test"));
            assert_eq!(proxy.is_ok(), is_valid, "{scheme} {password}");
            if let Err(error) = proxy {
                assert_eq!((error.field(), error.value()), ("proxy", &*format!("{scheme}://…")));
                assert!(error.to_string().contains("248 bytes"), "{error}");
            }
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn invalid_proxy_of_a_file_is_rejected_without_its_password() {
        use tower_outbound::transport::TransportConfig;

        for value in [
            format!("\"http://ann:{PASSWORD}@proxy.test:port\""),
            format!("[\"{PASSWORD}\"]"),
            "17".to_owned(),
        ] {
            let config: TransportConfig = toml::from_str(&format!("proxy = {value}")).unwrap();
            let error = super::error(config);
            assert_eq!(error.field(), "proxy", "{error}");
            assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error}");
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn null_in_a_file_means_no_proxy() {
        use super::{Bytes, Empty};
        use tower_outbound::transport::TransportConfig;

        let config: TransportConfig = serde_json::from_str(r#"{"proxy": null}"#).unwrap();
        config.build::<Empty<Bytes>>().unwrap();
    }
}
