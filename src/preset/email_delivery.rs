use super::Preset;
use crate::{error::InvalidConfig, policy::Quota};

/// Email delivery: 1000 requests a minute, a bearer key from `EMAIL_DELIVERY_API_KEY`.
///
/// The service's limit varies by plan: [`Preset::with_quota`]. It may want its key in a query parameter, whose
/// name is the service's to say: [`Preset::with_key_in_query`]. A POST is sent again only when it can't have
/// reached the service: a second attempt of one that did would be a second e-mail.
///
/// # Errors
///
/// When `base_url` is not an absolute `http` or `https` URL.
///
/// ```
/// use tower_outbound::{ApiKey, preset};
///
/// let layer = preset::email_delivery("https://mail.example.com")?
///     .with_api_key(ApiKey::new("s3cret")?)
///     .layer()?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
pub fn email_delivery(base_url: &str) -> Result<Preset, InvalidConfig> {
    Ok(Preset::new("email_delivery", base_url)?
        .with_json_on_every_request()
        .with_key_env("EMAIL_DELIVERY_API_KEY")
        .with_quota(Quota::per_minute(1000)?.with_guard(Preset::GUARD)?))
}
