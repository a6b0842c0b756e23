//! Computes the figures of a run for the table, the charts and the plot. A run can have too many requests to store.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::{
    arguments::Arguments,
    simulation::{Sent, nanos},
    strategies::Strategy,
};

/// The figures of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) strategy: &'static Strategy,
    pub(crate) sent: u64,
    /// The most requests in flight.
    pub(crate) in_flight: usize,
    /// The tokens of the accepted requests, if a quota limits them.
    pub(crate) tokens: Option<Tokens>,
    /// The figures of each part of the run. All parts have the same length.
    pub(crate) columns: Vec<Column>,
    /// The number of parts.
    count: usize,
    /// How many requests waited this long in the limiter.
    waits: BTreeMap<u64, u64>,
    /// The times of the requests in the last window.
    recent: VecDeque<u64>,
    window: u64,
    length: u64,
}

/// The figures of a part of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Column {
    /// The most requests in any window that ends in this part.
    pub(crate) most: usize,
    /// The requests that the server rejected from the start of the run to the end of this part.
    pub(crate) rejected: u64,
    /// The longest wait of the requests that left in this part.
    pub(crate) wait: Option<Duration>,
}

/// The tokens of the accepted requests.
#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) used: u64,
    /// The most tokens of the requests that left in any window.
    pub(crate) most: u64,
    /// The times and the tokens of the requests in the last window, and the sum of these tokens.
    recent: VecDeque<(u64, u32)>,
    held: u64,
    window: u64,
}

impl Tokens {
    fn new(window: Duration) -> Self {
        Self { used: 0, most: 0, recent: VecDeque::new(), held: 0, window: nanos(window) }
    }

    fn add(&mut self, sent: Sent) {
        while let Some((_, tokens)) = self.recent.front().filter(|(at, _)| at + self.window <= sent.at) {
            self.held -= u64::from(*tokens);
            self.recent.pop_front();
        }
        self.recent.push_back((sent.at, sent.tokens));
        self.used += u64::from(sent.tokens);
        self.held += u64::from(sent.tokens);
        self.most = self.most.max(self.held);
    }
}

impl Run {
    /// Divides the run into `count` parts.
    pub(crate) fn new(strategy: &'static Strategy, arguments: &Arguments, count: usize) -> Self {
        Self {
            strategy,
            sent: 0,
            in_flight: 0,
            tokens: arguments.tokens.map(|tokens| Tokens::new(tokens.quota.window())),
            columns: vec![Column::default()],
            count,
            waits: BTreeMap::new(),
            recent: VecDeque::new(),
            window: nanos(arguments.quota.window()),
            length: nanos(arguments.length()),
        }
    }

    /// Adds a request. Requests are added in the order in which they left the limiter.
    pub(crate) fn record(&mut self, sent: Sent, is_accepted: bool) {
        self.proceed(sent.at);
        // A request leaves the window exactly one window after it was sent, before a request that is sent then.
        self.forget(sent.at + 1);
        self.recent.push_back(sent.at);
        self.sent += 1;
        self.in_flight = self.in_flight.max(sent.in_flight);
        if let Some(tokens) = self.tokens.as_mut().filter(|_| is_accepted) {
            tokens.add(sent);
        }
        *self.waits.entry(rounded(sent.wait)).or_default() += 1;
        let (most, wait) = (self.recent.len(), Duration::from_nanos(sent.wait));
        if let Some(column) = self.columns.last_mut() {
            column.most = column.most.max(most);
            column.rejected += u64::from(!is_accepted);
            column.wait = column.wait.max(Some(wait));
        }
    }

    /// Adds the parts up to the end of the run.
    pub(crate) fn finish(mut self) -> Self {
        self.proceed(self.length - 1);
        self
    }

    /// Adds the parts up to the one that contains this time.
    fn proceed(&mut self, at: u64) {
        loop {
            let end = u128::from(self.length) * self.columns.len() as u128 / self.count as u128;
            let Some(end) = u64::try_from(end).ok().filter(|end| *end <= at) else { break };
            self.forget(end);
            let rejected = self.rejected();
            self.columns.push(Column { most: self.recent.len(), rejected, wait: None });
        }
    }

    /// Removes the requests that leave the window before this time.
    fn forget(&mut self, at: u64) {
        while self.recent.front().is_some_and(|sent| sent + self.window < at) {
            self.recent.pop_front();
        }
    }

    pub(crate) fn rejected(&self) -> u64 {
        self.columns.last().map_or(0, |column| column.rejected)
    }

    /// Returns the most requests in any window.
    pub(crate) fn most(&self) -> usize {
        self.columns.iter().map(|column| column.most).max().unwrap_or(0)
    }

    /// Returns the wait that at least this percentage of the requests did not exceed.
    pub(crate) fn wait(&self, percent: u64) -> Duration {
        let mut rank = (self.sent * percent).div_ceil(100);
        let wait = self.waits.iter().find(|(_, count)| {
            let is_reached = rank <= **count;
            rank = rank.saturating_sub(**count);
            is_reached
        });
        wait.map_or(Duration::ZERO, |(wait, _)| Duration::from_nanos(*wait))
    }
}

/// Rounds a wait to its 20 most significant bits, so that few different waits are stored.
fn rounded(wait: u64) -> u64 {
    let bits = (u64::BITS - wait.leading_zeros()).saturating_sub(20);
    wait >> bits << bits
}
