//! Computes the figures of a run for the table, the charts and the plot.

use std::time::Duration;

use tower_outbound::Quota;

use crate::simulation::{LOAD_WINDOWS, Run, length};

/// The figures of a whole run.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) sent: usize,
    pub(crate) accepted: usize,
    /// The most requests in any window.
    pub(crate) most: usize,
    /// The accepted requests in percent of the quota.
    pub(crate) used: f64,
    /// The median, the 95th percentile and the longest wait in the limiter.
    pub(crate) waits: [Duration; 3],
}

/// The figures of a part of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Column {
    /// The most requests in any window that ends in this part.
    pub(crate) most: usize,
    /// The requests that the server rejected from the start of the run to the end of this part.
    pub(crate) rejected: usize,
    /// The longest wait of the requests that left in this part.
    pub(crate) wait: Option<Duration>,
}

impl Run {
    pub(crate) fn summary(&self, quota: Quota) -> Summary {
        let accepted = self.requests.iter().filter(|sent| sent.is_accepted).count();
        let mut waits: Vec<_> = self.requests.iter().map(|sent| sent.wait).collect();
        waits.sort_unstable();
        let percentile = |percent: usize| {
            let rank = (waits.len() * percent).div_ceil(100);
            waits.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Summary {
            sent: self.requests.len(),
            accepted,
            most: self.window_counts(quota).map(|(_, count)| count).max().unwrap_or(0),
            used: accepted as f64 * 100.0 / f64::from(quota.limit() * LOAD_WINDOWS),
            waits: [50, 95, 100].map(percentile),
        }
    }

    /// Divides the run into `count` parts of equal length.
    pub(crate) fn columns(&self, quota: Quota, count: usize) -> Vec<Column> {
        let mut columns = vec![Column::default(); count];
        let width = length(quota).as_secs_f64() / count as f64;
        let index = |at: Duration| ((at.as_secs_f64() / width) as usize).min(count - 1);
        for sent in &self.requests {
            let column = &mut columns[index(sent.at)];
            column.wait = column.wait.max(Some(sent.wait));
            column.rejected += usize::from(!sent.is_accepted);
        }
        // `current` is the number of requests in the window that ends at the current time.
        let (mut current, mut rejected) = (0, 0);
        let mut changes = self.window_counts(quota).peekable();
        for (position, column) in columns.iter_mut().enumerate() {
            column.most = current;
            while let Some((_, count)) = changes.next_if(|(at, _)| index(*at) <= position) {
                current = count;
                column.most = column.most.max(count);
            }
            rejected += column.rejected;
            column.rejected = rejected;
        }
        columns
    }

    /// Returns each time at which the number of requests in the last window changes, with the new number. A request
    /// leaves the window exactly one window after it was sent.
    fn window_counts(&self, quota: Quota) -> impl Iterator<Item = (Duration, usize)> {
        let sent = self.requests.iter().map(|sent| (sent.at, 1));
        let expired = self.requests.iter().map(|sent| (sent.at + quota.window(), -1));
        let mut changes: Vec<(Duration, isize)> = sent.chain(expired).collect();
        // A request that leaves the window precedes a request that is sent at the same time.
        changes.sort_unstable();
        let end = length(quota);
        changes.into_iter().take_while(move |(at, _)| *at < end).scan(0, |count: &mut usize, (at, change)| {
            *count = count.saturating_add_signed(change);
            Some((at, *count))
        })
    }
}
