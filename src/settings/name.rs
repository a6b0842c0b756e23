use crate::error::InvalidConfig;

/// The longest name, so that names fit into a log line.
const LONGEST: usize = 64;

/// Returns the name of a service if a log and a metric can show it.
pub(super) fn checked(name: &str) -> Result<&str, InvalidConfig> {
    let visible = name.bytes().all(|byte| byte.is_ascii_graphic());
    if name.is_empty() || name.len() > LONGEST || !visible {
        let expected = "1 to 64 visible ascii characters";
        return Err(InvalidConfig::new("name", name.escape_debug().to_string(), expected));
    }
    Ok(name)
}
