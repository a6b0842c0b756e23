//! Checks that [`all_layers`] lists every layer, by searching `src` for implementations of `Layer`.

use std::{collections::BTreeSet, fs, path::Path};

use super::all_layers::all_layers;

fn read_sources(folder: &Path, sources: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => read_sources(&path, sources),
            false => sources.push(fs::read_to_string(path).unwrap()),
        }
    }
}

/// Returns the names of the types that implement `Layer` in the source. For example, `impl<S> Layer<S> for AuthLayer {`
/// yields `AuthLayer`.
fn layers(source: &str) -> Vec<String> {
    let headers = source.split("\nimpl").skip(1).filter_map(|item| item.split('{').next());
    let layers = headers.filter_map(|header| {
        let header = header.split_whitespace().collect::<Vec<_>>().join(" ");
        let (implemented, implementor) = header.split_once(" for ")?;
        let name = |path: &str| path.split('<').next()?.rsplit([' ', ':']).next().map(str::to_owned);
        // This step removes the type parameters of the trait: `Layer<S>` becomes `Layer`.
        let implemented = implemented.rsplit_once('<').map_or(implemented, |(path, _)| path);
        let implemented = implemented.rsplit([' ', ':']).next()?;
        (implemented == "Layer").then(|| name(implementor.split(' ').next()?))?
    });
    layers.collect()
}

#[test]
fn every_layer_of_the_crate_has_a_test_case() {
    let mut sources = Vec::new();
    read_sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut sources);
    let mut layers: BTreeSet<_> = sources.iter().flat_map(|source| layers(source)).collect();
    // Only a stack contains these layers. The cases of the presets, and of the stack with a pool, test them.
    assert!(layers.remove("DefaultHeadersLayer") && layers.remove("RouteLayer"));
    let tested: BTreeSet<_> = all_layers().iter().map(|case| case.layer.to_owned()).collect();
    let untested: Vec<_> = layers.difference(&tested).collect();
    assert!(
        untested.is_empty(),
        "layers without a case in tests/system/contract/all_layers.rs: {untested:?}"
    );
    assert!(layers.len() >= 8, "the search of src found too few layers: {layers:?}");
}

#[test]
fn source_search_finds_layers_in_qualified_and_multi_line_impl_blocks() {
    let source = "
impl<S> Layer<S> for Plain {
impl<S, A: Authorize> tower_layer::Layer<S> for Qualified<A>
where
    A: Clone,
{
impl<S: Service<Request<B>>, B> Layer<S>
    for Wrapped {
impl<L> RateLimitLayer<L> {
impl<L: fmt::Debug> fmt::Debug for OtherTrait<L> {
impl Iterator for OtherItem { type Item = Layer<u8>; }
";
    assert_eq!(layers(source), ["Plain", "Qualified", "Wrapped"]);
}
