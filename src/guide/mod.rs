//! Guide pages about the use of this crate in a program. These modules contain only text.
//!
//! Every snippet is compiled. The programs with other crates are compiled and run in `tests/stacks` of the repository.
//!
//! | to | read |
//! |---|---|
//! | call an API | [`own_api`], [`uploads_downloads`], [`reqwest`](mod@reqwest), [`grpc`], [`kube_octocrab`] |
//! | compose layers | [`stack`], [`other_layers`] |
//! | keep to a quota | [`limits`], [`services`], [`github`], [`llm_services`], [`adaptive_limits`], [`priorities`], [`shared_quota`] |
//! | handle failures | [`retries`], [`timeouts`], [`networks`], [`credentials`] |
//! | run it | [`configuration`], [`observability`], [`testing`] |
//! | look something up | [`migration`], [`faq`], [`glossary`] |
//!
//! # Jobs
//!
//! | job | read |
//! |---|---|
//! | call an API with JSON, from the handlers of a server | [`own_api`] |
//! | upload a large file, or resume a download | [`uploads_downloads`] |
//! | read all pages of a list | [`pagination`] |
//! | poll a resource that rarely changes, or update it without lost changes (ETag) | [`conditional_requests`] |
//! | call the API of GitHub | [`github`] |
//! | call a language model, and stream its response | [`llm_services`] |
//! | serve many tenants, each with its own key and quota | [`tenants`] |
//! | share one quota between processes | [`shared_quota`] |
//! | use several keys or regions | [`limits`](limits#several-keys-or-regions) |
//! | serve users before a nightly job | [`priorities`] |
//! | open a WebSocket | [`websocket`] |
//! | connect through a proxy | [`networks`](networks#proxies) |
//! | trust a private root certificate, or present a client certificate | [`networks`](networks#certificates) |
//! | connect to a Unix socket | [`networks`](networks#other-connectors) |
//! | fetch OAuth 2 tokens, rotate a key | [`credentials`](credentials#oauth-2-client-credentials) |
//! | sign requests | [`credentials`](credentials#where-the-key-goes) |
//! | add a circuit breaker, follow redirects | [`other_layers`] |
//! | keep reqwest 0.13 | [`reqwest`](mod@reqwest) |
//! | keep reqwest 0.12, or reqwest-middleware | [`migration`](migration#with-reqwest-012-and-reqwest-middleware) |
//! | make a POST safe to retry | [`retries`](retries#make-a-post-safe-to-retry) |
//! | change the settings without a restart | [`configuration`](configuration#change-settings-at-run-time) |
//! | send a batch, and know which requests were processed | [`faq`](faq#which-requests-of-a-batch-were-sent) |
//! | shut down | [`faq`](faq#how-do-i-shut-down) |
//! | find out why a call was slow | [`observability`] |
//! | test code that calls an API | [`testing`] |

/// Declares a module for each page.
macro_rules! pages {
    ($($page:ident)+) => {
        $(
            #[doc = include_str!(concat!(stringify!($page), ".md"))]
            pub mod $page {}
        )+
    };
}

pages! {
    adaptive_limits conditional_requests configuration credentials faq github glossary grpc kube_octocrab limits
    llm_services migration networks observability other_layers own_api pagination priorities reqwest retries
    services shared_quota tenants testing timeouts uploads_downloads websocket
}

/// Shows how to put the layers over any tower service in the right order, and what a wrong order breaks.
///
#[doc = include_str!("order.md")]
///
#[doc = include_str!("stack.md")]
pub mod stack {}
