//! Writes the measured figures as Markdown, JSON and a plot.

use std::{
    fmt::{self, Write},
    fs,
    path::Path,
};

use plotters::{prelude::*, style::text_anchor::HPos};
use serde_json::{Map, Value, json};

use super::{
    Arguments, BoxError,
    picture::{Area, GREY, VERMILION, picture, text_style},
};

/// The width of a chart, the length of the longest bar, and the height of a line, in pixels.
const WIDTH: i32 = 720;
const BARS: i32 = 630;
const LINE: i32 = 22;
const MARGIN: u32 = 8;

/// A column of a table, with the unit of the figures.
#[derive(Debug, Clone)]
pub struct Column {
    name: String,
    unit: &'static str,
    decimals: usize,
    plotted: bool,
}

impl Column {
    /// Creates a column whose figures have the given number of decimals.
    pub fn new(name: impl Into<String>, unit: &'static str, decimals: usize) -> Self {
        Self { name: name.into(), unit, decimals, plotted: false }
    }

    /// Includes the column in the plot.
    pub fn plotted(self) -> Self {
        Self { plotted: true, ..self }
    }

    fn heading(&self) -> String {
        if self.unit.is_empty() { self.name.clone() } else { format!("{}, {}", self.name, self.unit) }
    }
}

/// The table with the figures of one section.
#[derive(Debug, Clone)]
pub struct Table {
    id: &'static str,
    title: String,
    columns: Vec<Column>,
    rows: Vec<(String, Vec<Option<f64>>)>,
    notes: Vec<String>,
}

impl Table {
    /// Creates a table without rows.
    pub fn new(id: &'static str, title: &str, columns: impl IntoIterator<Item = Column>) -> Self {
        Self {
            id,
            title: title.to_owned(),
            columns: columns.into_iter().collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds a row with one figure per column, or `None` for a figure that does not apply to the row.
    pub fn row(&mut self, name: impl Into<String>, values: Vec<Option<f64>>) {
        self.rows.push((name.into(), values));
    }

    /// Adds a note below the table.
    pub fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    fn json(&self) -> Value {
        let rows = self.rows.iter().map(|(name, values)| {
            let mut row = Map::from_iter([("name".to_owned(), json!(name))]);
            let mut previous = "";
            for (column, value) in self.columns.iter().zip(values) {
                // A ratio refers to the previous column, so the JSON name of the ratio contains the name of that
                // column.
                let ratio = column.name.starts_with('×');
                let key = if ratio { format!("{previous} {}", column.name) } else { column.heading() };
                row.insert(key, json!(value));
                previous = if ratio { previous } else { &column.name };
            }
            Value::Object(row)
        });
        let rows: Vec<_> = rows.collect();
        let mut table = json!({ "id": self.id, "title": self.title, "rows": rows });
        if !self.notes.is_empty() {
            table["notes"] = json!(self.notes);
        }
        table
    }

    fn figure(column: &Column, value: f64) -> String {
        format!("{value:.*}", column.decimals)
    }

    /// Returns the plotted columns, with the names and the figures of their rows.
    fn charts(&self) -> impl Iterator<Item = (&Column, Vec<(&String, f64)>)> {
        let plotted = self.columns.iter().enumerate().filter(|(_, column)| column.plotted);
        plotted.map(|(index, column)| {
            let rows = self.rows.iter();
            (column, rows.filter_map(|(name, values)| Some((name, values[index]?))).collect())
        })
    }

    /// Draws a column as a bar chart. A bar is behind the name of its row and beside its figure, so that a long
    /// bar or a long name cuts off neither. The scale is logarithmic if the largest figure is over 40 times the smallest.
    fn plot(&self, area: &Area<'_>, column: &Column, bars: &[(&String, f64)]) -> Result<(), BoxError> {
        let most = bars.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let least = bars.iter().map(|(_, value)| *value).filter(|value| *value > 0.0);
        let least = least.fold(f64::INFINITY, f64::min);
        let logarithmic = most > least * 40.0;
        let length = |value: f64| match logarithmic {
            _ if most <= 0.0 => 0.0,
            // A logarithmic scale starts at half of the smallest figure, so that the smallest bar is visible.
            true => (value.max(least / 2.0) * 2.0 / least).ln() / (most * 2.0 / least).ln(),
            false => value / most,
        };
        let text =
            |text: String, x, line, side| Text::new(text, (x, LINE * line + LINE / 2), text_style(14, side));
        area.draw(&text(self.title.clone(), 0, 0, HPos::Left))?;
        let scale = if logarithmic { " (logarithmic)" } else { "" };
        area.draw(&text(format!("{}{scale}", column.heading()), 0, 1, HPos::Left))?;
        for (line, (name, value)) in (2..).zip(bars) {
            let color = if name.starts_with("tower-outbound") { VERMILION.mix(0.55) } else { GREY.mix(0.45) };
            let end = (length(*value) * f64::from(BARS)).max(1.0) as i32;
            let corners = [(0, LINE * line + 1), (end, LINE * (line + 1) - 1)];
            area.draw(&Rectangle::new(corners, color.filled()))?;
            area.draw(&text(name.to_string(), 4, line, HPos::Left))?;
            area.draw(&text(Self::figure(column, *value), WIDTH, line, HPos::Right))?;
        }
        Ok(())
    }
}

/// Formats the table as Markdown.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "### {}\n\n| |", self.title)?;
        self.columns.iter().try_for_each(|column| write!(f, " {} |", column.heading()))?;
        write!(f, "\n|---|{}\n", "---:|".repeat(self.columns.len()))?;
        for (name, values) in &self.rows {
            write!(f, "| {name} |")?;
            for (column, value) in self.columns.iter().zip(values) {
                let figure = value.map_or("–".to_owned(), |value| Self::figure(column, value));
                write!(f, " {figure} |")?;
            }
            writeln!(f)?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n{note}\n"))
    }
}

/// The report of one run, with the tables of all sections.
#[derive(Debug, Clone)]
pub struct Report {
    bench: &'static str,
    tables: Vec<Table>,
    skipped: Vec<(&'static str, String)>,
}

impl Report {
    /// Creates the report of a bench, and prints how the bench measures.
    pub fn new(bench: &'static str, method: &str) -> Self {
        println!("{method}\n");
        Self { bench, tables: Vec::new(), skipped: Vec::new() }
    }

    /// Prints the table and adds it to the report.
    pub fn add(&mut self, table: Table) {
        println!("{table}");
        self.tables.push(table);
    }

    /// Reports that a section was skipped, with the reason.
    pub fn skip(&mut self, id: &'static str, reason: String) {
        println!("### {id}: skipped\n\n{reason}\n");
        self.skipped.push((id, reason));
    }

    /// Writes the files that the arguments request.
    pub fn write(&self, arguments: &Arguments) -> Result<(), BoxError> {
        if let Some(path) = &arguments.json {
            fs::write(path, serde_json::to_string_pretty(&self.json(arguments.quick))? + "\n")?;
        }
        if let Some(path) = &arguments.svg {
            fs::write(path, self.svg()?)?;
        }
        match &arguments.markdown {
            Some(path) => self.replace_tables(path, arguments.quick),
            None => Ok(()),
        }
    }

    /// Replaces the text between the lines `<!-- NAME -->` and `<!-- end of NAME -->` of a file with the tables.
    fn replace_tables(&self, path: &Path, quick: bool) -> Result<(), BoxError> {
        let (start, end) = (format!("<!-- {} -->\n", self.bench), format!("<!-- end of {} -->", self.bench));
        let text = fs::read_to_string(path)?;
        let missing = || {
            format!(
                "the file {} does not contain the lines `{}` and `{end}`",
                path.display(),
                start.trim_end()
            )
        };
        let (before, rest) = text.split_once(&start).ok_or_else(missing)?;
        let (_, after) = rest.split_once(&end).ok_or_else(missing)?;
        let mut tables = format!("\n{}\n\n", machine(quick));
        for table in &self.tables {
            writeln!(tables, "{table}")?;
        }
        for (id, reason) in &self.skipped {
            writeln!(tables, "{id} was skipped: {reason}\n")?;
        }
        Ok(fs::write(path, format!("{before}{start}{tables}{end}{after}"))?)
    }

    /// Returns the report as JSON, with unrounded figures and one object per table row.
    pub fn json(&self, quick: bool) -> Value {
        let sections: Vec<_> = self.tables.iter().map(Table::json).collect();
        let mut report =
            json!({ "bench": self.bench, "quick": quick, "cores": cores(), "sections": sections });
        if !self.skipped.is_empty() {
            let skipped = self.skipped.iter().map(|(id, reason)| json!({ "id": id, "reason": reason }));
            report["skipped"] = skipped.collect();
        }
        report
    }

    /// Plots each selected column as a bar chart.
    fn svg(&self) -> Result<String, BoxError> {
        // Above the bars are two lines for the title, and below them is a free line.
        let height = |bars: &[_]| (bars.len() as u32 + 3) * LINE as u32;
        let charts = self.tables.iter().flat_map(|table| table.charts().map(move |chart| (table, chart)));
        let charts: Vec<_> = charts.collect();
        let heights = charts.iter().map(|(_, (_, bars))| height(bars));
        let size = (WIDTH as u32 + 2 * MARGIN, heights.sum::<u32>() + MARGIN);
        let label = format!("The figures of the bench {}", self.bench);
        picture(size, &label, "Bar charts of the figures in the tables.", |area| {
            let mut y = MARGIN;
            for (table, (column, bars)) in &charts {
                let area = area.clone().shrink((MARGIN, y), (WIDTH as u32, height(bars)));
                table.plot(&area, column, bars)?;
                y += height(bars);
            }
            Ok(())
        })
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

/// Describes the processor and the load average before the run.
fn machine(quick: bool) -> String {
    let of = |file, start| {
        let text = fs::read_to_string(file).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(start).map(str::to_owned))?;
        Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
    };
    let model = of("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let load = of("/proc/loadavg", "").and_then(|load| load.split(' ').next().map(str::to_owned));
    let load = load.map_or(String::new(), |load| format!(", load average {load}"));
    let quick = if quick { " This was a quick run, so the figures mean little." } else { "" };
    format!("{} cores of {model}{load}.{quick}", cores())
}
