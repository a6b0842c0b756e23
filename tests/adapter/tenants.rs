//! Runs the program of the guide's page about tenants with OAuth 2.

use program::Shared;
use tower_outbound::{ApiKey, Quota, adapter::ClientCredentials};

use crate::support::server::{Server, Wire, reply, within};

#[allow(unreachable_pub, reason = "a program of the guide")]
mod program {
    use std::sync::Arc;

    use http::Request;
    use tower::util::MapRequestLayer;
    use tower_outbound::{
        Body, BoxError, Client, InvalidConfig, Quota,
        adapter::ClientCredentials,
        error::Refusal,
        limit::{Joint, Keyed, LocalLimiter},
        transport::{Transport, TransportConfig},
    };

    /// The tenant of a request.
    #[derive(Clone)]
    struct Tenant(Arc<str>);

    /// What the clients of all tenants share.
    pub struct Shared {
        base_url: String,
        limits: Joint<Option<Arc<str>>>,
        transport: Transport,
    }

    impl Shared {
        /// `total` limits all tenants together, and `each` limits each of them.
        pub fn new(base_url: &str, total: Quota, each: Quota) -> Result<Self, InvalidConfig> {
            let tenants = Keyed::new(
                |head| head.extensions.get().map(|Tenant(name)| Arc::clone(name)),
                move |_| LocalLimiter::paced_window(each),
            );
            let limits = Joint::new(LocalLimiter::paced_window(total), tenants);
            Ok(Self { base_url: base_url.to_owned(), limits, transport: TransportConfig::new().build()? })
        }

        /// Fetches the first token of a tenant, and creates its client.
        pub async fn client(&self, name: &str, credentials: ClientCredentials) -> Result<Client, BoxError> {
            let (tenant, keys) = (Tenant(name.into()), credentials.into_key_source()?);
            keys.current().await?;
            let with_tenant = MapRequestLayer::new(move |mut request: Request<Body>| {
                request.extensions_mut().insert(tenant.clone());
                request
            });
            let client = Client::builder(&self.base_url)?
                .with_keys(keys)
                .with_limiter(self.limits.clone())
                .with_outer_layer(with_tenant)
                .client_with_service(self.transport.clone())?;
            Ok(client)
        }

        /// Returns the limiter of a tenant.
        pub fn limiter(&self, name: &str) -> Result<LocalLimiter, Refusal> {
            self.limits.parts().limiter(&Some(name.into()))
        }
    }
}

/// Starts a token endpoint whose tokens name the client.
async fn token_endpoint() -> Server {
    Server::start(Wire::Http1, |_, seen| async move {
        let of_ann = seen.header("authorization") == Some("Basic YW5uOnMzY3JldA==");
        let name = if of_ann { "ann" } else { "bob" };
        let token =
            format!(r#"{{"access_token":"token-of-{name}","token_type":"Bearer","expires_in":3600}}"#);
        Some(reply(200, token))
    })
    .await
}

#[tokio::test]
async fn tenants_with_their_own_tokens_share_a_quota_and_the_connections() {
    let (tokens, api) = (token_endpoint().await, Server::with_statuses(Wire::Http1, [200]).await);
    // The next permit needs more time than the deadline of a call.
    let hourly = |burst: u32| Quota::per_hour(burst + 1).unwrap().with_burst(burst).unwrap();
    let shared = Shared::new(&api.url(), hourly(3), hourly(2)).unwrap();
    let mut clients = Vec::new();
    for name in ["ann", "bob"] {
        let secret = ApiKey::new("s3cret").unwrap();
        let credentials = ClientCredentials::new(tokens.url(), name, secret).unwrap();
        clients.push(within(shared.client(name, credentials)).await.unwrap());
    }
    assert_eq!(tokens.seen().len(), 2);
    for (client, is_granted) in [(0, true), (1, true), (0, true), (0, false), (1, false)] {
        let result = within(clients[client].post("/messages").body("{}").send()).await;
        assert_eq!(result.is_ok(), is_granted, "{result:?}");
        assert!(result.err().is_none_or(|error| error.is_rate_limited()));
    }
    let seen = api.seen();
    let keys: Vec<_> = seen.iter().map(|seen| seen.header("authorization").unwrap()).collect();
    assert_eq!(keys, ["Bearer token-of-ann", "Bearer token-of-bob", "Bearer token-of-ann"]);
    assert_eq!(api.connections(), 1);
    let granted = ["ann", "bob"].map(|name| shared.limiter(name).unwrap().snapshot().granted);
    assert_eq!(granted, [2, 1]);
}
