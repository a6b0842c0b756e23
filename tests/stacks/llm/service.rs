//! The settings of the programs, which the crate's guide shows.

use std::time::Duration;

use tower_outbound::{
    ApiKey, Client, InvalidConfig, Quota,
    call::RequestHead,
    limit::{Amounts, Metered, Unit},
    stack::StackBuilder,
};

pub fn service(base_url: &str, key: ApiKey) -> Result<StackBuilder, InvalidConfig> {
    let quotas = [Quota::per_minute(500)?, Quota::per_minute(30_000)?.with_unit(Unit::Tokens)?];
    let service = Client::builder(base_url)?
        .with_api_key(key)
        .with_quotas(quotas)
        .with_limit(|limit| limit.with_estimate(estimate).with_meter(|_status, _headers| usage()))
        // A response may take 10 minutes. Its head must arrive within 60 s. A body that stalls for 30 s fails.
        .with_total_timeout(Duration::from_secs(600))
        .with_attempt_timeout(Duration::from_secs(60))
        .with_body_idle_timeout(Duration::from_secs(30));
    Ok(service)
}

/// A token has about four bytes, and the response at most 1,000 tokens.
fn estimate(head: RequestHead<'_>) -> Amounts {
    let tokens = head.body_size().unwrap_or(4_000) / 4 + 1_000;
    Amounts::of(Unit::Tokens, tokens.try_into().unwrap_or(u32::MAX))
}

/// Reads `"total_tokens":1234` from the body, even if two parts split it.
fn usage() -> impl FnMut(&[u8]) -> Option<Metered> + Send + Sync {
    const NAME: &[u8] = b"\"total_tokens\":";
    let mut recent: Vec<u8> = Vec::new();
    move |data| {
        recent.extend_from_slice(data);
        let found = recent.windows(NAME.len()).rposition(|part| part == NAME);
        let tokens = found.and_then(|at| number(recent.get(at + NAME.len()..)?));
        recent.drain(..recent.len().saturating_sub(64));
        // The service reports the number once, at the end.
        tokens.map(|tokens| Metered::Final(Amounts::of(Unit::Tokens, tokens)))
    }
}

/// Reads a number that another character follows.
fn number(data: &[u8]) -> Option<u32> {
    let data = data.trim_ascii_start();
    let end = data.iter().position(|byte| !byte.is_ascii_digit())?;
    std::str::from_utf8(data.get(..end)?).ok()?.parse().ok()
}
