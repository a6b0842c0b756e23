//! Draws the number of requests in the last minute for several limiters.

use plotters::{prelude::*, style::text_anchor::HPos};
use tower_outbound::{BoxError, Quota};

use crate::{
    arguments::Arguments,
    figures::Run,
    picture::{Area, BLUE, INK, VERMILION, picture, text_style},
    simulation,
    strategies::STRATEGIES,
};

const WIDTH: u32 = 600;
const TITLE: u32 = 34;
const PANEL: u32 = 134;
const AXIS: u32 = 30;

pub(crate) fn svg() -> Result<String, BoxError> {
    let arguments = Arguments::parse(Vec::new()).map_err(|error| error.to_string())?;
    let quota = arguments.quota;
    let mut runs = Vec::new();
    for strategy in STRATEGIES.iter().filter(|strategy| strategy.name != "adaptive") {
        runs.push(simulation::run(strategy, &arguments, arguments.length().as_secs() as usize)?);
    }
    let titles: Vec<_> = runs.iter().map(title).collect();
    let label =
        format!("Requests in the last {} s, with a limit of {}", quota.window().as_secs(), quota.limit());
    let start = simulation::idle(quota).as_secs();
    let description =
        format!("From {start} s, callers always have a request to send. {}.", titles.join(". "));
    let size = (WIDTH, TITLE + PANEL * runs.len() as u32 + AXIS);
    picture(size, &label, &description, |root| {
        root.draw(&Text::new(&*label, (56, 16), text_style(16, HPos::Left)))?;
        for ((position, run), title) in (0..).zip(&runs).zip(&titles) {
            let is_last = position + 1 == runs.len() as u32;
            let y = (TITLE + PANEL * position) as i32;
            let height = PANEL + if is_last { AXIS } else { 0 };
            let area = root.clone().shrink((0, y), (WIDTH, height));
            panel(&area, title, run, quota, is_last)?;
        }
        Ok(())
    })
}

fn title(run: &Run) -> String {
    let name = run.strategy.description.split(':').next().unwrap_or_default();
    format!("{name}: up to {}", run.most())
}

fn panel(area: &Area<'_>, title: &str, run: &Run, quota: Quota, is_last: bool) -> Result<(), BoxError> {
    let (end, limit) = (run.columns.len() as f64, f64::from(quota.limit()));
    let counts = counts(run);
    area.draw(&Text::new(title.to_owned(), (56, 12), text_style(16, HPos::Left)))?;
    let mut chart = ChartBuilder::on(area)
        .margin_top(26)
        .margin_bottom(6)
        .margin_right(16)
        .y_label_area_size(56)
        .x_label_area_size(if is_last { AXIS } else { 0 })
        .build_cartesian_2d(0.0..end, 0.0..limit * 2.0)?;
    chart
        .configure_mesh()
        .disable_mesh()
        .axis_style(INK)
        .x_labels(5)
        .x_label_formatter(&|seconds| format!("{seconds} s"))
        .y_labels(3)
        .y_label_formatter(&f64::to_string)
        .label_style(text_style(16, HPos::Left))
        .draw()?;
    let series = |points: Vec<(f64, f64)>, baseline, color: RGBColor| {
        AreaSeries::new(points, baseline, color.mix(0.35)).border_style(color.stroke_width(2))
    };
    let up_to_limit = counts.iter().map(|&(second, count)| (second, count.min(limit)));
    chart.draw_series(series(up_to_limit.collect(), 0.0, BLUE))?;
    let above_limit: Vec<_> = counts.into_iter().filter(|(_, count)| *count > limit).collect();
    if !above_limit.is_empty() {
        chart.draw_series(series(above_limit, limit, VERMILION))?;
    }
    chart.draw_series([PathElement::new([(0.0, limit), (end, limit)], INK.stroke_width(1))])?;
    Ok(())
}

/// Returns the requests in the last window for each second, without the numbers between two equal ones.
fn counts(run: &Run) -> Vec<(f64, f64)> {
    let mut counts: Vec<(f64, f64)> = Vec::new();
    for (second, count) in (0..).map(f64::from).zip(run.columns.iter().map(|column| column.most as f64)) {
        match counts.as_mut_slice() {
            [.., (_, before), (end, last)] if before == last && *last == count => *end = second,
            _ => counts.push((second, count)),
        }
    }
    counts
}
