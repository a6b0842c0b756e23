//! Draws the layers of a stack, and the path of a request through them.

use plotters::{
    prelude::*,
    style::{FontTransform, text_anchor::HPos},
};
use tower_outbound::BoxError;

use crate::picture::{Area, BLUE, GREY, INK, ORANGE, VERMILION, picture, text_style};

const RETRY: usize = 2;
const LIMIT: usize = 3;
/// The documented order of the layers.
const ORDER: &str = include_str!("../../src/guide/order.md");

const WIDTH: i32 = 600;
const TOP: i32 = 44;
const ROW: i32 = 56;
const GAP: i32 = 6;
const BOXES: (i32, i32) = (4, 560);
/// The horizontal positions of the request's and of the response's path.
const REQUEST: i32 = 34;
const RESPONSE: i32 = 530;

pub(crate) fn svg() -> Result<String, BoxError> {
    let layers: Vec<_> = ORDER.lines().skip(2).filter_map(every_call).collect();
    let height = (TOP + ROW * layers.len() as i32) as u32;
    let texts: Vec<_> = layers.iter().map(|(name, effect)| format!("{name}: {effect}")).collect();
    let description = format!("From the outermost layer to the client. {}.", texts.join(". "));
    picture((WIDTH as u32, height), "The layers of a stack", &description, |root| draw(root, &layers))
}

/// Returns the name and the effect in a row of the table, if every call passes the layer.
fn every_call(row: &str) -> Option<(&str, &str)> {
    let mut cells = row.split('|').skip(1).map(str::trim);
    let (layer, effect) = (cells.next()?, cells.next()?);
    let name = layer.trim_start_matches('[').split(']').next()?;
    (!layer.contains(", ")).then_some((name, effect))
}

fn draw(root: &Area<'_>, layers: &[(&str, &str)]) -> Result<(), BoxError> {
    let top = |row: usize| TOP + ROW * row as i32;
    let bottom = |row| top(row) + ROW - GAP;
    let middle = (REQUEST + RESPONSE) / 2;
    for (row, (name, effect)) in layers.iter().enumerate() {
        let color = match row {
            RETRY => VERMILION,
            LIMIT => ORANGE,
            _ if row + 1 == layers.len() => GREY,
            _ => BLUE,
        };
        let corners = [(BOXES.0, top(row)), (BOXES.1, bottom(row))];
        root.draw(&Rectangle::new(corners, color.mix(0.18).filled()))?;
        root.draw(&Rectangle::new(corners, color.stroke_width(1)))?;
        let bold = text_style(16, HPos::Center);
        let bold = TextStyle { font: bold.font.style(FontStyle::Bold), ..bold };
        root.draw(&Text::new(*name, (middle, top(row) + 16), bold))?;
        root.draw(&Text::new(*effect, (middle, top(row) + 34), text_style(16, HPos::Center)))?;
    }

    let end = top(layers.len() - 1) + 4;
    arrow(root, [(REQUEST, TOP - 14), (REQUEST, end)])?;
    arrow(root, [(RESPONSE, end), (RESPONSE, TOP - 14)])?;
    root.draw(&Text::new("request", (BOXES.0, 14), text_style(16, HPos::Left)))?;
    root.draw(&Text::new("response or error", (BOXES.1, 14), text_style(16, HPos::Right)))?;
    // The next attempt goes from the response's path back to the request's path.
    let loop_y = bottom(RETRY) - 5;
    arrow(root, [(RESPONSE, loop_y), (REQUEST + 3, loop_y)])?;
    // The queue.
    for position in 0..3 {
        let (x, y) = (REQUEST + 12 + position * 13, top(LIMIT) + 11);
        root.draw(&Rectangle::new([(x, y), (x + 9, y + 9)], ORANGE.filled()))?;
    }
    for (first, last, text) in [(0, RETRY, "once per call"), (LIMIT, layers.len() - 1, "each attempt")] {
        let (x, top, bottom) = (BOXES.1 + 14, top(first), bottom(last));
        root.draw(&PathElement::new(
            [(x - 6, top), (x, top), (x, bottom), (x - 6, bottom)],
            INK.stroke_width(2),
        ))?;
        let turned = text_style(16, HPos::Center).transform(FontTransform::Rotate90);
        root.draw(&Text::new(text, (x + 14, (top + bottom) / 2), turned))?;
    }
    Ok(())
}

/// Draws a line with an arrowhead at its end.
fn arrow(area: &Area<'_>, [start, end]: [(i32, i32); 2]) -> Result<(), BoxError> {
    area.draw(&PathElement::new([start, end], INK.stroke_width(2)))?;
    let (x, y) = ((end.0 - start.0).signum() * 10, (end.1 - start.1).signum() * 10);
    let (base, half) = ((end.0 - x, end.1 - y), (y / 2, x / 2));
    let head = [end, (base.0 + half.0, base.1 + half.1), (base.0 - half.0, base.1 - half.1)];
    area.draw(&Polygon::new(head, INK.filled()))?;
    Ok(())
}
