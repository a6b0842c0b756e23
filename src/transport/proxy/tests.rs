use super::*;

fn uri(text: &str) -> Uri {
    text.parse().unwrap()
}

fn variables(set: &'static [(&'static str, &'static str)]) -> Result<Proxy, InvalidConfig> {
    Proxy::from_variables(|name| {
        set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
    })
}

fn host_of(proxy: &Proxy, target: &str) -> Option<String> {
    proxy.intercept(&uri(target)).and_then(|proxy| proxy.uri().host().map(str::to_owned))
}

#[test]
fn environment_names_a_proxy_for_each_scheme() {
    let proxy = variables(&[
        ("HTTPS_PROXY", "http://ann:s3cret@secure.test:3128"),
        ("http_proxy", "plain.test:8080"),
        ("NO_PROXY", "internal.test,10.0.0.0/8"),
    ])
    .unwrap();
    for (target, expected) in [
        ("https://api.example.com/", Some("secure.test")),
        ("http://api.example.com/", Some("plain.test")),
        ("https://api.internal.test/", None),
        ("https://10.1.2.3/", None),
        ("http://localhost:8080/", None),
        ("http://LocalHost:8080/", None),
        ("http://127.0.0.1/", None),
        ("http://[::1]/", None),
    ] {
        assert_eq!(host_of(&proxy, target).as_deref(), expected, "{target}");
    }
    assert!(!format!("{proxy:?}").contains("s3cret"), "{proxy:?}");
}

#[test]
fn socks_proxy_without_a_port_has_the_port_1080() {
    let target = "https://api.example.com/".parse().unwrap();
    for (url, expected) in [
        ("socks5://proxy.test", Some(1080)),
        ("socks5h://ann:s3cret@[::1]/", Some(1080)),
        ("socks5://proxy.test:99", Some(99)),
        ("http://proxy.test", None),
    ] {
        let proxy = Proxy::new(url).unwrap().intercept(&target).unwrap();
        assert_eq!(proxy.uri().port_u16(), expected, "{url}");
    }
}

#[test]
fn environment_of_a_cgi_program_names_no_plain_proxy() {
    let proxy = variables(&[("REQUEST_METHOD", "GET"), ("HTTP_PROXY", "http://evil.test")]).unwrap();
    assert_eq!(host_of(&proxy, "http://api.example.com/"), None);
}

#[test]
fn plain_requests_are_forwarded_with_the_authorization_of_the_proxy() {
    let authority = Authority::from_static("api.example.com");
    for (user_info, authorization) in [
        ("ann:s3cret", "Basic YW5uOnMzY3JldA=="),
        ("ann:s3@cr@et", "Basic YW5uOnMzQGNyQGV0"),
        ("ann:s3%40cr%40et", "Basic YW5uOnMzQGNyQGV0"),
    ] {
        let proxy = Proxy::new(&format!("http://{user_info}@proxy.test")).unwrap();
        let forward = proxy.forward(&Scheme::HTTP, &authority).unwrap().unwrap();
        assert_eq!(forward, authorization);
        assert!(forward.is_sensitive());
        assert!(proxy.forward(&Scheme::HTTPS, &authority).is_none());
        assert_eq!(host_of(&proxy, "http://api.example.com/").as_deref(), Some("proxy.test"));
    }
    let socks = Proxy::new("socks5h://proxy.test:1080").unwrap();
    assert!(socks.forward(&Scheme::HTTP, &authority).is_none());
}

#[test]
fn invalid_proxy_urls_are_rejected_without_their_password() {
    for (url, value) in [
        ("ftp://proxy.test", "ftp://proxy.test"),
        ("ftp://ann:s3cret@proxy.test", "ftp://…"),
        ("socks5://proxy.test/path", "socks5://proxy.test/…"),
        ("http://", "http://…"),
        ("http://ann:s3cret@", "http://…"),
        ("http://ann:s3cret@proxy.test:port", "http://…"),
        ("http://ann:s3cret@proxy.test/path", "http://…"),
        ("socks4://proxy.test", "socks4://proxy.test"),
        ("s3cret://proxy.test", "…"),
        ("", ""),
    ] {
        let error = Proxy::new(url).unwrap_err();
        assert_eq!((error.field(), error.value()), ("proxy", value), "{url}");
    }
    let error = variables(&[("HTTPS_PROXY", "http://ann:s3cret@:80:80")]).unwrap_err();
    assert_eq!(error.field(), "HTTPS_PROXY");
    assert!(!error.to_string().contains("s3cret"), "{error}");
}
