use crate::{config::InvalidConfig, stack::StackBuilder};

/// Creates the preset of a service for realtime messaging: no quota, and a bearer key from the environment variable
/// `REALTIME_MESSAGING_API_KEY`.
///
/// The service publishes no quota. Set the limit of your plan with [`StackBuilder::with_quota`]. Without a quota, an
/// [adaptive](crate::limit::LocalLimiter::adaptive) limiter learns the rate that the service accepts. It starts with ten requests
/// at once, which is a choice of this crate and not a figure of the service.
///
/// The service authenticates requests by an application id, a key and a secret, but does not publish how to send them.
/// By default, the preset sends the bearer header and the `content-type: application/json` of the service's sample
/// calls. To send the credentials in another way:
///
/// - [`StackBuilder::with_authorize`] takes a closure that adds headers or a signature, for example from
///   [`AppCredentials`](crate::auth::AppCredentials).
/// - [`StackBuilder::with_signature`] takes a signer that may also be asynchronous and read the body.
///
/// # Errors
///
/// Returns an error for an invalid base URL, like [`StackBuilder::new`].
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
pub fn realtime_messaging(base_url: impl AsRef<str>) -> Result<StackBuilder, InvalidConfig> {
    Ok(StackBuilder::new(base_url)?
        .with_name("realtime_messaging")
        .with_json_on_every_request()
        .with_api_key_env("REALTIME_MESSAGING_API_KEY"))
}
