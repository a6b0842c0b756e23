//! Independent clients that share one quota and know nothing of each other, as in arXiv 2510.04516, "Rethinking HTTP API
//! Rate Limiting: A Client-Side Approach". Each request is retried until the server accepts it.

use super::*;

use LimitHeaders::{None, OpenAi, RetryAfter, XRateLimit};

const LIMIT: u32 = 100;
const WINDOW: Duration = Duration::from_secs(6);
/// The requests arrive in this part of the time that the quota needs.
const LOAD: f64 = 1.2;

/// How a client decides when to send.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Strategy {
    /// One adaptive limiter for each client.
    Adaptive(LimitHeaders),
    /// A random delay below 1 s after the first rejection, which doubles with each further one up to a minute.
    Backoff,
    /// The same, plus the rest of the window: the client knows the server's window.
    WindowBackoff,
}

/// A generator of random numbers between 0 and 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Sends all requests. Returns the rejected ones per 100 requests, and by how many percent the last one was later than
/// the quota allows.
async fn run(clients: u64, requests: u64, strategy: Strategy, seed: u64) -> (f64, f64) {
    let headers = if let Strategy::Adaptive(headers) = strategy { headers } else { None };
    let (server, start) = (ServerLimit::sliding_window(LIMIT, WINDOW).with_headers(headers), Instant::now());
    let api = ScriptedService::from_fn({
        let server = server.clone();
        move |_| server.respond().with_delay(millis(40))
    });
    let ideal = WINDOW.as_secs_f64() * requests as f64 / f64::from(LIMIT);
    let mut calls = JoinSet::new();
    for client in 0..clients {
        let mut random = Random(seed * 1_000 + client);
        let limiter = LocalLimiter::adaptive([]);
        let mut arrival = Duration::ZERO;
        for number in 0..requests / clients {
            let mean = ideal / LOAD * clients as f64 / requests as f64;
            arrival += Duration::from_secs_f64(-mean * (1.0 - random.next()).ln());
            let (arrival, api, limiter) = (arrival, api.clone(), limiter.clone());
            let mut random = Random(seed ^ (client << 32 | number));
            calls.spawn(async move {
                sleep(arrival).await;
                for rejections in 0.. {
                    let permit = match strategy {
                        Strategy::Adaptive(_) => Some(limiter.acquire().await.unwrap()),
                        _ => Option::None,
                    };
                    let response = api.clone().oneshot(Request::new(Body::empty())).await.unwrap();
                    if let Some(permit) = permit {
                        permit.complete(&ResponseInfo::new(response.status(), response.headers()));
                    }
                    if response.status() == 200 {
                        break;
                    }
                    let backoff = seconds(1_u64 << rejections.min(6)).min(seconds(60)).mul_f64(random.next());
                    match strategy {
                        Strategy::Adaptive(_) => {}
                        Strategy::Backoff => sleep(backoff).await,
                        Strategy::WindowBackoff => sleep(WINDOW.mul_f64(random.next()) + backoff).await,
                    }
                }
            });
        }
    }
    calls.join_all().await;
    let late = 100.0 * (start.elapsed().as_secs_f64() / ideal - 1.0);
    (100.0 * server.rejected() as f64 / requests as f64, late)
}

/// If `ADAPTIVE_CASES` is `all`, all numbers of clients, with 5,000 requests and three seeds. If it is `ci`, also a few
/// and many clients. With many clients, a client waits for its share longer than the quota requires, because it only
/// sees its own rejections.
#[tokio::test(start_paused = true)]
async fn independent_adaptive_clients_cause_few_rejections() {
    let (all, requests, seeds): (&[u64], _, _) = match std::env::var("ADAPTIVE_CASES").as_deref() {
        Ok("all") => (&[2, 5, 10, 20, 50, 100], 5_000, 3),
        Ok(_) => (&[2, 10, 50], 1_000, 1),
        Err(_) => (&[10], 1_000, 1),
    };
    for clients in all.iter().copied() {
        let run = async |strategy| {
            let mut runs = Vec::new();
            for seed in 1..=seeds {
                runs.push(run(clients, requests, strategy, seed).await);
            }
            let mean = |of: fn(&(f64, f64)) -> f64| runs.iter().map(of).sum::<f64>() / runs.len() as f64;
            let (rejected, late) = (mean(|run| run.0), mean(|run| run.1));
            println!("{clients} clients, {strategy:?}: {rejected:.1} rejected per 100, {late:.0} % late");
            rejected
        };
        let backoff = [run(Strategy::Backoff).await, run(Strategy::WindowBackoff).await];
        for headers in [None, RetryAfter, XRateLimit, OpenAi] {
            let adaptive = run(Strategy::Adaptive(headers)).await;
            let most = match headers {
                // The delays have milliseconds, so that all clients send their next request at the same time.
                OpenAi if clients > 20 => continue,
                OpenAi => 0.5,
                _ if clients > 20 => 2.0,
                _ => 0.2,
            };
            let text = format!("{clients} clients, {headers:?}: {adaptive} {backoff:?}");
            assert!(adaptive < backoff[0].min(backoff[1]) * most, "{text}");
        }
    }
}
