//! Runs the programs of the guide's page on uploads and downloads against a server that cuts connections.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::BytesMut;
use futures_util::stream;
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::{
    fs::File,
    io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt},
};
use tower_outbound::{Body, BoxError, Client, InvalidConfig};

// The tests need these items, too.
#[allow(dead_code, reason = "this binary uses a part of it")]
#[path = "../support/server.rs"]
mod server;

use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use server::{Reply, Seen, Server, Wire, reply, settle};
use tokio::net::TcpListener;
use tower_outbound::{ErrorKind, ExponentialBackoff, retry::RetryLayer};

/// A body that is read as a stream needs an idle timeout, because no other timeout covers it.
fn files(url: &str) -> Result<Client, InvalidConfig> {
    Client::builder(url)?.without_credential().with_body_idle_timeout(Duration::from_secs(30)).client()
}

/// Returns a body that opens the file at its first frame.
fn file_body(path: PathBuf) -> Body {
    let frames = stream::try_unfold((None, path), |(file, path)| async {
        let mut file = match file {
            Some(file) => file,
            None => File::open(&path).await?,
        };
        let mut chunk = BytesMut::with_capacity(64 * 1024);
        let length = file.read_buf(&mut chunk).await?;
        Ok::<_, io::Error>((length > 0).then(|| (Frame::data(chunk.freeze()), (Some(file), path))))
    });
    Body::new(StreamBody::new(frames))
}

async fn upload(files: &Client, name: &str, path: &Path) -> Result<(), BoxError> {
    let (length, path) = (tokio::fs::metadata(path).await?.len(), path.to_owned());
    let put = files.put(name).header("content-type", "application/octet-stream");
    let put = put.header("content-length", length).timeout(Duration::from_secs(6 * 60 * 60));
    put.body_with(move || file_body(path.clone())).await?.error_for_status().await?;
    Ok(())
}

/// Writes the body to the end of the file. Returns the error of a body that breaks.
async fn append(mut body: Body, file: &mut File) -> io::Result<Result<(), BoxError>> {
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => file.write_all(&data).await?,
            Ok(Err(_trailers)) => {}
            Err(broken) => return file.flush().await.map(|()| Err(broken)),
        }
    }
    file.flush().await.map(Ok)
}

/// Downloads to `file`, which may contain the beginning of the version `etag` of the content.
async fn download(
    files: &Client,
    name: &str,
    file: &mut File,
    etag: &mut Option<HeaderValue>,
) -> Result<(), BoxError> {
    let mut resumes = 0..5;
    loop {
        let length = file.seek(io::SeekFrom::End(0)).await?;
        let mut get = files.get(name).header("accept-encoding", "identity");
        if let (Some(etag), 1..) = (&*etag, length) {
            get = get.header("range", format!("bytes={length}-")).header("if-range", etag.clone());
        }
        let response = get.await?;
        let range = response.headers().get("content-range").and_then(|range| range.to_str().ok());
        match response.status() {
            // The rest of the content.
            StatusCode::PARTIAL_CONTENT
                if range.is_some_and(|r| r.starts_with(&format!("bytes {length}-"))) => {}
            // The file is complete: the last response broke after its last byte.
            StatusCode::RANGE_NOT_SATISFIABLE if range == Some(&format!("bytes */{length}")) => return Ok(()),
            // The whole content, because it has changed, or because the request had no range.
            StatusCode::OK => {
                file.set_len(0).await?;
                file.rewind().await?;
                // A weak ETag, `W/"…"`, does not identify the bytes.
                let strong = response.headers().get("etag").filter(|etag| etag.as_bytes().starts_with(b"\""));
                *etag = strong.cloned();
            }
            status => {
                response.error_for_status().await?;
                return Err(format!("unexpected status {status}, or range").into());
            }
        }
        match append(response.into_body(), file).await? {
            Ok(()) => return Ok(()),
            Err(broken) => resumes.next().map(drop).ok_or(broken)?,
        }
    }
}

/// Starts a server. Calls `respond` with the number of each request, starting at 0, and the request.
async fn server(respond: impl Fn(usize, &Seen) -> Reply + Send + Sync + 'static) -> Server {
    Server::start(Wire::Http1, move |number, seen| {
        let reply = respond(number - 1, &seen);
        async { Some(reply) }
    })
    .await
}

/// Returns the value of a header in each request.
fn sent(server: &Server, name: &str) -> Vec<Option<String>> {
    server.seen().iter().map(|seen| seen.header(name).map(str::to_owned)).collect()
}

fn content(version: u8) -> Vec<u8> {
    (0..200_000_u32).map(|at| (at >> 5) as u8 ^ version).collect()
}

/// Returns a body. If it is cut, the server closes the connection after the data.
fn body(data: impl Into<Bytes>, is_cut: bool) -> UnsyncBoxBody<Bytes, io::Error> {
    let data = stream::iter([Ok(Frame::data(data.into()))]);
    let close = stream::once(async {
        // The connection's task must write the data before the connection closes.
        settle().await;
        Err(io::Error::other("cut off"))
    });
    UnsyncBoxBody::new(StreamBody::new(data.chain(close.take(usize::from(is_cut)))))
}

/// Responds to a GET with the version of the content, or the requested part, without the last `missing` bytes.
fn response(seen: &Seen, version: u8, missing: usize) -> Reply {
    let (content, etag) = (content(version), format!("\"{version}\""));
    let start = seen.header("range").filter(|_| seen.header("if-range") == Some(&*etag));
    let start = start.map(|range| range["bytes=".len()..].trim_end_matches('-').parse::<usize>().unwrap());
    let (total, from) = (content.len(), start.unwrap_or(0));
    let (status, range) = match start {
        Some(start) if start == total => (416, format!("bytes */{total}")),
        Some(start) => (206, format!("bytes {start}-{}/{total}", total - 1)),
        None => (200, String::new()),
    };
    let data = content[from..total - missing.min(total - from)].to_vec();
    let response = http::Response::builder().status(status).header("etag", etag);
    let response = response.header("content-range", range).header("content-length", total - from);
    response.body(body(data, missing > 0)).unwrap()
}

/// Returns an empty file for a test, and its path.
async fn file(name: &str) -> (File, PathBuf) {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let mut options = File::options();
    (options.read(true).write(true).create(true).truncate(true).open(&path).await.unwrap(), path)
}

/// Downloads from the server to a new file. Returns the result, the content of the file and the ETag.
async fn downloaded(name: &str, server: &Server) -> (Result<(), BoxError>, Vec<u8>, Option<HeaderValue>) {
    let ((mut file, path), mut etag) = (file(name).await, None);
    let files = files(&server.url()).unwrap();
    let call = download(&files, "/file", &mut file, &mut etag);
    let result = tokio::time::timeout(Duration::from_secs(60), call).await.unwrap();
    let content = tokio::fs::read(&path).await.unwrap();
    tokio::fs::remove_file(&path).await.unwrap();
    (result, content, etag)
}

#[tokio::test]
async fn download_continues_after_the_connection_is_cut() {
    let server = server(|number, seen| response(seen, 1, [120_000, 50_000, 0][number])).await;
    let (result, file, etag) = downloaded("cut", &server).await;
    result.unwrap();
    assert!(file == content(1));
    assert_eq!(etag.unwrap(), "\"1\"");
    let ranges = [None, Some("bytes=80000-".to_owned()), Some("bytes=150000-".to_owned())];
    assert_eq!(sent(&server, "range"), ranges);
    assert_eq!(sent(&server, "if-range")[1].as_deref(), Some("\"1\""));
}

#[tokio::test]
async fn download_is_complete_if_only_the_end_of_the_response_was_lost() {
    let server = server(|number, seen| match number {
        // The last chunk is missing.
        0 => http::Response::builder().header("etag", "\"1\"").body(body(content(1), true)).unwrap(),
        _ => response(seen, 1, 0),
    })
    .await;
    let (result, file, _) = downloaded("end", &server).await;
    result.unwrap();
    assert!(file == content(1));
    assert_eq!(sent(&server, "range"), [None, Some("bytes=200000-".to_owned())]);
}

#[tokio::test]
async fn download_without_a_strong_etag_starts_again_and_gives_up_after_five_resumes() {
    let server = server(|_, _| {
        let response = http::Response::builder().header("etag", "W/\"1\"").header("content-length", 9);
        response.body(body("part", true)).unwrap()
    })
    .await;
    let (result, file, etag) = downloaded("weak", &server).await;
    assert!(result.is_err() && etag.is_none());
    assert_eq!(file, b"part");
    assert_eq!(sent(&server, "range"), vec![None; 6]);
}

#[tokio::test]
async fn download_starts_again_if_the_content_has_changed_and_fails_after_another_status_or_range() {
    let server = server(|number, seen| match number {
        0 => response(seen, 1, 50_000),
        _ => response(seen, 2, 0),
    });
    let server = server.await;
    let (result, file, etag) = downloaded("changed", &server).await;
    result.unwrap();
    assert!(file == content(2));
    assert_eq!((etag.unwrap().to_str().unwrap(), server.seen().len()), ("\"2\"", 2));

    let reply = |status, range| http::Response::builder().status(status).header("content-range", range);
    let server = self::server(move |number, seen| match number {
        0 => response(seen, 1, 50_000),
        _ => reply(206, "bytes 0-3/9").body(body("part", false)).unwrap(),
    });
    let (result, file, _) = downloaded("range", &server.await).await;
    assert_eq!(result.unwrap_err().to_string(), "unexpected status 206 Partial Content, or range");
    assert_eq!(file.len(), 150_000);
    let server = self::server(move |_, _| reply(404, "").body(body("", false)).unwrap());
    let error = downloaded("status", &server.await).await.0.unwrap_err();
    assert_eq!(error.downcast_ref::<tower_outbound::client::ResponseError>().unwrap().status().unwrap(), 404);
}

#[tokio::test]
async fn upload_opens_the_file_again_for_its_retry() {
    let (mut written, path) = file("upload").await;
    let whole = content(3);
    written.write_all(&whole).await.unwrap();
    written.flush().await.unwrap();
    let server = server(|number, _| reply(if number == 0 { 503 } else { 201 }, "")).await;
    let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(1)).unwrap();
    let client = Client::builder(server.url()).unwrap().without_credential();
    let client = client.with_retry(RetryLayer::new().with_backoff(backoff)).client().unwrap();
    upload(&client, "/file", &path).await.unwrap();
    assert_eq!(sent(&server, "content-length"), vec![Some("200000".to_owned()); 2]);
    assert!(server.seen().iter().all(|seen| seen.body == whole));
    tokio::fs::remove_file(&path).await.unwrap();

    // This server never responds, so the missing file ends the call.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::builder(format!("http://{}", silent.local_addr().unwrap())).unwrap();
    let client = client.without_credential().client().unwrap();
    let missing = client.put("/file").body_with(move || file_body(path.clone())).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Body);
}
