//! Tests of custom limiters: which functions of a limiter `RateLimitLayer` calls, and in which order.

use super::*;

/// A limiter that grants or refuses every request. It records each call and the outcome of each permit.
#[derive(Debug, Clone, Default)]
struct Recording {
    refuses: bool,
    /// Whether permits have no issuer.
    has_no_issuer: bool,
    log: Arc<Mutex<Vec<&'static str>>>,
}

impl Recording {
    fn record(&self, call: &'static str) {
        self.log.lock().unwrap().push(call);
    }

    fn grant(&self, request: &PermitRequest) -> Permit<'static> {
        let permit = Permit::new(request.cost());
        if self.has_no_issuer { permit } else { permit.with_issuer(Arc::new(self.clone())) }
    }
}

impl Limiter for Recording {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        self.record("acquire");
        let refusal = || Refusal::new(Reason::QueueFull, seconds(1));
        Acquire::new(ready(if self.refuses { Err(refusal()) } else { Ok(self.grant(request)) }))
    }
}

impl PermitIssuer for Recording {
    fn is_expired(&self, permit: &Permit<'_>) -> bool {
        self.record("is_expired");
        permit.granted_at().elapsed() > millis(10)
    }

    fn completed(&self, permit: &Permit<'_>, response: &ResponseInfo<'_>) -> Effect {
        assert!(permit.sent_at().is_some());
        assert_eq!(response.requested_pause(), (response.status() == 429).then_some(seconds(7)));
        assert_eq!(response.headers().len(), usize::from(response.status() != 200));
        self.record("completed");
        Effect::default()
    }

    fn dropped(&self, permit: &Permit<'_>) {
        self.record(if permit.sent_at().is_some() { "unconfirmed" } else { "wasted" });
    }
}

/// A limiter that keeps all defaults, and whose permits are ready without an allocation.
#[derive(Debug, Clone, Default)]
struct Plain;

impl Limiter for Plain {
    fn acquire_with(&self, request: &PermitRequest) -> Acquire {
        Acquire::ready(Ok(Permit::new(request.cost()).with_issuer(Arc::new(Self))))
    }
}

impl PermitIssuer for Plain {}

/// Calls a service that becomes ready after `delay` milliseconds. The call fails if `status` is 0, or if the limiter
/// refuses it. Returns whether it succeeded.
async fn call<L: SelectLimiter + Clone + 'static>(limiter: L, status: u16, delay: u64) -> bool {
    let respond = move || async move {
        match status {
            0 => Err("connection reset"),
            200 => Ok(Response::new(())),
            _ => Ok(Response::builder().status(status).header("retry-after", "7").body(()).unwrap()),
        }
    };
    let inner = ready_after(delay)
        .map_err(|never: Infallible| -> &str { match never {} })
        .and_then(move |_| respond());
    let outcome = RateLimitLayer::new(limiter).layer(inner).oneshot(Request::new(())).await;
    if let Some(error) = outcome.as_ref().err().filter(|_| status != 0) {
        assert!(error.is_rate_limited() && error.retry_after() == Some(seconds(1)), "{error:?}");
    }
    outcome.is_ok()
}

#[tokio::test(start_paused = true)]
async fn rate_limit_layer_notifies_custom_limiter_of_every_permit_outcome() {
    for (refuses, has_no_issuer, status, delay, log) in [
        (false, false, 200, 0, "acquire completed"),
        (false, false, 429, 0, "acquire completed"),
        (false, false, 404, 0, "acquire completed"),
        (false, false, 0, 0, "acquire unconfirmed"),
        (false, false, 200, 10, "acquire is_expired completed"),
        (false, false, 200, 11, "acquire is_expired wasted acquire completed"),
        (true, false, 200, 0, "acquire"),
        // A permit without an issuer expires as soon as any time has passed since the grant.
        (false, true, 429, 0, "acquire"),
        (false, true, 0, 0, "acquire"),
        (false, true, 200, 1, "acquire acquire"),
    ] {
        for is_any in [false, true] {
            let limiter = Recording { refuses, has_no_issuer, ..Recording::default() };
            let is_ok = match is_any {
                true => call(AnyLimiter::new(limiter.clone()), status, delay).await,
                false => call(limiter.clone(), status, delay).await,
            };
            let case = format!("{refuses}, no issuer: {has_no_issuer}, status {status}, delay {delay}");
            assert_eq!(limiter.log.lock().unwrap().join(" "), log, "{case}");
            assert_eq!(is_ok, status != 0 && !refuses, "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn custom_limiter_without_overrides_grants_permits_that_expire_when_time_passes() {
    let permit = Plain.acquire_with(&PermitRequest::new()).await.unwrap();
    assert!(!permit.is_expired());
    advance(Duration::from_nanos(1)).await;
    assert!(permit.is_expired());
    assert!(call(Plain, 200, 0).await);
}

#[tokio::test(start_paused = true)]
async fn released_permit_is_reported_as_unsent_even_after_mark_sent() {
    let limiter = Recording::default();
    let mut permit = limiter.acquire_with(&PermitRequest::new()).await.unwrap();
    permit.mark_sent(Instant::now());
    assert!(format!("{permit:?}").starts_with("Permit { cost: 1, granted_at: Instant"), "{permit:?}");
    permit.release();
    assert_eq!(*limiter.log.lock().unwrap(), ["acquire", "wasted"]);
}
