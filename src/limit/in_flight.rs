use std::{
    fmt,
    io::IoSlice,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Buf;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{
    feedback::ResponseInfo,
    permit::Permit,
    settings::Meter,
    settlement::{Metered, Settlement},
};
use crate::policy::Amounts;

/// A request whose response head has arrived, and whose response body may not have ended. It counts as
/// [in flight](super::LocalLimiter::with_max_in_flight).
///
/// [`Permit::complete_head`](super::Permit::complete_head) returns it.
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use tower_outbound::limit::{LocalLimiter, ResponseInfo};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let limiter = LocalLimiter::without_quota().with_max_in_flight(1)?;
/// let mut permit = limiter.acquire().await?;
/// permit.mark_sent(tokio::time::Instant::now());
/// let in_flight = permit.complete_head(&ResponseInfo::new(StatusCode::OK, &HeaderMap::new()));
/// assert!(limiter.try_acquire().is_err());
/// // Read the body here.
/// in_flight.end();
/// assert!(limiter.try_acquire().is_ok());
/// # Ok(())
/// # }
/// ```
///
/// # Cancellation
///
/// Dropping it counts the request as cancelled if the permit was [marked as sent](super::Permit::mark_sent): see
/// [`with_hold_after_cancel`](super::LocalLimiter::with_hold_after_cancel).
#[must_use = "the request is cancelled if this is dropped"]
pub struct InFlight<'a> {
    /// The reported permit. `None` if the limiter does not count requests in flight. Boxed, because most bodies have
    /// none.
    permit: Option<Box<Permit<'a>>>,
}

impl<'a> InFlight<'a> {
    /// Keeps the request of a reported permit in flight.
    #[inline]
    pub(super) fn new(permit: Permit<'a>) -> Self {
        Self { permit: permit.counts_in_flight().then(|| Box::new(permit)) }
    }

    /// Keeps the request of an expired permit in flight until it has another permit.
    pub(super) fn of_expired(mut permit: Permit<'a>) -> Self {
        permit.mark_unsent();
        permit.report_unrelated();
        Self::new(permit)
    }

    /// A request that is not counted.
    pub(super) const fn none() -> Self {
        Self { permit: None }
    }

    /// Ends the request after the end of its response body.
    pub fn end(self) {
        self.permit.into_iter().for_each(|permit| permit.release());
    }

    pub(super) fn is_counted(&self) -> bool {
        self.permit.is_some()
    }

    /// Ends this value but not the request, because the request has another permit.
    pub(super) fn hand_over(self, to: &Permit<'_>) {
        self.permit.into_iter().for_each(|expired| to.replace(*expired));
    }
}

impl<'a> Permit<'a> {
    /// As [`complete`](Self::complete), but the request stays [in flight](super::LocalLimiter::with_max_in_flight)
    /// until the [`InFlight`] ends.
    pub fn complete_head(mut self, response: &ResponseInfo<'_>) -> InFlight<'a> {
        self.report(response);
        InFlight::new(self)
    }
}

impl fmt::Debug for InFlight<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("is_counted", &self.is_counted()).finish_non_exhaustive()
    }
}

pin_project! {
    /// The response body of a [`RateLimit`](super::RateLimit). Its request counts as
    /// [in flight](super::LocalLimiter::with_max_in_flight) until the body has ended.
    ///
    /// # Cancellation
    ///
    /// Dropping the body before its end counts the request as cancelled: see
    /// [`with_hold_after_cancel`](super::LocalLimiter::with_hold_after_cancel).
    ///
    /// # Notes
    ///
    /// - The caller must poll the body once, even if its [`is_end_stream`](Body::is_end_stream) is `true`, unless the
    ///   head shows that the response has no body. Otherwise the request stays in flight. An HTTP/2 response may end
    ///   with its head without `content-length: 0`. A [`Client`](crate::Client) polls the body itself.
    /// - The response to a `HEAD` has no body.
    pub struct InFlightBody<B> {
        #[pin]
        body: B,
        in_flight: InFlight<'static>,
        metering: Option<Box<Metering>>,
    }
}

/// Reads the actual amounts of a request from its response body.
pub(super) struct Metering {
    meter: Meter,
    settlement: Settlement,
    estimate: Amounts,
    /// The last amounts of the meter.
    actual: Option<Amounts>,
}

impl Metering {
    pub(super) fn new(meter: Meter, settlement: Settlement) -> Self {
        Self { meter, estimate: settlement.charged(), settlement, actual: None }
    }

    /// Passes data to the meter. Until the amounts are final, at least the estimate counts.
    fn read(&mut self, data: &impl Buf) {
        let mut parts = [IoSlice::new(&[]); MOST_PARTS];
        let number = data.chunks_vectored(&mut parts);
        for part in parts.iter().take(number) {
            let (actual, charged) = match (self.meter)(part) {
                Some(Metered::SoFar(actual)) => (actual, actual.zip(&self.estimate, u32::max)),
                Some(Metered::Final(actual)) => (actual, actual),
                None => continue,
            };
            self.actual = Some(actual);
            self.settlement.settle(charged);
        }
    }

    fn end(&mut self) {
        self.actual.into_iter().for_each(|actual| self.settlement.settle(actual));
    }
}

/// The maximum number of parts of one frame that a meter reads. A frame of `Bytes` has one.
const MOST_PARTS: usize = 64;

impl<B> InFlightBody<B> {
    pub(super) fn new(body: B, in_flight: InFlight<'static>, metering: Option<Box<Metering>>) -> Self {
        Self { body, in_flight, metering }
    }

    /// Returns a reference to the inner body.
    pub fn get_ref(&self) -> &B {
        &self.body
    }

    /// Returns the inner body. Its request is no longer in flight, and its
    /// [meter](super::RateLimitLayer::with_meter) reads no more data.
    pub fn into_inner(self) -> B {
        self.in_flight.end();
        self.body
    }

    /// Returns whether the limiter needs to see the body.
    #[cfg(feature = "client")]
    pub(crate) fn is_watched(&self) -> bool {
        self.in_flight.is_counted() || self.metering.is_some()
    }
}

impl<B: Body> Body for InFlightBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let mut body = this.body;
        let frame = ready!(body.as_mut().poll_frame(cx));
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        if let (Some(metering), Some(data)) = (&mut *this.metering, data) {
            metering.read(data);
        }
        if this.in_flight.is_counted() || this.metering.is_some() {
            let is_last = |frame: &Frame<_>| frame.is_trailers() || body.is_end_stream();
            match &frame {
                Some(Err(_)) => *this.in_flight = InFlight::none(),
                Some(Ok(frame)) if !is_last(frame) => {}
                _ => {
                    std::mem::replace(this.in_flight, InFlight::none()).end();
                    this.metering.iter_mut().for_each(|metering| metering.end());
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Shows whether the limiter counts the request, but never the content of the body.
impl<B> fmt::Debug for InFlightBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlightBody").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}
