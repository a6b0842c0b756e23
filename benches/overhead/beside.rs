//! Request id, log and key, ours and tower-http's.

use tower::{Layer, ServiceBuilder};
use tower_http::{
    auth::AddAuthorizationLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    trace::{DefaultMakeSpan, DefaultOnResponse, TraceLayer},
};
use tower_outbound::{
    ApiKey,
    attempt::AttemptLayer,
    auth::{BearerAuthLayer, Origin},
    request_id::RequestIdLayer,
};
use tracing::Level;

use super::{BoxError, NoOp, Row};

const THEIR_KEY: &str = "tower-http AddAuthorization";
const THEIR_LOG: &str = "tower-http SetRequestId + TraceLayer + PropagateRequestId";

pub(super) fn rows() -> Result<Vec<Row>, BoxError> {
    let key = ApiKey::new("s3cret")?;
    let auth = BearerAuthLayer::new(key, Origin::parse("https://api.example.com")?)?;
    // A span and one line a call, at the level of ours. By default it is quiet at INFO.
    let trace = TraceLayer::new_for_http()
        .make_span_with(DefaultMakeSpan::new().level(Level::INFO))
        .on_response(DefaultOnResponse::new().level(Level::INFO));
    let their_log = ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(trace)
        .layer(PropagateRequestIdLayer::x_request_id());
    let both = (RequestIdLayer::new(), AttemptLayer::new());

    Ok(vec![
        Row::new("bare service", NoOp),
        Row::new(THEIR_KEY, AddAuthorizationLayer::bearer("s3cret").layer(NoOp)),
        Row::new("auth", auth.layer(NoOp)).beside(THEIR_KEY),
        Row::new(THEIR_LOG, their_log.service(NoOp)),
        Row::new("request id and log", RequestIdLayer::new().layer(NoOp)).beside(THEIR_LOG),
        Row::new("request id, log and attempt's span", both.layer(NoOp)).beside(THEIR_LOG),
    ])
}

/// Runs `work` with every line from INFO on written, as text, to nowhere.
pub(super) fn at_info<T>(work: impl FnOnce() -> T) -> T {
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::sink).finish();
    let done = tracing::subscriber::with_default(subscriber, work);
    // Or what comes after would still ask whether somebody listens.
    tracing::callsite::rebuild_interest_cache();
    done
}
