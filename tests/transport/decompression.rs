//! Tests compressed responses of a real server.

use http_body_util::BodyExt;
use hyper::body::Incoming;
use tower_http::compression::{Compression, CompressionLevel};

use super::*;

const LONG_BODY: usize = 10 * 1024 * 1024;

/// A server that compresses its responses in the encoding of the query, if the client accepts it.
async fn compressing_server(settings: Settings) -> Server {
    Server::raw(settings, |_, mut request| async move {
        let encoding = request.uri().query().unwrap_or("gzip").to_owned();
        let accepted = request.headers().get("accept-encoding").map_or("", |value| value.to_str().unwrap());
        let is_accepted = accepted.split(',').any(|accepted| accepted.trim() == encoding);
        let encoding = if is_accepted { encoding } else { "identity".to_owned() };
        request.headers_mut().insert("accept-encoding", encoding.parse().unwrap());
        let service = tower::service_fn(|request: Request<Incoming>| async move {
            let body = match request.uri().path() {
                "/zeros" => vec![0; LONG_BODY],
                _ => "hello ".repeat(1_000).into_bytes(),
            };
            Ok::<_, std::convert::Infallible>(reply(200, body))
        });
        let service = Compression::new(service).quality(CompressionLevel::Fastest);
        let compressed = service.oneshot(request).await.unwrap();
        compressed.map(|body| body.map_err(std::io::Error::other).boxed_unsync())
    })
    .await
}

fn decompressing(url: &str, transport: TransportConfig) -> Client {
    builder(url).with_decompression().client_with_transport(transport).unwrap()
}

#[tokio::test]
async fn gzip_and_brotli_bodies_are_decompressed() {
    for (settings, transport) in super::versions() {
        let server = compressing_server(settings).await;
        let (url, client) = (server.url(), decompressing(&server.url(), transport.clone()));
        for encoding in ["gzip", "br"] {
            let response = within(client.get(format!("/?{encoding}"))).await.unwrap();
            assert!(!response.headers().contains_key("content-encoding"));
            assert_eq!(within(response.bytes()).await.unwrap(), "hello ".repeat(1_000));
        }
        // A client without decompression does not request it.
        let plain = builder(&url).client_with_transport(transport).unwrap();
        let response = within(plain.get("/?gzip")).await.unwrap();
        assert_eq!(within(response.bytes()).await.unwrap(), "hello ".repeat(1_000));
        // The test is void if the server does not compress.
        let response = within(plain.get("/?gzip").header("accept-encoding", "gzip")).await.unwrap();
        assert_eq!(response.headers()["content-encoding"], "gzip");
        assert!(within(response.bytes()).await.unwrap().len() < 1_000);
    }
}

/// A compressed body of a few kilobytes becomes 10 MiB.
#[tokio::test]
async fn limits_of_bodies_count_decompressed_bytes() {
    let server = compressing_server(Settings::default()).await;
    let plain = builder(&server.url()).client().unwrap();
    let client = decompressing(&server.url(), TransportConfig::new());
    for encoding in ["gzip", "br"] {
        let request = plain.get(format!("/zeros?{encoding}")).header("accept-encoding", encoding);
        let compressed: Bytes = within(request.await.unwrap().bytes()).await.unwrap();
        assert!(compressed.len() < 100 * 1024, "{encoding}: {} bytes", compressed.len());

        let body = within(client.get(format!("/zeros?{encoding}"))).await.unwrap().into_body();
        let error = within(body.bytes_up_to(1024 * 1024)).await.unwrap_err();
        assert!(error.to_string().contains("1048576"), "{encoding}: {error}");
    }
    let body = within(client.get("/zeros?gzip")).await.unwrap().into_body();
    assert_eq!(within(body.bytes_up_to(LONG_BODY)).await.unwrap().len(), LONG_BODY);
}

#[cfg(feature = "serde")]
#[tokio::test]
async fn configuration_file_enables_decompression() {
    let server = compressing_server(Settings::default()).await;
    let file = format!("base_url = '{}'\nno_credential = true\n", server.url());
    for (line, is_compressed) in [("decompression = true", true), ("", false)] {
        let config: tower_outbound::preset::StackConfig = toml::from_str(&(file.clone() + line)).unwrap();
        let response = within(config.client().unwrap().get("/?gzip")).await.unwrap();
        assert_eq!(within(response.bytes()).await.unwrap(), "hello ".repeat(1_000));
        let head = server.heads().pop().unwrap();
        assert_eq!(head.headers.contains_key("accept-encoding"), is_compressed, "{line}");
    }
}
