use crate::{config::InvalidConfig, policy::Quota, stack::StackBuilder};

/// Creates the preset of a service for email delivery: 1000 requests a minute, and a bearer key from the environment
/// variable `EMAIL_DELIVERY_API_KEY`.
///
/// The service's limit varies by plan: see [`StackBuilder::with_quota`]. If the service expects its key in a query
/// parameter, use [`StackBuilder::with_key_placement`]. Every request has `content-type: application/json`, as in the
/// service's sample calls.
///
/// A POST is retried only if it provably did not reach the service, or if the service rejected it with a 429 or 529.
/// Otherwise a retry could send a second email.
///
/// # Errors
///
/// Returns an error for an invalid base URL, like [`StackBuilder::new`].
///
/// ```
/// use tower_outbound::{ApiKey, preset};
///
/// let layer = preset::email_delivery("https://mail.example.com")?
///     .with_api_key(ApiKey::new("s3cret")?)
///     .layer()?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
pub fn email_delivery(base_url: impl AsRef<str>) -> Result<StackBuilder, InvalidConfig> {
    Ok(StackBuilder::new(base_url)?
        .with_name("email_delivery")
        .with_json_on_every_request()
        .with_api_key_env("EMAIL_DELIVERY_API_KEY")
        .with_quota(Quota::per_minute(1000)?))
}
