//! Tests that errors do not show a credential that the server repeats in its response, for example in an error message.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tower_outbound::{Body, auth::KeySource, client::ResponseError};

use super::{support::key_search::base64, *};

pub(super) type Encoding = fn(&str) -> String;

/// How a server may encode the credential.
pub(super) const ENCODINGS: [(&str, Encoding); 5] = [
    ("plain", str::to_owned),
    ("json", |text| serde_json::to_string(text).unwrap()),
    ("percent", |text| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()),
    ("lower percent", |text| {
        let hex = |byte: u8| format!("%{byte:02x}");
        let keep = |byte: u8| byte.is_ascii_alphanumeric().then(|| char::from(byte).to_string());
        text.bytes().map(|byte| keep(byte).unwrap_or_else(|| hex(byte))).collect()
    }),
    ("base64", |text| base64(text.as_bytes())),
];

/// Returns the user and the password of a `Basic` credential.
fn decode_basic(credential: &str) -> String {
    let alphabet: Vec<_> = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['+', '/']).collect();
    let sextets = credential.chars().map_while(|char| alphabet.iter().position(|other| *other == char));
    let bits: Vec<_> = sextets.flat_map(|sextet| (0..6).rev().map(move |bit| sextet >> bit & 1)).collect();
    let bytes = bits.chunks_exact(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | *bit as u8));
    bytes.map(char::from).collect()
}

/// Returns the forms of the credential that a server may repeat: the whole header or query, or a part of it.
fn forms(placement: Placement, seen: &Seen) -> Vec<String> {
    let query = seen.path_and_query();
    let authorization = seen.header("authorization").unwrap_or_default().to_owned();
    match placement {
        Placement::Bearer => vec![authorization.replace("Bearer ", ""), authorization],
        Placement::Header => vec![seen.header("x-api-key").unwrap().to_owned()],
        Placement::Basic => {
            let pair = decode_basic(&authorization["Basic ".len()..]);
            let encoded = authorization.replace("Basic ", "");
            vec![pair.replace("ann:", ""), format!("a {pair} b"), pair, authorization, encoded]
        }
        Placement::Query => {
            vec![percent_decode_str(query).decode_utf8_lossy().into_owned(), query.to_owned()]
        }
    }
}

/// A server's response that contains the credential.
#[derive(Clone)]
struct Echo {
    placement: Placement,
    status: u16,
    /// The text of the body before and after the credential.
    around: (String, String),
    /// If set, the server makes this key source replace its key before each response.
    replaced: Option<KeySource>,
}

impl Echo {
    fn new(placement: Placement, status: u16) -> Self {
        Self { placement, status, around: ("<".to_owned(), ">".to_owned()), replaced: None }
    }

    /// Starts the server. Each response repeats the credential in one combination of form and encoding. The number of
    /// the combination is `first` for the first response, and increases by one with each response.
    async fn start(self, first: usize) -> Server {
        let server = Server::start(Wire::Http1, move |number, seen| {
            let echo = self.clone();
            async move {
                if let Some(keys) = &echo.replaced {
                    let old = keys.current().await.unwrap();
                    assert!(keys.reject(&old));
                    assert_ne!(keys.current().await.unwrap(), old);
                }
                Some(reply(echo.status, echo.body(first + number - 1, &seen)))
            }
        });
        on_server_thread(server).await
    }

    fn body(&self, number: usize, seen: &Seen) -> String {
        let forms = forms(self.placement, seen);
        let (_, encode) = ENCODINGS[number / forms.len() % ENCODINGS.len()];
        format!("{}{}{}", self.around.0, encode(&forms[number % forms.len()]), self.around.1)
    }
}

/// The number of combinations of form and encoding of the placement with the most forms.
const COMBINATIONS: usize = 5 * ENCODINGS.len();

/// Checks the error chain. Asserts that the error's excerpt never shows the key, and shows `[redacted]` if and only if
/// the body contains the plain key. Returns whether the body contains the plain key.
#[track_caller]
fn check_redaction(error: &ResponseError, body: &str, key: &str) -> bool {
    assert!(error.status().is_some(), "{error}");
    check_error_chain(error);
    assert!(!error.excerpt().contains(key), "{}", error.excerpt());
    let contains = body.contains(key);
    assert_eq!(error.excerpt().contains("[redacted]"), contains, "{} of {body}", error.excerpt());
    contains
}

#[test]
fn json_errors_redact_a_key_in_the_response_body() {
    run_with_sockets(async {
        for (placement, status) in
            PLACEMENTS.into_iter().flat_map(|placement| [(placement, 200), (placement, 422)])
        {
            let echo = Echo::new(placement, status);
            let server = echo.clone().start(0).await;
            let client = client(&server, placement);
            let mut redacted = 0;
            for number in 0..COMBINATIONS {
                let put = http::Request::put("/v1").body(Body::empty()).unwrap();
                let result = match number % 3 {
                    0 => client.get("/v1").fetch_json::<u8>().await,
                    1 => client.post("/v1").json("text").fetch_json::<u8>().await,
                    _ => match client.execute(put).await.unwrap().error_for_status().await {
                        Ok(response) => response.json::<u8>().await,
                        Err(error) => Err(error),
                    },
                };
                let body = echo.body(number, server.seen().last().unwrap());
                redacted += usize::from(check_redaction(&result.unwrap_err(), &body, KEY));
            }
            assert!(redacted >= 1, "{placement:?}");
            assert!(server.seen().iter().all(|seen| placement.has_key(seen)));
        }
    });
}

/// While a request is in flight, the client's key is replaced. The response then repeats the old key.
#[test]
fn json_errors_redact_a_key_that_was_replaced() {
    run_with_sockets(async {
        for placement in PLACEMENTS {
            for number in 0..COMBINATIONS {
                let keys = KeySource::from(refreshing_key());
                let status = if number % 2 == 0 { 200 } else { 422 };
                let echo = Echo { replaced: Some(keys.clone()), ..Echo::new(placement, status) };
                let server = echo.clone().start(number).await;
                let client = stack_builder(&server.url(), placement).with_keys(keys).client().unwrap();
                let error = client.get("/v1").fetch_json::<u8>().await.unwrap_err();
                let [seen] = &server.seen()[..] else { panic!("expected one request") };
                check_redaction(&error, &echo.body(number, seen), &numbered_key(0));
            }
        }
    });
}

#[test]
fn excerpt_that_ends_within_the_key_does_not_show_the_start_of_the_key() {
    run_with_sockets(async {
        for length in (940..1_024).step_by(7) {
            let around = ("x".repeat(length), "y".repeat(2_000));
            for placement in PLACEMENTS {
                let echo = Echo { around: around.clone(), ..Echo::new(placement, 422) };
                let server = echo.clone().start(0).await;
                let error = client(&server, placement).get("/v1").fetch_json::<u8>().await.unwrap_err();
                let body = echo.body(0, &server.seen()[0]);
                check_error_chain(&error);
                assert!(body.contains(KEY), "{body}");
                check_text("the excerpt", error.excerpt());
            }
        }
    });
}

/// The server sends two request ids, and one of them contains the key. The report keeps only the other request id. The
/// log shows neither the key nor an encoding of the key.
#[test]
fn report_drops_a_server_request_id_that_contains_the_key() {
    run_with_sockets(async {
        for placement in PLACEMENTS {
            let ids = move |seen: &Seen| -> Vec<String> {
                let forms = forms(placement, seen).into_iter();
                let ids = forms.flat_map(|form| ENCODINGS.map(|(_, encode)| encode(&form)));
                let basic = match placement {
                    Placement::Basic => base64(format!("ann:{KEY}").as_bytes()),
                    _ => KEY.to_owned(),
                };
                let shows = |text: &str| text.contains(KEY) || text.contains(basic.trim_end_matches('='));
                ids.filter(|id| shows(id) || shows(&percent_decode_str(id).decode_utf8_lossy())).collect()
            };
            let server = Server::start(Wire::Http1, move |number, seen| async move {
                let ids = ids(&seen);
                let mut reply = reply([200, 404, 503][number % 3], "");
                reply.headers_mut().insert("x-request-id", ids[number % ids.len()].parse().unwrap());
                reply.headers_mut().insert("x-amzn-requestid", "harmless".parse().unwrap());
                Some(reply)
            });
            let server = on_server_thread(server).await;
            let client = client(&server, placement);
            for number in 0..COMBINATIONS {
                if number % 2 == 0 {
                    let response = send(client.get("/v1")).await;
                    assert_eq!(response.report().unwrap().server_request_id().unwrap(), "harmless");
                } else {
                    check_error_chain(&client.get("/v1").fetch_json::<u8>().await.unwrap_err());
                }
            }
            assert!(server.seen().iter().all(|seen| placement.has_key(seen)));
        }
    });
}
