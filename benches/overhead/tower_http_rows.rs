//! Request id, log and key, ours and tower-http's.

use super::shared::{Answers, BoxError, Call, their_key, their_log};
use tower::Layer;
use tower_outbound::{
    ApiKey,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, Origin},
    request_id::RequestIdLayer,
};

const THEIR_KEY: &str = "tower-http AddAuthorization";
const THEIR_LOG: &str = "tower-http SetRequestId + TraceLayer + PropagateRequestId";

pub(super) fn rows() -> Result<Vec<Call>, BoxError> {
    let key = ApiKey::new("s3cret")?;
    let auth = AuthLayer::new(key, Origin::parse("https://api.example.com")?)?;
    let both = (RequestIdLayer::new(), AttemptSpanLayer::new());

    Ok(vec![
        Call::new("bare service", Answers),
        Call::new(THEIR_KEY, their_key().layer(Answers)),
        Call::new("auth", auth.layer(Answers)).beside(THEIR_KEY),
        Call::new(THEIR_LOG, their_log().layer(Answers)),
        Call::new("request id and log", RequestIdLayer::new().layer(Answers)).beside(THEIR_LOG),
        Call::new("request id, log and attempt's span", both.layer(Answers)).beside(THEIR_LOG),
    ])
}
