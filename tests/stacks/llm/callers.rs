//! Tests many callers with inexact estimates against a language model that counts requests and tokens.

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tower::service_fn;
use tower_outbound::{ApiKey, Client, Quota, transport::TransportConfig};

use super::{
    KEY, anthropic,
    server::{Llm, MINUTE, Prompt, Received, Style, Tokens, amount},
    service,
};

/// Returns a client with the settings that the guide shows, and the quotas of the server. Each request states its
/// estimate in its extensions.
fn client(style: Style, llm: &Llm) -> Client {
    let url = "http://127.0.0.1:9/v1";
    let key = ApiKey::new(KEY).unwrap();
    let (service, transport) = match style {
        Style::OpenAi => (service::service(url, key), TransportConfig::new()),
        Style::Anthropic => {
            (anthropic::messages(url, key), TransportConfig::new().with_http2_prior_knowledge())
        }
    };
    let quotas = style.limits().iter().map(|&(unit, limit)| {
        let quota = match style {
            Style::OpenAi => Quota::per_minute(limit),
            Style::Anthropic => Quota::bucket(limit, limit, MINUTE),
        };
        quota.unwrap().with_unit(unit).unwrap()
    });
    let service = service
        .unwrap()
        .with_quotas(quotas)
        .with_limit(|limit| limit.with_estimate(|head| *head.extensions.get().unwrap()));
    let llm = llm.clone();
    let transport = transport.build_with_connector(service_fn(move |uri| llm.clone().connect(uri)));
    service.client_with_service(transport.unwrap()).unwrap()
}

/// Sends the requests of one caller, one after another. Each estimate is `lowest` to `lowest + 99` percent of the
/// actual amount.
async fn call(client: Client, llm: Llm, style: Style, caller: u32, lowest: u32) {
    for number in 0.. {
        let [size, length, time, error] = [7, 17, 11, 13].map(|prime| (31 * caller + prime * number) % 100);
        let actual = Tokens { input: 60 + 4 * size, output: 40 + 5 * length };
        let estimate = actual.scaled(lowest + error);
        let (transit, generation) = (20 + u64::from(time), 500 + 60 * u64::from(time));
        let prompt = Prompt { stream: number % 2 == 0, estimate, actual, transit, generation };
        let request = client.post(style.path()).extension(estimate.amounts());
        let response = request.body(serde_json::to_string(&prompt).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        let received: usize = response.headers()["x-number"].to_str().unwrap().parse().unwrap();
        let settlement = response.settlement().unwrap().clone();
        response.bytes().await.unwrap();
        for (unit, _) in &style.limits()[1..] {
            assert_eq!(settlement.charged().get(*unit), actual.amounts().get(*unit));
        }
        llm.received.lock().unwrap()[received].settled_at = Some(Instant::now());
    }
}

/// Asserts that the requests in any window took at most its quota and the shortfalls of the estimates that were not
/// settled in it. A window of OpenAI is a minute. A bucket limits each window.
fn assert_windows(received: &[Received], style: Style) {
    for &(unit, limit) in style.limits() {
        for (last, end) in received.iter().map(|it| it.at).enumerate() {
            let (mut used, mut shortfalls) = (0, 0);
            for it in received[..=last].iter().rev() {
                let refilled = match style {
                    Style::OpenAi if end - it.at >= MINUTE => break,
                    Style::OpenAi => 0.0,
                    Style::Anthropic => f64::from(limit) * (end - it.at).as_secs_f64() / 60.0,
                };
                let [estimate, actual] = [&it.estimate, &it.actual].map(|amounts| amount(amounts, unit));
                used += actual;
                if it.settled_at.is_none_or(|at| at >= end) {
                    shortfalls += actual.saturating_sub(estimate);
                }
                let most = f64::from(limit + shortfalls) + refilled;
                assert!(f64::from(used) <= most, "{used} {unit}, of which {shortfalls} are shortfalls");
            }
        }
    }
}

/// Returns the used share of the quota of which most is used, and the share of the rejected requests, in percent.
fn shares(received: &[Received], style: Style, minutes: u32) -> (f64, f64) {
    let of = |is_accepted| received.iter().filter(move |it| it.is_accepted == Some(is_accepted));
    let used = style.limits().iter().map(|&(unit, limit)| {
        let used: u32 = of(true).map(|it| amount(&it.actual, unit)).sum();
        // A bucket is full at first.
        let full = if style == Style::Anthropic { limit } else { 0 };
        100.0 * f64::from(used) / f64::from(full + minutes * limit)
    });
    let [accepted, rejected] = [true, false].map(|is_accepted| of(is_accepted).count() as f64);
    (used.fold(0.0, f64::max), 100.0 * rejected / (accepted + rejected))
}

/// Returns the shares of 64 callers.
async fn shares_of_callers(style: Style, lowest: u32, minutes: u32) -> (f64, f64) {
    let llm = Llm::new(style);
    let client = client(style, &llm);
    let mut callers = JoinSet::new();
    for caller in 0..64 {
        callers.spawn(call(client.clone(), llm.clone(), style, caller, lowest));
    }
    tokio::select! {
        ended = callers.join_next() => panic!("a caller ended: {ended:?}"),
        () = sleep(minutes * MINUTE) => {}
    }
    let received = llm.received.lock().unwrap();
    assert_windows(&received, style);
    let (used, rejected) = shares(&received, style, minutes);
    println!("{style:?}, estimates from {lowest} %: {used:.1} % used, {rejected:.2} % rejected");
    (used, rejected)
}

/// The guide's page `llm_services` states these figures.
async fn assert_few_rejections(style: Style) {
    let (used, rejected) = shares_of_callers(style, 50, 5).await;
    assert!(used >= 95.0 && rejected <= 0.5, "{used} % used, {rejected} % rejected");
    // With upper bounds as estimates, no window exceeds its quota.
    let (_, rejected) = shares_of_callers(style, 100, 2).await;
    assert_eq!(rejected, 0.0);
}

#[tokio::test(start_paused = true)]
async fn callers_with_inexact_estimates_use_the_tokens_of_open_ai_with_few_rejections() {
    assert_few_rejections(Style::OpenAi).await;
}

#[tokio::test(start_paused = true)]
async fn callers_with_inexact_estimates_use_the_tokens_of_anthropic_with_few_rejections() {
    assert_few_rejections(Style::Anthropic).await;
}
