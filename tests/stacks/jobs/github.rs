//! Runs the program of the page about GitHub.

use std::{sync::Arc, time::Duration};

use futures_util::TryStreamExt;
use program::{available_points, github, pages, search};
use serde_json::json as value;
use tokio::time::Instant;
use tower_outbound::{
    ApiKey, Client, ErrorKind,
    test_util::{ScriptedResponse, ScriptedService},
};

use super::{
    conditional_requests::program::Cache,
    json,
    pagination::program::{by_link, next_link},
    server,
};

mod program {
    use std::time::Duration;

    use http::{Response, StatusCode};
    use tower::util::AndThenLayer;
    use tower_outbound::{
        ApiKey, Body, BoxError, Client, InvalidConfig, Quota,
        client::ResponseError,
        limit::{Amounts, Keyed, LocalLimiter, Scope, ServerSignal, Unit},
        stack::StackBuilder,
    };

    /// 5,000 points per hour, and 30 per minute for searches. A 304 spends no point. The secondary limits are 900 points per
    /// minute, here counted as requests, and 100 requests at once. Also returns the limiters of the points, by whether they
    /// are those of searches.
    pub fn github(base_url: &str, token: ApiKey) -> Result<(StackBuilder, Keyed<bool>), InvalidConfig> {
        let secondary = Quota::per_minute(900)?;
        let core = Quota::per_hour(5_000)?.with_unit(Unit::Points)?;
        let search = Quota::per_minute(30)?.with_unit(Unit::Points)?;
        let resources = Keyed::new(
            |head| head.uri.path().starts_with("/search"),
            move |is_search| LocalLimiter::paced_window([secondary, if *is_search { search } else { core }]),
        );
        let builder = Client::builder(base_url)?
            .with_api_key(token)
            .with_header("accept", "application/vnd.github+json")
            .with_header("x-github-api-version", "2022-11-28")
            .with_quota(secondary)
            .with_max_in_flight(100)
            .with_throttle_pause(Duration::from_secs(60))
            .with_endpoint_limits(resources.clone())
            .with_limit(|limit| {
                let limit = limit.with_estimate(|_| Amounts::of(Unit::Points, 1));
                limit.with_actual(|status, _| (status == 304).then_some(Amounts::NONE))
            })
            .with_server_signal(|status, headers| {
                let rejected = || ServerSignal::throttled().with_not_processed();
                let is_empty = headers.get("x-ratelimit-remaining").is_some_and(|left| left == "0");
                match status.as_u16() {
                    // A secondary limit.
                    403 | 429 if headers.contains_key("retry-after") => Some(rejected()),
                    // The primary limit of one resource.
                    403 | 429 if is_empty => Some(rejected().with_scope(Scope::Endpoint)),
                    _ => None,
                }
            })
            .with_transport_layer(AndThenLayer::new(read_403));
        Ok((builder, resources))
    }

    /// Marks a 403 of a secondary limit that has no `retry-after`.
    async fn read_403(response: Response<Body>) -> Result<Response<Body>, BoxError> {
        if response.status() != StatusCode::FORBIDDEN || response.headers().contains_key("retry-after") {
            return Ok(response);
        }
        let (mut head, body) = response.into_parts();
        let body = body.bytes_up_to(64 * 1024).await?;
        if body.windows(20).any(|part| part == b"secondary rate limit") {
            head.extensions.insert(ServerSignal::throttled().with_not_processed());
        }
        Ok(Response::from_parts(head, body.into()))
    }

    /// Returns the points that can be spent now.
    pub fn available_points(resources: &Keyed<bool>, is_search: bool) -> Result<u32, BoxError> {
        let state = resources.limiter(&is_search)?.snapshot();
        Ok(state.units.iter().map(|unit| unit.available).min().unwrap_or(0))
    }

    /// Searches may take longer than other requests.
    pub async fn search(github: &Client, words: &str) -> Result<String, ResponseError> {
        let search = github.get("/search/issues").query(&[("q", words)]);
        search.attempt_timeout(Duration::from_secs(30)).fetch_text().await
    }

    pub use listing::pages;

    mod listing {
        use std::sync::Arc;

        use futures_util::{Stream, stream};
        use serde::de::DeserializeOwned;

        use super::super::{Cache, next_link};
        use super::{BoxError, Client};

        /// Returns the pages of a list. A page that has not changed comes from the cache.
        pub fn pages<T: DeserializeOwned>(
            client: &Client,
            cache: &Arc<Cache>,
            first: &str,
        ) -> impl Stream<Item = Result<Vec<T>, BoxError>> + use<T> {
            let state = (client.clone(), Arc::clone(cache), Some(first.to_owned()));
            stream::try_unfold(state, |(client, cache, next)| async move {
                let Some(url) = next else { return Ok(None) };
                let (headers, body) = cache.get(&client, &url).await?;
                let next = next_link(&headers);
                Ok(Some((serde_json::from_slice(&body)?, (client, cache, next))))
            })
        }
    }
}

fn key() -> ApiKey {
    ApiKey::new("t0ken").unwrap()
}

/// Returns a client over a service that responds to each path.
fn client(
    respond: impl Fn(&str, usize) -> ScriptedResponse + Send + Sync + 'static,
) -> (Client, ScriptedService) {
    let service = ScriptedService::from_fn(move |seen| respond(seen.head.uri.path(), seen.number));
    let (builder, _) = github("https://api.github.com", key()).unwrap();
    let client = builder.client_with_service(service.clone());
    (client.unwrap(), service)
}

/// Adds GitHub's headers of a resource whose window ends 20 s after the response.
fn limited(response: ScriptedResponse, resource: &str, remaining: u32) -> ScriptedResponse {
    let limit = if resource == "search" { "30" } else { "5000" };
    response
        .with_header("date", "Thu, 01 Jan 2026 01:00:00 GMT")
        .with_header("x-ratelimit-limit", limit)
        .with_header("x-ratelimit-remaining", &remaining.to_string())
        .with_header("x-ratelimit-reset", "1767229220")
        .with_header("x-ratelimit-resource", resource)
}

#[tokio::test(start_paused = true)]
async fn empty_quota_pauses_only_its_resource_and_a_secondary_limit_pauses_all() {
    let (secs, throttled) = (Duration::from_secs, || ScriptedResponse::status(403));
    for (rejected, searches_wait) in [
        (limited(throttled(), "core", 0), false),
        (limited(throttled().with_header("retry-after", "20"), "core", 4_990), true),
    ] {
        let (client, service) = client(move |_, number| match number {
            1 => rejected.clone(),
            _ => limited(ScriptedResponse::status(200), "core", 4_989),
        });
        let start = Instant::now();
        let post = client.post("/repos/a/b/issues").body("{}").send();
        let found = async {
            tokio::time::sleep(secs(1)).await;
            search(&client, "a b").await.map(|_| start.elapsed())
        };
        let (post, found) = tokio::join!(post, found);
        assert_eq!((post.unwrap().status().as_u16(), service.calls()), (200, 3));
        assert!(start.elapsed() >= secs(20));
        assert_eq!(found.unwrap() >= secs(20), searches_wait);
    }
}

#[tokio::test(start_paused = true)]
async fn missing_permission_is_returned_and_pauses_nothing() {
    let (client, service) = client(|_, _| limited(ScriptedResponse::status(403), "core", 4_000));
    let start = Instant::now();
    for _ in 0..3 {
        assert_eq!(client.get("/repos/a/private").await.unwrap().status(), 403);
    }
    assert!(service.calls() == 3 && start.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_304_spends_no_point_and_searches_have_a_quota_of_their_own() {
    let (client, service) = client(|_, _| ScriptedResponse::status(304));
    let start = Instant::now();
    for _ in 0..60 {
        client.get("/search/code").header("if-none-match", "\"a\"").await.unwrap();
    }
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert_eq!(service.calls(), 60);
    let seen = &service.seen()[0];
    assert_eq!(seen.header("x-github-api-version"), Some("2022-11-28"));
    assert_eq!(seen.header("authorization"), Some("Bearer t0ken"));
}

#[tokio::test(start_paused = true)]
async fn search_has_a_longer_attempt_timeout_than_other_requests() {
    let (client, _) =
        client(|_, _| ScriptedResponse::status(200).with_body("{}").with_delay(Duration::from_secs(20)));
    assert_eq!(search(&client, "a").await.unwrap(), "{}");
    let error = client.get("/user").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AttemptTimeout);
}

#[tokio::test]
async fn pages_and_the_cache_of_the_other_programs_work_with_this_client() {
    let (service, server) = server([
        json(&value!([1, 2])).with_header("link", "</issues?page=2>; rel=\"next\""),
        json(&value!([3])),
        ScriptedResponse::status(200).with_header("etag", "\"a\"").with_body("old"),
        ScriptedResponse::status(304),
    ])
    .await;
    let client = github(&server.url(), key()).unwrap().0.client().unwrap();
    let issues: Vec<u32> = by_link(&client, "/issues?per_page=100").try_concat().await.unwrap();
    let cache = Cache::default();
    for _ in 0..2 {
        assert_eq!(cache.get(&client, "/repos/a/b").await.unwrap().1, "old");
    }
    assert_eq!((issues, service.calls()), (vec![1, 2, 3], 4));
}

#[tokio::test]
async fn pages_of_an_unchanged_list_come_from_the_cache_and_spend_no_point() {
    let tagged = |tag: &str, body| json(&body).with_header("etag", tag);
    let (service, server) = server([
        tagged("\"a\"", value!([1, 2])).with_header("link", "</issues?page=2>; rel=\"next\""),
        tagged("\"b\"", value!([3])),
        ScriptedResponse::status(304),
        // A third page begins, so that the second one has a link.
        ScriptedResponse::status(304).with_header("link", "</issues?page=3>; rel=\"next\""),
        tagged("\"c\"", value!([4])),
    ])
    .await;
    let (builder, points) = github(&server.url(), key()).unwrap();
    let (client, cache) = (builder.client().unwrap(), Arc::new(Cache::default()));
    let at_start = available_points(&points, false).unwrap();
    for expected in [vec![1, 2, 3], vec![1, 2, 3, 4]] {
        let issues: Vec<u32> = pages(&client, &cache, "/issues?per_page=100").try_concat().await.unwrap();
        assert_eq!(issues, expected);
    }
    assert_eq!(service.calls(), 5);
    assert!(at_start - available_points(&points, false).unwrap() <= 3);
}

#[tokio::test(start_paused = true)]
async fn secondary_limit_in_the_body_of_a_403_pauses_for_a_minute() {
    let body = r#"{"message":"You have exceeded a secondary rate limit."}"#;
    let (client, service) = client(move |_, number| match number {
        1 => limited(ScriptedResponse::status(403), "core", 4_000).with_body(body),
        _ => limited(ScriptedResponse::status(200), "core", 3_999),
    });
    let start = Instant::now();
    let post = client.post("/repos/a/b/issues").body("{}").timeout(Duration::from_secs(120));
    assert_eq!((post.await.unwrap().status().as_u16(), service.calls()), (200, 2));
    assert!(start.elapsed() >= Duration::from_secs(60), "{:?}", start.elapsed());
}
