mod limiter;
mod route;

use std::{fmt, sync::Arc};

pub(super) use self::{
    limiter::PoolLimiter,
    route::{Route, RouteLayer},
};
use super::BaseUrl;
#[cfg(feature = "client")]
use crate::auth::Origin;
use crate::{
    auth::{AuthLayer, KeyPlacement, KeySource},
    config::InvalidConfig,
    limit::LocalLimiter,
};

/// Several keys or regions of one service, each with its own limiter. Each request goes to the member that is expected to
/// grant its permits first.
///
/// ```
/// use tower_outbound::{ApiKey, Client, InvalidConfig, Quota, limit::LocalLimiter, stack::Pool};
///
/// fn model(eu: ApiKey, us: ApiKey) -> Result<Client, InvalidConfig> {
///     let quota = Quota::per_minute(500)?;
///     let pool = Pool::new([
///         ("https://eu.api.example.com/v1", eu, LocalLimiter::paced_window(quota)),
///         ("https://us.api.example.com/v1", us, LocalLimiter::paced_window(quota)),
///     ])?;
///     Client::builder("https://eu.api.example.com/v1")?.with_pool(pool).client()
/// }
/// # model(ApiKey::new("k1")?, ApiKey::new("k2")?)?;
/// # Ok::<(), InvalidConfig>(())
/// ```
///
/// # Members
///
/// - The request's URL begins with the builder's base URL. The base URL of the member replaces it.
/// - A key is sent only to the origin of its member, and only with requests that go to this member. Several members may have
///   the same URL.
/// - A response changes only the limiter of its member. If a member throttles, its limiter pauses, and the others continue.
/// - A request waits for the first keys of all members before it is sent.
///
/// # Choice
///
/// If several members can grant the permits now, requests take these members in turn. Otherwise a request joins the queue of
/// the member with the earliest forecast. It chooses again
///
/// - if the member refuses it, for example because a pause would exceed its deadline. It is refused if all members refuse it;
/// - if it was not granted at the forecast time, and another member can now grant it earlier. It then joins the end of the
///   queue of that member;
/// - after 100 ms without a forecast, which is the case while a member has its maximum of requests in flight.
///
/// # Retries
///
/// | last attempt | next attempt |
/// |---|---|
/// | the member states that it did [not process](crate::call::Delivery) the request, such as with a 429 | any member |
/// | the request was not sent | any member |
/// | any other failure of a request whose method is safe (GET, HEAD, OPTIONS, TRACE), or that a [`RetryOverride`](crate::retry::RetryOverride::with_idempotent) declares idempotent | any member |
/// | any other failure | the same member, because an idempotency key or a resource of one member means nothing to another |
///
/// If a member throttles, the delay that it requests pauses only its own limiter. The next attempt starts without this delay,
/// and waits in the queue of the member that it chooses. Of several members that can grant the permits now, a retry takes
/// another one than the last attempt.
///
/// # Clone
///
/// All clones share the limiters and the key sources.
#[derive(Clone)]
pub struct Pool {
    members: Arc<[Member]>,
}

struct Member {
    base: BaseUrl,
    keys: KeySource,
    limiter: LocalLimiter,
}

impl Pool {
    /// Creates a pool of members, each with its base URL, its key and its limiter.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no member, or if a base URL is invalid: see
    /// [`StackBuilder::new`](super::StackBuilder::new).
    pub fn new<U, K>(members: impl IntoIterator<Item = (U, K, LocalLimiter)>) -> Result<Self, InvalidConfig>
    where
        U: AsRef<str>,
        K: Into<KeySource>,
    {
        let member = |(url, keys, limiter): (U, K, LocalLimiter)| {
            Ok(Member { base: BaseUrl::parse(url.as_ref())?, keys: keys.into(), limiter })
        };
        let members = members.into_iter().map(member).collect::<Result<Arc<[_]>, _>>()?;
        if members.is_empty() {
            return Err(InvalidConfig::new("pool", "no members", "at least one member"));
        }
        Ok(Self { members })
    }

    /// Identifies the pool: all clones have the same id.
    fn id(&self) -> usize {
        self.members.as_ptr().addr()
    }

    #[cfg(feature = "client")]
    pub(super) fn origins(&self) -> impl Iterator<Item = &Origin> {
        self.members.iter().map(|member| &member.base.origin)
    }

    /// Returns the layer that adds the keys of the members.
    pub(super) fn auth_layer(
        &self,
        placement: &KeyPlacement,
        is_plaintext: bool,
    ) -> Result<AuthLayer, InvalidConfig> {
        let layer = |member: &Member| {
            let origin = member.base.origin.clone();
            let origin = if is_plaintext { origin.with_plaintext() } else { origin };
            Ok(AuthLayer::new(member.keys.clone(), origin)?.with_placement(placement.clone()))
        };
        let layers = self.members.iter().map(layer).collect::<Result<Vec<_>, InvalidConfig>>()?;
        AuthLayer::of_members(&layers)
            .ok_or_else(|| InvalidConfig::new("pool", "no members", "at least one member"))
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.members.iter()).finish()
    }
}

/// Writes no key.
impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("base_url", &self.base.uri)
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}
