//! A check of URIs that were created from parts.

use http::uri::Authority;

/// Returns whether the text of `authority` contains a path, a query or a fragment. `Authority::from_static` does not
/// reject them, and the text of a URI with such an authority parses as another URI.
pub(crate) fn has_path(authority: &Authority) -> bool {
    authority.as_str().bytes().any(|byte| matches!(byte, b'/' | b'?' | b'#'))
}
