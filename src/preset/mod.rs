//! Presets: functions that return a [builder](crate::stack::StackBuilder) with the published values of one service.
//!
//! ```no_run
//! use tower_outbound::{ApiKey, Quota, preset};
//!
//! # async fn call() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let rates = preset::currency_rates("https://rates.example.com")?
//!     .with_api_key(ApiKey::from_file("/run/secrets/rates")?)
//!     .with_quota(Quota::per_minute(600)?) // a larger plan
//!     .client()?;
//!
//! let response = rates.get("/v1/resources").await?;
//! println!("{} {:?}", response.status(), response.into_body().bytes_up_to(64 * 1024).await?);
//! # Ok(())
//! # }
//! ```
//!
//! [`ALL`] lists the presets with these values:
//!
//! | setting | value | setter |
//! |---|---|---|
//! | quota | the published one. It varies by the application's plan | [`with_quota`](crate::stack::StackBuilder::with_quota) |
//! | burst | a tenth of the quota | [`Quota::with_burst`](crate::Quota::with_burst) |
//! | margin | 1 s | [`Quota::with_margin`](crate::Quota::with_margin) |
//! | key | a bearer token from an environment variable, such as `CURRENCY_RATES_API_KEY` | [`with_api_key`](crate::stack::StackBuilder::with_api_key) and others |
//! | total timeout | 60 s | [`with_total_timeout`](crate::stack::StackBuilder::with_total_timeout) |
//! | attempt timeout | 10 s | [`with_attempt_timeout`](crate::stack::StackBuilder::with_attempt_timeout) |
//! | `content-type` | `application/json` on every request | [`with_header`](crate::stack::StackBuilder::with_header) |
//!
//! The quotas, the bearer header and the `content-type` come from the services' documentation or sample calls. All
//! other values are choices of this crate, and the documentation of each setter states the reason.
//!
//! A [paced window](crate::limit::LocalLimiter::paced_window) enforces the quotas. If the service publishes no quota,
//! an [adaptive](crate::limit::LocalLimiter::adaptive) limiter learns the rate that the server accepts. To use another
//! limiter, see [`StackBuilder::with_limiter`](crate::stack::StackBuilder::with_limiter).
//!
//! To call any other service, start from [`Client::builder`](crate::Client::builder). For a service without a key, add
//! [`without_credential`](crate::stack::StackBuilder::without_credential).
#![cfg_attr(feature = "serde", doc = "")]
#![cfg_attr(feature = "serde", doc = include_str!("config.md"))]
#![cfg_attr(feature = "serde", doc = include_str!("sample.toml"))]
#![cfg_attr(feature = "serde", doc = "```")]

#[cfg(feature = "serde")]
mod config;

#[cfg(feature = "serde")]
pub use self::config::StackConfig;
use crate::{config::InvalidConfig, policy::Quota, stack::StackBuilder};

/// Creates each preset from its name, its quotas and the environment variable of its key. A row adds the function, an
/// entry of [`ALL`], and a value of `preset` in a configuration file.
macro_rules! presets {
    ($($(#[$doc:meta])* $name:ident: [$($quota:literal),*], $variable:literal;)*) => {
        $(
            $(#[$doc])*
            ///
            /// Every request has `content-type: application/json`, as in the service's sample calls.
            ///
            /// # Errors
            ///
            /// Returns an error for an invalid base URL, like [`StackBuilder::new`].
            pub fn $name(base_url: impl AsRef<str>) -> Result<StackBuilder, InvalidConfig> {
                let quotas = [$($quota),*].into_iter().map(str::parse).collect::<Result<Vec<Quota>, _>>()?;
                Ok(StackBuilder::new(base_url)?
                    .with_name(stringify!($name))
                    .with_header(http::header::CONTENT_TYPE, "application/json")
                    .with_api_key_env($variable)
                    .with_quotas(quotas))
            }
        )*

        /// The presets, each with its name.
        ///
        /// | preset | quota | environment variable of the key | timeouts: call, attempt |
        /// |---|---|---|---|
        $(#[doc = concat!(
            "| [`", stringify!($name), "`] | ", $("`", $quota, "`, burst a tenth of it, margin 1 s ",)*
            "| `", $variable, "` | 60 s, 10 s |",
        )])*
        ///
        /// A quota of `100/60s` allows 100 requests in any 60 s. Without a published quota, the limiter
        /// [learns](crate::limit::LocalLimiter::adaptive) the rate.
        pub const ALL: &[(&str, Preset)] = &[$((stringify!($name), |base_url| $name(base_url))),*];

        /// The value of `preset` in a configuration file.
        #[cfg(feature = "serde")]
        #[derive(Debug, Clone, Copy, Default, serde::Serialize, serde::Deserialize)]
        #[serde(rename = "Preset")]
        #[expect(non_camel_case_types, reason = "the names in the file")]
        enum Name {
            $($name,)*
            #[default]
            custom,
        }

        #[cfg(feature = "serde")]
        impl Name {
            fn builder(self, base_url: String) -> Result<StackBuilder, InvalidConfig> {
                match self {
                    $(Self::$name => $name(base_url),)*
                    Self::custom => StackBuilder::new(base_url),
                }
            }
        }
    };
}

/// A function that creates the builder of a preset from the base URL of the service.
pub type Preset = fn(&str) -> Result<StackBuilder, InvalidConfig>;

presets! {
    /// Creates the preset of a service for currency exchange rates: 100 requests a minute with a burst of 10, and a
    /// bearer key from the environment variable `CURRENCY_RATES_API_KEY`.
    ///
    /// The service's limit varies by plan: see [`StackBuilder::with_quota`]. If the service expects its key in a query
    /// parameter, use [`StackBuilder::with_key_placement`].
    ///
    /// ```
    /// use tower_outbound::{ApiKey, preset};
    ///
    /// let layer = preset::currency_rates("https://rates.example.com")?
    ///     .with_api_key(ApiKey::new("s3cret")?)
    ///     .layer()?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    currency_rates: ["100/60s"], "CURRENCY_RATES_API_KEY";

    /// Creates the preset of a service for email delivery: 1000 requests a minute with a burst of 100, and a bearer key
    /// from the environment variable `EMAIL_DELIVERY_API_KEY`.
    ///
    /// The service's limit varies by plan: see [`StackBuilder::with_quota`]. If the service expects its key in a query
    /// parameter, use [`StackBuilder::with_key_placement`].
    ///
    /// A POST is retried only if it provably did not reach the service, or if the service rejected it with a 429 or
    /// 529. Otherwise a retry could send a second email.
    ///
    /// ```
    /// use tower_outbound::{ApiKey, preset};
    ///
    /// let layer = preset::email_delivery("https://mail.example.com")?
    ///     .with_api_key(ApiKey::new("s3cret")?)
    ///     .layer()?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    email_delivery: ["1000/60s"], "EMAIL_DELIVERY_API_KEY";

    /// Creates the preset of a service for realtime messaging: no quota, and a bearer key from the environment variable
    /// `REALTIME_MESSAGING_API_KEY`.
    ///
    /// The service publishes no quota. Set the limit of your plan with [`StackBuilder::with_quota`]. Without a quota,
    /// an [adaptive](crate::limit::LocalLimiter::adaptive) limiter learns the rate that the service accepts. It starts
    /// with ten requests at once, which is a choice of this crate and not a figure of the service.
    ///
    /// The service authenticates requests by an application id, a key and a secret, but does not publish how to send
    /// them. By default, the preset sends the bearer header of the service's sample calls. To send the credentials in
    /// another way:
    ///
    /// - [`StackBuilder::with_authorize`] takes a closure that adds headers or a signature, for example from
    ///   [`AppCredentials`](crate::auth::AppCredentials).
    /// - [`StackBuilder::with_signature`] takes a signer that may also be asynchronous and read the body.
    ///
    /// ```
    /// use tower_outbound::{ApiKey, auth::AppCredentials, preset};
    ///
    /// let credentials = AppCredentials::new("my-app", ApiKey::new("k3y")?, ApiKey::new("s3cret")?)?;
    /// let layer = preset::realtime_messaging("https://push.example.com")?
    ///     .with_authorize(move |head| {
    ///         // This scheme is made up. The service's documentation describes the real scheme.
    ///         head.headers.insert("x-app-id", credentials.app_id().parse()?);
    ///         Ok(())
    ///     })
    ///     .layer()?;
    /// # Ok::<(), tower_outbound::InvalidConfig>(())
    /// ```
    realtime_messaging: [], "REALTIME_MESSAGING_API_KEY";
}
