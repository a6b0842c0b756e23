//! Tests requests with a full `http::HeaderMap`. The map's method `insert` panics if the map already has 24,576 fields.

use http::{HeaderMap, HeaderName, HeaderValue, request};
use tower::{Layer, Service};
use tower_outbound::{
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, BoxSignFuture, KeySource, Origin, Sign},
    request_id::RequestIdLayer,
    retry::IdempotencyKey,
    transport::TransportConfig,
};

use super::*;

/// The maximum number of fields in an `http::HeaderMap`.
const MAX_FIELDS: usize = 24_576;
const URI: &str = "https://host/v1";

fn request_with_fields(uri: &str, count: usize) -> Request<Body> {
    let mut request = Request::post(uri).body("body".into()).unwrap();
    *request.headers_mut() = (0..count)
        .map(|number| (HeaderName::try_from(format!("x-{number}")).unwrap(), HeaderValue::from_static("1")))
        .collect();
    request
}

/// Asserts that the layer rejects a request whose header map has no room for another field.
async fn assert_rejects<L, S>(layer: L)
where
    L: Layer<ScriptedService, Service = S>,
    S: Service<Request<Body>, Error = Error>,
{
    let service = ScriptedService::new([ScriptedResponse::status(200)]);
    let Err(error) = layer.layer(service.clone()).oneshot(request_with_fields(URI, MAX_FIELDS)).await else {
        panic!("the layer accepted the request")
    };
    assert!(error.is_invalid_request(), "{error:?}");
    assert!(format!("{error:#}").contains("the request has more than 6,000 header fields"), "{error:#}");
    assert_eq!(service.calls(), 0, "the inner service receives no request");
}

struct Signer;

impl Sign for Signer {
    fn sign<'a>(&'a self, head: &'a mut request::Parts, _: Option<&'a Bytes>) -> BoxSignFuture<'a> {
        Box::pin(async move {
            head.headers.insert("x-signature", "signed".parse()?);
            Ok(())
        })
    }
}

#[tokio::test]
async fn layers_that_add_a_header_reject_a_request_with_a_full_header_map() {
    let origin = || Origin::parse(URI).unwrap();
    assert_rejects(RequestIdLayer::new()).await;
    assert_rejects(RetryLayer::new().with_honoured_idempotency_key(IdempotencyKey::bare())).await;
    let attempt = HeaderName::from_static("x-attempt");
    assert_rejects(AttemptSpanLayer::new().with_attempt_header(attempt)).await;
    let propagate = |_: &tracing::Span, headers: &mut HeaderMap| {
        headers.insert("x-trace", HeaderValue::from_static("1"));
    };
    assert_rejects(AttemptSpanLayer::new().with_propagation(propagate)).await;
    assert_rejects(AuthLayer::new(key(), origin()).unwrap()).await;
    let path = env::temp_dir().join(format!("tower-outbound-fields-{}", std::process::id()));
    std::fs::write(&path, KEY).unwrap();
    let keys = KeySource::from_file(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let placement = KeyPlacement::header(HeaderName::from_static("x-api-key")).unwrap();
    assert_rejects(AuthLayer::new(keys, origin()).unwrap().with_placement(placement)).await;
    let authorize = |head: &mut request::Parts| {
        head.headers.insert("x-signed", HeaderValue::from_static("1"));
        Ok::<_, BoxError>(())
    };
    assert_rejects(AuthLayer::from_fn(authorize, origin()).unwrap()).await;
    assert_rejects(AuthLayer::from_sign(Signer, origin()).unwrap()).await;
    assert_rejects(preset_with_key(URI).layer().unwrap()).await;
}

/// hyper and hyper-util also add header fields, with methods that panic if the header map is full.
#[tokio::test]
async fn client_rejects_a_request_with_6000_or_more_header_fields() {
    let transports = [TransportConfig::new(), TransportConfig::new().with_http2_prior_knowledge()];
    for (wire, transport) in [Wire::Http1, Wire::Http2].into_iter().zip(transports) {
        let server = Server::with_statuses(wire, [200]).await;
        let client = preset_with_key(&server.url()).client_with_transport(transport).unwrap();
        for count in [6_000, MAX_FIELDS - 1, MAX_FIELDS] {
            let error = within(client.execute(request_with_fields("/v1", count))).await.unwrap_err();
            assert!(error.is_invalid_request(), "{count}: {error:?}");
        }
        assert_eq!(server.connections(), 0);
    }
}
