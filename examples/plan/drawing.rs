//! Draws the plot.

use std::{fs, io, path::Path};

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use tower_outbound::BoxError;

use crate::{
    arguments::Arguments,
    figures::{Column, Run},
    terminal,
};

/// The width and the height in pixels.
const SIZE: (u32, u32) = (960, 970);
/// The vertical positions of the second and of the third panel.
const BREAKS: [i32; 2] = [420, 660];
/// The number of points on the time axis.
pub(crate) const COLUMNS: usize = 650;
const FONT: (&str, u32) = ("sans-serif", 15);
const TITLE: (&str, u32) = ("sans-serif", 16);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A panel of the plot.
struct Panel {
    title: String,
    value: fn(&Column) -> Option<f64>,
    kind: Kind,
}

enum Kind {
    /// Lines, a legend, and a horizontal line at a limit.
    LinesBelow(f64),
    Lines,
    Points,
}

/// Writes the plot to `arguments.svg`.
pub(crate) fn draw(arguments: &Arguments, runs: &[Run]) -> Result<(), BoxError> {
    let (path, svg) = (&arguments.svg, svg(arguments, runs)?);
    write(path, &svg).map_err(|error| format!("cannot write `{}`: {error}", path.display()).into())
}

fn write(path: &Path, svg: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, svg)
}

fn svg(arguments: &Arguments, runs: &[Run]) -> Result<String, BoxError> {
    let quota = arguments.quota;
    let panels = [
        Panel {
            title: format!("Requests in the last {:?}", quota.window()),
            value: |column| Some(column.most as f64),
            kind: Kind::LinesBelow(quota.limit().into()),
        },
        Panel {
            title: "Requests that the server has rejected since the start".to_owned(),
            value: |column| Some(column.rejected as f64),
            kind: Kind::Lines,
        },
        Panel {
            title: "Longest wait in the limiter, in seconds".to_owned(),
            value: |column| Some(column.wait?.as_secs_f64()),
            kind: Kind::Points,
        },
    ];
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        // The white background keeps the plot readable on a dark page.
        root.fill(&WHITE)?;
        let title = format!("{quota:#}; {}", terminal::scenario(arguments));
        let mut titled = root.margin(10, 0, 0, 0).titled(&title, TITLE)?;
        let options = terminal::options(arguments);
        if !options.is_empty() {
            titled = titled.titled(&options, TITLE)?;
        }
        let areas = titled.split_by_breakpoints::<i32, i32, _, _>([], BREAKS);
        for (area, panel) in areas.iter().zip(&panels) {
            panel.draw(area, arguments.length().as_secs_f64(), runs)?;
        }
        root.present()?;
    }
    Ok(svg)
}

impl Panel {
    fn draw(&self, area: &Area<'_>, end: f64, runs: &[Run]) -> Result<(), BoxError> {
        let limit = match self.kind {
            Kind::LinesBelow(limit) => Some(limit),
            _ => None,
        };
        let values = runs.iter().flat_map(|run| run.columns.iter().filter_map(self.value));
        let top = values.chain(limit).reduce(f64::max).filter(|top| *top > 0.0).unwrap_or(1.0) * 1.1;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, FONT)
            .margin(12)
            .margin_right(90)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..end, 0.0..top)?;
        let label = |value: &f64| ((value * 1e4).round() / 1e4).to_string();
        chart
            .configure_mesh()
            .x_desc("seconds")
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .y_labels(5)
            .light_line_style(TRANSPARENT)
            .label_style(FONT)
            .axis_desc_style(FONT)
            .draw()?;
        for run in runs {
            let points = run.columns.iter().enumerate().filter_map(|(index, column)| {
                Some((index as f64 * end / run.columns.len() as f64, (self.value)(column)?))
            });
            let ((red, green, blue), width) = (run.strategy.color, run.strategy.width);
            let color = RGBColor(red, green, blue);
            if let Kind::Points = self.kind {
                chart.draw_series(
                    points.map(|point| Circle::new(point, width.div_ceil(2) + 1, color.filled())),
                )?;
                continue;
            }
            let style = color.stroke_width(width);
            let line = chart.draw_series(LineSeries::new(points, style))?;
            if limit.is_some() {
                let sample = move |(x, y)| PathElement::new([(x, y), (x + 20, y)], style);
                line.label(run.strategy.name).legend(sample);
            }
        }
        let Some(limit) = limit else { return Ok(()) };
        chart.draw_series(DashedLineSeries::new(
            [(0.0, limit), (end, limit)],
            6,
            4,
            BLACK.stroke_width(2),
        ))?;
        let beside_the_end = FONT.into_text_style(area).pos(Pos::new(HPos::Left, VPos::Center));
        let text =
            EmptyElement::at((end, limit)) + Text::new(format!("limit {limit}"), (8, 0), beside_the_end);
        chart.draw_series([text])?;
        let legend = &mut chart.configure_series_labels();
        legend.position(SeriesLabelPosition::UpperRight).background_style(WHITE).border_style(BLACK);
        legend.label_font(FONT).draw()?;
        Ok(())
    }
}
