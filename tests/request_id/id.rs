//! Tests the request id of a call: the source, format and header of the id.

use super::*;

#[tokio::test]
async fn request_id_is_a_version_7_uuid_of_36_characters() {
    let server = ScriptedService::new([Status(200)]);
    for _ in 0..100 {
        RequestIdLayer::new().layer(server.clone()).oneshot(get(URI)).await.unwrap();
    }
    #[allow(clippy::disallowed_methods, reason = "the id contains the system time")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis();
    for seen in server.seen() {
        let id = id_of(&seen.head);
        let id = id.to_str().unwrap();
        assert_eq!(id.len(), 36);
        for (index, character) in id.chars().enumerate() {
            match index {
                8 | 13 | 18 | 23 => assert_eq!(character, '-', "{id}"),
                14 => assert_eq!(character, '7', "UUID version of {id}"),
                19 => assert!("89ab".contains(character), "UUID variant of {id}"),
                _ => assert!(character.is_ascii_digit() || ('a'..='f').contains(&character), "{id}"),
            }
        }
        let timestamp = u128::from_str_radix(&id.replace('-', "")[..12], 16).unwrap();
        assert!(
            now.abs_diff(timestamp) < 60_000,
            "the timestamp {timestamp} in the id is not close to {now}"
        );
    }
}

/// HTTP/2 does not add a sensitive field to its table of repeated fields.
#[tokio::test]
async fn request_id_is_sensitive_in_the_request_and_readable_in_the_report() {
    let server = ScriptedService::new([Status(200)]);
    let mut with_id = get(URI);
    with_id.headers_mut().insert("x-request-id", HeaderValue::from_static("own-1"));
    for request in [get(URI), with_id] {
        let response = RequestIdLayer::new().layer(server.clone()).oneshot(request).await.unwrap();
        assert!(!report(&response).request_id().unwrap().is_sensitive());
    }
    assert!(server.seen().iter().all(|seen| id_of(&seen.head).is_sensitive()));
}

#[tokio::test(start_paused = true)]
async fn request_id_layer_uses_an_id_in_the_request_extensions() {
    let with_extension = || {
        let mut request = get(URI);
        request.extensions_mut().insert(RequestId(HeaderValue::from_static("extension-1")));
        request
    };
    let layers =
        (RequestIdLayer::new().with_maker(|| unreachable!("the request has an id")), RetryLayer::new());
    let server = ScriptedService::new([Status(503), Status(200), Io(ConnectionReset)]);
    let service = layers.layer(server.clone());
    let response = service.clone().oneshot(with_extension()).await.unwrap();
    assert_eq!(report(&response).request_id().unwrap(), "extension-1");
    let error = service.clone().oneshot(with_extension()).await.unwrap_err();
    assert_eq!(error.request_id().unwrap(), "extension-1");
    // The header takes precedence over the extension.
    let mut both = with_extension();
    both.headers_mut().insert("x-request-id", HeaderValue::from_static("header-1"));
    let error = service.oneshot(both).await.unwrap_err();
    assert_eq!(error.request_id().unwrap(), "header-1");
    let ids: Vec<_> = server.seen().iter().map(|seen| id_of(&seen.head)).collect();
    let expected = ["extension-1"; 5].into_iter().chain(["header-1"; 3]);
    assert!(ids.iter().eq(expected), "{ids:?}");
}

#[tokio::test(start_paused = true)]
async fn request_id_layer_calls_a_custom_maker_once_for_each_call_without_an_id() {
    let count = AtomicU64::new(7);
    let maker = move || HeaderValue::from(count.fetch_add(1, Ordering::Relaxed));
    let server = ScriptedService::new([Status(503), Status(200)]);
    let service = (RequestIdLayer::new().with_maker(maker), RetryLayer::new()).layer(server.clone());
    let mut with_id = get(URI);
    with_id.headers_mut().insert("x-request-id", HeaderValue::from_static("own"));
    for request in [get(URI), with_id, get(URI)] {
        service.clone().oneshot(request).await.unwrap();
    }
    let ids: Vec<_> = server.seen().iter().map(|seen| id_of(&seen.head)).collect();
    assert_eq!(ids, ["7", "7", "own", "8"]);
}

#[tokio::test]
async fn request_id_layer_sends_the_id_in_a_custom_header() {
    let server = ScriptedService::new([Status(200)]);
    let layer = RequestIdLayer::new().with_header(header("x-correlation-id"));
    let response = layer.layer(server.clone()).oneshot(get(URI)).await.unwrap();
    let head = &server.seen()[0].head;
    assert_eq!(head.headers.len(), 1);
    assert_eq!(head.headers["x-correlation-id"].len(), 36);
    assert_eq!(report(&response).request_id().as_ref(), Some(&head.headers["x-correlation-id"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_calls_have_distinct_request_ids() {
    let (layer, server) = (RequestIdLayer::new(), ScriptedService::new([Status(200)]));
    let calls: Vec<_> =
        (0..1_000).map(|_| tokio::spawn(layer.clone().layer(server.clone()).oneshot(get(URI)))).collect();
    let mut reported = HashSet::new();
    for call in calls {
        reported.insert(report(&call.await.unwrap().unwrap()).request_id().unwrap());
    }
    let sent: HashSet<_> = server.seen().iter().map(|seen| id_of(&seen.head)).collect();
    assert_eq!((sent.len(), reported.len()), (1_000, 1_000));
    assert_eq!(sent, reported);
}
