//! Signs requests with HMAC-SHA256, including the body. A server on loopback checks the signatures.
//!
//! The signature scheme is an example. The signature covers `method \n path and query \n unix time \n
//! hex(SHA-256(body))`, with the application's secret as the key. Replace the scheme with that of your service.
//!
//! `cargo run --example sign` runs the example. `--help` shows more.

use std::{
    fmt::Write,
    io,
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, StatusCode, body::Incoming, http::request::Parts, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tower_outbound::{
    ApiKey, BoxError,
    auth::{AppCredentials, BoxSignFuture, Sign},
    preset,
};
use tower_outbound_examples::{no_arguments, run};

const HELP: &str = "\
Signs requests with HMAC-SHA256 over method, path, time and body, and sends them to a server that checks the signature.

Usage: cargo run --example sign

  --help  this text

The server on loopback accepts the correct secret and rejects a wrong one. The program takes less than a second.

Exit status: 0, 1 if a response is not the expected one, 2 for an invalid argument, 130 after Ctrl-C.
";

const APP: &str = "app-17";
const SECRET: &str = "s3cret-of-the-example";
/// The maximum age of a signature. An intercepted request can be replayed only within this time.
const MAX_AGE: Duration = Duration::from_secs(300);

/// Signs the client's requests with HMAC-SHA256.
struct HmacSigner {
    credentials: AppCredentials,
}

impl Sign for HmacSigner {
    fn body_limit(&self) -> Option<usize> {
        Some(1024 * 1024)
    }

    fn sign<'a>(&'a self, head: &'a mut Parts, body: Option<&'a Bytes>) -> BoxSignFuture<'a> {
        Box::pin(async move {
            // Each attempt signs the current time, because the signature of an earlier attempt may have expired.
            let time = now()?;
            let mac = mac(self.credentials.secret().expose(), head, &time, body.unwrap_or(&Bytes::new()))?;
            head.headers.insert("x-app-id", self.credentials.app_id().parse()?);
            head.headers.insert("x-app-key", self.credentials.key().header_value());
            head.headers.insert("x-time", time.parse()?);
            head.headers.insert("x-signature", hex(&mac.finalize().into_bytes()).parse()?);
            Ok(())
        })
    }
}

/// Computes the signature of a request. The client and the server both call this function.
fn mac(secret: &str, head: &Parts, time: &str, body: &[u8]) -> Result<Hmac<Sha256>, BoxError> {
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes())?;
    mac.update(format!("{}\n{target}\n{time}\n{}", head.method, hex(&Sha256::digest(body))).as_bytes());
    Ok(mac)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[allow(clippy::disallowed_methods, reason = "the server compares it with its own wall clock")]
fn now() -> Result<String, BoxError> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs().to_string())
}

/// Verifies the signature of a request that the server received.
fn verify(head: &Parts, body: &[u8]) -> Result<(), BoxError> {
    let header = |name| {
        head.headers
            .get(name)
            .ok_or(format!("the request has no header {name}"))?
            .to_str()
            .map_err(BoxError::from)
    };
    let time = header("x-time")?;
    if now()?.parse::<u64>()?.abs_diff(time.parse()?) > MAX_AGE.as_secs() {
        return Err("expired signature".into());
    }
    let signature = header("x-signature")?;
    if header("x-app-id")? != APP || !signature.is_ascii() {
        return Err("unknown application".into());
    }
    let bytes: Result<Vec<u8>, _> =
        (0..signature.len() / 2).map(|at| u8::from_str_radix(&signature[2 * at..][..2], 16)).collect();
    // `verify_slice` compares the signatures in constant time.
    mac(SECRET, head, time, body)?.verify_slice(&bytes?).map_err(|_| "wrong signature".into())
}

async fn serve(request: Request<Incoming>) -> io::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let (status, message) = match verify(&head, &body) {
        Ok(()) => (StatusCode::OK, format!("valid signature, body of {} bytes", body.len())),
        Err(error) => (StatusCode::UNAUTHORIZED, error.to_string()),
    };
    let mut response = Response::new(Full::from(message));
    *response.status_mut() = status;
    Ok(response)
}

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(HELP);
    run(calls(), || "every response so far was the expected one".to_owned()).await
}

async fn calls() -> Result<(), BoxError> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let base_url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service_fn(serve)).await;
            });
        }
    });

    for (secret, expected) in [(SECRET, StatusCode::OK), ("another", StatusCode::UNAUTHORIZED)] {
        let credentials = AppCredentials::new(APP, ApiKey::new("k3y")?, ApiKey::new(secret)?)?;
        let client =
            preset::realtime_messaging(&base_url)?.with_signature(HmacSigner { credentials }).client()?;
        for (line, call) in [
            ("GET /channels", client.get("/channels?prefix=a%20b")),
            ("POST /events", client.post("/events").body(r#"{"name":"greeting"}"#)),
        ] {
            let response = call.await?;
            let status = response.status();
            let message = response.into_body().bytes_up_to(1024).await?;
            println!("{line}: {status}, {}", String::from_utf8_lossy(&message));
            if status != expected {
                return Err(format!("{line}: expected {expected}").into());
            }
        }
    }
    Ok(())
}
