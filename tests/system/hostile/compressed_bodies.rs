//! Tests compressed bodies of some 10 KiB that decompress to 40 MiB.

use std::{convert::Infallible, io::Write, sync::LazyLock};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use tower::ServiceExt;
use tower_http::compression::{Compression, CompressionLevel};

use super::{server::*, *};

/// Most of this memory is the window of the decoder: 32 KiB for gzip, and 4 MiB for brotli at the level of this server.
const BOMB_LIMITS: [(&str, u64); 2] = [("gzip", 1_024 * KIB), ("br", 8 * MIB)];
/// While the buffer of 16 MiB doubles, both buffers exist at the same time.
const READ_LIMIT: u64 = 52 * MIB;

fn compressed(encoding: &'static str) -> Vec<u8> {
    let service = tower::service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(vec![0; 40 << 20]))))
    });
    let request = Request::get("/").header("accept-encoding", encoding).body(()).unwrap();
    let service = Compression::new(service).quality(CompressionLevel::Fastest);
    let runtime = Builder::new_current_thread().build().unwrap();
    let body =
        runtime.block_on(async { service.oneshot(request).await.unwrap().into_body().collect().await });
    body.ok().unwrap().to_bytes().to_vec()
}

/// Serves responses with this status and a body that becomes much larger.
fn bomb(encoding: &'static str, status: u16) -> Client {
    static BOMBS: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| ["gzip", "br"].map(compressed));
    let body = &BOMBS[usize::from(encoding == "br")];
    assert!(body.len() < 256 << 10, "{} bytes", body.len());
    let url = serve_http1(move |stream| {
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status} x\r\ncontent-encoding: {encoding}\r\ncontent-length: {length}\r\n\r\n"
        )?;
        stream.write_all(body)
    });
    preset_builder(&url).with_decompression().client_with_transport(transport(Http1)).unwrap()
}

#[test]
fn body_collect_fails_when_a_decompressed_body_exceeds_the_limit() {
    for (encoding, limit) in BOMB_LIMITS {
        let client = bomb(encoding, 200);
        assert_collects_64_kib(&client, &format!("{encoding} 200, collected to 64 KiB"), limit);
    }
}

#[test]
fn fetch_json_and_bytes_stop_at_the_maximum_size_of_a_decompressed_body() {
    for (encoding, _) in BOMB_LIMITS {
        let client = bomb(encoding, 200);
        let error = json_error(&client, &format!("{encoding} 200, read as JSON"), READ_LIMIT);
        assert!(error.is_too_large(), "{error:?}");
        let error = with_memory_limit(&format!("{encoding} 200, read as bytes"), READ_LIMIT, async {
            client.get("/v1/latest").await.unwrap().bytes().await.unwrap_err()
        });
        assert!(error.is_too_large(), "{error:?}");
    }
}

#[test]
fn fetch_json_decompresses_only_an_excerpt_of_an_error_body() {
    for (encoding, limit) in BOMB_LIMITS {
        let client = bomb(encoding, 404);
        assert_excerpt(&client, &format!("{encoding} 404, read as JSON"), limit);
    }
}

#[test]
fn decompressed_body_of_a_retried_response_uses_bounded_memory() {
    for (encoding, limit) in BOMB_LIMITS {
        let client = bomb(encoding, 503);
        let (status, attempts) = with_memory_limit(&format!("{encoding} 503"), limit, async {
            let response = client.get("/v1/latest").await.unwrap();
            (response.status(), attempts(response.report()))
        });
        assert_eq!((status.as_u16(), attempts), (503, 3));
    }
}
