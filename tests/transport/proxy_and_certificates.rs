//! Runs the program of the guide that connects through a proxy to a server with mutual TLS.

use std::{env, fs, process};

use program::orders;
use tokio_rustls::rustls::version::TLS13;

use super::{
    proxies::{HOST, LOGIN, Recorded, USER},
    server::Wire,
    support::certificate::certificate,
    tls::mutual,
    *,
};

#[allow(unreachable_pub, reason = "the guide shows this code")]
mod program {
    use std::{fs, path::Path};

    use tower_outbound::{
        BoxError, Client,
        transport::{Proxy, TransportConfig},
    };

    /// Connects through the proxy to a server that requires a client certificate.
    pub fn orders(base_url: &str, proxy: &str, files: &Path) -> Result<Client, BoxError> {
        let read = |name: &str| fs::read(files.join(name));
        let transport = TransportConfig::new()
            .with_root_certificates(&read("root.pem")?)
            .with_client_certificate(&read("client.pem")?, &read("client.key")?)
            .with_proxy(Proxy::new(proxy)?.with_no_proxy("internal.example.com"));
        Ok(Client::builder(base_url)?.without_credential().client_with_transport(transport)?)
    }
}

#[tokio::test]
async fn client_certificate_reaches_the_server_through_the_tunnel_of_a_proxy() {
    let server_side = rcgen::generate_simple_self_signed([HOST.to_owned()]).unwrap();
    let client_side = certificate();
    let server = Server::quick(Wire::Tls(mutual(&server_side, &client_side, &TLS13, "h2"))).await;
    let proxy = Recorded::start("http", LOGIN).await;
    let files = env::temp_dir().join(format!("tower-outbound-certificates-{}", process::id()));
    fs::create_dir_all(&files).unwrap();
    fs::write(files.join("root.pem"), server_side.cert.pem()).unwrap();
    fs::write(files.join("client.pem"), client_side.cert.pem()).unwrap();
    fs::write(files.join("client.key"), client_side.signing_key.serialize_pem()).unwrap();

    let url = server.url_of(HOST);
    let address = proxy.path.address();
    let login = LOGIN.map(|(user, password)| format!("{user}:{password}@")).unwrap();
    let client = orders(&url, &format!("http://{login}{address}"), &files).unwrap();
    assert_eq!(within(client.get("/orders").fetch_text()).await.unwrap(), "ok");
    assert_eq!((server.requests(), proxy.path.opened()), (1, 1));

    // The proxy rejects the password, and the error does not contain it.
    let wrong = orders(&url, &format!("http://{USER}:wr0ng@{address}"), &files).unwrap();
    let error = within(wrong.post("/orders").body("{}")).await.unwrap_err();
    assert_not_sent(&error, ErrorKind::Proxy, 1);
    assert!(!format!("{error:?} {error:#}").contains("wr0ng"));
    fs::remove_dir_all(&files).unwrap();
}
