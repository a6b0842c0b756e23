//! Whether the table has a row for each layer of the crate.

use std::{collections::BTreeSet, fs, path::Path};

use super::rows::rows;

fn read(folder: &Path, all: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => read(&path, all),
            false => all.push(fs::read_to_string(path).unwrap()),
        }
    }
}

/// The types that implement `Layer`: `AuthLayer` of `impl<S> Layer<S> for AuthLayer {`.
fn layers(source: &str) -> Vec<String> {
    let headers = source.split("\nimpl").skip(1).filter_map(|item| item.split('{').next());
    let layers = headers.filter_map(|header| {
        let header = header.split_whitespace().collect::<Vec<_>>().join(" ");
        let (of, on) = header.split_once(" for ")?;
        let name = |path: &str| path.split('<').next()?.rsplit([' ', ':']).next().map(str::to_owned);
        // Behind the `impl`'s own parameters, and before its own.
        let of = of.rsplit_once('<').map_or(of, |(of, _)| of);
        let of = of.rsplit([' ', ':']).next()?;
        (of == "Layer").then(|| name(on.split(' ').next()?))?
    });
    layers.collect()
}

#[test]
fn each_layer_has_a_row() {
    let mut sources = Vec::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut sources);
    let mut layers: BTreeSet<_> = sources.iter().flat_map(|source| layers(source)).collect();
    // Private, and covered by each preset's row.
    assert!(layers.remove("DefaultHeadersLayer"));
    let rows: BTreeSet<_> = rows().iter().map(|row| row.layer.to_owned()).collect();
    let without: Vec<_> = layers.difference(&rows).collect();
    assert!(without.is_empty(), "no row of tests/system/contract/rows.rs is of {without:?}");
    assert!(layers.len() >= 9, "the search has lost some: {layers:?}");
}

#[test]
fn a_layer_is_found_however_it_is_written() {
    let source = "
impl<S> Layer<S> for Plain {
impl<S, A: Authorize> tower_layer::Layer<S> for Qualified<A>
where
    A: Clone,
{
impl<S: Service<Request<B>>, B> Layer<S>
    for Wrapped {
impl<L> RateLimitLayer<L> {
impl<L: fmt::Debug> fmt::Debug for NotOne<L> {
impl Iterator for Neither { type Item = Layer<u8>; }
";
    assert_eq!(layers(source), ["Plain", "Qualified", "Wrapped"]);
}
