//! Settings as text: durations such as `1m30s`, jitters such as `50%`, and their conversions from and to configuration
//! files.

use std::{fmt, str::FromStr, time::Duration};

use super::{Jitter, header_values::whole_number};
use crate::config::InvalidConfig;

/// The units of a duration, in the order in which they must appear in its text: longest first.
pub(super) const UNITS: [(&str, u128); 7] = [
    ("d", 86_400 * NANOS),
    ("h", 3_600 * NANOS),
    ("m", 60 * NANOS),
    ("s", NANOS),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];
pub(super) const NANOS: u128 = 1_000_000_000;

/// Parses a duration of whole numbers with the units `d`, `h`, `m`, `s`, `ms`, `us` and `ns`. Each unit appears at most
/// once, and longer units come first.
///
/// # Errors
///
/// Returns an error for any other text. A number without a unit is an error, because it could mean seconds or
/// milliseconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, InvalidConfig> {
    let invalid = || {
        let expected = match !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => format!("a unit after the number, such as {text}s or {text}ms"),
            false => {
                "whole numbers with their units d, h, m, s or ms, such as 60s, 250ms or 1m30s".to_owned()
            }
        };
        InvalidConfig::new("duration", text.escape_debug().to_string(), expected)
    };
    let (mut rest, mut units, mut sum) = (text, UNITS.iter(), 0);
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(invalid)?;
        let (number, after) = rest.split_at(digits);
        let (unit, after) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        // The iterator only moves forward, so it does not find a unit that is repeated or follows a shorter unit.
        let (_, nanos) = units.find(|(name, _)| *name == unit).ok_or_else(invalid)?;
        let number: u64 = number.parse().map_err(|_| invalid())?;
        sum += u128::from(number) * nanos;
        if after.is_empty() {
            let seconds = u64::try_from(sum / NANOS).map_err(|_| invalid())?;
            return Ok(Duration::new(seconds, (sum % NANOS) as u32));
        }
        rest = after;
    }
}

/// Formats a duration as text that [`parse_duration`] reads: whole seconds, then the fraction in the largest unit that
/// needs no decimals.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DurationText(pub(crate) Duration);

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0.as_secs(), self.0.subsec_nanos());
        if seconds > 0 || nanos == 0 {
            write!(f, "{seconds}s")?;
        }
        match nanos {
            0 => Ok(()),
            nanos if nanos % 1_000_000 == 0 => write!(f, "{}ms", nanos / 1_000_000),
            nanos if nanos % 1_000 == 0 => write!(f, "{}us", nanos / 1_000),
            nanos => write!(f, "{nanos}ns"),
        }
    }
}

/// Formats the jitter as a percentage, such as `50%`.
impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.percent)
    }
}

/// Parses a jitter from a whole percentage, such as `50%`.
///
/// ```
/// use tower_outbound::Jitter;
///
/// assert_eq!("100%".parse::<Jitter>()?, Jitter::full());
/// # Ok::<(), tower_outbound::InvalidConfig>(())
/// ```
impl FromStr for Jitter {
    type Err = InvalidConfig;

    fn from_str(text: &str) -> Result<Self, InvalidConfig> {
        let invalid = || {
            let expected = "a whole number from 0 to 100 with a percent sign, such as 50%";
            InvalidConfig::new("jitter", text.escape_debug().to_string(), expected)
        };
        let percent = text.strip_suffix('%').and_then(whole_number).ok_or_else(invalid)?;
        Self::percent(u8::try_from(percent).map_err(|_| invalid())?)
    }
}

/// Conversions from and to configuration files.
#[cfg(feature = "serde")]
mod settings {
    use std::time::Duration;

    use super::{
        super::{Jitter, Quota, Unit, retry::RetryRejected},
        DurationText, parse_duration,
    };
    use crate::config::{
        InvalidConfig,
        text::{Text, text},
    };

    text! {
        Duration, "a duration such as 60s", parse_duration, |it: &Duration| DurationText(*it).to_string();
        Quota, "a quota such as 100/60s", str::parse, |it: &Quota| format!("{it:#}");
        Jitter, "a jitter percentage such as 50%", str::parse, Jitter::to_string;
        RetryRejected, "any_method or idempotent", |text: &str| RETRY_REJECTED.read(text),
            |it: &RetryRejected| if *it == RetryRejected::Idempotent { "idempotent" } else { "any_method" }.to_owned();
        Unit, "requests, tokens, input_tokens, output_tokens, points, bytes or concurrency", |text: &str| UNITS.read(text),
            |it: &Unit| it.as_str().to_owned();
    }

    const RETRY_REJECTED: Names<RetryRejected, 2> = Names(
        "retry rejected",
        [(RetryRejected::AnyMethod, "any_method"), (RetryRejected::Idempotent, "idempotent")],
    );
    const UNITS: Names<Unit, 7> = Names("unit", Unit::NAMES);

    /// The name of a field, and its values with their names.
    struct Names<T: 'static, const N: usize>(&'static str, [(T, &'static str); N]);

    impl<T: Text + Copy, const N: usize> Names<T, N> {
        fn read(&self, text: &str) -> Result<T, InvalidConfig> {
            let known = self.1.iter().find(|(_, name)| *name == text).map(|(value, _)| *value);
            known.ok_or_else(|| InvalidConfig::new(self.0, text.escape_debug().to_string(), T::EXPECTED))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::policy::Quota;

    #[test]
    fn parses_whole_numbers_with_units_in_descending_order() {
        for (text, seconds, nanos) in [
            ("60s", 60, 0),
            ("0s", 0, 0),
            ("250ms", 0, 250_000_000),
            ("1m30s", 90, 0),
            ("1d2h3m4s5ms6us7ns", 93_784, 5_006_007),
            ("90m", 5_400, 0),
            ("0s1ms", 0, 1_000_000),
            ("18446744073709551615s", u64::MAX, 0),
            ("18446744073709551615ms", 18_446_744_073_709_551, 615_000_000),
            ("18446744073709551615us", 18_446_744_073_709, 551_615_000),
            ("18446744073709551615ns", 18_446_744_073, 709_551_615),
        ] {
            assert_eq!(parse_duration(text).unwrap(), Duration::new(seconds, nanos), "{text}");
        }
        for text in [
            "",
            "s",
            "60",
            "-1s",
            "+1s",
            "1.5s",
            "1 s",
            " 1s",
            "1s ",
            "1S",
            "1sec",
            "30s1m",
            "1s1s",
            "1m1",
            "1e3s",
            "18446744073709551616s",
            "18446744073709551615s1000ms",
            "18446744073709551615h",
            "1µs",
            "٣s",
            "0s5",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(
            parse_duration("").unwrap_err().to_string(),
            "invalid duration ``: expected whole numbers with their units d, h, m, s or ms, such as 60s, 250ms or 1m30s"
        );
    }

    #[test]
    fn formats_fraction_of_a_second_in_the_largest_unit_without_decimals() {
        for (seconds, nanos, shown) in [
            (0, 0, "0s"),
            (90, 0, "90s"),
            (0, 250_000_000, "250ms"),
            (1, 1_000_000, "1s1ms"),
            (0, 1_500_000, "1500us"),
            (0, 1_000, "1us"),
            (2, 1_001, "2s1001ns"),
            (0, 999_999_999, "999999999ns"),
        ] {
            assert_eq!(DurationText(Duration::new(seconds, nanos)).to_string(), shown);
        }
    }

    #[test]
    fn rejects_invalid_quota_and_jitter_texts_with_the_reason() {
        for (text, expected) in [
            ("100 per 60s", "invalid quota `100 per 60s`: expected LIMIT/WINDOW"),
            (
                "100 per 60s, burst 10, margin 1s, sustains 1.639 per second",
                "invalid quota `100 per 60s, burst 10, margin 1s, sustains 1.639 per second`: expected LIMIT/WINDOW",
            ),
            ("100", "invalid quota `100`: expected LIMIT/WINDOW"),
            ("ten/1s", "invalid quota `ten/1s`: expected LIMIT/WINDOW"),
            ("+1/1s", "invalid quota `+1/1s`: expected LIMIT/WINDOW"),
            ("100/60s, burst", "invalid quota `100/60s, burst`: expected LIMIT/WINDOW"),
            ("100/60s, burst 1, burst 2", "invalid quota `100/60s, burst 1, burst 2`: expected"),
            ("100/60s, margin 1s, margin 2s", "invalid quota `100/60s, margin 1s, margin 2s`: expected"),
            ("100/60s, speed 1", "invalid quota `100/60s, speed 1`: expected LIMIT/WINDOW"),
            ("100/minute", "invalid duration `minute`: expected whole numbers with their units"),
            ("0/60s", "invalid quota limit `0`: expected at least 1"),
            ("100/60s, burst 100", "invalid quota burst `100`: expected at most 99"),
            ("100/60s, margin 61s", "invalid quota margin `61s`: expected at most 60s (the window)"),
        ] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        for text in ["50", "%", "-1%", "0.5%", "101%", "256%", "50 %"] {
            assert!(text.parse::<Jitter>().is_err(), "{text}");
        }
    }

    #[test]
    fn quota_whose_burst_refills_in_146_years_parses_from_its_text() {
        let window = Duration::from_nanos(u64::MAX / 4 / 147);
        let quota = Quota::new(148, window).unwrap().without_margin().with_burst(147).unwrap();
        assert_eq!(format!("{quota:#}").parse::<Quota>().unwrap(), quota);
    }

    proptest! {
        #[test]
        fn any_quota_parses_from_its_text(duration: Duration, limit in 1_u32.., burst: u32, percent in proptest::option::of(0_u8..=100)) {
            prop_assert_eq!(parse_duration(&DurationText(duration).to_string()).unwrap(), duration);
            let window = Duration::from_nanos(u64::from(duration.subsec_nanos()) + 1);
            let quota = Quota::new(limit, window).unwrap();
            let quota = quota.with_burst(1 + burst % (limit - 1).max(1)).unwrap_or(quota);
            let margin = percent.map_or(quota.margin(), |percent| window * u32::from(percent) / 100);
            let quota = quota.with_margin(margin).unwrap();
            prop_assert_eq!(format!("{quota:#}").parse::<Quota>().unwrap(), quota);
            let jitter = Jitter::percent(percent.unwrap_or_default()).unwrap();
            prop_assert_eq!(jitter.to_string().parse::<Jitter>().unwrap(), jitter);
        }

        #[test]
        fn parsing_any_text_causes_no_panic(text in "\\PC{0,12}", near in "[0-9]{0,21}[dhmsun]{0,2}[0-9]{0,3}[ms,/ %]{0,3}") {
            for text in [text, near] {
                let _ = (parse_duration(&text), text.parse::<Quota>(), text.parse::<Jitter>());
            }
        }
    }
}
