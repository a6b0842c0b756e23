use crate::{config::InvalidConfig, policy::Quota, stack::StackBuilder};

/// Calls a service for email delivery: 1000 requests a minute, a bearer key from `EMAIL_DELIVERY_API_KEY`.
///
/// The service's limit varies by plan: see [`StackBuilder::with_quota`]. If the service expects its key in a query parameter,
/// give its name to [`StackBuilder::with_key_placement`]. Every request has `content-type: application/json`, as in the service's
/// sample calls.
///
/// A POST is retried only if it cannot have reached the service, because a retry could otherwise send a second email.
///
/// # Errors
///
/// Returns an error for a base URL as [`StackBuilder::new`] does.
///
/// ```
/// use tower_outbound::{ApiKey, preset};
///
/// let layer = preset::email_delivery("https://mail.example.com")?
///     .with_api_key(ApiKey::new("s3cret")?)
///     .layer()?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
pub fn email_delivery(base_url: &str) -> Result<StackBuilder, InvalidConfig> {
    Ok(StackBuilder::new(base_url)?
        .with_name("email_delivery")
        .with_json_on_every_request()
        .with_key_env("EMAIL_DELIVERY_API_KEY")
        .with_quota(Quota::per_minute(1000)?))
}
