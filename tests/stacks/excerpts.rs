//! What the README and the manual show of other people's crates, and can't compile for want of them, is compiled here:
//! each paragraph of such a block stands in one of the files beside this, or in a test of the crate's own with the
//! feature, to the letter but for its indentation.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The manual that a file has: all of a page, of Rust its doc comments.
fn manual(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    if path.extension().is_some_and(|extension| extension == "md") {
        return text;
    }
    let comments = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))?;
        Some(line.strip_prefix(' ').unwrap_or(line))
    });
    comments.collect::<Vec<_>>().join("\n")
}

/// The blocks that rustdoc is told to ignore.
fn ignored(text: &str) -> Vec<String> {
    let (mut blocks, mut open): (Vec<String>, Option<bool>) = (Vec::new(), None);
    for line in text.lines() {
        match (line.strip_prefix("```"), open) {
            (Some(kind), None) => {
                let ignored = kind.split(',').any(|word| word.trim().starts_with("ignore"));
                if ignored {
                    blocks.push(String::new());
                }
                open = Some(ignored);
            }
            (Some(_), Some(_)) => open = None,
            (None, Some(true)) => {
                let block = blocks.last_mut().unwrap();
                block.push_str(line);
                block.push('\n');
            }
            (None, _) => {}
        }
    }
    blocks
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Whether these lines stand there one after the other, each as much further in.
fn stands(paragraph: &str, source: &str) -> bool {
    let (wanted, source): (Vec<_>, Vec<_>) = (paragraph.lines().collect(), source.lines().collect());
    source.windows(wanted.len()).any(|lines| {
        let indent = lines[0].strip_suffix(wanted[0]).filter(|indent| indent.trim().is_empty());
        let same =
            |(line, wanted): (&&str, &&str)| indent.and_then(|it| line.strip_prefix(it)) == Some(wanted);
        lines.iter().zip(&wanted).all(same)
    })
}

/// What a page tells to write into a manifest, line by line.
fn dependencies(manual: &str) -> Vec<String> {
    let blocks = manual.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let blocks = blocks.filter(|block| {
        block.trim_start_matches("[dev-").trim_start_matches('[').starts_with("dependencies]")
    });
    blocks.flat_map(|block| block.lines().skip(1).map(str::to_owned)).collect()
}

/// The texts in quotes that follow this in a line of a manifest, up to the end of a list.
fn quoted<'a>(line: &'a str, after: &str) -> Vec<&'a str> {
    let rest = line.split_once(after).map_or("", |(_, rest)| rest);
    rest.split(']').next().unwrap().split('"').skip(1).step_by(2).collect()
}

fn version(line: &str) -> &str {
    quoted(line, if line.contains("version = ") { "version = " } else { " = " })
        .first()
        .copied()
        .unwrap_or_default()
}

/// Whoever begins with these lines gets this crate, with features that it has, and the others as it has them.
#[test]
fn what_is_to_be_written_into_a_manifest_is_as_in_ours() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let ours = version(manifest.lines().find(|line| line.starts_with("version = ")).unwrap());
    for (page, count) in [("README.md", 6), ("src/lib.rs", 3)] {
        let lines = dependencies(&manual(&root.join(page)));
        let ourselves = lines.iter().filter(|line| line.starts_with("tower-outbound = ")).count();
        assert_eq!(ourselves, count, "{page}: {lines:#?}");
        for line in &lines {
            let name = line.split(' ').next().unwrap();
            if name == "tower-outbound" {
                assert_eq!(
                    Some(version(line)),
                    ours.rsplit_once('.').map(|(minor, _)| minor),
                    "{page}: {line}"
                );
                for feature in quoted(line, "features = [") {
                    assert!(manifest.contains(&format!("\n{feature} = [")), "{page}: {line}");
                }
            } else {
                let same = |own: &str| {
                    own.starts_with(&format!("{name} = "))
                        && format!("{}.", version(own)).starts_with(&format!("{}.", version(line)))
                };
                assert!(!version(line).is_empty() && manifest.lines().any(same), "{page}: {line}");
            }
        }
    }
}

#[test]
fn what_is_shown_and_not_compiled_there_is_compiled_here() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.join("../..");
    let mut shown = vec![root.join("README.md")];
    rust_files(&root.join("src"), &mut shown);
    let mut sources = Vec::new();
    rust_files(here, &mut sources);
    sources.push(root.join("tests/otel.rs"));
    // Compiled in order to fail.
    sources.retain(|path| !path.ends_with("mistakes.rs"));
    let sources: Vec<_> = sources.iter().map(|path| fs::read_to_string(path).unwrap()).collect();

    let mut count = 0;
    for path in shown {
        for block in ignored(&manual(&path)) {
            count += 1;
            let all = |source: &String| block.trim().split("\n\n").all(|paragraph| stands(paragraph, source));
            assert!(sources.iter().any(all), "{} shows what no stack has:\n{block}", path.display());
        }
    }
    assert_eq!(count, 5, "a block was not found, or another one came");
}
