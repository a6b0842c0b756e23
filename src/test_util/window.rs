//! Finds the window with the most arrivals.

use std::{fmt, time::Duration};

use super::arrival::Arrival;
use crate::{clock::Instant, policy::Quota};

/// Returns the window of this length with the most permits, including both of its ends, or `None` without arrivals.
///
/// An arrival counts in the windows that contain both its earliest and its latest time.
pub(super) fn fullest(arrivals: &[Arrival], length: Duration) -> Option<Fullest> {
    let within = |end: Instant, start: Instant| end.duration_since(start) <= length;
    // An arrival that is longer than the window is in none. Any other that began before a window ends within it. So a
    // window contains those that ended by its end, minus those that began before it.
    let fitting = arrivals.iter().filter(|arrival| within(arrival.latest, arrival.earliest));
    let (mut begins, mut ends): (Vec<_>, Vec<_>) = fitting
        .map(|Arrival { earliest, latest, permits }| ((*earliest, *permits), (*latest, *permits)))
        .unzip();
    begins.sort_unstable();
    ends.sort_unstable();

    let mut fullest: Option<Fullest> = None;
    let (mut begun, mut ended, mut next) = (0_u64, 0_u64, 0);
    for (start, permits) in begins {
        while let Some((_, more)) = ends.get(next).filter(|(end, _)| within(*end, start)) {
            ended += u64::from(*more);
            next += 1;
        }
        let permits_in_it = ended - begun;
        if fullest.as_ref().is_none_or(|fullest| fullest.permits < permits_in_it) {
            fullest = Some(Fullest { permits: permits_in_it, start });
        }
        begun += u64::from(permits);
    }
    fullest
}

#[derive(Debug)]
pub(super) struct Fullest {
    pub(super) permits: u64,
    /// An arrival. Any other window can be moved to start with one, and loses none.
    pub(super) start: Instant,
}

/// Describes a window above its quota.
pub(super) struct Overrun<'a> {
    pub(super) quota: Quota,
    pub(super) arrivals: &'a [Arrival],
    pub(super) fullest: Fullest,
}

impl fmt::Display for Overrun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 20;
        let Self { quota, arrivals, fullest: Fullest { permits, start } } = self;
        let length = quota.window();
        let first = arrivals.iter().map(|arrival| arrival.earliest).min().unwrap_or(*start);
        writeln!(
            f,
            "{permits} permits in one window of {length:?}, both ends counted, where {} are allowed: {quota}",
            quota.limit(),
        )?;
        writeln!(f, "the window begins {:?} after the first of {} arrivals", *start - first, arrivals.len())?;
        write!(f, "what arrived in it, by the time since its begin:")?;

        let mut inside: Vec<_> = arrivals
            .iter()
            .filter(|arrival| arrival.earliest >= *start && arrival.latest.duration_since(*start) <= length)
            .map(|arrival| (arrival.earliest - *start, arrival.latest - *start, arrival.permits))
            .collect();
        inside.sort_unstable();
        let together: Vec<_> = inside.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).collect();
        for same in together.iter().take(SHOWN) {
            let (earliest, latest, _) = same[0];
            write!(f, "\n  {earliest:?}")?;
            if latest > earliest {
                write!(f, " to {latest:?}")?;
            }
            let permits: u64 = same.iter().map(|(_, _, permits)| u64::from(*permits)).sum();
            if permits > 1 {
                write!(f, " ({permits})")?;
            }
        }
        match together.len().checked_sub(SHOWN) {
            Some(more) if more > 0 => write!(f, "\n  and at {more} later times"),
            _ => Ok(()),
        }
    }
}
