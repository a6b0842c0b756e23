//! Finds the window with the most arrivals.

use std::{collections::BTreeMap, time::Duration};

use super::arrival::Arrival;
use crate::{clock::Instant, policy::Quota};

/// Finds the window of this length that contains the most permits. Both ends belong to the window. Returns the permits
/// and the start of the window, or `None` without arrivals. Considers only windows that start at an arrival, because
/// any other window can be moved to its first arrival without losing an arrival.
///
/// An arrival counts in a window that contains both its earliest and its latest time.
pub(super) fn fullest(arrivals: &[Arrival], length: Duration) -> Option<(u64, Instant)> {
    let within = |end: Instant, start: Instant| end.duration_since(start) <= length;
    // An arrival whose range is longer than a window counts in no window. Every other range that begins before a window
    // also ends before the window's end. A window therefore contains the arrivals whose range ends by the window's end,
    // minus those whose range begins before its start.
    let fitting = arrivals.iter().filter(|arrival| within(arrival.latest, arrival.earliest));
    let (mut begins, mut ends): (Vec<_>, Vec<_>) = fitting
        .map(|Arrival { earliest, latest, permits }| ((*earliest, *permits), (*latest, *permits)))
        .unzip();
    begins.sort_unstable();
    ends.sort_unstable();

    let mut fullest: Option<(u64, Instant)> = None;
    let (mut begun, mut ended, mut next) = (0_u64, 0_u64, 0);
    for (start, permits) in begins {
        while let Some((_, more)) = ends.get(next).filter(|(end, _)| within(*end, start)) {
            ended += u64::from(*more);
            next += 1;
        }
        let inside = ended - begun;
        if fullest.is_none_or(|(most, _)| most < inside) {
            fullest = Some((inside, start));
        }
        begun += u64::from(permits);
    }
    fullest
}

/// Returns the highest level, in whole permits, of a bucket that these arrivals fill and that drains `refill` permits per
/// `per`. Counts an arrival in an interval only if the interval contains its earliest and its latest time.
pub(super) fn highest_level(arrivals: &[Arrival], (refill, per): (u32, Duration)) -> u64 {
    let Some(start) = arrivals.iter().map(|arrival| arrival.earliest).min() else { return 0 };
    // One permit is as many units as `per` has nanoseconds, so that the arithmetic is exact.
    let drained = |at: Instant| at.duration_since(start).as_nanos() as i128 * i128::from(refill);
    let filled = |permits: u64| i128::from(permits) * per.as_nanos() as i128;
    let mut ends: Vec<_> = arrivals.iter().map(|arrival| (arrival.latest, arrival.permits)).collect();
    let mut begins: Vec<_> = arrivals.iter().map(|arrival| (arrival.earliest, arrival.permits)).collect();
    ends.sort_unstable();
    begins.sort_unstable();
    let (mut begun, mut ended, mut next) = (0, 0, 0);
    // The level is the largest difference between what arrived and what drained since any arrival.
    let (mut best, mut highest) = (i128::MIN, 0);
    for (end, permits) in ends {
        while let Some((begin, more)) = begins.get(next).filter(|(begin, _)| *begin <= end) {
            best = best.max(drained(*begin) - filled(begun));
            begun += u64::from(*more);
            next += 1;
        }
        ended += u64::from(permits);
        highest = highest.max(best.saturating_add(filled(ended) - drained(end)));
    }
    highest.unsigned_abs().div_ceil(per.as_nanos().max(1)) as u64
}

/// Describes a window with more permits than the quota allows.
pub(super) fn describe(quota: Quota, arrivals: &[Arrival], permits: u64, start: Instant) -> String {
    const SHOWN: usize = 20;
    let length = quota.window();
    let first = arrivals.iter().map(|arrival| arrival.earliest).min().unwrap_or(start);
    let mut times = BTreeMap::<_, u64>::new();
    for Arrival { earliest, latest, permits } in arrivals {
        if *earliest >= start && latest.duration_since(start) <= length {
            *times.entry((*earliest - start, *latest - start)).or_default() += u64::from(*permits);
        }
    }
    let mut text = format!(
        "{permits} permits in a window of {length:?} including both ends, but the quota allows {}: {quota}\n\
         the window starts {:?} after the first of {} arrivals\n\
         arrivals in the window, by the time since its start:",
        quota.limit(),
        start - first,
        arrivals.len(),
    );
    for ((earliest, latest), permits) in times.iter().take(SHOWN) {
        let until = if latest > earliest { format!(" to {latest:?}") } else { String::new() };
        let count = if *permits > 1 { format!(" ({permits})") } else { String::new() };
        text += &format!("\n  {earliest:?}{until}{count}");
    }
    if times.len() > SHOWN {
        text += &format!("\n  and at {} later times", times.len() - SHOWN);
    }
    text
}
