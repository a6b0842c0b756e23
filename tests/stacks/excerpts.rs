//! Compares the docs with the code. A code block that needs another crate is marked `ignore`, so rustdoc does not
//! compile it. A test file must therefore contain the same code. The `[dependencies]` in the docs must match
//! Cargo.toml.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use tokio::time::Instant;
use tower_outbound::{
    Quota,
    limit::{Limiter, LocalLimiter, PermitRequest},
};

/// Returns the text of a Markdown file, or the doc comments of a Rust file.
fn documentation(path: &Path) -> String {
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

/// Returns the code blocks marked `ignore`.
fn ignored_blocks(text: &str) -> Vec<String> {
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

/// Adds to `found` all files in the folder that have this extension.
fn add_files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_files(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

/// Returns `true` if the source contains the lines of the paragraph in sequence, all with the same additional
/// indentation.
fn contains_paragraph(paragraph: &str, source: &str) -> bool {
    let (wanted, source): (Vec<_>, Vec<_>) = (paragraph.lines().collect(), source.lines().collect());
    source.windows(wanted.len()).any(|lines| {
        let indent = lines[0].strip_suffix(wanted[0]).filter(|indent| indent.trim().is_empty());
        let same = |(line, wanted): (&&str, &&str)| {
            indent.and_then(|indent| line.strip_prefix(indent)) == Some(wanted)
        };
        lines.iter().zip(&wanted).all(same)
    })
}

/// Returns the lines of the TOML dependency tables on a page.
fn dependencies(page: &str) -> Vec<String> {
    let blocks = page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let blocks = blocks.filter(|block| {
        block.trim_start_matches("[dev-").trim_start_matches('[').starts_with("dependencies]")
    });
    blocks.flat_map(|block| block.lines().skip(1).map(str::to_owned)).collect()
}

/// Returns the quoted strings between `after` and the next `]` in a line of Cargo.toml.
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

/// The dependency tables in the docs must name this crate's version and existing features. For other crates, the tables
/// must name the same versions as a Cargo.toml.
#[test]
fn dependency_tables_of_the_docs_match_cargo_toml() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let stacks = fs::read_to_string(root.join("tests/stacks/Cargo.toml")).unwrap();
    let crate_version = version(manifest.lines().find(|line| line.starts_with("version = ")).unwrap());
    let mut pages = vec![root.join("README.md"), root.join("src/lib.rs")];
    add_files(&root.join("src/guide"), "md", &mut pages);
    let mut own = 0;
    for path in pages {
        let (page, lines) = (path.display(), dependencies(&documentation(&path)));
        own += lines.iter().filter(|line| line.starts_with("tower-outbound = ")).count();
        for line in &lines {
            let name = line.split(' ').next().unwrap();
            if name == "tower-outbound" {
                assert_eq!(
                    Some(version(line)),
                    crate_version.rsplit_once('.').map(|(minor, _)| minor),
                    "{page}: {line}"
                );
                for feature in quoted(line, "features = [") {
                    assert!(manifest.contains(&format!("\n{feature} = [")), "{page}: {line}");
                }
            } else {
                let same = |dependency: &str| {
                    dependency.starts_with(&format!("{name} = "))
                        && format!("{}.", version(dependency)).starts_with(&format!("{}.", version(line)))
                };
                let found = manifest.lines().chain(stacks.lines()).any(same);
                assert!(!version(line).is_empty() && found, "{page}: {line}");
            }
        }
    }
    assert!(own > 8, "only {own} dependency tables were found");
}

#[test]
fn each_ignored_code_block_is_compiled_in_a_test_file() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.join("../..");
    let mut pages = vec![root.join("README.md")];
    add_files(&root.join("src"), "rs", &mut pages);
    add_files(&root.join("src/guide"), "md", &mut pages);
    let mut sources = Vec::new();
    add_files(here, "rs", &mut sources);
    sources.extend(
        ["adapter/otel", "transport/proxy_and_certificates"]
            .map(|file| root.join(format!("tests/{file}.rs"))),
    );
    // mistakes.rs does not compile.
    sources.retain(|path| !path.ends_with("mistakes.rs"));
    // These dependencies are renamed, because the package also has their later versions.
    let read = |path| {
        fs::read_to_string(path)
            .unwrap()
            .replace("reqwest_012", "reqwest")
            .replace("_middleware_04", "_middleware")
    };
    let sources: Vec<_> = sources.iter().map(read).collect();

    let mut count = 0;
    for path in pages {
        for block in ignored_blocks(&documentation(&path)) {
            count += 1;
            let all = |source: &String| {
                block.trim().split("\n\n").all(|paragraph| contains_paragraph(paragraph, source))
            };
            assert!(
                sources.iter().any(all),
                "no test file contains this code block of {}:\n{block}",
                path.display()
            );
        }
    }
    assert!(count > 8, "only {count} code blocks marked `ignore` were found");
}

/// The queries for Prometheus must use the names of the table in the docs of `adapter::metrics`, with the suffixes that
/// the exporter adds.
#[test]
fn queries_for_prometheus_use_documented_metrics() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = documentation(&root.join("src/adapter/metrics.rs"));
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let documented: Vec<_> = rows
        .flat_map(|(name, rest)| {
            let name = name.replace('.', "_");
            match rest.split(' ').next() {
                Some("histogram") => {
                    ["bucket", "count", "sum"].map(|of| format!("{name}_seconds_{of}")).to_vec()
                }
                Some("counter") => vec![format!("{name}_total")],
                _ => vec![name],
            }
        })
        .collect();

    let page = fs::read_to_string(root.join("src/guide/observability.md")).unwrap();
    let words = page.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    let used: Vec<_> = words
        .filter(|word| ["tower_outbound_", "http_client_"].iter().any(|prefix| word.starts_with(prefix)))
        .collect();
    assert!(used.len() > 10 && documented.len() > 10, "{used:?} {documented:?}");
    for name in used {
        assert!(documented.iter().any(|documented| documented == name), "{name} is not documented");
    }
}

/// Acquires permits in a loop, and counts them in each 5 s of 90 s.
async fn grants(limiter: impl Limiter) -> Vec<usize> {
    let (start, mut counts) = (Instant::now(), vec![0; 18]);
    loop {
        limiter.acquire_with(&PermitRequest::new()).await.unwrap();
        match counts.get_mut(start.elapsed().as_secs() as usize / 5) {
            Some(count) => *count += 1,
            None => return counts,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn table_of_the_page_on_limits_has_the_measured_requests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("src/guide/limits.md")).unwrap();
    let quota = Quota::per_minute(100).unwrap();
    for (name, counts) in [
        ("paced window", grants(LocalLimiter::paced_window(quota)).await),
        ("token bucket", grants(LocalLimiter::token_bucket(quota)).await),
        ("sliding window", grants(LocalLimiter::sliding_window(quota)).await),
    ] {
        let row = page.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let row: Vec<usize> = row.split_whitespace().map(|count| count.parse().unwrap()).collect();
        assert_eq!(row, counts, "{name}");
    }
}
