//! Tests an upload to a server that reads slowly, over a connection whose buffer at the server is small. The connection
//! then behaves like one on a slow network: the rest of the upload waits in the client's own socket.

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpSocket},
    sync::mpsc,
    time::advance,
};
use tokio_rustls::TlsAcceptor;

use super::{
    server::Wire,
    support::certificate::{certificate, trusting, wire},
    uploads::manual_clock,
    *,
};

const SECOND: Duration = Duration::from_secs(1);
/// Reading this part takes a second.
const PART: usize = 512 * 1024;
const PARTS: usize = 10;

async fn listener() -> TcpListener {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    socket.listen(8).unwrap()
}

/// Reads a part of the request for each permit, and reports it. Responds after the last part.
async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    permits: Arc<Semaphore>,
    report: mpsc::UnboundedSender<usize>,
) {
    let mut part = vec![0; PART];
    for number in 1..=PARTS {
        permits.acquire().await.unwrap().forget();
        stream.read_exact(&mut part).await.unwrap();
        report.send(number).unwrap();
    }
    // The length of the request's head.
    let _ = stream.read(&mut part).await.unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let _ = stream.shutdown().await;
}

/// Sends a PUT of `PARTS` parts, of which the server reads one each second. The attempt timeout is 3 s.
async fn upload(listener: TcpListener, tls: Option<TlsAcceptor>, url: &str, transport: TransportConfig) {
    let (permits, (report, mut reports)) = (Arc::new(Semaphore::new(0)), mpsc::unbounded_channel());
    let granted = Arc::clone(&permits);
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        match tls {
            Some(tls) => serve(tls.accept(stream).await.unwrap(), granted, report).await,
            None => serve(stream, granted, report).await,
        }
    });
    let client = builder(url).with_attempt_timeout(3 * SECOND).client_with_transport(transport).unwrap();
    let call = tokio::spawn(client.put("/file").body(vec![7; PARTS * PART]).send());
    for part in 1..=PARTS {
        permits.add_permits(1);
        assert_eq!(within(reports.recv()).await, Some(part));
        advance(SECOND).await;
    }
    let response = within(call).await.unwrap().unwrap();
    assert_eq!((response.status().as_u16(), attempts(&response)), (200, 1));
}

#[tokio::test(start_paused = true)]
async fn upload_outlasts_the_attempt_timeout_while_the_socket_sends_it() {
    let _clock = manual_clock();
    let listener = listener().await;
    let url = format!("http://{}", listener.local_addr().unwrap());
    upload(listener, None, &url, TransportConfig::new()).await;
}

#[tokio::test(start_paused = true)]
async fn upload_outlasts_the_attempt_timeout_while_the_socket_sends_it_over_tls() {
    let _clock = manual_clock();
    let (listener, certificate) = (listener().await, certificate());
    let Wire::Tls(tls) = wire(&certificate, &["http/1.1"]) else { panic!("no TLS") };
    let url = format!("https://localhost:{}", listener.local_addr().unwrap().port());
    upload(listener, Some(tls), &url, trusting(&certificate)).await;
}

/// A plain request goes to the proxy itself, so the proxy is the one that reads slowly.
#[cfg(feature = "proxy")]
#[tokio::test(start_paused = true)]
async fn upload_outlasts_the_attempt_timeout_while_the_socket_sends_it_to_a_proxy() {
    use tower_outbound::transport::Proxy;

    let _clock = manual_clock();
    let listener = listener().await;
    let proxy = Proxy::new(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    upload(listener, None, "http://files.test", TransportConfig::new().with_proxy(proxy)).await;
}
