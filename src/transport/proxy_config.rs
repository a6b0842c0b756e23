use super::{Proxy, TransportConfig};
use crate::config::InvalidConfig;

impl TransportConfig {
    /// Sends the requests through a proxy. Replaces the proxy and the exceptions of a file.
    #[cfg_attr(docsrs, doc(cfg(feature = "proxy")))]
    pub fn with_proxy(mut self, proxy: Proxy) -> Self {
        self.given_proxy = Some(proxy);
        #[cfg(feature = "serde")]
        {
            (self.proxy, self.no_proxy) = (None, None);
        }
        self
    }

    /// Returns the proxy of the code or the file.
    pub(super) fn take_proxy(&mut self) -> Result<Option<Proxy>, InvalidConfig> {
        #[cfg(feature = "serde")]
        if let Some(url) = self.proxy.take() {
            let proxy = match url.text() {
                Ok("environment") => Proxy::from_env(),
                Ok(url) => Proxy::new(url),
                Err(_) => Err(InvalidConfig::new("proxy", "…", "a string")),
            };
            let proxy = proxy.map_err(|error| error.at("proxy"))?;
            return Ok(Some(match &self.no_proxy {
                Some(hosts) => proxy.with_no_proxy(hosts),
                None => proxy,
            }));
        }
        Ok(self.given_proxy.take())
    }
}
