use super::Preset;
use crate::error::InvalidConfig;

/// Realtime messaging: no quota, for the service publishes none; its own asks to pause are obeyed.
///
/// The service knows an application id, a key and a secret, but how they are sent is not shown:
/// [`Preset::with_credentials`] takes the three and a closure that makes headers or a signature of them, and
/// [`Preset::with_signature`] a hook that may await something and see the body. The bearer form of the service's samples, with the key from `REALTIME_MESSAGING_API_KEY`, is used otherwise.
/// Once you know your limit, give it: [`Preset::with_quota`].
///
/// # Errors
///
/// When `base_url` is not an absolute `http` or `https` URL.
///
/// ```
/// use tower_outbound::{ApiKey, auth::AppCredentials, preset};
///
/// let credentials = AppCredentials::new("my-app", ApiKey::new("k3y")?, ApiKey::new("s3cret")?)?;
/// let layer = preset::realtime_messaging("https://push.example.com")?
///     .with_credentials(credentials, |credentials, head| {
///         // Whatever the service's manual says; this scheme is made up.
///         head.headers.insert("x-app-id", credentials.app_id().parse()?);
///         Ok(())
///     })
///     .layer()?;
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
pub fn realtime_messaging(base_url: &str) -> Result<Preset, InvalidConfig> {
    Ok(Preset::new("realtime_messaging", base_url)?
        .with_json_on_every_request()
        .with_key_env("REALTIME_MESSAGING_API_KEY"))
}
