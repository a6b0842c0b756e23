use http::{
    Uri,
    uri::{Parts, PathAndQuery},
};

use crate::{
    auth::{Origin, quoted},
    error::{Error, InvalidConfig, Kind},
};

/// The URL of a service. Every URI that is joined to it stays below it.
#[derive(Debug, Clone)]
pub(crate) struct BaseUrl {
    uri: Uri,
    origin: Origin,
}

impl BaseUrl {
    pub(crate) fn parse(url: &str) -> Result<Self, InvalidConfig> {
        const EXPECTED: &str = "an absolute http or https url without user info, query and fragment, such as https://api.example.com/v1";
        let invalid = |expected| InvalidConfig::new("base url", quoted(url), expected);
        let uri: Uri = url.parse().map_err(|_| invalid(EXPECTED))?;
        if uri.query().is_some() || url.contains('#') {
            return Err(invalid(EXPECTED));
        }
        let origin = Origin::checked(&uri).map_err(invalid)?;
        let path = uri.path();
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(invalid("a path of visible ascii characters, with all others percent-encoded"));
        }
        if path.contains("//") {
            return Err(invalid("a path without empty segments"));
        }
        if check_path(path).is_err() {
            return Err(invalid("a path without backslashes or dot segments"));
        }
        Ok(Self { uri, origin })
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.uri
    }

    pub(crate) fn allow_plaintext(&mut self) {
        self.origin = self.origin.clone().allow_plaintext();
    }

    /// Joins a path to the base, or accepts an absolute URL below the base. Drops a fragment, as the parser of `Uri`
    /// does.
    pub(crate) fn join(&self, path: &str) -> Result<Uri, Error> {
        let path = path.split('#').next().unwrap_or_default();
        let first = path.split(['/', '?']).next().unwrap_or_default();
        if first.ends_with(':') {
            let uri = path.parse().map_err(|_| invalid_url(path, "not a valid url"))?;
            return self.resolve(uri);
        }
        let invalid = |reason| invalid_path(path, reason);
        let (route, query) = check(path).map_err(invalid)?;
        let base = self.uri.path();
        let mut joined = match route.strip_prefix('/').unwrap_or(route) {
            "" if route.is_empty() => base.to_owned(),
            route => format!("{}/{route}", base.trim_end_matches('/')),
        };
        if let Some(query) = query {
            joined.push('?');
            joined.push_str(query);
        }
        let joined = PathAndQuery::try_from(joined).map_err(|_| invalid("not a valid path"))?;
        self.with_path(joined).ok_or_else(|| invalid("not a valid url"))
    }

    /// Like [`join`](Self::join), for a parsed path. Copies nothing if the base has no path.
    fn join_parsed(&self, path: Option<PathAndQuery>) -> Result<Uri, Error> {
        match path {
            Some(path) if self.uri.path() == "/" && path.as_str().starts_with('/') => {
                let invalid = |reason| invalid_path(path.as_str(), reason);
                check(path.as_str()).map_err(invalid)?;
                self.with_path(path.clone()).ok_or_else(|| invalid("not a valid url"))
            }
            path => self.join(path.as_ref().map_or("", PathAndQuery::as_str)),
        }
    }

    fn with_path(&self, path: PathAndQuery) -> Option<Uri> {
        let mut parts = Parts::from(self.uri.clone());
        parts.path_and_query = Some(path);
        Uri::from_parts(parts).ok()
    }

    /// Returns the URI of a request: joins a path to the base, or accepts an absolute URL below the base.
    pub(crate) fn resolve(&self, uri: Uri) -> Result<Uri, Error> {
        const NEITHER: &str = "the uri is neither a path that starts with a slash nor an absolute url";
        match (uri.scheme(), uri.authority()) {
            (None, None) if uri.path().starts_with('/') => self.join_parsed(uri.into_parts().path_and_query),
            (Some(_), Some(authority)) => {
                let checked = if authority.as_str().contains('@') {
                    Err("user info in a url is not sent: give the key to the preset".to_owned())
                } else if !self.origin.covers(&uri) {
                    Err(format!("not of the client's origin {}", self.origin))
                } else {
                    self.check_below(&uri).map_err(str::to_owned)
                };
                match checked {
                    Ok(()) => Ok(uri),
                    Err(reason) => Err(invalid_url(&uri.to_string(), &reason)),
                }
            }
            _ => Err(Error::new(Kind::Request, NEITHER)),
        }
    }

    /// Returns an error unless the path of a URL of this origin is below the base.
    fn check_below(&self, uri: &Uri) -> Result<(), &'static str> {
        check(uri.path_and_query().map_or("", PathAndQuery::as_str))?;
        let rest = uri.path().strip_prefix(self.uri.path().trim_end_matches('/'));
        match rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
            true => Ok(()),
            false => Err("its path is not below that of the base url"),
        }
    }
}

fn invalid_url(url: &str, reason: &str) -> Error {
    Error::new(Kind::Request, format!("url `{}`: {reason}", quoted(url)))
}

/// Quotes the path without its query. Quotes nothing if the path may contain a password, as in a URL without a scheme.
fn invalid_path(path: &str, reason: &str) -> Error {
    let route = path.split('?').next().unwrap_or_default();
    let is_clear = !route.contains([':', '@', '%']) && route.bytes().all(|byte| byte.is_ascii_graphic());
    let shown = if is_clear { route } else { "…" };
    Error::new(Kind::Request, format!("path `{shown}`: {reason}"))
}

/// Returns the route and the query of a path that stays below the base.
fn check(path: &str) -> Result<(&str, Option<&str>), &'static str> {
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("white space and characters outside ascii must be percent-encoded");
    }
    if path.starts_with("//") {
        return Err("two leading slashes would name another host");
    }
    let (route, query) = match path.split_once('?') {
        Some((route, query)) => (route, Some(query)),
        None => (path, None),
    };
    check_path(route)?;
    Ok((route, query))
}

/// Rejects segments and characters that a server or proxy may read as a step up or as another host.
fn check_path(path: &str) -> Result<(), &'static str> {
    // Most paths have none of these characters and need no copy.
    if !path.contains(['\\', '%', '.']) {
        return Ok(());
    }
    if path.contains('\\') {
        return Err("some servers read a backslash as a slash");
    }
    // Servers decode dots, slashes and semicolons. A semicolon starts the parameters of a segment.
    let plain = path.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/");
    let plain = plain.replace("%5c", "/").replace("%3b", ";");
    let dots = |segment: &str| matches!(segment.split(';').next(), Some("." | ".."));
    if plain.split('/').any(dots) {
        return Err("a segment of dots would leave the base url");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn joins_paths_below_the_base() {
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
    fn rejects_a_url_outside_of_the_base() {
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
        assert!(base.resolve("evil.test".parse().unwrap()).is_err(), "an authority alone");
    }

    #[test]
    fn joins_a_parsed_path_like_its_text() {
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
                // A text that is no URI never reaches the client.
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
        // As it goes over the wire; two of them are equal with the slash and without.
        assert_eq!(joined.path_and_query().unwrap().as_str(), "/?a=b");
    }

    #[test]
    fn names_what_a_base_url_lacks() {
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
    fn quotes_a_rejected_path_without_its_query_and_not_at_all_if_it_may_hold_a_password() {
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
        fn stays_below_the_base(
            start in "(https://host)?(/api)?",
            path in "[a-z./:?#@%2eEfF\\\\;& -]{0,24}",
        ) {
            let path = format!("{start}{path}");
            let base = BaseUrl::parse("https://host/api").unwrap();
            if let Ok(uri) = base.join(&path) {
                prop_assert!(base.origin().covers(&uri), "{uri}");
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
                // As a password, behind a broken sign of user info, and in a query.
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
}
