use super::Preset;
use crate::{error::InvalidConfig, policy::Quota};

/// Currency exchange rates: 100 requests a minute, a bearer key from `CURRENCY_RATES_API_KEY`.
///
/// The service's limit varies by plan: [`Preset::with_quota`]. It may want its key in a query parameter, whose
/// name is the service's to say: [`Preset::with_key_in_query`].
///
/// # Errors
///
/// When `base_url` is not an absolute `http` or `https` URL.
///
/// ```
/// use tower_outbound::{ApiKey, preset};
///
/// let layer = preset::currency_rates("https://rates.example.com")?
///     .with_api_key(ApiKey::new("s3cret")?)
///     .layer()?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
pub fn currency_rates(base_url: &str) -> Result<Preset, InvalidConfig> {
    Ok(Preset::new("currency_rates", base_url)?
        .with_json_on_every_request()
        .with_key_env("CURRENCY_RATES_API_KEY")
        .with_quota(Quota::per_minute(100)?.with_guard(Preset::GUARD)?))
}
