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
    support::{Plan, Scripted, StandIn, When},
};

/// A service to call, and how.
pub(crate) struct Target {
    pub(crate) name: String,
    /// In words.
    pub(crate) limit: &'static str,
    pub(crate) base_url: String,
    pub(crate) client: Client,
    pub(crate) path: String,
    pub(crate) load: Load,
    /// None when it is the service itself that is called.
    pub(crate) stand_in: Option<StandIn>,
    started: AtomicUsize,
    finished: Mutex<Vec<Call>>,
}

/// How much to call it.
pub(crate) struct Load {
    pub(crate) calls: usize,
    pub(crate) lasting: Duration,
    pub(crate) tasks: usize,
    /// What each task does between two calls.
    pub(crate) pause: Duration,
    /// Every so many calls one is a POST.
    pub(crate) posts: Option<usize>,
}

impl Load {
    /// Long enough for the limiters to be waited for, and short enough that all is over within 8 s.
    const LASTING: Duration = Duration::from_secs(5);

    fn stand_in(tasks: usize, pause: Duration) -> Self {
        Self { calls: usize::MAX, lasting: Self::LASTING, tasks, pause, posts: None }
    }

    /// Somebody pays for these.
    fn real() -> Self {
        Self { calls: 3, lasting: Self::LASTING, tasks: 1, pause: Duration::ZERO, posts: None }
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
            stand_in: None,
            started: AtomicUsize::new(0),
            finished: Mutex::default(),
        })
    }

    fn with_stand_in(self, stand_in: StandIn, load: Load) -> Self {
        Self { stand_in: Some(stand_in), load, ..self }
    }

    /// The number of the next call, from 1; none when there were enough.
    pub(crate) fn next(&self) -> Option<usize> {
        let number = self.started.fetch_add(1, Ordering::Relaxed) + 1;
        (number <= self.load.calls).then_some(number)
    }

    pub(crate) fn finish(&self, call: Call) {
        self.locked().push(call);
    }

    pub(crate) fn finished(&self) -> usize {
        self.locked().len()
    }

    /// Returns the calls that have ended, in the order of their numbers.
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
    let stand_in = StandIn::start(Plan {
        quota: Some((100, MINUTE)),
        faults: vec![
            (When::Every(11), Scripted::Unavailable),
            (When::Every(13), Scripted::Dropped),
            (When::Every(15), Scripted::Throttled),
        ],
        latency: Duration::from_millis(40),
        ..Plan::new("currency rates", key)
    })
    .await?;
    let preset = preset::currency_rates(&stand_in.base_url())?.with_api_key(ApiKey::new(key)?);
    let target = Target::new(&preset, LIMIT, stand_in.base_url(), "/v1/resources".to_owned())?;
    Ok(target.with_stand_in(stand_in, Load::stand_in(3, Duration::ZERO)))
}

async fn email_delivery() -> Built {
    const LIMIT: &str = "1000 requests a minute";
    if let Some(base_url) = variable("EMAIL_DELIVERY_BASE_URL")? {
        let path = variable("EMAIL_DELIVERY_PATH")?.unwrap_or("/v1/resources".to_owned());
        return Target::new(&preset::email_delivery(&base_url)?, LIMIT, base_url, path);
    }
    let key = "email-key";
    let stand_in = StandIn::start(Plan {
        quota: Some((1000, MINUTE)),
        faults: vec![
            (When::Every(29), Scripted::Unavailable),
            (When::Every(53), Scripted::Dropped),
            (When::Every(97), Scripted::Throttled),
        ],
        latency: Duration::from_millis(60),
        ..Plan::new("email delivery", key)
    })
    .await?;
    let preset = preset::email_delivery(&stand_in.base_url())?.with_api_key(ApiKey::new(key)?);
    let target = Target::new(&preset, LIMIT, stand_in.base_url(), "/v1/resources".to_owned())?;
    Ok(target.with_stand_in(stand_in, Load { posts: Some(5), ..Load::stand_in(8, Duration::ZERO) }))
}

async fn realtime_messaging() -> Built {
    const LIMIT: &str = "no published limit, its asks to pause are obeyed";
    if let Some(base_url) = variable("REALTIME_MESSAGING_BASE_URL")? {
        // The bearer form of the service's samples.
        let path = variable("REALTIME_MESSAGING_PATH")?.unwrap_or_default();
        return Target::new(&preset::realtime_messaging(&base_url)?, LIMIT, base_url, path);
    }
    let (key, secret) = ("realtime-key", "realtime-secret");
    let stand_in = StandIn::start(Plan {
        headers: vec![("x-app-id", "quickstart".to_owned()), ("x-app-secret", secret.to_owned())],
        faults: vec![
            (When::Every(43), Scripted::Throttled),
            (When::Every(31), Scripted::Unavailable),
            (When::Every(71), Scripted::Dropped),
        ],
        latency: Duration::from_millis(25),
        ..Plan::new("realtime messaging", key)
    })
    .await?;
    let credentials = AppCredentials::new("quickstart", ApiKey::new(key)?, ApiKey::new(secret)?)?;
    let preset = preset::realtime_messaging(&stand_in.base_url())?.with_authorize(
        // The bearer header is the one of the service's samples. The other two are made up for the stand-in:
        // yours are in the service's manual.
        move |head| {
            let bearer = format!("Bearer {}", credentials.key().expose());
            head.headers.insert(AUTHORIZATION, sensitive(&bearer)?);
            head.headers.insert("x-app-id", credentials.app_id().parse()?);
            head.headers.insert("x-app-secret", sensitive(credentials.secret().expose())?);
            Ok(())
        },
    );
    let target = Target::new(&preset, LIMIT, stand_in.base_url(), String::new())?;
    Ok(target.with_stand_in(stand_in, Load::stand_in(4, Duration::from_millis(120))))
}

/// A value that `Debug` hides.
fn sensitive(value: &str) -> Result<HeaderValue, http::Error> {
    let mut value = HeaderValue::try_from(value)?;
    value.set_sensitive(true);
    Ok(value)
}

/// An environment variable; one that is empty counts as not set.
fn variable(name: &'static str) -> Result<Option<String>, InvalidConfig> {
    match env::var(name) {
        Ok(value) if !value.trim().is_empty() => Ok(Some(value.trim().to_owned())),
        Ok(_) | Err(env::VarError::NotPresent) => Ok(None),
        Err(env::VarError::NotUnicode(_)) => Err(InvalidConfig::new(name, "", "text in utf-8")),
    }
}
