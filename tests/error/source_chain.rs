//! Tests that `Error::find_in` searches boxes, wrappers and source chains.

use std::{error::Error as StdError, fmt};

use super::{
    support::{Scripted::Refused, ScriptedService},
    *,
};

/// An error wrapper that does not implement `Error`, like `anyhow::Error` and `eyre::Report`.
struct Anyhow(BoxError);

impl std::ops::Deref for Anyhow {
    type Target = dyn StdError + Send + Sync + 'static;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

#[derive(Debug)]
struct Context(BoxError);

impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("could not load the rates")
    }
}

impl StdError for Context {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

#[tokio::test(start_paused = true)]
async fn method_find_in_finds_the_error_inside_boxes_and_wrappers() {
    async fn refused_call() -> Error {
        quick_retry().layer(ScriptedService::new([Refused])).oneshot(get("http://h/")).await.unwrap_err()
    }
    let kind = |error: &(dyn StdError + 'static)| Error::find_in(error).map(Error::kind);
    let refused = Some(ErrorKind::ConnectRefused);
    assert_eq!(kind(&refused_call().await), refused);
    let boxed: BoxError = refused_call().await.into();
    assert_eq!(kind(&*boxed), refused);
    assert_eq!(kind(boxed.as_ref()), refused);
    let borrowed: &BoxError = &boxed;
    assert_eq!(kind(&**borrowed), refused);
    let plain: Box<dyn StdError> = Box::new(refused_call().await);
    assert_eq!(kind(&*plain), refused);
    assert_eq!(kind(&Context(boxed)), refused);
    let anyhow = Anyhow(Box::new(Context(refused_call().await.into())));
    assert_eq!(kind(&*anyhow), refused);
    assert_eq!(
        kind(&std::io::Error::other(refused_call().await)),
        refused,
        "`source()` of an `io::Error` skips the wrapped error itself"
    );
    assert_eq!(kind(&std::io::Error::other("no error of this crate")), None);
}
