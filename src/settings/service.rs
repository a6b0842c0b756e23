use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    AttemptSettings, InlineKey, LimitSettings, RequestIdSettings, RetrySettings, ServiceUrl, TimeoutSettings,
    TransportSettings,
    part::{Part, settings},
    text,
};
use crate::auth::{KeyPlacement, Origin};

settings! {
    /// A service, from its address to its last timeout: what a [`StackBuilder`](crate::preset::StackBuilder) and the ready
    /// [`Client`](crate::Client) are made of.
    ///
    /// # Default
    ///
    /// Nothing is said, and all that is not said is the preset's.
    pub struct ServiceSettings {
        /// The preset that it starts from. [`Custom`](PresetName::Custom) by default.
        pub preset: Option<PresetName>,
        /// The name that stands in the log as `service`; the preset's by default. A service of one's own has to have one.
        pub name: Option<String>,
        /// Where the service lives.
        #[serde(with = "text")]
        pub base_url: Option<ServiceUrl>,
        /// Lets the key travel to the base URL without TLS, where everybody on the way can read it. Not by default.
        pub allow_plaintext: Option<bool>,
        /// Other origins that the key may go to; over TLS, or on loopback. None by default.
        #[serde(with = "text::list")]
        pub allowed_origins: Option<Vec<Origin>>,
        /// The key itself. Better kept elsewhere: this is for the variable `…_API_KEY`. Never written.
        #[serde(skip_serializing)]
        pub api_key: Option<InlineKey>,
        /// The name of the environment variable that holds the key. The preset's by default, where no other source is given.
        pub key_env: Option<String>,
        /// The file that holds the key; read again when it changes.
        pub key_file: Option<PathBuf>,
        /// How often that file is looked at. 5 s by default.
        #[serde(with = "text")]
        pub key_file_interval: Option<Duration>,
        /// Where on a request the key goes: `bearer`, `header:NAME`, `query:NAME` or `basic:USER`. `bearer` by default.
        #[serde(with = "text")]
        pub key_placement: Option<KeyPlacement>,
        /// How many requests may leave.
        pub limit: LimitSettings,
        /// What is sent again.
        pub retry: RetrySettings,
        /// How long things may take.
        pub timeout: TimeoutSettings,
        /// The id of a call.
        pub request_id: RequestIdSettings,
        /// What is sent with each attempt.
        pub attempt: AttemptSettings,
        /// How the ready client reaches the service.
        pub transport: TransportSettings,
    }
}

/// One of the presets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PresetName {
    /// [`preset::currency_rates`](crate::preset::currency_rates).
    CurrencyRates,
    /// [`preset::email_delivery`](crate::preset::email_delivery).
    EmailDelivery,
    /// [`preset::realtime_messaging`](crate::preset::realtime_messaging).
    RealtimeMessaging,
    /// [`StackBuilder::new`](crate::preset::StackBuilder::new): a service of your own, with no quota until it is given.
    #[default]
    Custom,
}

impl ServiceSettings {
    /// These settings, and `below` for what they leave unsaid: a variable over a file, a file over a program's own.
    ///
    /// The sources of a key are one setting: whoever gives one here takes back the others below.
    #[must_use]
    pub fn over(self, mut below: Self) -> Self {
        if self.key_sources().next().is_some() {
            (below.api_key, below.key_env, below.key_file) = (None, None, None);
        }
        Part::over(self, below)
    }

    /// The names of the sources of a key that are given.
    pub(super) fn key_sources(&self) -> impl Iterator<Item = &'static str> + use<> {
        let sources = [
            ("api_key", self.api_key.is_some()),
            ("key_env", self.key_env.is_some()),
            ("key_file", self.key_file.is_some()),
        ];
        sources.into_iter().filter(|(_, given)| *given).map(|(name, _)| name)
    }
}
