use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Percent-encodes all characters except the unreserved ones of RFC 3986.
pub(super) const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Percent-encodes a string as one segment of a path. Use it for an untrusted string, such as an id in an inbound
/// request. Without it, the string could add a query or select another path.
///
/// ```
/// use tower_outbound::{Client, Error, client::PathSegment};
///
/// # async fn call(orders: Client) -> Result<(), Error> {
/// let id = "7/cancel?now=1";
/// // Sends `/orders/7%2Fcancel%3Fnow%3D1`.
/// orders.get(format!("/orders/{}", PathSegment(id))).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Notes
///
/// - The segments `.` and `..` cannot be encoded, so the client rejects a path that contains them.
/// - An empty string produces an empty segment, as in `/orders/`. Reject an empty string if that path has another
///   meaning.
#[derive(Debug, Clone, Copy)]
pub struct PathSegment<'a>(pub &'a str);

impl fmt::Display for PathSegment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        utf8_percent_encode(self.0, RESERVED).fmt(f)
    }
}
