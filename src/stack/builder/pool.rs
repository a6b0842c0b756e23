use super::StackBuilder;
#[cfg(feature = "client")]
use crate::auth::Origin;
use crate::{
    config::InvalidConfig,
    stack::{Pool, builder::credential::CredentialSource, pool::PoolLimiter},
};

impl StackBuilder {
    /// Sends the requests to the members of a [`Pool`]: several keys or regions of one service, each with its own
    /// limiter. Replaces the credential, the quotas and the limiter. The base URL of each member replaces the builder's
    /// base URL.
    ///
    /// # Errors
    ///
    /// [`layer`](Self::layer) returns an error if
    ///
    /// - the key of a member would be sent without TLS, unless the builder [allows it](Self::with_plaintext);
    /// - a credential, a limiter, a setting of the builder's own limiter, endpoint limits or an allowed origin are also
    ///   set.
    pub fn with_pool(mut self, pool: Pool) -> Self {
        self.credential = CredentialSource::default();
        self.quotas = Vec::new();
        self = self.with_limiter(PoolLimiter::new(pool.clone()));
        self.pool = Some(pool);
        self
    }

    /// Returns the origins to which the client sends requests.
    #[cfg(feature = "client")]
    pub(crate) fn origins(&self) -> impl Iterator<Item = &Origin> {
        let own = self.pool.is_none().then_some(&self.base.origin);
        own.into_iter().chain(self.pool.iter().flat_map(Pool::origins))
    }

    /// Returns an error if another setter contradicts the pool. Also returns an error if a builder without a pool has
    /// the limiter of one, because one key would use the permits of all members.
    pub(super) fn check_pool(&self) -> Result<(), InvalidConfig> {
        let limiter = self.limiter().downcast_ref::<PoolLimiter>();
        let (field, value) = match &self.pool {
            None if limiter.is_some() => {
                let expected = "another limiter, or the setter with_pool";
                return Err(InvalidConfig::new("limiter", "the limiter of a pool", expected));
            }
            None => return Ok(()),
            Some(_) if !matches!(self.credential, CredentialSource::Missing) => {
                ("credential", "one for all members")
            }
            Some(pool) if !limiter.is_some_and(|limiter| limiter.is_of(pool)) => {
                ("limiter", "one for all members")
            }
            Some(_) if self.endpoints.is_some() => ("endpoint limits", "for all members"),
            Some(_) if !self.allowed.is_empty() => ("allowed origin", "for all members"),
            Some(_) => return Ok(()),
        };
        let expected = "none, because each member of the pool has its own key, limiter and origin";
        Err(InvalidConfig::new(field, value, expected))
    }
}
