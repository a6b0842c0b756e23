//! The clients, and the callers that use them.

use std::{collections::BTreeMap, error::Error as StdError, future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};
use tower::ServiceExt;
use tower_outbound::{
    Body, Client, ExponentialBackoff,
    attempt_span::AttemptSpanLayer,
    body::ReplayBody,
    call::RequestHead,
    client::Response,
    limit::{Joint, Keyed, LocalLimiter, Priority, Snapshot},
    retry::{Budget, RetryLayer},
    stack::{StackBuilder, TransportService},
    test_util,
    transport::{Transport, TransportConfig},
};

use super::{
    history::{Call, CallResult, History, Link, Pause, Permit},
    keys::{Keys, MARK},
    network::{Connector, OpenConnections, server_name},
    plan::{
        ATTEMPT_TIMEOUT, HEALED, IDLE_TIMEOUT, LOAD_ENDS, LONGEST_PAUSE, MAX_ATTEMPTS, MAX_PARTS, MAX_QUEUE,
        PARTS, Plan, Protocol, SERVERS, TOTAL_TIMEOUT,
    },
    rng::Rng,
    server::CERTIFICATE,
};

/// A call that takes this much longer than its time limit hangs.
const HANGS: Duration = Duration::from_secs(10);

/// A host with one transport for each protocol, and one client for each server.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) client: usize,
    pub(crate) plan: Arc<Plan>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) open: Arc<OpenConnections>,
    pub(crate) history: Arc<History>,
}

/// The client of one server.
#[derive(Clone)]
struct Api {
    link: Link,
    client: Client,
    snapshot: Arc<dyn Fn() -> Snapshot + Send + Sync>,
    parts: Keyed<u64>,
    /// Keeps the part 0 in use, so that its requests always find their limiter. The other parts stay in use for 10 s
    /// after a request without a response.
    _part: LocalLimiter,
    seed: u64,
    history: Arc<History>,
}

impl Host {
    /// Calls the servers until the load ends, then checks that everything works again and that nothing is left.
    pub(crate) async fn run(self) {
        let apis = self.apis();
        let mut callers = JoinSet::new();
        for api in &apis {
            for number in 0..self.plan.callers {
                callers.spawn(api.clone().call_repeatedly(self.plan.gap, number));
            }
        }
        while let Some(ended) = callers.join_next().await {
            if let Err(panic) = ended {
                self.history.violate(format_args!("client-{}: a caller panicked: {panic}", self.client));
            }
        }
        // The pauses of the limiters and the last timeouts end.
        sleep((HEALED + Duration::from_secs(LONGEST_PAUSE + 1)).saturating_sub(self.history.now())).await;
        for api in &apis {
            api.call_until_the_end().await;
        }
        self.check_that_nothing_is_left(apis).await;
    }

    async fn check_that_nothing_is_left(&self, apis: Vec<Api>) {
        // The pool looks for idle connections once in this time.
        sleep(IDLE_TIMEOUT * 2 + Duration::from_secs(1)).await;
        for api in apis {
            let Snapshot { queued, awaiting_response, .. } = (api.snapshot)();
            let open = self.open.count(api.link);
            if (queued, awaiting_response, open) != (0, 0, 0) {
                let left =
                    format!("{queued} queued, {awaiting_response} awaiting a response, {open} connections");
                self.history.violate(format_args!("{}: left at the end: {left}", api.link));
            }
        }
        sleep(IDLE_TIMEOUT).await;
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        if tasks > 0 {
            self.history.violate(format_args!("client-{}: {tasks} tasks left at the end", self.client));
        }
    }

    fn apis(&self) -> Vec<Api> {
        let mut transports = BTreeMap::new();
        let apis = (0..SERVERS).map(|server| {
            let protocol = self.plan.protocols[server];
            // Servers with the same protocol share a transport, which then has two origins.
            let transport =
                transports.entry(protocol as usize).or_insert_with(|| self.transport(protocol)).clone();
            self.api(Link { client: self.client, server }, transport)
        });
        apis.collect()
    }

    fn transport(&self, protocol: Protocol) -> Transport {
        let connector = Connector {
            client: self.client,
            max_connections: self.plan.max_connections,
            open: Arc::clone(&self.open),
            history: Arc::clone(&self.history),
        };
        let mut config = TransportConfig::new()
            .with_connect_timeout(Duration::from_secs(1))
            .with_idle_timeout(IDLE_TIMEOUT)
            .with_max_connections(self.plan.max_connections)
            .without_bundled_roots()
            .with_root_certificates(CERTIFICATE.cert.pem().as_bytes());
        if protocol == Protocol::Http2 {
            config = config.with_http2_prior_knowledge();
        }
        config = if self.plan.has_pings {
            config.with_http2_pings(Duration::from_secs(1), Duration::from_millis(500))
        } else {
            config.without_http2_pings()
        };
        config.build_with_connector(tower::service_fn(move |uri| connector.clone().connect(uri))).unwrap()
    }

    fn api(&self, link: Link, transport: Transport) -> Api {
        let (plan, history) = (&self.plan, &self.history);
        let quota = plan.quotas[link.server];
        let (paced, sliding) = (LocalLimiter::paced_window(quota), LocalLimiter::sliding_window(quota));
        let scheme = if plan.protocols[link.server].is_tls() { "https" } else { "http" };
        let url = format!("{scheme}://{}:443", server_name(link.server));
        let builder = StackBuilder::new(url).unwrap().with_plaintext();
        let account = if plan.has_sliding_window { sliding } else { paced };
        let part = |head: RequestHead<'_>| head.headers["x-part"].to_str().unwrap().parse().unwrap();
        let parts = Keyed::with_max_keys(MAX_PARTS, part, |_: &u64| LocalLimiter::without_quota());
        let first_part = parts.limiter(&0).unwrap();
        let builder = match plan.has_parts {
            true => builder.with_limiter(Joint::new(account.clone(), parts.clone())),
            false => builder.with_limiter(account.clone()),
        };
        let backoff = |from, to| {
            ExponentialBackoff::new(Duration::from_millis(from), Duration::from_millis(to)).unwrap()
        };
        let budget = Budget::new().with_capacity(plan.budget);
        let retry = RetryLayer::new()
            .with_max_attempts(MAX_ATTEMPTS)
            .unwrap()
            .with_budget(budget.unwrap())
            .with_replay_limit(plan.replay_limit)
            .with_backoff(backoff(10, 200))
            .with_throttled_backoff(backoff(50, 500));
        let attempt_span = AttemptSpanLayer::new()
            .with_attempt_header(HeaderName::from_static("x-attempt"))
            .with_propagation(recording_permits(link, Arc::clone(history)));
        let builder = builder
            .with_keys(self.keys.source(link, history))
            .with_limit(|limit| limit.with_max_queue(MAX_QUEUE))
            .with_retry(retry)
            .with_attempt_span(attempt_span)
            .with_header("x-client", link.client.to_string())
            .with_total_timeout(TOTAL_TIMEOUT)
            .with_attempt_timeout(ATTEMPT_TIMEOUT)
            .with_body_idle_timeout(Duration::from_secs(1));
        let builder = recording_pauses(builder, link, Arc::clone(history));
        let builder = test_util::deterministic(builder, plan.seed ^ (link.client << 1 | link.server) as u64);
        let snapshot = Arc::new(move || account.snapshot());
        let client = builder.client_with_service(transport).unwrap();
        Api {
            link,
            client,
            snapshot,
            parts,
            _part: first_part,
            seed: plan.seed,
            history: Arc::clone(history),
        }
    }
}

/// Records each permit, because the limiter grants it in the same poll in which the attempt's span begins.
fn recording_permits(
    link: Link,
    history: Arc<History>,
) -> impl Fn(&tracing::Span, &mut HeaderMap) + Send + Sync {
    move |_, headers| {
        let call = headers["x-call"].to_str().unwrap().parse().unwrap();
        let at = history.next();
        history.log(format_args!("{link}: permit for call {call}"));
        history.records().permits.push(Permit { link, call, at });
        headers.insert("x-permitted-at", HeaderValue::from(u64::try_from(at.1.as_nanos()).unwrap()));
    }
}

/// Records each response with `Retry-After`, because the limiter reads it in the same poll.
fn recording_pauses(builder: StackBuilder, link: Link, history: Arc<History>) -> StackBuilder {
    builder.with_transport_layer(tower::layer::layer_fn(move |inner: TransportService| {
        let history = Arc::clone(&history);
        tower::service_fn(move |request: Request<ReplayBody<Body>>| {
            let (inner, history) = (inner.clone(), Arc::clone(&history));
            async move {
                let response = inner.oneshot(request).await?;
                if let Some(seconds) = response.headers().get("retry-after") {
                    let length = Duration::from_secs(seconds.to_str().unwrap().parse().unwrap());
                    let at = history.next();
                    history.log(format_args!("{link}: pause of {length:?}"));
                    history.records().pauses.push(Pause { link, at, length });
                }
                Ok::<_, tower_outbound::BoxError>(response)
            }
        })
    }))
}

/// What a caller does with a call.
struct Intent {
    method: Method,
    is_declared_idempotent: bool,
    priority: Priority,
    limit: Duration,
    body: usize,
    /// The caller drops the call after this time.
    cancel_after: Option<Duration>,
    /// The caller drops the response's body after this time.
    drop_body_after: Option<Duration>,
    /// The caller reads the body with `bytes`, which retries a broken body. Otherwise it reads the body as a stream.
    reads_with_retries: bool,
}

impl Intent {
    fn random(rng: &mut Rng) -> Self {
        let method = rng.choose_weighted(&[(5, 0), (4, 1), (2, 2)]);
        Self {
            method: [Method::GET, Method::POST, Method::PUT][method].clone(),
            is_declared_idempotent: method == 1 && rng.chance(200),
            priority: rng.choose(&[Priority::Normal, Priority::Normal, Priority::High, Priority::Low]),
            limit: if rng.chance(700) { TOTAL_TIMEOUT } else { rng.millis(50, 5_000) },
            body: if method == 0 { 0 } else { rng.choose(&[0, 10, 3_000, 80_000]) },
            cancel_after: rng.chance(150).then(|| rng.millis(0, 1_500)),
            drop_body_after: rng.chance(100).then(|| rng.millis(0, 300)),
            reads_with_retries: rng.chance(500),
        }
    }

    fn plain(method: Method) -> Self {
        Self {
            method,
            is_declared_idempotent: false,
            priority: Priority::Normal,
            limit: TOTAL_TIMEOUT,
            body: 0,
            cancel_after: None,
            drop_body_after: None,
            reads_with_retries: true,
        }
    }
}

impl Api {
    async fn call_repeatedly(self, gap: u64, number: usize) {
        let subject = (number << 8 | self.link.client << 4 | self.link.server) as u64;
        let mut rng = Rng::new(self.seed, "caller", subject);
        while self.history.now() < LOAD_ENDS {
            self.call(Intent::random(&mut rng)).await;
            // Calls of one caller sometimes follow one another at once, and sometimes after the idle timeout.
            let pause = if rng.chance(50) { rng.millis(1_500, 5_000) } else { rng.millis(0, gap) };
            sleep(pause).await;
        }
    }

    /// After the faults, calls succeed, also many at once.
    async fn call_until_the_end(&self) {
        // Requests without a response leave dead connections. These calls remove them, also without a budget for retries.
        for _ in 1..MAX_ATTEMPTS {
            self.call(Intent::plain(Method::GET)).await;
        }
        self.call_successfully(Method::GET).await;
        for method in [Method::GET, Method::POST] {
            let calls: JoinSet<_> = (0..6)
                .map(|_| {
                    let (api, method) = (self.clone(), method.clone());
                    async move { api.call_successfully(method).await }
                })
                .collect();
            calls.join_all().await;
        }
    }

    async fn call_successfully(&self, method: Method) {
        let (call, status) = self.call(Intent::plain(method)).await;
        if status != Some(200) {
            self.history.violate(format_args!("{}: call {call} failed after the faults", self.link));
        }
    }

    /// Makes a call, and reads its body. Returns the number of the call, and the status of a response whose body did not
    /// fail.
    async fn call(&self, intent: Intent) -> (usize, Option<u16>) {
        let history = &self.history;
        let started = history.next();
        let call = history.start(Call {
            link: self.link,
            method: intent.method.clone(),
            is_idempotent: intent.is_declared_idempotent || intent.method != Method::POST,
            body: intent.body,
            priority: intent.priority,
            started,
            limit: intent.limit.min(TOTAL_TIMEOUT),
            end: None,
        });
        history.log(format_args!(
            "{}: call {call} starts: {} {:?}, {} bytes, at most {:?}",
            self.link, intent.method, intent.priority, intent.body, intent.limit
        ));
        let is_healed = history.now() >= HEALED;
        let part = if is_healed { 0 } else { Rng::new(self.seed, "part", call as u64).below(PARTS) + 1 };
        let mut request = self
            .client
            .request(intent.method.clone(), "/things")
            .header("x-call", call.to_string())
            .header("x-part", part.to_string())
            .priority(intent.priority)
            .timeout(intent.limit)
            .body(Bytes::from(vec![b'y'; intent.body]));
        if intent.is_declared_idempotent {
            request = request.idempotent();
        }
        // Without another await before it, the call starts at the time that was recorded.
        let Some(sent) = self.within(call, intent.cancel_after, intent.limit, request.send()).await else {
            return (call, None);
        };
        let queued = (self.snapshot)().queued;
        // The queue is limited for each priority together with the higher ones.
        if queued > 3 * MAX_QUEUE {
            history.violate(format_args!("{}: {queued} calls are queued", self.link));
        }
        if self.parts.len() > MAX_PARTS {
            history.violate(format_args!("{}: {} parts have limiters", self.link, self.parts.len()));
        }
        match sent {
            Ok(response) if intent.reads_with_retries => {
                let status = response.status().as_u16();
                (call, self.read_with_retries(call, response, &intent).await.then_some(status))
            }
            Ok(response) => {
                let status = response.status().as_u16();
                let report = response.report().cloned();
                history.end(call, CallResult::Response { status, report });
                self.read(call, response, intent.drop_body_after).await;
                (call, Some(status))
            }
            Err(error) => {
                let (text, report) = (self.text(&error), error.report().cloned());
                history.end(call, CallResult::Failed { text, report });
                (call, None)
            }
        }
    }

    /// Returns the output of the call. Returns `None` if the caller drops it, or if it hangs.
    async fn within<T>(
        &self,
        call: usize,
        cancel_after: Option<Duration>,
        limit: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let patience = cancel_after.unwrap_or(limit + HANGS);
        let output = timeout(patience, future).await.ok();
        if output.is_none() {
            if cancel_after.is_none() {
                self.history.violate(format_args!("{}: call {call} hangs", self.link));
            }
            self.history.end(call, CallResult::Cancelled);
        }
        output
    }

    /// Reads a body with `bytes`. The call ends with it. Returns `false` if the body failed.
    async fn read_with_retries(&self, call: usize, response: Response, intent: &Intent) -> bool {
        let report = response.report().cloned();
        let read = self.within(call, intent.drop_body_after, intent.limit, response.bytes()).await;
        let body = match read {
            None => return true,
            Some(Ok(body)) => Ok(body.len()),
            Some(Err(error)) => Err(self.text(&error)),
        };
        let is_whole = body.is_ok();
        self.history.end(call, CallResult::Read { body, report });
        is_whole
    }

    async fn read(&self, call: usize, response: Response, drop_after: Option<Duration>) {
        let (history, link) = (&self.history, self.link);
        let length: usize = response.headers()["x-length"].to_str().unwrap().parse().unwrap();
        let body = response.into_http().into_body().bytes_up_to(1 << 20);
        let read = timeout(drop_after.unwrap_or(TOTAL_TIMEOUT + HANGS), body).await;
        match read {
            Err(_) if drop_after.is_some() => {
                history.log(format_args!("{link}: body of call {call} dropped"))
            }
            Err(_) => history.violate(format_args!("{link}: the body of call {call} hangs")),
            Ok(Ok(body)) if body.len() != length => {
                history.violate(format_args!("{link}: the body of call {call} has another length"));
            }
            Ok(Ok(_)) => history.log(format_args!("{link}: body of call {call} read")),
            Ok(Err(error)) => {
                let text = self.text(&*error);
                history.log(format_args!("{link}: body of call {call} failed: {text}"));
            }
        }
    }

    /// Returns the text of an error with its causes. None of them contains a key.
    fn text(&self, error: &(dyn StdError + 'static)) -> String {
        let mut text = error.to_string();
        let mut all = format!("{error} {error:?}");
        let mut cause = error.source();
        while let Some(error) = cause {
            text += &format!(": {error}");
            all += &format!("{error} {error:?}");
            cause = error.source();
        }
        if all.contains(MARK) {
            self.history.violate(format_args!("{}: an error contains a key: {all}", self.link));
        }
        text
    }
}
