use crate::{config::InvalidConfig, policy::Quota, stack::StackBuilder};

/// Creates the preset of a service for currency exchange rates: 100 requests a minute, and a bearer key from the
/// environment variable `CURRENCY_RATES_API_KEY`.
///
/// The service's limit varies by plan: see [`StackBuilder::with_quota`]. If the service expects its key in a query
/// parameter, use [`StackBuilder::with_key_placement`]. Every request has `content-type: application/json`, as in the
/// service's sample calls.
///
/// # Errors
///
/// Returns an error for an invalid base URL, like [`StackBuilder::new`].
///
/// ```
/// use tower_outbound::{ApiKey, preset};
///
/// let layer = preset::currency_rates("https://rates.example.com")?
///     .with_api_key(ApiKey::new("s3cret")?)
///     .layer()?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
pub fn currency_rates(base_url: impl AsRef<str>) -> Result<StackBuilder, InvalidConfig> {
    Ok(StackBuilder::new(base_url)?
        .with_name("currency_rates")
        .with_json_on_every_request()
        .with_api_key_env("CURRENCY_RATES_API_KEY")
        .with_quota(Quota::per_minute(100)?))
}
