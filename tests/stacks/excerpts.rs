//! Compares the docs with the code. A code block that needs another crate is marked `ignore`, so rustdoc does not
//! compile it. A test file must therefore contain the same code.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{fs, path::Path};

/// Adds the text of each file in the folder that has this extension, without indentation and comment markers.
fn read(folder: &Path, extension: &str, texts: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, extension, texts);
        } else if path.extension().is_some_and(|found| found == extension) {
            texts.push(text(&path));
        }
    }
}

fn text(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    // These dependencies are renamed, because the package also has their later versions.
    let text = text.replace("reqwest_012", "reqwest").replace("_middleware_04", "_middleware");
    let lines = text.lines().map(|line| line.trim_start_matches(['/', '!', ' ']).trim_end());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn each_ignored_code_block_is_compiled_in_a_test_file() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.join("../..");
    let (mut pages, mut sources) = (vec![text(&root.join("README.md"))], Vec::new());
    read(&root.join("src"), "rs", &mut pages);
    read(&root.join("src/guide"), "md", &mut pages);
    read(here, "rs", &mut sources);
    sources.extend(
        ["adapter/otel", "adapter/tenants", "transport/proxy_and_certificates"]
            .map(|file| text(&root.join(format!("tests/{file}.rs")))),
    );
    let blocks = pages.iter().flat_map(|page| page.split("\n```").skip(1).step_by(2));
    let ignored = blocks.filter_map(|block| {
        let (kind, code) = block.split_once('\n')?;
        kind.split(',').any(|word| word.trim().starts_with("ignore")).then_some(code.trim())
    });
    let mut count = 0;
    for block in ignored {
        count += 1;
        let contains_all = |source: &String| block.split("\n\n").all(|paragraph| source.contains(paragraph));
        assert!(sources.iter().any(contains_all), "no test file contains this code block:\n{block}");
    }
    assert!(count > 8, "only {count} code blocks marked `ignore` were found");
}

/// rustdoc compiles these settings, and `llm` runs them. The page imports more.
#[test]
fn guide_shows_the_settings_that_the_llm_tests_run() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = text(&here.join("../../src/guide/llm_services.md"));
    for paragraph in text(&here.join("llm/service.rs")).split("\n\n").skip(3) {
        assert!(page.contains(paragraph.trim()), "the guide does not show this code:\n{paragraph}");
    }
}
