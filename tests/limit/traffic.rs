//! Simulates callers that always have a request to send, through a limiter and a network to a scripted server.

use super::*;

/// Returns whether the cases run that take seconds without optimisation: if the environment variable `ADAPTIVE_CASES` is
/// set.
pub(crate) fn runs_slow_cases() -> bool {
    std::env::var_os("ADAPTIVE_CASES").is_some()
}

/// Returns all `cases` if the slow cases run, otherwise the first few.
pub(crate) fn some<T>(cases: &[T], few: usize) -> &[T] {
    if runs_slow_cases() { cases } else { &cases[..few] }
}

/// The callers, and the network between them and the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
    pub(crate) callers: usize,
    /// The shortest and the longest time that a request or a response takes.
    pub(crate) hop: (Duration, Duration),
    /// Determines all random numbers.
    pub(crate) seed: u64,
}

/// The total numbers of requests that a server has accepted and rejected at one point in time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) accepted: u64,
    pub(crate) rejected: u64,
}

impl Traffic {
    /// Creates traffic of 64 callers. Each request and each response takes 20 ms plus up to `jitter`.
    pub(crate) fn new(jitter: Duration, seed: u64) -> Self {
        Self { callers: 64, hop: (millis(20), millis(20) + jitter), seed }
    }

    /// Sends requests for `duration`. Returns the server's counts at the end of each `step`. Asserts that no permit is
    /// granted before the end of a requested delay.
    ///
    /// All callers share one task, which takes half the time of one task per caller.
    pub(crate) async fn run(
        mut self,
        limiter: &LocalLimiter,
        server: &ServerLimit,
        duration: Duration,
        step: Duration,
    ) -> Vec<Count> {
        let limit = server.clone();
        let api = ScriptedService::from_fn(move |_| limit.respond());
        let start = Instant::now();
        let (mut counts, mut acquire, mut paused_until) = (Vec::new(), None, start);
        // The requests, and the responses with their status and headers, in the order of their arrival.
        let (mut network, mut number) = (BTreeMap::new(), 0);
        let mut send = |network: &mut BTreeMap<_, _>,
                        event: (Permit<'static>, Option<(StatusCode, HeaderMap)>)| {
            // The multiplier and the increment of a linear congruential generator.
            self.seed =
                self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let fraction = (self.seed >> 11) as f64 / (1_u64 << 53) as f64;
            number += 1;
            let delay = self.hop.0 + (self.hop.1 - self.hop.0).mul_f64(fraction);
            network.insert((Instant::now() + delay, number), event);
        };
        loop {
            let counted = start + step * (counts.len() as u32 + 1);
            if acquire.is_none() && self.callers > 0 {
                self.callers -= 1;
                acquire = Some(limiter.acquire());
            }
            let next = network
                .first_key_value()
                .map_or(counted, |((at, _), _): (&(Instant, u64), _)| counted.min(*at));
            tokio::select! {
                biased;
                () = sleep_until(next) => {
                    let arrived = network.first_entry().filter(|first| first.key().0 <= Instant::now());
                    match arrived.map(|first| first.remove()) {
                        Some((permit, None)) => {
                            let response = api.clone().oneshot(Request::new(Body::empty())).await.unwrap();
                            let response = (response.status(), response.headers().clone());
                            send(&mut network, (permit, Some(response)));
                        }
                        Some((permit, Some((status, headers)))) => {
                            let response = ResponseInfo::new(status, &headers);
                            let pause = response.requested_pause().unwrap_or_default();
                            paused_until = paused_until.max(Instant::now() + pause);
                            permit.complete(&response);
                            self.callers += 1;
                        }
                        None => {
                            counts.push(Count { accepted: server.accepted(), rejected: server.rejected() });
                            if counted >= start + duration {
                                return counts;
                            }
                        }
                    }
                }
                permit = async { acquire.as_mut().unwrap().await }, if acquire.is_some() => {
                    acquire = None;
                    assert!(Instant::now() >= paused_until, "granted during a requested delay");
                    let mut permit = permit.unwrap();
                    permit.mark_sent(Instant::now());
                    send(&mut network, (permit, None));
                }
            }
        }
    }
}
