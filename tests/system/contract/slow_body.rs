//! A body of two frames that is pending once before each frame.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::Frame;
use tower_outbound::{Body, BoxError};

use super::faulty_service::{FaultPlan, PanicPoint};

pub(crate) struct SlowBody {
    plan: Arc<FaultPlan>,
    panic_point: PanicPoint,
    frames: std::array::IntoIter<&'static str, 2>,
    was_pending: bool,
}

impl SlowBody {
    pub(crate) fn body(plan: &Arc<FaultPlan>, panic_point: PanicPoint) -> Body {
        let frames = ["hel", "lo"].into_iter();
        Body::new(Self { plan: Arc::clone(plan), panic_point, frames, was_pending: false })
    }
}

impl http_body::Body for SlowBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.plan.panic_if_due(self.panic_point);
        self.was_pending = !self.was_pending;
        if self.was_pending {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.frames.next().map(|frame| Ok(Frame::data(Bytes::from_static(frame.as_bytes())))))
    }
}
