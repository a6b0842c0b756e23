//! Reads quotas in structured fields, the header `RateLimit` of the drafts.

use std::{cell::LazyCell, collections::HashMap, time::Duration};

use http::HeaderValue;

use super::{
    Hit, lines, policy,
    quota_headers::{Field, Row},
    remaining::{QuotaName, Remaining, Unit},
    windows,
};
use crate::policy::header_values::{Text, members, name, natural};

/// What a policy states about its quota.
#[derive(Debug, Clone, Copy)]
struct Policy {
    limit: Option<u64>,
    window: Option<Duration>,
    /// `None` if the unit is unknown.
    unit: Option<Unit>,
}

/// Reads a List as in drafts -10 and -11, otherwise a Dictionary as in draft -07. If a new draft renames a parameter,
/// add another form.
pub(super) fn read(row: &Row<'_>, hits: &[Hit<'_>]) -> Option<Vec<Remaining>> {
    items(row, hits).filter(|list| !list.is_empty()).or_else(|| dictionary(row, hits))
}

/// Reads a List with one Item for each policy. The limit, the window and the unit are parameters in the header of the
/// policies.
fn items(row: &Row<'_>, hits: &[Hit<'_>]) -> Option<Vec<Remaining>> {
    let policies = LazyCell::new(|| policies(lines(hits, Field::Policies), row.unit));
    let mut list = Vec::new();
    members(lines(hits, Field::Structured), |text| {
        let name = name(text.value()?)?;
        let [left, reset_after, partition] = parameters(text, ["r", "t", "pk"])?;
        let unknown = Policy { limit: None, window: None, unit: Some(row.unit) };
        let Policy { limit, window, unit } = policies.get(name).copied().unwrap_or(unknown);
        let is_estimate = reset_after.is_none();
        let reset_after = match reset_after {
            Some(value) => Some(Duration::from_secs(natural(value)?)),
            None => window,
        };
        let left = left.map(natural);
        if let (Some(left), Some(reset_after), Some(unit)) = (left, reset_after, unit) {
            let policy = policy(name, partition.map(str::as_bytes));
            let name = QuotaName::of(name.trim_matches('"'), &row.name);
            let quota = Remaining::new(policy, name, unit, left?, reset_after);
            let (is_of_resource, is_beta) = (partition.is_some(), row.name.starts_with("beta-"));
            list.push(Remaining { is_of_resource, is_beta, is_estimate, limit, window, ..quota });
        }
        Some(())
    })?;
    Some(list)
}

/// Returns what the policies state, by their names. If the partitions of a policy have different limits or windows, the
/// lowest limit and the longest window are returned.
fn policies<'a>(lines: impl Iterator<Item = &'a HeaderValue>, unit: Unit) -> HashMap<&'a str, Policy> {
    let mut policies: HashMap<_, Policy> = HashMap::new();
    let read = members(lines, |text| {
        let name = name(text.value()?)?;
        let [window, limit, counted] = parameters(text, ["w", "q", "qu"])?;
        let known = policies.entry(name).or_insert(Policy { limit: None, window: None, unit: Some(unit) });
        match counted {
            None => {}
            Some("\"requests\"") => known.unit = known.unit.map(|_| Unit::Requests),
            Some("\"content-bytes\"") => known.unit = Some(Unit::Bytes),
            Some("\"concurrent-requests\"") => known.unit = Some(Unit::Concurrency),
            Some(_) => known.unit = None,
        }
        if let Some(window) = window {
            let window = natural(window).filter(|seconds| *seconds > 0)?;
            known.window = Some(Duration::from_secs(window)).max(known.window);
        }
        if let Some(limit) = limit.and_then(natural) {
            known.limit = Some(known.limit.map_or(limit, |known| known.min(limit)));
        }
        Some(())
    });
    read.map(|()| policies).unwrap_or_default()
}

/// Reads a Dictionary, which describes one policy without a name.
fn dictionary(row: &Row<'_>, hits: &[Hit<'_>]) -> Option<Vec<Remaining>> {
    let mut found = [None; 3];
    members(lines(hits, Field::Structured), |text| {
        let (key, value) = text.pair()?;
        while text.parameter()?.is_some() {}
        if let Some(place) = ["remaining", "reset", "limit"].iter().position(|name| key == *name) {
            found[place] = Some(value);
        }
        Some(())
    })?;
    let [left, reset_after, limit] = found;
    let limit = limit.and_then(natural);
    let window = limit.and_then(|limit| windows(lines(hits, Field::Policies)).get(&limit).copied());
    let (left, reset_after) = (natural(left?)?, Duration::from_secs(natural(reset_after?)?));
    let (policy, name) = (policy(&row.name, None), QuotaName::of_header(&row.name));
    Some(vec![Remaining { limit, window, ..Remaining::new(policy, name, row.unit, left, reset_after) }])
}

/// Parses the parameters of a List member. Returns the last value of each parameter in `names`.
pub(super) fn parameters<'a, const N: usize>(
    text: &mut Text<'a>,
    names: [&str; N],
) -> Option<[Option<&'a str>; N]> {
    let mut found = [None; N];
    while let Some((key, value)) = text.parameter()? {
        if let Some(place) = names.iter().position(|name| key == *name) {
            found[place] = Some(value);
        }
    }
    Some(found)
}
