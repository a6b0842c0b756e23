//! Defines the rows that compare this crate's request id, log and key layers with tower-http's layers.

use super::shared::{BoxError, OkService, ServiceRow, tower_http_auth, tower_http_log};
use tower::Layer;
use tower_outbound::{
    ApiKey,
    attempt_span::AttemptSpanLayer,
    auth::{AuthLayer, Origin},
    request_id::RequestIdLayer,
};

const TOWER_HTTP_AUTH: &str = "tower-http AddAuthorization";
const TOWER_HTTP_LOG: &str = "tower-http SetRequestId + TraceLayer + PropagateRequestId";

pub(super) fn rows() -> Result<Vec<ServiceRow>, BoxError> {
    let key = ApiKey::new("s3cret")?;
    let auth = AuthLayer::new(key, Origin::parse("https://api.example.com")?)?;
    let log_and_span = (RequestIdLayer::new(), AttemptSpanLayer::new());

    Ok(vec![
        ServiceRow::new("bare service", OkService),
        ServiceRow::new(TOWER_HTTP_AUTH, tower_http_auth().layer(OkService)),
        ServiceRow::new("auth", auth.layer(OkService)).compared_with(TOWER_HTTP_AUTH),
        ServiceRow::new(TOWER_HTTP_LOG, tower_http_log().layer(OkService)),
        ServiceRow::new("request id and log", RequestIdLayer::new().layer(OkService))
            .compared_with(TOWER_HTTP_LOG),
        ServiceRow::new("request id, log and attempt span", log_and_span.layer(OkService))
            .compared_with(TOWER_HTTP_LOG),
    ])
}
