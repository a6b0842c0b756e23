//! A server that repeats the credential in its response, as servers do that tell what was wrong with a request.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tower_outbound::{Body, auth::KeySource, client::JsonError};

use super::{search::base64, *};

type Writing = fn(&str) -> String;

/// How a server may write what it repeats.
const WRITINGS: [(&str, Writing); 5] = [
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

/// The user and password of a `Basic` credential.
fn decoded(credential: &str) -> String {
    let alphabet: Vec<_> = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['+', '/']).collect();
    let sextets = credential.chars().map_while(|one| alphabet.iter().position(|other| *other == one));
    let bits: Vec<_> = sextets.flat_map(|sextet| (0..6).rev().map(move |bit| sextet >> bit & 1)).collect();
    let bytes = bits.chunks_exact(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | *bit as u8));
    bytes.map(char::from).collect()
}

/// The credential in each form that a server has it in.
fn quoted(place: Place, seen: &Seen) -> Vec<String> {
    let query = seen.path_and_query();
    let authorization = seen.header("authorization").unwrap_or_default().to_owned();
    match place {
        Place::Bearer => vec![authorization.replace("Bearer ", ""), authorization],
        Place::Header => vec![seen.header("x-api-key").unwrap().to_owned()],
        Place::Basic => {
            let pair = decoded(&authorization["Basic ".len()..]);
            vec![pair.replace("ann:", ""), format!("a {pair} b"), pair, authorization]
        }
        Place::Query => vec![percent_decode_str(query).decode_utf8_lossy().into_owned(), query.to_owned()],
    }
}

/// What a server responds with.
#[derive(Clone)]
struct Echo {
    place: Place,
    status: u16,
    /// The text before and after the credential.
    around: (String, String),
    /// Replaced before the response.
    rotates: Option<KeySource>,
}

impl Echo {
    fn new(place: Place, status: u16) -> Self {
        Self { place, status, around: ("<".to_owned(), ">".to_owned()), rotates: None }
    }

    /// Repeats one form of the credential in one writing: the next one each time, from `first` on.
    async fn start(self, first: usize) -> Server {
        let server = Server::start(Wire::Http1, move |number, seen| {
            let echo = self.clone();
            async move {
                if let Some(keys) = &echo.rotates {
                    let old = keys.current().await.unwrap();
                    assert!(keys.reject(&old));
                    assert_ne!(keys.current().await.unwrap(), old);
                }
                Some(reply(echo.status, echo.body(first + number - 1, &seen)))
            }
        });
        serve(server).await
    }

    fn body(&self, number: usize, seen: &Seen) -> String {
        let quoted = quoted(self.place, seen);
        let (_, writing) = WRITINGS[number / quoted.len() % WRITINGS.len()];
        format!("{}{}{}", self.around.0, writing(&quoted[number % quoted.len()]), self.around.1)
    }
}

/// The number of different responses.
fn all(place: Place) -> usize {
    let forms = match place {
        Place::Header => 1,
        Place::Bearer | Place::Query => 2,
        Place::Basic => 4,
    };
    forms * WRITINGS.len()
}

/// Asserts that nothing but the excerpt shows text of the body, and that the excerpt contains no plain key. Returns
/// whether the body contains one.
#[track_caller]
fn redacts(error: &JsonError, body: &str, key: &str) -> bool {
    assert!(error.status().is_some(), "{error}");
    chain(error);
    assert!(!error.excerpt().contains(key), "{}", error.excerpt());
    let contains = body.contains(key);
    assert_eq!(error.excerpt().contains("[redacted]"), contains, "{} of {body}", error.excerpt());
    contains
}

#[test]
fn in_an_error_about_a_response_body() {
    live(async {
        for (place, status) in PLACES.into_iter().flat_map(|place| [(place, 200), (place, 422)]) {
            let echo = Echo::new(place, status);
            let server = echo.clone().start(0).await;
            let client = client(&server, place);
            let mut redacted = 0;
            for number in 0..all(place) {
                let put = http::Request::put("/v1").body(Body::empty()).unwrap();
                let called = match number % 3 {
                    0 => client.get_json::<u8>("/v1").await,
                    1 => client.post_json::<u8>("/v1", "text").await,
                    _ => client.request_json::<u8>(put).await,
                };
                let body = echo.body(number, server.seen().last().unwrap());
                redacted += usize::from(redacts(&called.unwrap_err(), &body, KEY));
            }
            assert!(redacted >= 1, "{place:?}");
            assert!(server.seen().iter().all(|seen| place.reached(seen)));
        }
    });
}

/// The request carried the key before the one that is in use when its response arrives.
#[test]
fn in_an_error_after_the_key_was_replaced() {
    live(async {
        for place in PLACES {
            for number in 0..all(place) {
                let keys = KeySource::from(provided());
                let status = if number % 2 == 0 { 200 } else { 422 };
                let echo = Echo { rotates: Some(keys.clone()), ..Echo::new(place, status) };
                let server = echo.clone().start(number).await;
                let client = preset(&server.url(), place).with_keys(keys).client().unwrap();
                let error = client.get_json::<u8>("/v1").await.unwrap_err();
                let [seen] = &server.seen()[..] else { panic!("one request") };
                redacts(&error, &echo.body(number, seen), &another_key(0));
            }
        }
    });
}

#[test]
fn in_an_excerpt_that_ends_within_the_key() {
    live(async {
        for length in (940..1_024).step_by(7) {
            let around = ("x".repeat(length), "y".repeat(2_000));
            for place in PLACES {
                let echo = Echo { around: around.clone(), ..Echo::new(place, 422) };
                let server = echo.clone().start(0).await;
                let error = client(&server, place).get_json::<u8>("/v1").await.unwrap_err();
                let body = echo.body(0, &server.seen()[0]);
                chain(&error);
                assert!(body.contains(KEY), "{body}");
                search("the excerpt", error.excerpt());
            }
        }
    });
}

/// The report keeps the server's request ids, and the log shows them.
#[test]
fn in_a_request_id_of_the_server_that_contains_the_key() {
    live(async {
        for place in PLACES {
            let ids = move |seen: &Seen| -> Vec<String> {
                let written = quoted(place, seen).into_iter();
                let written = written.flat_map(|text| WRITINGS.map(|(_, writing)| writing(&text)));
                let has_key = |id: &str| percent_decode_str(id).decode_utf8_lossy().contains(KEY);
                written.filter(|id| id.contains(KEY) || has_key(id)).collect()
            };
            let server = Server::start(Wire::Http1, move |number, seen| async move {
                let ids = ids(&seen);
                let mut reply = reply([200, 404, 503][number % 3], "");
                reply.headers_mut().insert("x-request-id", ids[number % ids.len()].parse().unwrap());
                reply.headers_mut().insert("x-amzn-requestid", "harmless".parse().unwrap());
                Some(reply)
            });
            let server = serve(server).await;
            let client = client(&server, place);
            for number in 0..all(place) {
                if number % 2 == 0 {
                    let response = client.get("/v1").await.unwrap();
                    hidden(response.extensions());
                    let report = Report::from_response(&response).unwrap();
                    reported(report);
                    assert_eq!(report.server_request_id().unwrap(), "harmless");
                } else {
                    chain(&client.get_json::<u8>("/v1").await.unwrap_err());
                }
            }
            assert!(server.seen().iter().all(|seen| place.reached(seen)));
        }
    });
}
