//! Tests tower-resilience's circuit breaker, and the recipe for it in the guide's page `other_layers`.

mod outage;
mod positions;

use std::time::Duration;

use http::Response;
use tower::{BoxError, ServiceBuilder};
use tower_outbound::{Body, Error, error::DeliveryError, stack::StackBuilder};
use tower_resilience_circuitbreaker::{CircuitBreakerConfigError, CircuitBreakerError, CircuitBreakerLayer};

/// Converts the breaker's error: an open circuit is marked, and any other error is returned as it is.
fn unwrap_breaker<E: Into<BoxError>>(error: CircuitBreakerError<E>) -> BoxError {
    match error {
        CircuitBreakerError::OpenCircuit => DeliveryError::circuit_open("too many failures").into(),
        CircuitBreakerError::Inner(error) => error.into(),
    }
}

/// Returns whether the service has failed. A 429 is no failure, and neither is a refusal of the limiter, unless an
/// attempt failed before.
fn is_failure(result: &Result<Response<Body>, Error>) -> bool {
    match result {
        Ok(response) => response.status().is_server_error(),
        Err(error) => error.is_service() || error.is_timeout() || error.may_have_been_processed(),
    }
}

fn with_breaker(builder: StackBuilder) -> Result<StackBuilder, CircuitBreakerConfigError> {
    let breaker = CircuitBreakerLayer::builder()
        .failure_classifier(is_failure)
        .consecutive_failures(3)
        .wait_duration_in_open(Duration::from_secs(30))
        .permitted_calls_in_half_open(1)
        .build()?;
    Ok(builder.with_outer_layer(ServiceBuilder::new().map_err(unwrap_breaker).layer(breaker)))
}
