//! Requests with 24,576 header fields, the capacity of `http`'s map.

use http::{HeaderMap, HeaderName, HeaderValue};
use tower::{Layer, Service};
use tower_outbound::{
    Body,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, KeyPlacement, KeySource, Origin, Sign, SignLayer, Signing},
    client::Transport,
    request_id::RequestIdLayer,
    retry::IdempotencyKey,
    test_util::{ScriptedResponse, ScriptedService},
};

use super::*;

const MOST: usize = 24_576;
const URI: &str = "https://host/v1";

fn filled(uri: &str, count: usize) -> Request<Body> {
    let mut request = Request::post(uri).body("body".into()).unwrap();
    *request.headers_mut() = (0..count)
        .map(|number| (HeaderName::try_from(format!("x-{number}")).unwrap(), HeaderValue::from_static("1")))
        .collect();
    request
}

/// Sends a request without room for another field through one layer.
async fn rejected<L, S>(layer: L)
where
    L: Layer<ScriptedService, Service = S>,
    S: Service<Request<Body>, Error = Error>,
{
    let service = ScriptedService::new([ScriptedResponse::status(200)]);
    let Err(error) = layer.layer(service.clone()).oneshot(filled(URI, MOST)).await else { panic!("sent") };
    assert!(error.is_invalid_request(), "{error:?}");
    assert!(format!("{error:#}").contains("the request has more than 6,000 header fields"), "{error:#}");
    assert_eq!(service.calls(), 0, "nothing is sent");
}

struct Signer;

impl Sign for Signer {
    fn sign<'a>(&'a self, head: &'a mut request::Parts, _: Option<&'a Bytes>) -> Signing<'a> {
        Box::pin(async move {
            head.headers.insert("x-signature", "signed".parse()?);
            Ok(())
        })
    }
}

#[tokio::test]
async fn each_layer_rejects_a_request_without_room_for_its_field() {
    let origin = || Origin::parse(URI).unwrap();
    rejected(RequestIdLayer::new()).await;
    rejected(RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare())).await;
    let attempt = HeaderName::from_static("x-attempt");
    rejected(AttemptSpanLayer::new().with_attempt_header(attempt)).await;
    let propagate = |_: &tracing::Span, headers: &mut HeaderMap| {
        headers.insert("x-trace", HeaderValue::from_static("1"));
    };
    rejected(AttemptSpanLayer::new().with_propagation(propagate)).await;
    rejected(AuthLayer::new(key(), origin()).unwrap()).await;
    let path = env::temp_dir().join(format!("tower-outbound-fields-{}", std::process::id()));
    std::fs::write(&path, KEY).unwrap();
    let keys = KeySource::from_file(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let placement = KeyPlacement::header(HeaderName::from_static("x-api-key")).unwrap();
    rejected(AuthLayer::new(keys, origin()).unwrap().with_placement(placement)).await;
    let authorize = |head: &mut request::Parts| {
        head.headers.insert("x-own", HeaderValue::from_static("1"));
        Ok::<_, BoxError>(())
    };
    rejected(AuthLayer::from_fn(authorize, origin()).unwrap()).await;
    rejected(SignLayer::new(Signer, origin()).unwrap()).await;
    rejected(keyed(URI).layer().unwrap()).await;
}

/// Clients also add fields, with methods that panic.
#[tokio::test]
async fn a_client_rejects_a_request_without_room_for_the_fields_below_it() {
    let transports = [Transport::new(), Transport::new().with_http2_prior_knowledge()];
    for (wire, transport) in [Wire::Http1, Wire::Http2].into_iter().zip(transports) {
        let server = Server::with_statuses(wire, [200]).await;
        let client = keyed(&server.url()).client_with_transport(transport).unwrap();
        for count in [6_000, 24_000, MOST - 6, MOST - 5, MOST - 4, MOST - 3, MOST - 2, MOST - 1, MOST] {
            let error = within(client.request(filled("/v1", count))).await.unwrap_err();
            assert!(error.is_invalid_request(), "{count}: {error:?}");
        }
        assert_eq!(server.connections(), 0);
    }
}
