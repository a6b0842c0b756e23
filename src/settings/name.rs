use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use crate::error::InvalidConfig;

/// Far more than a program calls services.
const MOST: usize = 1_024;
const LONGEST: usize = 64;

/// The names of services that were ever read: 64 KiB at the most.
static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// A name that lasts as long as the program, as the log and the meters want it: each is kept once, however often the
/// settings are read.
pub(super) fn interned(name: &str) -> Result<&'static str, InvalidConfig> {
    let invalid = |expected| InvalidConfig::new("name", name.escape_debug().to_string(), expected);
    if name.is_empty() || name.len() > LONGEST || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(invalid("1 to 64 visible ascii characters"));
    }
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(name) = names.get(name) {
        return Ok(name);
    }
    if names.len() == MOST {
        return Err(invalid("one of the 1024 different names that a program may use"));
    }
    let name: &'static str = Box::leak(name.into());
    names.insert(name);
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No other test of this process reads a name.
    #[test]
    fn there_is_an_end_to_them() {
        for number in 0..MOST {
            interned(&format!("service-{number}")).unwrap();
        }
        assert!(std::ptr::eq(interned("service-7").unwrap(), interned("service-7").unwrap()));
        assert_eq!(
            interned("one-more").unwrap_err().to_string(),
            "invalid name `one-more`: expected one of the 1024 different names that a program may use"
        );
    }
}
