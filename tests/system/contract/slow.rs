//! A body that comes in two pieces and lets its reader wait before each.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::Frame;
use tower_outbound::{Body, BoxError};

use super::moody::{Place, Plan};

pub(crate) struct Slow {
    plan: Arc<Plan>,
    place: Place,
    frames: std::array::IntoIter<&'static str, 2>,
    waited: bool,
}

impl Slow {
    pub(crate) fn body(plan: &Arc<Plan>, place: Place) -> Body {
        let frames = ["hel", "lo"].into_iter();
        Body::new(Self { plan: Arc::clone(plan), place, frames, waited: false })
    }
}

impl http_body::Body for Slow {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.plan.maybe_panics(self.place);
        self.waited = !self.waited;
        if self.waited {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(self.frames.next().map(|frame| Ok(Frame::data(Bytes::from_static(frame.as_bytes())))))
    }
}
