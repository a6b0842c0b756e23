use std::{
    env,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use http::{HeaderValue, header::AUTHORIZATION};
use tower_outbound::{
    ApiKey, BoxError, Client, InvalidConfig, auth::AppCredentials, preset, stack::StackBuilder,
};

use crate::{
    load::Call,
    support::{MockConfig, MockResponse, MockServer, Trigger},
};

/// A service that the program calls, with the load for that service.
pub(crate) struct Target {
    pub(crate) name: String,
    /// A description of the service's limit.
    pub(crate) limit: &'static str,
    pub(crate) base_url: String,
    pub(crate) client: Client,
    pub(crate) path: String,
    pub(crate) load: Load,
    /// The mock server, or `None` for a real service.
    pub(crate) mock: Option<MockServer>,
    started: AtomicUsize,
    finished: Mutex<Vec<Call>>,
}

/// The number and pace of the calls to a target.
pub(crate) struct Load {
    /// The largest number of calls to the target.
    pub(crate) calls: usize,
    pub(crate) duration: Duration,
    pub(crate) tasks: usize,
    /// The time that each task sleeps between two calls.
    pub(crate) pause: Duration,
    /// Every n-th call is a POST, and all other calls are GETs.
    pub(crate) post_every: Option<usize>,
}

impl Load {
    /// The time during which the tasks start calls. The last calls may take longer, but the program ends within 8 s.
    const DURATION: Duration = Duration::from_secs(5);

    fn mock(tasks: usize, pause: Duration) -> Self {
        Self { calls: usize::MAX, duration: Self::DURATION, tasks, pause, post_every: None }
    }

    /// Returns a load of only three calls, because calls of a real service may cost money.
    fn real() -> Self {
        Self { calls: 3, duration: Self::DURATION, tasks: 1, pause: Duration::ZERO, post_every: None }
    }
}

impl Target {
    fn new(preset: &StackBuilder, limit: &'static str, base_url: String, path: String) -> Built {
        Ok(Self {
            name: preset.name().to_owned(),
            limit,
            client: preset.client()?,
            base_url,
            path,
            load: Load::real(),
            mock: None,
            started: AtomicUsize::new(0),
            finished: Mutex::default(),
        })
    }

    fn with_mock(self, mock: MockServer, load: Load) -> Self {
        Self { mock: Some(mock), load, ..self }
    }

    /// Returns the number of the next call, starting at 1, or `None` if all calls of the load were made.
    pub(crate) fn next(&self) -> Option<usize> {
        let number = self.started.fetch_add(1, Ordering::Relaxed) + 1;
        (number <= self.load.calls).then_some(number)
    }

    pub(crate) fn finish(&self, call: Call) {
        self.locked().push(call);
    }

    pub(crate) fn finished_count(&self) -> usize {
        self.locked().len()
    }

    /// Returns the finished calls in the order of their numbers.
    pub(crate) fn calls(&self) -> Vec<Call> {
        let mut calls = self.locked().clone();
        calls.sort_by_key(|call| call.number);
        calls
    }

    fn locked(&self) -> MutexGuard<'_, Vec<Call>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Built = Result<Target, BoxError>;

pub(crate) async fn all() -> Result<[Target; 3], BoxError> {
    Ok([currency_rates().await?, email_delivery().await?, realtime_messaging().await?])
}

const MINUTE: Duration = Duration::from_secs(60);

async fn currency_rates() -> Built {
    const LIMIT: &str = "100 requests a minute";
    if let Some(base_url) = variable("CURRENCY_RATES_BASE_URL")? {
        let path = variable("CURRENCY_RATES_PATH")?.unwrap_or("/v1/resources".to_owned());
        return Target::new(&preset::currency_rates(&base_url)?, LIMIT, base_url, path);
    }
    let key = "rates-key";
    let mock = MockServer::start(MockConfig {
        quota: Some((100, MINUTE)),
        faults: vec![
            (Trigger::EveryNth(11), MockResponse::Unavailable),
            (Trigger::EveryNth(13), MockResponse::Dropped),
            (Trigger::EveryNth(15), MockResponse::Throttled),
        ],
        latency: Duration::from_millis(40),
        ..MockConfig::new("currency rates", key)
    })
    .await?;
    let preset = preset::currency_rates(mock.base_url())?.with_api_key(ApiKey::new(key)?);
    let target = Target::new(&preset, LIMIT, mock.base_url(), "/v1/resources".to_owned())?;
    Ok(target.with_mock(mock, Load::mock(3, Duration::ZERO)))
}

async fn email_delivery() -> Built {
    const LIMIT: &str = "1000 requests a minute";
    if let Some(base_url) = variable("EMAIL_DELIVERY_BASE_URL")? {
        let path = variable("EMAIL_DELIVERY_PATH")?.unwrap_or("/v1/resources".to_owned());
        return Target::new(&preset::email_delivery(&base_url)?, LIMIT, base_url, path);
    }
    let key = "email-key";
    let mock = MockServer::start(MockConfig {
        quota: Some((1000, MINUTE)),
        faults: vec![
            (Trigger::EveryNth(29), MockResponse::Unavailable),
            (Trigger::EveryNth(53), MockResponse::Dropped),
            (Trigger::EveryNth(97), MockResponse::Throttled),
        ],
        latency: Duration::from_millis(60),
        ..MockConfig::new("email delivery", key)
    })
    .await?;
    let preset = preset::email_delivery(mock.base_url())?.with_api_key(ApiKey::new(key)?);
    let target = Target::new(&preset, LIMIT, mock.base_url(), "/v1/resources".to_owned())?;
    Ok(target.with_mock(mock, Load { post_every: Some(5), ..Load::mock(8, Duration::ZERO) }))
}

async fn realtime_messaging() -> Built {
    const LIMIT: &str = "no published limit, requested delays apply";
    if let Some(base_url) = variable("REALTIME_MESSAGING_BASE_URL")? {
        // Without `with_authorize`, the preset sends a bearer token, as in the service's samples.
        let path = variable("REALTIME_MESSAGING_PATH")?.unwrap_or_default();
        return Target::new(&preset::realtime_messaging(&base_url)?, LIMIT, base_url, path);
    }
    let (key, secret) = ("realtime-key", "realtime-secret");
    let mock = MockServer::start(MockConfig {
        headers: vec![("x-app-id", "quickstart".to_owned()), ("x-app-secret", secret.to_owned())],
        faults: vec![
            (Trigger::EveryNth(43), MockResponse::Throttled),
            (Trigger::EveryNth(31), MockResponse::Unavailable),
            (Trigger::EveryNth(71), MockResponse::Dropped),
        ],
        latency: Duration::from_millis(25),
        ..MockConfig::new("realtime messaging", key)
    })
    .await?;
    let credentials = AppCredentials::new("quickstart", ApiKey::new(key)?, ApiKey::new(secret)?)?;
    let preset = preset::realtime_messaging(mock.base_url())?.with_authorize(
        // The service's samples use the bearer header. The other two headers are made up for the mock server. For the
        // real headers, see the service's manual.
        move |head| {
            let bearer = format!("Bearer {}", credentials.key().expose());
            head.headers.insert(AUTHORIZATION, sensitive(&bearer)?);
            head.headers.insert("x-app-id", credentials.app_id().parse()?);
            head.headers.insert("x-app-secret", sensitive(credentials.secret().expose())?);
            Ok(())
        },
    );
    let target = Target::new(&preset, LIMIT, mock.base_url(), String::new())?;
    Ok(target.with_mock(mock, Load::mock(4, Duration::from_millis(120))))
}

/// Returns a header value whose `Debug` output is redacted.
fn sensitive(value: &str) -> Result<HeaderValue, http::Error> {
    let mut value = HeaderValue::try_from(value)?;
    value.set_sensitive(true);
    Ok(value)
}

/// Reads an environment variable. An empty value counts as not set.
fn variable(name: &'static str) -> Result<Option<String>, InvalidConfig> {
    match env::var(name) {
        Ok(value) if !value.trim().is_empty() => Ok(Some(value.trim().to_owned())),
        Ok(_) | Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(InvalidConfig::new(name, "", "UTF-8 text")),
    }
}
