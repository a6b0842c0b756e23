//! Checks that values of public types do not show the key. Also records the checked types, so that the test fails if a
//! public type has no check.

use std::{
    cell::RefCell,
    fmt, fs,
    path::Path,
    pin::Pin,
    task::{Context, Poll},
};

use http::{Request, header::AUTHORIZATION};
use tokio_test::task;
use tower::{Layer, Service, ServiceExt};
use tower_outbound::BoxError;

use super::*;
use crate::support::{Content, get};

pub(super) const URI: &str = "https://host/v1";

/// The names of the checked types, such as `auth::ApiKey`: the crate's top-level module and the type.
#[derive(Default)]
pub(super) struct Coverage {
    debug: RefCell<BTreeSet<String>>,
    display: RefCell<BTreeSet<String>>,
}

impl Coverage {
    #[track_caller]
    pub(super) fn debug<T: Debug>(&self, value: &T) {
        check_debug(value);
        self.record(type_name(value));
    }

    #[track_caller]
    pub(super) fn debug_and_display<T: Debug + Display>(&self, value: &T) {
        self.debug(value);
        check_display(value);
        self.display.borrow_mut().insert(type_name(value));
    }

    #[track_caller]
    pub(super) fn error<T: StdError + 'static>(&self, value: &T) {
        self.debug_and_display(value);
        check_error_chain(value);
    }

    /// Makes calls whose requests contain the key. Checks the layer, its service, the future of each call and the
    /// result of each call.
    pub(super) fn layer<L, S, R>(&self, layer: L)
    where
        L: Layer<VerboseService, Service = S> + Debug,
        S: Service<Request<Content>, Response = Response<R>, Error: Into<BoxError> + Debug> + Clone + Debug,
        S::Future: Debug,
        R: Debug,
    {
        self.debug(&layer);
        let request = || {
            let mut request = get(&format!("{URI}?api_key=redacted"));
            request.headers_mut().insert(AUTHORIZATION, key().header_value());
            request
        };
        for responds in [false, true] {
            let mut service = layer.layer(VerboseService { responds });
            self.debug(&service);
            let Poll::Ready(ready) = task::spawn(service.ready()).poll() else { panic!("not ready") };
            let future = ready.unwrap().call(request());
            self.debug(&future);
            let mut future = task::spawn(future);
            match future.poll() {
                Poll::Ready(Ok(response)) => check_response(&response),
                Poll::Ready(Err(error)) => check_error_chain(&*error.into()),
                Poll::Pending => check_debug(&future),
            }
        }
    }

    /// Records a type that was checked elsewhere.
    pub(super) fn record(&self, name: String) {
        self.debug.borrow_mut().insert(name);
    }

    /// Asserts that every public type was checked.
    pub(super) fn assert_complete(&self) {
        let (types, displays) = public_types();
        assert!(types.len() > 80 && displays.len() > 6, "{types:?} {displays:?}");
        let missing: Vec<_> = types.difference(&self.debug.borrow()).cloned().collect();
        assert!(missing.is_empty(), "public types without a check: {missing:?}");
        let missing: Vec<_> = displays.difference(&self.display.borrow()).cloned().collect();
        assert!(missing.is_empty(), "public types without a check of `Display`: {missing:?}");
    }
}

/// Returns the name of the value's type without type parameters and inner modules. For example, returns `auth::ApiKey`
/// for `tower_outbound::auth::key::ApiKey`.
pub(super) fn type_name<T: ?Sized>(_: &T) -> String {
    let name = std::any::type_name::<T>();
    let path = name.split('<').next().unwrap();
    let module = path.split("::").nth(1).unwrap();
    format!("{module}::{}", path.rsplit("::").next().unwrap())
}

/// An inner service whose futures show the request in `Debug`, except the request's URI. The service responds with 401
/// or never responds.
#[derive(Debug, Clone)]
pub(super) struct VerboseService {
    responds: bool,
}

pub(super) struct VerboseFuture<B> {
    request: Request<B>,
    responds: bool,
}

impl<B> Service<Request<B>> for VerboseService {
    type Response = Response<Content>;
    type Error = BoxError;
    type Future = VerboseFuture<B>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> VerboseFuture<B> {
        VerboseFuture { request, responds: self.responds }
    }
}

impl<B> Future for VerboseFuture<B> {
    type Output = Result<Response<Content>, BoxError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.responds {
            return Poll::Pending;
        }
        Poll::Ready(Ok(Response::builder().status(401).body(Content::default())?))
    }
}

impl<B> Debug for VerboseFuture<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VerboseFuture").field(self.request.headers()).field(self.request.extensions()).finish()
    }
}

/// Types of which callers get no value. The services and futures that contain these types are checked instead.
const CONTAINED: [&str; 4] =
    ["auth::AnySign", "auth::Signing", "error::MaybeRejected", "stack::ResponseFuture"];

/// Returns `true` if the enabled features include the type and code outside the crate can have a value of the type.
fn is_available(name: &str) -> bool {
    match name {
        "preset::StackConfig" | "limit::RateLimitConfig" | "limit::DialectConfig" => cfg!(feature = "serde"),
        "adapter::ClientCredentials" => cfg!(feature = "oauth2"),
        "adapter::Reqwest" => cfg!(feature = "reqwest"),
        "transport::Proxy" => cfg!(feature = "proxy"),
        "adapter::RedisLimiter" | "adapter::Store" => {
            cfg!(feature = "redis")
        }
        // These types are `pub` in a private module, so no caller gets a value of them.
        "policy::Learner" | "policy::Acceptance" | "policy::Scale" => false,
        // The guide shows programs of applications, and has no types.
        _ => !name.starts_with("guide::"),
    }
}

/// Returns the public types in the source text of `src`, and the public types that implement `Display`.
fn public_types() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut types, mut displays) = (BTreeSet::new(), BTreeSet::new());
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let root = folders[0].clone();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                // The limiter's core and its simulation contain only numbers and times.
                if !path.ends_with("limit/core") && !path.ends_with("test_util/limiter") {
                    folders.push(path);
                }
                continue;
            }
            let module = path.strip_prefix(&root).unwrap().components().next().unwrap();
            let module = Path::new(&module).file_stem().unwrap().to_str().unwrap().to_owned();
            let type_name = |rest: &str| {
                let name = rest.split(|char: char| !char.is_alphanumeric() && char != '_').next();
                format!("{module}::{}", name.unwrap())
            };
            for line in fs::read_to_string(&path).unwrap().lines().map(str::trim) {
                for kind in ["pub struct ", "pub enum ", "pub union "] {
                    types.extend(line.strip_prefix(kind).map(type_name));
                }
                displays.extend(line.split_once("fmt::Display for ").map(|(_, rest)| type_name(rest)));
            }
        }
    }
    types.retain(|name| is_available(name) && !CONTAINED.contains(&name.as_str()));
    displays.retain(|name| types.contains(name));
    (types, displays)
}
