use proptest::prelude::*;

use super::*;

#[test]
fn paths_are_joined_to_the_base_url() {
    for (base, path, joined) in [
        ("https://host", "", "https://host/"),
        ("https://host", "/", "https://host/"),
        ("https://host", "v1/resources", "https://host/v1/resources"),
        ("https://host/", "/v1/resources", "https://host/v1/resources"),
        ("https://host/api", "", "https://host/api"),
        ("https://host/api", "/", "https://host/api/"),
        ("https://host/api", "/v1?q=a:b//c", "https://host/api/v1?q=a:b//c"),
        ("https://host/api/", "v1", "https://host/api/v1"),
        ("https://host/api", "?q=1", "https://host/api?q=1"),
        ("https://host/api", "jobs:batch", "https://host/api/jobs:batch"),
        ("https://host/api", "https:kept", "https://host/api/https:kept"),
        ("https://host/api", "a..b/...", "https://host/api/a..b/..."),
        ("https://host/api", "/v1#top", "https://host/api/v1"),
        ("https://host/api", "#top", "https://host/api"),
        ("https://host/api", "https://HOST:443/api/else?page=2", "https://HOST:443/api/else?page=2"),
        ("https://host/api", "https://host/api?q#top", "https://host/api?q"),
        ("https://host/api/", "https://host/api", "https://host/api"),
        ("https://host", "https://host", "https://host/"),
    ] {
        assert_eq!(BaseUrl::parse(base).unwrap().join(path).unwrap(), joined, "{base} {path}");
    }
}

#[test]
fn url_outside_the_base_url_is_rejected() {
    let base = BaseUrl::parse("https://host/api").unwrap();
    for path in [
        "..",
        "../x",
        "/../x",
        "v1/../../x",
        "%2e%2e/x",
        ".%2E/x",
        "v1/%2e./x",
        "a%2f..%2fx",
        "a/..;x/b",
        "a/..%3Bx/b",
        "//evil.test/x",
        "https://evil.test/",
        "http://host/",
        "\\\\evil.test",
        "..\\x",
        "..#fragment",
        "https://host/",
        "https://host/apis",
        "https://host/else",
        "https://host/%61pi",
        "https://host/../secret",
        "https://host/api/../secret",
        "https://host/api/%2e%2E/secret",
        "https://host/api/..;x/secret",
        "https://host:+443/api",
        "https://host/api\\..\\secret",
        "sp ace",
        "ü",
        "https://host@evil.test/",
    ] {
        let error = base.join(path).unwrap_err();
        assert!(error.is_invalid_request(), "{path}: {error}");
    }
    assert!(base.resolve("evil.test".parse().unwrap()).is_err(), "an authority without scheme and path");
}

#[test]
fn parsed_path_resolves_to_the_same_url_as_its_string() {
    for base in ["https://host", "https://host/", "https://host/api", "http://127.0.0.1:80/api/"] {
        let base = BaseUrl::parse(base).unwrap();
        for path in [
            "/",
            "/v1/resources",
            "/v1?q=a:b//c",
            "/?q",
            "?a=b",
            "/a..b/...",
            "/../x",
            "//evil.test/x",
            "/v1/%2e./x",
            "/a\\b",
            "/https:kept",
            "/ü",
            "*",
            "/a;x/..;y",
            "/v1#top",
        ] {
            // Skips a text that is not a valid `Uri`, because a request cannot contain such a text.
            let Ok(uri) = path.parse::<Uri>() else { continue };
            let (parsed, joined) = (base.resolve(uri), base.join(path));
            let shown = |error: Error| format!("{error:#}");
            match path.starts_with('/') {
                true => assert_eq!(parsed.map_err(shown), joined.map_err(shown), "{path}"),
                false => assert!(parsed.is_err() || parsed.unwrap() == joined.unwrap(), "{path}"),
            }
        }
    }
    let base = BaseUrl::parse("https://host").unwrap();
    let mut query_alone = Parts::default();
    query_alone.path_and_query = Some(PathAndQuery::from_static("?a=b"));
    let joined = base.resolve(Uri::from_parts(query_alone).unwrap()).unwrap();
    // Compares the text of the path that is sent, because paths with and without the slash compare equal.
    assert_eq!(joined.path_and_query().unwrap().as_str(), "/?a=b");
}

#[test]
fn base_url_of_a_member_replaces_that_of_the_builder() {
    for (base, to, uri, moved) in [
        ("https://host", "https://other", "https://host/v1?q=1", "https://other/v1?q=1"),
        ("https://host/api", "https://other", "https://host/api/v1", "https://other/v1"),
        ("https://host/api", "https://other", "https://host/api", "https://other/"),
        ("https://host/api", "https://other", "https://host/api?q=1", "https://other/?q=1"),
        ("https://host/api", "https://other", "https://host/api/", "https://other/"),
        ("https://host", "https://other/api", "https://host/", "https://other/api/"),
        ("https://host/api/", "https://other/v2/", "https://host/api/v1", "https://other/v2/v1"),
        ("https://host/api", "https://other/v2/", "https://host/api", "https://other/v2/"),
        ("https://host/api", "https://host/api", "https://HOST:443/api/%20?a", "https://host/api/%20?a"),
        ("https://host", "https://other/api", "/v1", "https://other/api/v1"),
    ] {
        let [base, to] = [base, to].map(|url| BaseUrl::parse(url).unwrap());
        let uri = uri.parse().unwrap();
        assert_eq!(base.rebase(uri, &to).unwrap().to_string(), moved, "{} {}", base.uri, to.uri);
    }
    let base = BaseUrl::parse("https://host/api").unwrap();
    for uri in ["https://other/api/v1", "https://host/v1", "*", "https://host/api/../v1", "http://host/api"] {
        assert!(base.rebase(uri.parse().unwrap(), &base).is_err(), "{uri}");
    }
}

#[test]
fn error_of_an_invalid_base_url_names_the_reason() {
    for (url, shown, expected) in [
        ("", "", "an absolute http or https url"),
        ("api.example.com", "…", "an absolute http or https url"),
        ("ws://host", "ws://host", "an absolute http or https url"),
        ("https://me:s3cret@host", "https://…", "an absolute http or https url without user info"),
        ("https://host?key=s3cret", "https://host/…", "an absolute http or https url without user info"),
        ("https://host/#s3cret", "https://host/…", "an absolute http or https url without user info"),
        ("http://*", "http://…", "a host that is a name or an ip address"),
        ("http://h:0", "http://…", "a port from 1 to 65535"),
        ("http://h/é", "http://…", "a path of visible ascii characters"),
        ("http://h//x", "http://h/…", "a path without empty segments"),
        ("http://h/x//", "http://h/…", "a path without empty segments"),
        ("http://h/a/../b", "http://h/…", "a path without backslashes or dot segments"),
        ("http://h/a\\b", "http://h/…", "a path without backslashes or dot segments"),
    ] {
        let error = BaseUrl::parse(url).unwrap_err().to_string();
        let start = format!("invalid base url `{shown}`: expected {expected}");
        assert!(error.starts_with(&start), "{url}: {error}");
    }
}

#[test]
fn error_quotes_a_path_without_query_or_possible_password() {
    let base = BaseUrl::parse("https://host/api").unwrap();
    for (path, shown) in [
        ("../v2?key=s3cret", "path `../v2`: "),
        ("me:s3cret@host/../x", "path `…`: "),
        ("me:s3cret%40host/../x", "path `…`: "),
        ("https://host/s3cret", "url `https://host/…`: "),
        ("https://me:s3cret@host/", "url `https://…`: "),
    ] {
        let error = format!("{:#}", base.join(path).unwrap_err());
        assert!(error.contains(shown) && !error.contains("s3cret"), "{path}: {error}");
    }
}

proptest! {
    #[test]
    fn joined_paths_stay_below_the_base_url(
        start in "(https://host)?(/api)?",
        path in "[a-z./:?#@%2eEfF\\\\;& -]{0,24}",
    ) {
        let path = format!("{start}{path}");
        let base = BaseUrl::parse("https://host/api").unwrap();
        if let Ok(uri) = base.join(&path) {
            prop_assert!(base.origin.covers(&uri), "{uri}");
            let below = uri.path().strip_prefix("/api");
            prop_assert!(below.is_some_and(|below| below.is_empty() || below.starts_with('/')), "{uri}");
            prop_assert!(uri.path().split('/').all(|segment| segment != ".."), "{uri}");
        }
    }

    #[test]
    fn no_error_quotes_the_secret_of_a_malformed_url(
        scheme in "(https?:/{0,3})?",
        user in "[a-z]{0,3}:?[0-9@:/?#%\\\\;. ]{0,3}",
        joint in "(@|%40|%2540|\u{ff20}|@x@|#|\\?|:|)",
        host in "[a-z.:0-9/]{0,8}",
        place in 0..3_u8,
    ) {
        const SECRET: &str = "S3cret-Passw0rd";
        let url = match place {
            // The secret is a password, part of malformed user info, or part of a query.
            0 => format!("{scheme}{user}:{SECRET}{joint}{host}"),
            1 => format!("{scheme}{user}@x@{SECRET}"),
            _ => format!("{scheme}{host}/?{user}{SECRET}"),
        };
        let base = BaseUrl::parse("https://host/api").unwrap();
        let errors = [
            BaseUrl::parse(&url).err().map(|error| format!("{error} {error:?}")),
            Origin::parse(&url).err().map(|error| format!("{error} {error:?}")),
            base.join(&url).err().map(|error| format!("{error} {error:#} {error:?}")),
            url.parse().ok().and_then(|uri| base.resolve(uri).err()).map(|error| format!("{error:#} {error:?}")),
        ];
        for shown in errors.into_iter().flatten() {
            prop_assert!(!shown.to_ascii_lowercase().contains("s3cret"), "{url}: {shown}");
        }
    }
}
