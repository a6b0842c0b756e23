//! Draws the timeline of a call that is retried once.

use std::time::Duration;

use plotters::{prelude::*, style::text_anchor::HPos};
use tokio::time::sleep;
use tower_outbound::{
    ApiKey, BoxError, ExponentialBackoff, Report,
    call::Outcome,
    preset,
    retry::RetryLayer,
    test_util::{ScriptedResponse, ScriptedService, deterministic},
};

use crate::picture::{Area, BLUE, GREY, INK, ORANGE, VERMILION, picture, text_style};

const SIZE: (u32, u32) = (600, 216);
const TOTAL_TIMEOUT: Duration = Duration::from_secs(3);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// A part of the call, in seconds since its start.
struct Part {
    start: f64,
    end: f64,
    name: String,
    color: RGBColor,
    is_attempt: bool,
}

pub(crate) async fn svg() -> Result<String, BoxError> {
    let report = call().await?;
    let mut parts = Vec::new();
    for attempt in report.attempts() {
        let (Some(ended), Some(status)) = (attempt.ended, attempt.outcome.and_then(Outcome::status)) else {
            return Err("an attempt got no response".into());
        };
        let mut part = |start: Duration, end: Duration, name: &str, color, is_attempt| {
            let (start, end, name) = (start.as_secs_f64(), end.as_secs_f64(), name.to_owned());
            parts.push(Part { start, end, name, color, is_attempt });
        };
        let sent = attempt.started + attempt.queued;
        part(attempt.started, sent, "queued", ORANGE, false);
        part(sent, ended, status.as_str(), if status.is_success() { BLUE } else { VERMILION }, true);
        if let Some(delay) = attempt.delay {
            part(ended, ended + delay, "backoff", GREY, false);
        }
    }
    let texts: Vec<_> = parts.iter().map(|part| format!("{} {}", part.name, milliseconds(part))).collect();
    let description = format!(
        "{}. The total timeout of {} s covers the call. Each attempt has a timeout of {} s.",
        texts.join(", "),
        TOTAL_TIMEOUT.as_secs(),
        ATTEMPT_TIMEOUT.as_secs(),
    );
    picture(SIZE, "The timeline of a call with a retry", &description, |root| draw(root, &parts))
}

/// Makes the call. Other callers of the limiter use up the burst, and take a permit during the backoff.
async fn call() -> Result<Report, BoxError> {
    let api = ScriptedService::from_fn(|seen| match (seen.head.uri.path(), seen.attempt) {
        ("/v1/latest", Some(1)) => ScriptedResponse::status(503).with_delay(Duration::from_millis(350)),
        ("/v1/latest", _) => ScriptedResponse::status(200).with_delay(Duration::from_millis(400)),
        _ => 200.into(),
    });
    let backoff = ExponentialBackoff::new(Duration::from_millis(600), Duration::from_secs(20))?;
    let rates = preset::currency_rates("https://rates.example.com")?
        .with_api_key(ApiKey::new("s3cret")?)
        .with_retry(RetryLayer::new().with_backoff(backoff))
        .with_total_timeout(TOTAL_TIMEOUT)
        .with_attempt_timeout(ATTEMPT_TIMEOUT);
    let rates = deterministic(rates, 1).client_with_service(api)?;
    for _ in 0..10 {
        rates.get("/v1/others").await?;
    }
    let other = async {
        sleep(Duration::from_secs(1)).await;
        rates.get("/v1/others").await
    };
    let (response, other) = tokio::join!(rates.get("/v1/latest").send(), other);
    other?;
    Ok(response?.report().ok_or("the response has no report")?.clone())
}

fn milliseconds(part: &Part) -> String {
    format!("{:.0} ms", (part.end - part.start) * 1e3)
}

fn draw(root: &Area<'_>, parts: &[Part]) -> Result<(), BoxError> {
    let (total, attempt) = (TOTAL_TIMEOUT.as_secs_f64(), ATTEMPT_TIMEOUT.as_secs_f64());
    // The vertical axis counts pixels.
    let mut chart = ChartBuilder::on(root)
        .margin_left(24)
        .margin_right(24)
        .x_label_area_size(32)
        .build_cartesian_2d(0.0..total, 0.0..184.0)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .disable_y_axis()
        .axis_style(INK)
        .x_labels(8)
        .x_label_formatter(&|seconds| format!("{seconds} s"))
        .label_style(text_style(16, HPos::Left))
        .draw()?;
    let centered = |text: String, x: f64, y: f64| Text::new(text, (x, y), text_style(16, HPos::Center));
    // A bracket with ends that point down or up.
    let bracket = |start: f64, end: f64, y: f64, ends: f64| {
        PathElement::new([(start, y + ends), (start, y), (end, y), (end, y + ends)], INK.stroke_width(2))
    };
    chart.draw_series([bracket(0.0, total, 150.0, -12.0)])?;
    chart.draw_series([centered(format!("total timeout, {total} s"), total / 2.0, 168.0)])?;
    let mut number = 0;
    for part in parts {
        let bar = |style| Rectangle::new([(part.start, 62.0), (part.end, 112.0)], style);
        chart.draw_series([bar(part.color.mix(0.4).filled())])?;
        chart.draw_series([bar(part.color.stroke_width(1))])?;
        let middle = (part.start + part.end) / 2.0;
        chart.draw_series([
            centered(part.name.clone(), middle, 98.0),
            centered(milliseconds(part), middle, 75.0),
        ])?;
        if part.is_attempt {
            number += 1;
            chart.draw_series([centered(format!("attempt {number}"), middle, 124.0)])?;
            chart.draw_series([bracket(part.start, part.start + attempt, 40.0, 12.0)])?;
            let text = format!("attempt timeout, {attempt} s");
            chart.draw_series([centered(text, part.start + attempt / 2.0, 22.0)])?;
        }
    }
    Ok(())
}
