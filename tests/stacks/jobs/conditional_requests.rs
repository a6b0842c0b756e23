//! Runs the programs of the page about conditional requests.

use http::StatusCode;
use program::{Cache, github};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tower_outbound::{ApiKey, Client, Quota, client::ResponseError, test_util::ScriptedResponse};

use super::{builder, server};

pub mod program {
    use std::{
        collections::HashMap,
        sync::{Mutex, MutexGuard, PoisonError},
    };

    use bytes::Bytes;
    use http::{HeaderMap, StatusCode, header::ETAG};
    use tower_outbound::{
        ApiKey, BoxError, Client, InvalidConfig, Quota,
        limit::{Amounts, Unit},
    };

    /// At most 100 bodies of at most 1 MiB.
    const MAX_ENTRIES: usize = 100;
    const MAX_BODY: usize = 1 << 20;

    /// The headers and the body of each path, for requests with one credential.
    #[derive(Default)]
    pub struct Cache(Mutex<HashMap<String, (HeaderMap, Bytes)>>);

    impl Cache {
        pub async fn get(&self, client: &Client, path: &str) -> Result<(HeaderMap, Bytes), BoxError> {
            let known = self.entries().get(path).cloned();
            let mut request = client.get(path);
            if let Some(tag) = known.as_ref().and_then(|(headers, _)| headers.get(ETAG)) {
                request = request.header("if-none-match", tag);
            }
            let response = request.await?;
            let (headers, body) = match (response.status(), known) {
                (StatusCode::NOT_MODIFIED, Some((mut headers, body))) => {
                    // The headers of a 304 replace the stored ones. Those that it omits are unchanged.
                    headers.extend(response.headers().clone());
                    (headers, body)
                }
                _ => {
                    let response = response.error_for_status().await?;
                    let headers = response.headers().clone();
                    // `bytes` retries a broken body, and the body of the retry may have another ETag.
                    (headers, response.into_body().bytes_up_to(MAX_BODY).await?)
                }
            };
            if headers.contains_key(ETAG) {
                let mut entries = self.entries();
                if entries.len() >= MAX_ENTRIES {
                    entries.clear();
                }
                entries.insert(path.to_owned(), (headers.clone(), body.clone()));
            }
            Ok((headers, body))
        }

        fn entries(&self) -> MutexGuard<'_, HashMap<String, (HeaderMap, Bytes)>> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A client whose quota does not count a 304.
    pub fn github(base_url: &str, key: ApiKey, quota: Quota) -> Result<Client, InvalidConfig> {
        Client::builder(base_url)?
            .with_api_key(key)
            .with_quota(quota.with_unit(Unit::Points)?)
            .with_limit(|limit| {
                let limit = limit.with_estimate(|_| Amounts::of(Unit::Points, 1));
                limit.with_actual(|status, _| (status == 304).then_some(Amounts::NONE))
            })
            .client()
    }
}

fn tagged(tag: &str, body: &'static str) -> ScriptedResponse {
    ScriptedResponse::status(200).with_header("etag", tag).with_body(body)
}

#[tokio::test]
async fn unchanged_body_comes_from_the_cache_and_a_changed_one_replaces_it() {
    let (service, server) =
        server([tagged("\"a\"", "old"), ScriptedResponse::status(304), tagged("W/\"b\"", "new"), 304.into()])
            .await;
    let (client, cache) = (builder(&server).client().unwrap(), Cache::default());
    for expected in ["old", "old", "new", "new"] {
        assert_eq!(cache.get(&client, "/rates").await.unwrap().1, expected);
    }
    let seen = service.seen();
    let tags: Vec<_> = seen.iter().map(|seen| seen.header("if-none-match")).collect();
    assert_eq!(tags, [None, Some("\"a\""), Some("\"a\""), Some("W/\"b\"")]);
}

#[tokio::test]
async fn a_304_takes_a_permit_unless_the_quota_counts_points() {
    let script = || [tagged("\"a\"", "old"), ScriptedResponse::status(304)];
    let (service, requests) = server(script()).await;
    let quota = Quota::per_hour(3).unwrap().with_burst(2).unwrap();
    let (client, cache) = (builder(&requests).with_quota(quota).client().unwrap(), Cache::default());
    for _ in 0..2 {
        cache.get(&client, "/rates").await.unwrap();
    }
    let error = cache.get(&client, "/rates").await.unwrap_err();
    assert!(error.downcast_ref::<tower_outbound::Error>().unwrap().is_rate_limited(), "{error:?}");
    assert_eq!(service.calls(), 2);

    let (service, points) = server(script()).await;
    let (client, cache) =
        (github(&points.url(), ApiKey::new("s3cret").unwrap(), quota).unwrap(), Cache::default());
    for _ in 0..4 {
        cache.get(&client, "/rates").await.unwrap();
    }
    assert_eq!(service.calls(), 4);
}

#[tokio::test]
async fn fetch_text_of_a_304_fails_with_its_status() {
    let (service, server) = server([304]).await;
    let client = builder(&server).client().unwrap();
    let error: ResponseError =
        client.get("/").header("if-none-match", "\"a\"").fetch_text().await.unwrap_err();
    assert_eq!((error.status(), service.calls()), (Some(StatusCode::NOT_MODIFIED), 1));
}

/// Serves bodies that break before their end, and then complete ones with another ETag.
#[tokio::test]
async fn broken_body_is_not_stored_under_an_etag() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::builder(format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let client = client.without_credential().client().unwrap();
    let server = tokio::spawn(async move {
        for (tag, sent) in [("a", "ol"), ("b", "new")] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4_096];
            let length = stream.read(&mut head).await.unwrap();
            assert!(!String::from_utf8_lossy(&head[..length]).contains("if-none-match"));
            let head = format!(
                "HTTP/1.1 200 OK\r\netag: \"{tag}\"\r\ncontent-length: 3\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(format!("{head}{sent}").as_bytes()).await.unwrap();
        }
    });
    let cache = Cache::default();
    cache.get(&client, "/rates").await.unwrap_err();
    assert_eq!(cache.get(&client, "/rates").await.unwrap().1, "new");
    server.await.unwrap();
}

/// The first attempt changed the resource, so its ETag no longer matches.
#[tokio::test]
async fn retried_conditional_put_returns_412_although_the_first_attempt_was_processed() {
    let (service, server) = server([502, 412]).await;
    let client = builder(&server).client().unwrap();
    let response = client.put("/orders/7").header("if-match", "\"a\"").body("{}").await.unwrap();
    assert_eq!(response.status(), StatusCode::PRECONDITION_FAILED);
    assert_eq!((response.report().unwrap().attempt_count(), service.calls()), (2, 2));
}
