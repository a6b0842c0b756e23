//! Parses the command-line arguments, which are the same for every bench.

use std::path::PathBuf;

use super::BoxError;

/// The parsed arguments: the length of the run, the selected sections, and the files that receive the figures.
#[derive(Debug, Clone, Default)]
pub struct Arguments {
    /// Makes a short run that only checks that the bench works. The figures of a short run mean little.
    pub quick: bool,
    only: Option<String>,
    pub(super) json: Option<PathBuf>,
    pub(super) svg: Option<PathBuf>,
    pub(super) markdown: Option<PathBuf>,
}

impl Arguments {
    /// Parses the arguments of this process. `--only` accepts one of `sections`.
    pub fn parse(sections: &[&str]) -> Result<Self, BoxError> {
        let mut parsed = Self::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("`{argument}` has no value"));
            match argument.as_str() {
                "--quick" => parsed.quick = true,
                "--only" => parsed.only = Some(value()?),
                "--json" => parsed.json = Some(value()?.into()),
                "--svg" => parsed.svg = Some(value()?.into()),
                "--markdown" => parsed.markdown = Some(value()?.into()),
                // Cargo adds the argument `--bench`.
                "--bench" => {}
                _ => return Err(format!("unknown argument `{argument}`").into()),
            }
        }
        if !sections.iter().any(|section| parsed.wants(section)) {
            return Err(
                format!("invalid section after `--only`: expected one of {}", sections.join(", ")).into()
            );
        }
        if parsed.only.is_some() && parsed.markdown.is_some() {
            return Err(
                "`--markdown` replaces the tables of all sections and does not work with `--only`".into()
            );
        }
        Ok(parsed)
    }

    /// Returns whether the arguments select the section.
    pub fn wants(&self, section: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == section)
    }

    /// Returns `quick` for a quick run, otherwise `full`.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}
