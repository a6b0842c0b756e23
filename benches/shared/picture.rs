//! Draws pictures that are readable on a light and on a dark page. The example `pictures` also includes this file.

use std::error::Error;

use plotters::{
    coord::Shift,
    prelude::*,
    style::{
        TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

/// The color of texts, axes and frames. A picture replaces it with the text color of the page.
pub(crate) const INK: RGBColor = BLACK;
/// Okabe and Ito's colors, which color-blind people can distinguish. The blue is lighter, for dark pages.
pub(crate) const BLUE: RGBColor = RGBColor(32, 137, 208);
pub(crate) const VERMILION: RGBColor = RGBColor(213, 94, 0);
pub(crate) const ORANGE: RGBColor = RGBColor(230, 159, 0);
pub(crate) const GREY: RGBColor = RGBColor(128, 128, 128);

/// The text color and the background of a file that a page shows as an image. Inside an HTML page, `svg:root` matches
/// nothing, so that the colors of the page apply.
const STYLE: &str = "svg:root{color:#1f2328;background:#fff}\
    @media(prefers-color-scheme:dark){svg:root{color:#f0f6fc;background:#0d1117}}";

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Returns a picture of this size as SVG. `label` and `description` are its text alternative.
pub(crate) fn picture(
    size: (u32, u32),
    label: &str,
    description: &str,
    draw: impl FnOnce(&Area<'_>) -> Result<(), Box<dyn Error + Send + Sync>>,
) -> Result<String, Box<dyn Error + Send + Sync>> {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    draw(&root)?;
    root.present()?;
    drop(root);
    let (tag, elements) = svg.split_once('>').ok_or("plotters wrote no SVG")?;
    let (label, description) = (escaped(label), escaped(description));
    let elements = elements.replace("\"#000000\"", "\"currentColor\"").replace(" opacity=\"1\"", "");
    Ok(format!(
        "{tag} role=\"img\" aria-label=\"{label}\" style=\"max-width:100%;height:auto\">\n\
         <desc>{description}</desc>\n<style>{STYLE}</style>{elements}"
    ))
}

/// Returns the style of a text whose height is given in pixels.
pub(crate) fn text_style(pixels: u32, horizontal: HPos) -> TextStyle<'static> {
    // plotters divides the size of a font by this factor.
    let size = f64::from(pixels) * 1.24;
    TextStyle::from(("sans-serif", size)).color(&INK).pos(Pos::new(horizontal, VPos::Center))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
