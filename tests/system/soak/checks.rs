//! The ledger must balance. Each line here is a promise.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use http::Method;
use tower_outbound::test_util::{self, Arrivals};

use super::{
    ledger::{Arrival, Asked, Deed, Ledger, instant},
    listener,
    site::{MARGIN, SHARED, SITES, quotas},
};

/// What is wrong; nothing, if all is well.
pub(crate) fn all(ledger: &Ledger) -> Vec<String> {
    let mut wrongs = ledger.wrongs.lock().unwrap().clone();
    wrongs.extend(calls(ledger));
    wrongs.extend(duplicates(ledger));
    wrongs.extend(reports(ledger));
    wrongs.extend((0..SITES).flat_map(|site| windows(ledger, site)));
    wrongs.extend(early(ledger));
    wrongs.extend(listener::found());
    wrongs
}

/// Every call ended once: by the callers' count, and by the log's.
fn calls(ledger: &Ledger) -> Vec<String> {
    let started = ledger.started.load(Relaxed);
    let ends = ledger.ends.lock().unwrap();
    let ended: u64 = ends.values().sum();
    let told = ended - ends.get("cancelled").copied().unwrap_or(0);
    let log = [&listener::OPENED, &listener::CLOSED, &listener::LINES].map(|count| count.swap(0, Relaxed));
    let mut wrongs = vec![];
    if started != ended {
        wrongs.push(format!("{started} calls began, and {ended} ended"));
    }
    if log != [started, started, told] {
        let [opened, closed, lines] = log;
        wrongs.push(format!(
            "{started} calls, {told} of them to their end: {opened} spans, {closed} of them closed, {lines} lines"
        ));
    }
    let odd: Vec<_> =
        ends.keys().filter(|end| end.contains("of no kind") || end.contains("invalid")).collect();
    if !odd.is_empty() {
        wrongs.push(format!("{odd:?}"));
    }
    wrongs
}

fn by_call(arrivals: &[Arrival]) -> BTreeMap<u64, Vec<&Arrival>> {
    let mut calls: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for arrival in arrivals {
        calls.entry(arrival.call).or_default().push(arrival);
    }
    calls
}

/// A POST that may have been processed comes once, unless it has a key by which its server knows it again.
fn duplicates(ledger: &Ledger) -> Vec<String> {
    let arrivals = ledger.arrivals.lock().unwrap();
    let mut wrongs = vec![];
    for (call, all) in by_call(&arrivals) {
        let sites: BTreeSet<_> = all.iter().map(|arrival| arrival.site).collect();
        let keys: BTreeSet<_> = all.iter().map(|arrival| &arrival.idempotency_key).collect();
        if sites.len() > 1 || keys.len() > 1 {
            wrongs.push(format!("call {call} came to sites {sites:?}, with the idempotency keys {keys:?}"));
        }
        let is_once = all[0].method == Method::POST && all[0].idempotency_key.is_none();
        let processed = all.iter().filter(|arrival| arrival.may_be_processed).count();
        if is_once && processed > 1 {
            wrongs.push(format!("POST {call} came {processed} times: {all:?}"));
        }
    }
    wrongs
}

/// What reports say of attempts is what servers saw: no answer that was not given, and nothing that came is left out.
fn reports(ledger: &Ledger) -> Vec<String> {
    let arrivals = ledger.arrivals.lock().unwrap();
    let calls = by_call(&arrivals);
    let ended = ledger.ended.lock().unwrap();
    let mut wrongs = vec![];
    for ended in &*ended {
        let came = calls.get(&ended.call).map_or(&[][..], Vec::as_slice);
        let maybe = came.iter().filter(|arrival| arrival.may_be_processed).count();
        // Not of those that were answered by a 401: that is an answer, and counts among them.
        if ended.answers > came.len() || maybe > ended.maybe_sent {
            wrongs.push(format!("{ended:?}, and at the server {came:?}"));
        }
    }
    wrongs
}

/// Lists windows with more requests than the quota: than the larger quota over the whole run, and than the quota in
/// force during a stretch without a change.
///
/// A quarter of the margin covers the network. A request that took longer on a busy machine is not counted, because the
/// quota guarantees nothing for it. The limiter enforces the other quarters.
fn windows(ledger: &Ledger, site: usize) -> Vec<String> {
    let arrivals = ledger.arrivals.lock().unwrap();
    let in_time = arrivals
        .iter()
        .filter(|arrival| arrival.site == site)
        .filter(|arrival| Duration::from_nanos(arrival.at.saturating_sub(arrival.left)) <= MARGIN / 4);
    let in_time: Vec<_> = in_time.collect();
    let noted = |from: u64, to: u64| -> Arrivals {
        let some = in_time.iter().filter(|arrival| (from..=to).contains(&arrival.at));
        some.map(|arrival| test_util::Arrival::from(instant(arrival.at)).with_permits(arrival.cost)).collect()
    };
    let deeds = ledger.deeds.lock().unwrap();
    let changes = deeds.iter().filter_map(|deed| match deed {
        Deed::Quota { site: changed, at, limit } if *changed == site => Some((*at, *limit)),
        _ => None,
    });
    let changes: Vec<_> = changes.collect();
    let [_, large, calm] = quotas(site);
    let calmed = changes.iter().find(|(_, limit)| *limit == calm.limit()).map_or(u64::MAX, |(at, _)| *at);

    let mut wrongs = vec![];
    let mut check = |from: u64, to: u64, limit: u32| {
        let most = noted(from, to).most_in(large.window());
        if most > u64::from(limit) {
            wrongs.push(format!(
                "{most} permits in a window at site {site}, of {limit}, between {from} and {to}"
            ));
        }
        most
    };
    let most = check(0, calmed, large.limit());
    let mut fullest = 0;
    for (number, (at, limit)) in changes.iter().enumerate() {
        // What was granted before the change has come by then.
        let from = at.saturating_add(u64::try_from(MARGIN.as_nanos()).unwrap());
        let to = changes.get(number + 1).map_or(u64::MAX, |(at, _)| *at);
        if from < to {
            fullest = fullest.max(check(from, to, *limit) * 100 / u64::from(*limit));
        }
    }
    let all = arrivals.iter().filter(|arrival| arrival.site == site).count();
    println!(
        "  site {site}: {all} arrivals, {} of them within a quarter of the margin, {most} at most in a window of {}, \
         {fullest} % of the quota in a stretch",
        in_time.len(),
        large.limit(),
    );
    wrongs
}

/// Nothing has left after the client had heard that it may not, and before it may again.
///
/// On the site that two threads share, what has its permit on the one is stamped a moment later, while the other hears.
fn early(ledger: &Ledger) -> Vec<String> {
    let arrivals = ledger.arrivals.lock().unwrap();
    let (deeds, asked) = (ledger.deeds.lock().unwrap(), ledger.asked.lock().unwrap());
    let mut wrongs = vec![];
    let mut kept = 0;
    for Asked { site, at, length, by, heard } in &*asked {
        let Some(heard) = heard else { continue };
        let resumed = deeds.iter().filter_map(|deed| match deed {
            Deed::Resumed { site: resumed, at } if resumed == site && at >= heard => Some(*at),
            _ => None,
        });
        let end = at.saturating_add(u64::try_from(length.as_nanos()).unwrap());
        let end = resumed.min().unwrap_or(u64::MAX).min(end);
        let moment = if *site == SHARED { 500_000_000 } else { 0 };
        let begin = heard.saturating_add(moment);
        kept += u32::from(begin < end);
        let early = arrivals.iter().filter(|it| it.site == *site && begin < it.left && it.left < end);
        for early in early {
            wrongs.push(format!("left early at site {site}: {by} heard at {heard}, until {end}, {early:?}"));
        }
    }
    println!("  {} pauses asked for, {kept} of them heard", asked.len());
    wrongs
}
