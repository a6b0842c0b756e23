//! A server that says in its answer what it was sent, as servers do that tell what was wrong with a request.

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tower_outbound::{Body, auth::KeySource, client::JsonError};

use super::{search::base64, *};

type Writing = fn(&str) -> String;

/// How a server may write what it quotes.
const WRITINGS: [(&str, Writing); 13] = [
    ("plain", str::to_owned),
    ("json", json),
    ("json with slashes escaped", |text| json(text).replace('/', r"\/")),
    ("json within json", |text| json(&json(text))),
    ("json for html", |text| {
        json(text).replace('&', r"\u0026").replace('<', r"\u003c").replace('>', r"\u003E")
    }),
    ("debug", |text| format!("{text:?}")),
    ("html", |text| {
        let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        text.replace('"', "&quot;").replace('/', "&#x2F;").replace('=', "&#61;")
    }),
    ("percent", percent),
    ("lower percent", |text| {
        percent(text)
            .split('%')
            .map(str::to_owned)
            .reduce(|all, part| {
                let (hex, rest) = part.split_at(2);
                all + "%" + &hex.to_lowercase() + rest
            })
            .unwrap_or_default()
    }),
    ("base64", |text| base64(text.as_bytes())),
    ("base64 of urls", |text| base64(text.as_bytes()).replace('+', "-").replace('/', "_")),
    ("base64 in a url", |text| percent(&base64(text.as_bytes()))),
    ("base64 in json", |text| base64(text.as_bytes()).replace('/', r"\/")),
];

fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

fn percent(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// What a `Basic` credential says.
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

/// What a server answers with.
#[derive(Clone)]
struct Echo {
    place: Place,
    status: u16,
    /// Before and after what it quotes.
    around: (String, String),
    /// Replaced before it answers.
    rotates: Option<KeySource>,
}

impl Echo {
    fn new(place: Place, status: u16) -> Self {
        Self { place, status, around: ("<".to_owned(), ">".to_owned()), rotates: None }
    }

    /// Quotes one form of the credential in one writing: the next one each time, from `first` on.
    async fn start(self, first: usize) -> Server {
        let server = Server::start(Wire::Http1, move |number, seen| {
            let echo = self.clone();
            async move {
                if let Some(keys) = &echo.rotates {
                    let old = keys.current().await.unwrap();
                    assert!(keys.reject(&old));
                    assert_ne!(keys.current().await.unwrap(), old);
                }
                Some(reply(echo.status, echo.answer(first + number - 1, &seen)))
            }
        });
        serve(server).await
    }

    fn answer(&self, number: usize, seen: &Seen) -> String {
        let quoted = quoted(self.place, seen);
        let (_, writing) = WRITINGS[number / quoted.len() % WRITINGS.len()];
        format!("{}{}{}", self.around.0, writing(&quoted[number % quoted.len()]), self.around.1)
    }
}

/// How many answers there are.
fn all(place: Place) -> usize {
    let forms = match place {
        Place::Header => 1,
        Place::Bearer | Place::Query => 2,
        Place::Basic => 4,
    };
    forms * WRITINGS.len()
}

/// Whether there was anything to hide: base64 twice over is nothing that is known here.
#[track_caller]
fn quotes_no_key(error: &JsonError, answer: &str) -> bool {
    assert!(error.status().is_some(), "{error}");
    chain(error);
    search("the excerpt", error.excerpt());
    SEARCH.find(answer).is_some()
}

#[test]
fn in_what_an_error_quotes_of_an_answer() {
    live(async {
        for (place, status) in PLACES.into_iter().flat_map(|place| [(place, 200), (place, 422)]) {
            let echo = Echo::new(place, status);
            let server = echo.clone().start(0).await;
            let client = client(&server, place);
            let mut hid = 0;
            for number in 0..all(place) {
                let put = http::Request::put("/v1").body(Body::empty()).unwrap();
                let called = match number % 3 {
                    0 => client.get_json::<u8>("/v1").await,
                    1 => client.post_json::<u8>("/v1", "text").await,
                    _ => client.request_json::<u8>(put).await,
                };
                let error = called.unwrap_err();
                let answer = echo.answer(number, server.seen().last().unwrap());
                if quotes_no_key(&error, &answer) {
                    hid += 1;
                    assert!(error.excerpt().contains("[redacted]"), "{} of {answer}", error.excerpt());
                }
                search("a text", &client.redacted(&answer));
            }
            assert!(hid >= all(place) * 3 / 4, "{place:?}: {hid}");
            assert!(server.seen().iter().all(|seen| place.reached(seen)));
        }
    });
}

/// The request carried the key before the one that is in use when its answer is there.
#[test]
fn in_what_an_error_quotes_after_the_key_was_replaced() {
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
                let hid = quotes_no_key(&error, &echo.answer(number, seen));
                assert!(!hid || error.excerpt().contains("[redacted]"), "{}", error.excerpt());
            }
        }
    });
}

/// Where the piece that is shown ends, and where the one that was read for it.
#[test]
fn in_what_an_error_quotes_of_a_key_that_is_cut_off() {
    live(async {
        let pieces = (940..1_024).step_by(21).map(|length| ("x".repeat(length), "y".repeat(2_000)));
        let read = (1_880..2_040)
            .step_by(16)
            .map(|length| (format!(r#"{{"token":"{}","#, "x".repeat(length)), "y".repeat(2_000)));
        for (index, around) in pieces.chain(read).enumerate() {
            for place in PLACES {
                let echo = Echo { around: around.clone(), ..Echo::new(place, 422) };
                // A fifth of them at each cut.
                let server = echo.start(index * all(place) / 5).await;
                let client = client(&server, place);
                for _ in 0..all(place) / 5 {
                    let error = client.get_json::<u8>("/v1").await.unwrap_err();
                    quotes_no_key(&error, "");
                }
            }
        }
    });
}

/// The report keeps the server's own ids, and the log tells them.
#[test]
fn in_an_id_of_the_servers_that_repeats_the_key() {
    live(async {
        for place in PLACES {
            let server = Server::start(Wire::Http1, move |number, seen| async move {
                let quoted = quoted(place, &seen);
                let (_, writing) = WRITINGS[number / quoted.len() % WRITINGS.len()];
                let mut reply = reply([200, 404, 503][number % 3], "");
                let id = writing(&quoted[number % quoted.len()]);
                reply.headers_mut().insert("x-request-id", id.parse().unwrap());
                reply.headers_mut().insert("x-amzn-requestid", "harmless".parse().unwrap());
                Some(reply)
            });
            let server = serve(server).await;
            let client = client(&server, place);
            for number in 0..all(place) {
                if number % 2 == 0 {
                    let response = client.get("/v1").await.unwrap();
                    answered(&response);
                    hidden(response.headers());
                } else {
                    chain(&client.get_json::<u8>("/v1").await.unwrap_err());
                }
            }
            assert!(server.seen().iter().all(|seen| place.reached(seen)));
        }
    });
}
