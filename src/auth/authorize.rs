use std::{fmt, sync::Arc};

use http::request;

use super::{CurrentKey, KeySource};
use crate::error::BoxError;

/// Puts a credential on the head of a request. A closure with this signature implements it.
///
/// The layer calls it once for each attempt, and only for requests to the credential's own origin. An error ends the
/// call before anything is sent. The error must not contain the credential.
///
/// The head has room for 500 more header fields, unless the credential is a key from [`keys`](Self::keys). A request
/// without that room is rejected.
///
/// ```
/// use tower_outbound::auth::{AuthLayer, Origin};
///
/// let layer = AuthLayer::with(
///     |head: &mut http::request::Parts| {
///         head.headers.insert("x-signature", http::HeaderValue::from_static("made up"));
///         Ok(())
///     },
///     Origin::parse("https://api.example.com")?,
/// )?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not put a credential on requests",
    label = "not an `Authorize`",
    note = "a closure `|head: &mut http::request::Parts| -> Result<(), BoxError>` does, and `Rotating`, `Bearer`, `HeaderKey`, `Basic` and `QueryKey`; a key alone goes to `with_api_key`, and an `Arc<dyn Authorize>` into an `auth::AnyAuthorize`"
)]
pub trait Authorize: Send + Sync {
    /// Puts the credential on the request.
    ///
    /// # Errors
    ///
    /// Returns an error if the credential cannot be put on the request. Nothing is sent then.
    fn authorize(&self, head: &mut request::Parts) -> Result<(), BoxError>;

    /// Returns the key source of this credential, if it has one. The default is `None`.
    ///
    /// The layer becomes ready once the key source has a key. It then calls [`authorize_with`](Self::authorize_with)
    /// instead of [`authorize`](Self::authorize), and keeps that key out of the reports.
    fn keys(&self) -> Option<&KeySource> {
        None
    }

    /// Puts the credential made from `key` on the request. Returns `false` if the request has its own credential: a 401
    /// to it does not invalidate `key`.
    ///
    /// # Errors
    ///
    /// Returns an error if the credential cannot be put on the request. Nothing is sent then.
    fn authorize_with(&self, key: &CurrentKey, head: &mut request::Parts) -> Result<bool, BoxError> {
        let _ = key;
        self.authorize(head).map(|()| false)
    }
}

impl<F> Authorize for F
where
    F: Fn(&mut request::Parts) -> Result<(), BoxError> + Send + Sync,
{
    fn authorize(&self, head: &mut request::Parts) -> Result<(), BoxError> {
        self(head)
    }
}

impl<A: Authorize> Authorize for Arc<A> {
    fn authorize(&self, head: &mut request::Parts) -> Result<(), BoxError> {
        A::authorize(self, head)
    }

    fn keys(&self) -> Option<&KeySource> {
        A::keys(self)
    }

    fn authorize_with(&self, key: &CurrentKey, head: &mut request::Parts) -> Result<bool, BoxError> {
        A::authorize_with(self, key, head)
    }
}

/// A credential whose type is erased.
///
/// A type of its own and not `Arc<dyn Authorize>`, because rustc cannot prove that the future of a stack over
/// `Arc<dyn Authorize>` is `Send` behind a [`Buffer`](https://docs.rs/tower/latest/tower/buffer/).
///
/// # Clone
///
/// Clones share the credential.
#[derive(Clone)]
pub struct AnyAuthorize(Arc<dyn Authorize>);

impl AnyAuthorize {
    /// Erases the type of `authorize`.
    pub fn new(authorize: impl Authorize + 'static) -> Self {
        Self(Arc::new(authorize))
    }
}

impl From<Arc<dyn Authorize>> for AnyAuthorize {
    fn from(authorize: Arc<dyn Authorize>) -> Self {
        Self(authorize)
    }
}

impl Authorize for AnyAuthorize {
    fn authorize(&self, head: &mut request::Parts) -> Result<(), BoxError> {
        self.0.authorize(head)
    }

    fn keys(&self) -> Option<&KeySource> {
        self.0.keys()
    }

    fn authorize_with(&self, key: &CurrentKey, head: &mut request::Parts) -> Result<bool, BoxError> {
        self.0.authorize_with(key, head)
    }
}

impl fmt::Debug for AnyAuthorize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyAuthorize").finish_non_exhaustive()
    }
}
