//! Tests that neither the secret of OAuth 2 client credentials nor a token is shown, also if the token endpoint repeats
//! the secret.

use percent_encoding::percent_decode_str;
use tower_outbound::{adapter::ClientCredentials, auth::KeySource};

use super::{echoed_keys::ENCODINGS, *};
use crate::support::{
    secs,
    server::{cut_off, endless},
};

fn keys(server: &Server, in_body: bool) -> KeySource {
    let mut credentials = ClientCredentials::new(server.url() + "/token?p", "app", key()).unwrap();
    if in_body {
        credentials = credentials.with_credentials_in_body();
    }
    check_debug(&credentials);
    let create = |builder| {
        let builder: StackBuilder = without_waits(builder);
        check_debug(&builder);
        builder.client_with_transport(TransportConfig::new())
    };
    let keys = credentials.into_key_source_with(create).unwrap();
    check_debug(&keys);
    keys
}

/// Returns everything that the token endpoint knows of the secret: the whole request, and its parts.
fn forms(seen: &Seen) -> Vec<String> {
    let header = seen.header("authorization").unwrap_or_default().to_owned();
    let body = String::from_utf8(seen.body.to_vec()).unwrap();
    let encoded = body.split_once("client_secret=").map_or("", |(_, secret)| secret).to_owned();
    let forms = [KEY.to_owned(), format!("app:{KEY}"), header.replace("Basic ", ""), header, encoded, body];
    forms.into_iter().filter(|form| SEARCH.find(form).is_some()).collect()
}

/// Returns `true` if a request id contains the secret in a form that the client must recognise.
fn is_recognised(id: &str) -> bool {
    let encoded = percent_encoding::utf8_percent_encode(KEY, support::key_search::FORM);
    let basic = support::key_search::base64(format!("app:{encoded}").as_bytes());
    let shows = |text: &str| text.contains(KEY) || text.contains(&basic);
    let once = percent_decode_str(id).decode_utf8_lossy();
    shows(id) || shows(&once) || shows(&percent_decode_str(&once).decode_utf8_lossy())
}

#[test]
fn errors_and_log_of_a_token_request_do_not_show_a_secret_that_the_server_repeats() {
    run_with_sockets(async {
        for in_body in [false, true] {
            let server = Server::start(Wire::Http1, |number, seen| async move {
                let forms = forms(&seen).into_iter();
                let texts: Vec<_> =
                    forms.flat_map(|form| ENCODINGS.map(|(_, encode)| encode(&form))).collect();
                let text = &texts[number % texts.len()];
                let json = serde_json::json!({
                    "error": text, "error_description": text, "access_token": text, "token_type": text
                });
                let mut json = json.as_object().unwrap().clone();
                let status = [401, 200, 400, 200, 503][number % 5];
                if status == 200 {
                    json.remove("error");
                }
                let mut reply = reply(status, serde_json::to_string(&json).unwrap());
                let ids: Vec<_> = texts.iter().filter(|id| is_recognised(id) && id.len() <= 128).collect();
                reply.headers_mut().insert("x-request-id", ids[number % ids.len()].parse().unwrap());
                Some(reply)
            });
            let server = on_server_thread(server).await;
            for _ in 0..60 {
                let keys = keys(&server, in_body);
                let error = keys.current().await.unwrap_err();
                check_error_chain(&error);
                check_error_chain(&keys.last_error().unwrap());
            }
            assert!(server.seen().iter().all(|seen| !forms(seen).is_empty()));
        }
    });
}

#[test]
fn failed_and_successful_token_requests_do_not_show_the_secret_or_the_token() {
    run_with_sockets(async {
        for in_body in [false, true] {
            let server = Server::start(Wire::Http1, |number, _| async move {
                match number {
                    1..4 => Some(cut_off(200)),
                    4..7 => None,
                    7 => Some(endless(400)),
                    8 => Some(reply(200, format!("{{\"access_token\":{},", serde_json::json!(KEY)))),
                    // The error of a JSON parser would quote this string.
                    9 => Some(reply(200, serde_json::json!(KEY).to_string())),
                    _ => {
                        let token = serde_json::json!({"access_token": KEY, "token_type": "bearer"});
                        Some(reply(200, token.to_string()))
                    }
                }
            });
            let server = on_server_thread(server).await;
            for _ in 0..5 {
                let error = keys(&server, in_body).current().await.unwrap_err();
                check_error_chain(&error);
            }
            let keys = keys(&server, in_body);
            let token = tokio::time::timeout(secs(30), keys.current()).await.unwrap().unwrap();
            assert_eq!(token.expose(), KEY);
            check_debug(&token);
            check_debug(&keys);
        }
    });
}
