//! What may stand after `--`, the same for every bench.

use std::path::PathBuf;

use super::BoxError;

/// How to run, and where the figures go besides the screen.
#[derive(Debug, Clone, Default)]
pub struct Arguments {
    /// Short, to see that it works: the figures mean little.
    pub quick: bool,
    only: Option<String>,
    pub(super) json: Option<PathBuf>,
    pub(super) svg: Option<PathBuf>,
    pub(super) markdown: Option<PathBuf>,
}

impl Arguments {
    /// Those of this process. `--only` takes one of the sections.
    pub fn parse(sections: &[&str]) -> Result<Self, BoxError> {
        let mut parsed = Self::default();
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("`{argument}` needs a value"));
            match argument.as_str() {
                "--quick" => parsed.quick = true,
                "--only" => parsed.only = Some(value()?),
                "--json" => parsed.json = Some(value()?.into()),
                "--svg" => parsed.svg = Some(value()?.into()),
                "--markdown" => parsed.markdown = Some(value()?.into()),
                // Cargo's own.
                "--bench" => {}
                _ => return Err(format!("unknown argument `{argument}`").into()),
            }
        }
        if !sections.iter().any(|section| parsed.wants(section)) {
            return Err(format!("`--only` takes one of {}", sections.join(", ")).into());
        }
        if parsed.only.is_some() && parsed.markdown.is_some() {
            return Err("`--markdown` replaces the tables of all sections: leave out `--only`".into());
        }
        Ok(parsed)
    }

    /// Whether the section is to run.
    pub fn wants(&self, section: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == section)
    }

    /// The first of the two, else, for a quick run, the second.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}
