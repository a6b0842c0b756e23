mod limiter;
mod route;

use std::sync::Arc;

pub(super) use self::limiter::PoolLimiter;
pub use self::route::{Route, RouteLayer};
use super::BaseUrl;
#[cfg(feature = "client")]
use crate::auth::Origin;
use crate::{
    auth::{AnySign, Credential, KeyPlacement, KeySource},
    config::InvalidConfig,
    limit::LocalLimiter,
};

/// Several keys or regions of one service, each with its own limiter. Each request goes to the member that is expected
/// to grant its permits first.
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
/// - The request's URL begins with the builder's base URL. The base URL of the member replaces it. Do not use a layer
///   above the stack that follows redirects, because the location in a response is a URL of the member.
/// - A key is sent only to the origin of its member, and only with requests that go to this member. Several members may
///   have the same URL. A request that already has a credential is rejected.
/// - A response changes only the limiter of its member. After a throttled response, only this limiter pauses.
/// - A request waits until the key source of each member has a valid key or has failed. Once a key source has failed,
///   its member gets no further request until the source has a key, unless the key sources of all members have failed.
///   A request in its queue moves to another member that is expected to grant the permits in time. If there is none, it
///   is sent in its turn. A request that was assigned to the member before returns an error.
/// - A key source also counts as failed while the server rejects its key with a 401 and it has no other key, such as a
///   fixed key. The request is then resent once to another member, unless its member may have
///   [processed](crate::call::Delivery) an earlier attempt. If no other member with a key is expected to grant the
///   permits in time, the 401 is returned.
/// - A request is sent to the failed member as a probe after each delay of
///   [`with_backoff`](crate::auth::RefreshingKey::with_backoff), or after 1 to 20 s for a fixed key or a file. A probe
///   that may not be resent returns its 401, such as a request
///   [`without_retries`](crate::retry::RetryOverride::without_retries). The member gets requests again after any
///   response except a 401, 403, 429 or 5xx.
/// - While a closure fetches another key after a 401, requests wait for it. If this fetch fails, only the calls that
///   were already resent return the 401.
///
/// # Choice
///
/// A request goes only to members whose quotas of tokens, points or bytes are at least its estimate. If no member has
/// such quotas, it may go to any member. If several members can grant the permits now, requests take these members in
/// turn. Otherwise, a request joins the queue of the member with the earliest forecast. There is no forecast while a
/// member has its maximum of requests in flight, or waits for the response to a probe. The pool then assumes a wait of
/// at least 100 ms, or of at least 100 ms for each round of queued requests that the maximum allows at a time.
///
/// A waiter chooses again in these cases:
///
/// - Its member refuses it, for example because a pause would exceed its deadline. The request is refused if all
///   members refuse it.
/// - Another member can grant the permits now, or in less than half of the remaining forecast time. A waiter checks
///   this at least once a second, so a new request may take these permits first.
/// - The forecast time has passed, and another member is expected to grant the permits earlier.
///
/// It then joins the end of the queue of that member.
///
/// # Retries
///
/// A retry goes to another member only if
///
/// - no member may have [processed](crate::call::Delivery) an earlier attempt of the call, or
/// - the method is safe (GET, HEAD, OPTIONS or TRACE), or
/// - the request is declared idempotent, by a [`RetryOverride`](crate::retry::RetryOverride::with_idempotent) or by
///   [`with_idempotent`](super::StackBuilder::with_idempotent).
///
/// An idempotency key does not suffice, because a service recognizes it within one account only.
///
/// If the retry may go to another member, a requested delay or the backoff after a throttled response does not delay a
/// retry that another member with a key can serve earlier and before the deadline. The retry then goes to the member
/// that can grant its permits first. If several members can grant them now, it goes to another member than the last
/// attempt. A resend after a 401 goes to the same member if its key is replaced.
///
/// # Logs
///
/// The report has the [member](crate::call::AttemptReport::member) of each attempt. The event of a call has the member
/// and the path of the last attempt, and the event of a pause has the member that pauses. The URL in the span `call`
/// is that of the builder. The URL in the span `attempt` is that of the member. Metrics have no label for the member:
/// keep clones of their limiters for their [snapshots](LocalLimiter::snapshot).
///
/// # Clone
///
/// All clones share the limiters and the key sources.
#[derive(Debug, Clone)]
pub struct Pool {
    members: Arc<[Member]>,
}

#[derive(Debug)]
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
            let keys = KeySource::of_member(keys.into());
            Ok(Member { base: BaseUrl::parse(url.as_ref())?, keys, limiter })
        };
        let members = members.into_iter().map(member).collect::<Result<Arc<[_]>, _>>()?;
        if members.is_empty() {
            return Err(InvalidConfig::new("pool", "no members", "at least one member"));
        }
        Ok(Self { members })
    }

    /// Returns whether a member other than `index` has a key that the server does not reject.
    fn has_other_key(&self, index: usize) -> bool {
        self.members.iter().enumerate().any(|(other, member)| other != index && !member.keys.has_failed())
    }

    /// Returns whether a request must leave the member, because it has no key, but another member has one.
    fn must_leave(&self, index: usize) -> bool {
        self.members.get(index).is_some_and(|member| member.keys.has_failed()) && self.has_other_key(index)
    }

    /// Identifies the pool: all clones have the same id.
    pub(super) fn id(&self) -> usize {
        self.members.as_ptr().addr()
    }

    #[cfg(feature = "client")]
    pub(super) fn origins(&self) -> impl Iterator<Item = &Origin> {
        self.members.iter().map(|member| &member.base.origin)
    }

    /// Returns the credential that adds the keys of the members.
    pub(super) fn credential(
        &self,
        placement: &KeyPlacement,
        is_plaintext: bool,
    ) -> Result<Credential<AnySign>, InvalidConfig> {
        let member = |member: &Member| {
            let origin = member.base.origin.clone();
            (member.keys.clone(), if is_plaintext { origin.with_plaintext() } else { origin })
        };
        Credential::members(self.members.iter().map(member), placement)
    }
}
