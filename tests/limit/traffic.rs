//! Simulates callers that always have a request to send, through a limiter and a network to a scripted server.

use std::{collections::BTreeMap, time::Duration};

use http::{HeaderMap, Request, StatusCode};
use tokio::time::Instant;
use tower::ServiceExt;
use tower_outbound::{
    Body,
    limit::{Limiter, Permit, PermitRequest, ResponseInfo},
    test_util::{ScriptedService, ServerLimit},
};

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

enum Event {
    Arrival(Permit<'static>),
    Response(Permit<'static>, StatusCode, HeaderMap),
}

/// The requests and responses in transit, ordered by their time of arrival.
struct Network {
    hop: (Duration, Duration),
    random: u64,
    number: u64,
    events: BTreeMap<(Instant, u64), Event>,
}

impl Network {
    fn send(&mut self, event: Event) {
        let (shortest, longest) = self.hop;
        // The multiplier and the increment of a linear congruential generator.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let fraction = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
        self.number += 1;
        let at = Instant::now() + shortest + (longest - shortest).mul_f64(fraction);
        self.events.insert((at, self.number), event);
    }

    fn next(&self) -> Option<Instant> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    fn arrived(&mut self) -> Option<Event> {
        self.next().filter(|at| *at <= Instant::now())?;
        self.events.pop_first().map(|(_, event)| event)
    }
}

impl Traffic {
    /// Creates traffic of 64 callers. Each request and each response takes 20 ms plus up to `jitter`.
    pub(crate) fn new(jitter: Duration, seed: u64) -> Self {
        let delay = Duration::from_millis(20);
        Self { callers: 64, hop: (delay, delay + jitter), seed }
    }

    /// Sends requests for `duration`. Returns the server's counts at the end of each `step`. Asserts that no permit is
    /// granted before the end of a requested delay.
    ///
    /// All callers share one task, which takes half the time of one task per caller.
    pub(crate) async fn run<L: Limiter>(
        self,
        limiter: &L,
        server: &ServerLimit,
        duration: Duration,
        step: Duration,
    ) -> Vec<Count> {
        let limit = server.clone();
        let api = ScriptedService::from_fn(move |_| limit.respond());
        let start = Instant::now();
        let mut network = Network { hop: self.hop, random: self.seed, number: 0, events: BTreeMap::new() };
        let (mut free, mut counts, mut acquire) = (self.callers, Vec::new(), None);
        let mut paused_until = start;
        loop {
            let counted = start + step * (counts.len() as u32 + 1);
            if acquire.is_none() && free > 0 {
                free -= 1;
                acquire = Some(limiter.acquire_with(&PermitRequest::new()));
            }
            let next = network.next().map_or(counted, |at| at.min(counted));
            let granted = async {
                match &mut acquire {
                    Some(acquire) => acquire.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(next) => match network.arrived() {
                    Some(Event::Arrival(permit)) => {
                        let response = api.clone().oneshot(Request::new(Body::empty())).await.unwrap();
                        network.send(Event::Response(permit, response.status(), response.headers().clone()));
                    }
                    Some(Event::Response(permit, status, headers)) => {
                        let response = ResponseInfo::new(status, &headers);
                        let pause = response.requested_pause().unwrap_or_default();
                        paused_until = paused_until.max(Instant::now() + pause);
                        permit.complete(&response);
                        free += 1;
                    }
                    None => {
                        counts.push(Count { accepted: server.accepted(), rejected: server.rejected() });
                        if counted >= start + duration {
                            return counts;
                        }
                    }
                },
                permit = granted => {
                    acquire = None;
                    assert!(Instant::now() >= paused_until, "granted during a requested delay");
                    let mut permit = permit.unwrap();
                    permit.mark_sent(Instant::now());
                    network.send(Event::Arrival(permit));
                }
            }
        }
    }
}
