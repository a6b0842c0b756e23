//! Runs the programs of the page about pagination.

use std::pin::pin;

use futures_util::{StreamExt, TryStreamExt};
use program::{by_cursor, by_link, total};
use serde_json::json as value;
use tower_outbound::{Client, test_util::ScriptedResponse};

use super::{builder, json, paths, server};

pub mod program {
    use std::pin::pin;

    use futures_util::{Stream, TryStreamExt, stream};
    use http::{HeaderMap, header::LINK};
    use serde::{Deserialize, de::DeserializeOwned};
    use tower_outbound::{Client, client::ResponseError};

    /// Returns the pages of a list whose responses have a `Link` header with the URL of the next page.
    pub fn by_link<T: DeserializeOwned>(
        client: &Client,
        first: &str,
    ) -> impl Stream<Item = Result<Vec<T>, ResponseError>> + use<T> {
        let state = (client.clone(), Some(first.to_owned()));
        stream::try_unfold(state, |(client, next)| async move {
            let Some(url) = next else { return Ok(None) };
            let response = client.get(url).await?.error_for_status().await?;
            let next = next_link(response.headers());
            Ok(Some((response.json().await?, (client, next))))
        })
    }

    /// Returns the URL of `Link: <https://api.example.com/orders?page=2>; rel="next"`.
    pub fn next_link(headers: &HeaderMap) -> Option<String> {
        let values = headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok());
        let links = values.flat_map(|value| value.split('<').skip(1));
        let mut links = links.filter_map(|link| link.split_once('>'));
        let is_next = |parameter: &str| matches!(parameter.trim(), "rel=\"next\"" | "rel=next");
        let (url, _) = links.find(|(_, parameters)| parameters.split([';', ',']).any(is_next))?;
        Some(url.to_owned())
    }

    #[derive(Deserialize)]
    struct Order {
        amount: u64,
    }

    pub async fn total(client: &Client) -> Result<u64, ResponseError> {
        let mut pages = pin!(by_link::<Order>(client, "/orders?per_page=100"));
        let mut total = 0;
        while let Some(orders) = pages.try_next().await? {
            total += orders.iter().map(|order| order.amount).sum::<u64>();
        }
        Ok(total)
    }

    #[derive(Deserialize)]
    struct Page<T> {
        items: Vec<T>,
        next_cursor: Option<String>,
    }

    /// Returns the pages of a list whose responses contain the cursor of the next page.
    pub fn by_cursor<T: DeserializeOwned>(
        client: &Client,
        path: &str,
    ) -> impl Stream<Item = Result<Vec<T>, ResponseError>> + use<T> {
        let state = (client.clone(), path.to_owned(), Some(Vec::new()));
        stream::try_unfold(state, |(client, path, query)| async move {
            let Some(query) = query else { return Ok(None) };
            let page: Page<T> = client.get(&path).query(&query).fetch_json().await?;
            let next = page.next_cursor.filter(|cursor| !cursor.is_empty());
            let query = next.map(|cursor| vec![("cursor", cursor)]);
            Ok(Some((page.items, (client, path, query))))
        })
    }
}

fn linked(link: &str, items: &serde_json::Value) -> ScriptedResponse {
    json(items).with_header("link", link)
}

#[tokio::test]
async fn link_headers_lead_through_all_pages_with_a_call_for_each() {
    let (service, server) = server([
        linked(
            "</orders?page=9>; rel=\"last\", </orders?page=2&q=a,b>; rel=\"next\"",
            &value!([{"amount": 1}]),
        ),
        ScriptedResponse::status(503),
        linked("</orders?page=3>; title=x; rel=next", &value!([{"amount": 2}, {"amount": 3}])),
        linked("</orders?page=1>; rel=\"prev\"", &value!([{"amount": 4}])),
    ])
    .await;
    let client = builder(&server).client().unwrap();
    assert_eq!(total(&client).await.unwrap(), 10);
    // The 503 was retried within the call of the second page.
    let pages = ["/orders?per_page=100", "/orders?page=2&q=a,b", "/orders?page=2&q=a,b", "/orders?page=3"];
    assert_eq!(paths(&service), pages);
    let seen = service.seen();
    let ids: Vec<_> = seen.iter().map(|seen| seen.header("x-request-id").unwrap()).collect();
    assert!(ids[1] == ids[2] && ids[0] != ids[1] && ids[2] != ids[3], "{ids:?}");
}

#[tokio::test]
async fn page_is_requested_only_when_the_caller_polls() {
    let (service, server) = server([linked("</n?page=2>; rel=\"next\"", &value!([1, 2]))]).await;
    let client = builder(&server).client().unwrap();
    let mut pages = pin!(by_link::<u32>(&client, "/n"));
    assert_eq!(service.calls(), 0);
    assert_eq!(pages.try_next().await.unwrap(), Some(vec![1, 2]));
    assert_eq!(service.calls(), 1);
    // The server links to the same page forever.
    let endless: Vec<_> = by_link::<u32>(&client, "/n").take(5).try_collect().await.unwrap();
    assert_eq!((endless.len(), service.calls()), (5, 6));
}

#[tokio::test]
async fn stream_of_pages_ends_after_an_error() {
    let (service, server) =
        server([linked("</n?page=2>; rel=\"next\"", &value!([1])), ScriptedResponse::status(404)]).await;
    let client = builder(&server).client().unwrap();
    let pages: Vec<_> = by_link::<u32>(&client, "/n").collect().await;
    assert_eq!((pages.len(), pages[0].as_ref().unwrap(), service.calls()), (2, &vec![1], 2));
    assert_eq!(pages[1].as_ref().unwrap_err().status().unwrap(), 404);
}

#[tokio::test]
async fn link_to_another_origin_or_outside_the_base_url_is_rejected() {
    let (other, other_server) = server([200]).await;
    let (service, server) =
        server([linked(&format!("<{}/v1/n>; rel=next", other_server.url()), &value!([1]))]).await;
    let client =
        Client::builder(format!("{}/v1", server.url())).unwrap().without_credential().client().unwrap();
    for first in ["/n".to_owned(), format!("{}/v2/n", server.url())] {
        let error = by_link::<u32>(&client, &first).try_concat().await.unwrap_err();
        assert!(error.call().unwrap().is_invalid_request(), "{error:?}");
    }
    assert_eq!((paths(&service), other.calls()), (vec!["/v1/n".to_owned()], 0));
}

#[tokio::test]
async fn cursor_is_percent_encoded_and_an_empty_one_ends_the_list() {
    let (service, server) = server([
        json(&value!({"items": [1, 2], "next_cursor": "a b&c=="})),
        json(&value!({"items": [3], "next_cursor": ""})),
    ])
    .await;
    let client = builder(&server).client().unwrap();
    let items: Vec<u32> = by_cursor(&client, "/n?limit=2").try_concat().await.unwrap();
    assert_eq!(items, [1, 2, 3]);
    assert_eq!(paths(&service), ["/n?limit=2", "/n?limit=2&cursor=a%20b%26c%3D%3D"]);
}
