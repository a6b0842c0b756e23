//! Calls a server on a Unix socket: a custom connector replaces DNS and TCP, and the layers, the pool and the timeouts
//! stay. `--help` shows more.

use std::process::ExitCode;

use tower_outbound::{BoxError, Client, transport::TransportConfig};
use tower_outbound_examples::{no_arguments, run};

const HELP: &str = "\
Calls a server on a Unix socket in a temporary folder. Takes less than a second.

Usage: cargo run --example unix_socket

  --help  this text

Exit status: 0, 1 if the call failed, 2 for an invalid argument, 130 after Ctrl-C.
";

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments(HELP);
    run(call(), String::new).await
}

#[cfg(unix)]
async fn call() -> Result<(), BoxError> {
    use std::{convert::Infallible, env, fs, process};

    use http_body_util::Full;
    use hyper::{Request, Response, body::Bytes, body::Incoming, server::conn::http1, service::service_fn};
    use hyper_util::rt::TokioIo;
    use tokio::net::{UnixListener, UnixStream};

    let path = env::temp_dir().join(format!("tower-outbound-{}.sock", process::id()));
    let listener = UnixListener::bind(&path)?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let respond = service_fn(async |request: Request<Incoming>| {
                let text = format!("{} {}", request.method(), request.uri());
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(text))))
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), respond));
        }
    });

    // The host of the URL has no meaning: every connection goes to the socket.
    let socket = path.clone();
    let connector = tower::service_fn(move |_: http::Uri| UnixStream::connect(socket.clone()));
    let transport = TransportConfig::new().build_with_connector(connector)?;
    let client =
        Client::builder("http://localhost/v1")?.without_credential().client_with_service(transport)?;
    let called = client.get("/version").fetch_text().await;
    fs::remove_file(&path)?;
    println!("the server received: {}", called?);
    Ok(())
}

#[cfg(not(unix))]
async fn call() -> Result<(), BoxError> {
    Err("this operating system has no Unix sockets".into())
}
