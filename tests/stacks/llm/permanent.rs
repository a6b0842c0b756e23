//! A layer that reads the body of a 429.

pub use self::program::with_permanent_429;

/// The program that the crate's guide shows.
mod program {
    use http::{Response, StatusCode};
    use tower::util::AndThenLayer;
    use tower_outbound::{Body, BoxError, limit::ServerSignal, stack::StackBuilder};

    pub fn with_permanent_429(service: StackBuilder) -> StackBuilder {
        service.with_transport_layer(AndThenLayer::new(read_429))
    }

    async fn read_429(response: Response<Body>) -> Result<Response<Body>, BoxError> {
        if response.status() != StatusCode::TOO_MANY_REQUESTS {
            return Ok(response);
        }
        let (mut head, body) = response.into_parts();
        let body = body.bytes_up_to(64 * 1024).await?;
        if body.windows(18).any(|part| part == b"insufficient_quota") {
            head.extensions.insert(ServerSignal::throttled().with_permanent().with_not_processed());
        }
        Ok(Response::from_parts(head, body.into()))
    }
}
