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
use std::sync::{Arc, Mutex};

use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
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

/// A received request: the head in lowercase, and the body.
type Request = (String, Vec<u8>);

/// A server that sends raw responses, each on a connection of its own, and closes the connection.
struct Server {
    url: String,
    seen: Arc<Mutex<Vec<Request>>>,
    _accepting: JoinSet<()>,
}

impl Server {
    /// Calls `respond` with the number of each request, starting at 0, and its head.
    async fn start(respond: impl Fn(usize, &str) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (url, seen) = (format!("http://{}", listener.local_addr().unwrap()), Arc::default());
        let log: Arc<Mutex<Vec<Request>>> = Arc::clone(&seen);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let request = read_request(&mut stream).await;
                let number = log.lock().unwrap().len();
                let response = respond(number, &request.0);
                log.lock().unwrap().push(request);
                stream.write_all(&response).await.unwrap();
            }
        });
        Self { url, seen, _accepting: accepting }
    }

    /// Returns the value of a header in each request.
    fn sent(&self, name: &str) -> Vec<Option<String>> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|(head, _)| field(head, name).map(str::to_owned)).collect()
    }

    /// Returns a client with a backoff of 1 ms.
    fn client(&self) -> Client {
        let backoff = ExponentialBackoff::new(Duration::from_millis(1), Duration::from_millis(1)).unwrap();
        let builder = Client::builder(&self.url).unwrap().without_credential();
        builder.with_retry(RetryLayer::new().with_backoff(backoff)).client().unwrap()
    }
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

async fn read_request(stream: &mut TcpStream) -> Request {
    let mut bytes = Vec::new();
    let end = loop {
        assert_ne!(stream.read_buf(&mut bytes).await.unwrap(), 0);
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let mut body = bytes.split_off(end);
    let head = String::from_utf8(bytes).unwrap().to_lowercase();
    let length = field(&head, "content-length").map_or(0, |length| length.parse().unwrap());
    while body.len() < length {
        assert_ne!(stream.read_buf(&mut body).await.unwrap(), 0);
    }
    (head, body)
}

fn content(version: u8) -> Vec<u8> {
    (0..200_000_u32).map(|at| (at >> 5) as u8 ^ version).collect()
}

/// Responds to a GET with the version of the content, or the requested part, without the last `missing` bytes.
fn response(head: &str, version: u8, missing: usize) -> Vec<u8> {
    let (content, etag) = (content(version), format!("\"{version}\""));
    let start = field(head, "range").filter(|_| field(head, "if-range") == Some(&*etag));
    let start = start.map(|range| range["bytes=".len()..].trim_end_matches('-').parse::<usize>().unwrap());
    let (total, from) = (content.len(), start.unwrap_or(0));
    let (status, range) = match start {
        Some(start) if start == total => ("416 Out", format!("content-range: bytes */{total}\r\n")),
        Some(start) => ("206 Part", format!("content-range: bytes {start}-{}/{total}\r\n", total - 1)),
        None => ("200 OK", String::new()),
    };
    let mut response =
        format!("HTTP/1.1 {status}\r\netag: {etag}\r\nconnection: close\r\n{range}").into_bytes();
    response.extend(format!("content-length: {}\r\n\r\n", total - from).as_bytes());
    response.extend(&content[from..total - missing.min(total - from)]);
    response
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
    let files = files(&server.url).unwrap();
    let call = download(&files, "/file", &mut file, &mut etag);
    let result = tokio::time::timeout(Duration::from_secs(60), call).await.unwrap();
    let content = tokio::fs::read(&path).await.unwrap();
    tokio::fs::remove_file(&path).await.unwrap();
    (result, content, etag)
}

#[tokio::test]
async fn download_continues_after_the_connection_is_cut() {
    let server = Server::start(|number, head| response(head, 1, [120_000, 50_000, 0][number])).await;
    let (result, file, etag) = downloaded("cut", &server).await;
    result.unwrap();
    assert!(file == content(1));
    assert_eq!(etag.unwrap(), "\"1\"");
    let ranges = [None, Some("bytes=80000-".to_owned()), Some("bytes=150000-".to_owned())];
    assert_eq!(server.sent("range"), ranges);
    assert_eq!(server.sent("if-range")[1].as_deref(), Some("\"1\""));
}

#[tokio::test]
async fn download_is_complete_if_only_the_end_of_the_response_was_lost() {
    let server = Server::start(|number, head| {
        let whole = content(1);
        let start = format!(
            "HTTP/1.1 200 OK\r\netag: \"1\"\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n",
            whole.len()
        );
        // The last chunk is missing.
        if number == 0 { [start.as_bytes(), &whole, b"\r\n"].concat() } else { response(head, 1, 0) }
    })
    .await;
    let (result, file, _) = downloaded("end", &server).await;
    result.unwrap();
    assert!(file == content(1));
    assert_eq!(server.sent("range"), [None, Some("bytes=200000-".to_owned())]);
}

#[tokio::test]
async fn download_without_a_strong_etag_starts_again_and_gives_up_after_five_resumes() {
    let server = Server::start(|_, _| {
        b"HTTP/1.1 200 OK\r\netag: W/\"1\"\r\nconnection: close\r\ncontent-length: 9\r\n\r\npart".to_vec()
    })
    .await;
    let (result, file, etag) = downloaded("weak", &server).await;
    assert!(result.is_err() && etag.is_none());
    assert_eq!(file, b"part");
    assert_eq!(server.sent("range"), vec![None; 6]);
}

#[tokio::test]
async fn upload_opens_the_file_again_for_its_retry() {
    let (mut written, path) = file("upload").await;
    let whole = content(3);
    written.write_all(&whole).await.unwrap();
    written.flush().await.unwrap();
    let server = Server::start(|number, _| match number {
        0 => b"HTTP/1.1 503 Later\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_vec(),
        _ => b"HTTP/1.1 201 Stored\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".to_vec(),
    })
    .await;
    upload(&server.client(), "/file", &path).await.unwrap();
    assert_eq!(server.sent("content-length"), vec![Some("200000".to_owned()); 2]);
    assert!(server.seen.lock().unwrap().iter().all(|(_, body)| *body == whole));
    tokio::fs::remove_file(&path).await.unwrap();

    // This server never responds, so the missing file ends the call.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = Client::builder(format!("http://{}", silent.local_addr().unwrap())).unwrap();
    let client = client.without_credential().client().unwrap();
    let missing = client.put("/file").body_with(move || file_body(path.clone())).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::Body);
}
