use http::{
    Uri,
    uri::{Parts, PathAndQuery},
};

use crate::{auth::Origin, config::InvalidConfig, error::Error, uri::quoted};

/// The base URL of a service. A URI that is resolved against the base URL stays below it.
#[derive(Debug, Clone)]
pub(crate) struct BaseUrl {
    pub(crate) uri: Uri,
    pub(crate) origin: Origin,
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
            return Err(invalid(
                "a path of visible ascii characters, with all other characters percent-encoded",
            ));
        }
        if path.contains("//") {
            return Err(invalid("a path without empty segments"));
        }
        if check_path(path).is_err() {
            return Err(invalid("a path without backslashes or dot segments"));
        }
        Ok(Self { uri, origin })
    }

    /// Joins a path to the base, or accepts an absolute URL below the base. Drops the fragment, as parsing a `Uri`
    /// does.
    pub(crate) fn join(&self, path: &str) -> Result<Uri, Error> {
        let path = split_once(path, b'#').0;
        if !path.starts_with('/') && path.split(['/', '?']).next().is_some_and(|first| first.ends_with(':')) {
            let uri = path.parse().map_err(|_| invalid_url(path, "not a valid url"))?;
            return self.resolve(uri);
        }
        let invalid = |reason| invalid_path(path, reason);
        let invalid_path_and_query = |_| invalid("not a valid path");
        let (route, query) = check(path).map_err(invalid)?;
        let base = self.uri.path();
        // Joining would copy the path twice.
        if base == "/" && path.starts_with('/') {
            return self.with_path(PathAndQuery::try_from(path).map_err(invalid_path_and_query)?);
        }
        let (base, slash) = match route {
            "" => (base, ""),
            _ => (base.strip_suffix('/').unwrap_or(base), "/"),
        };
        let route = route.strip_prefix('/').unwrap_or(route);
        let (mark, query) = query.map_or(("", ""), |query| ("?", query));
        // `concat` allocates the exact length. `Bytes` would need another allocation for a string with spare capacity.
        let joined = [base, slash, route, mark, query].concat();
        self.with_path(PathAndQuery::try_from(joined).map_err(invalid_path_and_query)?)
    }

    pub(crate) fn with_path(&self, path: PathAndQuery) -> Result<Uri, Error> {
        let mut parts = Parts::default();
        parts.scheme = self.uri.scheme().cloned();
        parts.authority = self.uri.authority().cloned();
        parts.path_and_query = Some(path);
        Uri::from_parts(parts).map_err(Error::invalid_request)
    }

    /// Resolves the URI of a request: joins a path to the base, or accepts an absolute URL below the base.
    pub(crate) fn resolve(&self, uri: Uri) -> Result<Uri, Error> {
        const NEITHER: &str = "the uri is neither a path that starts with a slash nor an absolute url";
        match (uri.scheme(), uri.authority()) {
            (None, None) if uri.path().starts_with('/') => match uri.into_parts().path_and_query {
                // If the base has no path, the path of the request is used without a copy.
                Some(path) if self.uri.path() == "/" && path.as_str().starts_with('/') => {
                    check(path.as_str()).map_err(|reason| invalid_path(path.as_str(), reason))?;
                    self.with_path(path)
                }
                path => self.join(path.as_ref().map_or("", PathAndQuery::as_str)),
            },
            (Some(_), Some(authority)) => {
                let checked = if authority.as_str().contains('@') {
                    Err("user info in a url is not sent: set the key on the builder instead".to_owned())
                } else if !self.origin.covers(&uri) {
                    Err(format!("its origin is not the client's origin, {}", self.origin))
                } else {
                    self.check_below(&uri).map_err(str::to_owned)
                };
                checked.map_err(|reason| invalid_url(&uri.to_string(), &reason))?;
                Ok(uri)
            }
            _ => Err(Error::invalid_request(NEITHER)),
        }
    }

    /// Replaces this base URL in `uri` by another base URL.
    pub(super) fn rebase(&self, uri: Uri, to: &Self) -> Result<Uri, Error> {
        let uri = self.resolve(uri)?;
        let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
        let rest = path.get(self.uri.path().trim_end_matches('/').len()..).unwrap_or_default();
        let base = match rest {
            "" => to.uri.path(),
            _ => to.uri.path().trim_end_matches('/'),
        };
        let slash = if base.is_empty() && !rest.starts_with('/') { "/" } else { "" };
        let path = PathAndQuery::try_from([base, slash, rest].concat());
        to.with_path(
            path.map_err(|_| Error::invalid_request("the url is too long with the member's base url"))?,
        )
    }

    /// Returns an error unless the path of `uri` is below the base. The caller has already compared the origins.
    fn check_below(&self, uri: &Uri) -> Result<(), &'static str> {
        check(uri.path_and_query().map_or("", PathAndQuery::as_str))?;
        let rest = uri.path().strip_prefix(self.uri.path().trim_end_matches('/'));
        let is_below = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        is_below.then_some(()).ok_or("its path is not below the path of the base url")
    }
}

fn invalid_url(url: &str, reason: &str) -> Error {
    Error::invalid_request(format!("url `{}`: {reason}", quoted(url)))
}

/// Quotes the path without its query. Omits the path if it may contain a password, as in a URL without a scheme.
fn invalid_path(path: &str, reason: &str) -> Error {
    let route = path.split('?').next().unwrap_or_default();
    let is_clear = !route.contains([':', '@', '%']) && route.bytes().all(|byte| byte.is_ascii_graphic());
    let shown = if is_clear { route } else { "…" };
    Error::invalid_request(format!("path `{shown}`: {reason}"))
}

/// Splits a path into route and query. Returns an error if the path could leave the base.
fn check(path: &str) -> Result<(&str, Option<&str>), &'static str> {
    if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("white space and characters outside ascii must be percent-encoded");
    }
    if path.starts_with("//") {
        return Err("two leading slashes would name another host");
    }
    let (route, query) = split_once(path, b'?');
    check_path(route)?;
    Ok((route, query))
}

/// Splits a text at the first separator, which must be an ASCII character. Paths are short, so this is faster than
/// [`str::split_once`], which prepares a search.
fn split_once(text: &str, separator: u8) -> (&str, Option<&str>) {
    let found = text.bytes().position(|byte| byte == separator);
    let parts = found.and_then(|at| Some((text.get(..at)?, text.get(at + 1..)?)));
    parts.map_or((text, None), |(before, after)| (before, Some(after)))
}

/// Rejects segments and characters that a server or proxy may interpret as a parent directory or as another host.
fn check_path(path: &str) -> Result<(), &'static str> {
    // Most paths contain none of these characters, and need no copy.
    if !path.bytes().any(|byte| matches!(byte, b'\\' | b'%' | b'.')) {
        return Ok(());
    }
    if path.contains('\\') {
        return Err("some servers treat a backslash as a slash");
    }
    // Servers decode percent-encoded dots, slashes and semicolons. A semicolon separates a segment from its parameters.
    let plain = path.to_ascii_lowercase().replace("%2e", ".").replace("%2f", "/");
    let plain = plain.replace("%5c", "/").replace("%3b", ";");
    let dots = |segment: &str| matches!(segment.split(';').next(), Some("." | ".."));
    if plain.split('/').any(dots) {
        return Err("a dot segment would leave the base url");
    }
    Ok(())
}

#[cfg(feature = "serde")]
crate::config::text::text! {
    BaseUrl, "a url", BaseUrl::parse, |url: &BaseUrl| url.uri.to_string();
}

#[cfg(test)]
mod tests;
