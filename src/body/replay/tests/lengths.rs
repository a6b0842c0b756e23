//! Tests bodies whose length differs from the length that they or their request announce.

use super::*;

/// Reads a body to its end. Returns the length of its data, or its error.
fn read_to_end<B: Body<Data = Bytes, Error = BoxError>>(body: B) -> Result<usize, String> {
    let mut frames = Box::pin(body);
    let cx = &mut Context::from_waker(Waker::noop());
    let mut len = 0;
    loop {
        match frames.as_mut().poll_frame(cx) {
            Poll::Pending => {}
            Poll::Ready(None) => return Ok(len),
            Poll::Ready(Some(Ok(frame))) => len += frame.data_ref().map_or(0, Bytes::len),
            Poll::Ready(Some(Err(error))) => return Err(error.to_string()),
        }
    }
}

#[test]
fn body_of_another_length_than_announced_fails_and_is_not_replayed() {
    let (short, long) = (
        Err("body ended 4 bytes short of its announced length".to_owned()),
        Err("body is longer than its announced length".to_owned()),
    );
    // The length that the body announces, its `content-length`, and the result for a body of six bytes.
    for (announced, content_length, expected) in [
        (None, None, Ok(6)),
        (Some(6), None, Ok(6)),
        (None, Some(6), Ok(6)),
        (Some(10), None, short.clone()),
        (None, Some(10), short),
        (Some(5), None, long.clone()),
        (None, Some(5), long.clone()),
        // The body reaches its announced length with the first chunk.
        (Some(3), None, long.clone()),
        (Some(2), None, long),
    ] {
        for (trailers, knows_end, is_made_again) in [false, true]
            .into_iter()
            .flat_map(|it| [(it, false, false), (it, true, false), (it, false, true)])
        {
            let source = move || {
                let steps = [Step::data(3), Step::Wait, Step::data(3)];
                let source = Script::new(steps.into_iter().chain(trailers.then(|| Step::trailers(5))));
                let source = if knows_end { source.knowing_its_end() } else { source };
                announced.into_iter().fold(source, Script::announcing)
            };
            let case = format!("{announced:?} {content_length:?} {trailers} {knows_end} {is_made_again}");
            if content_length.is_none() {
                assert_eq!(read_to_end(ReplayBody::new(source())), expected, "{case}");
            }
            let (result, has_failed, is_replayable) = if is_made_again {
                let body = AnyBody::from_fn(move || AnyBody::new(ReplayBody::new(source())));
                let (first, replay) = ReplayBody::record(body, 100, content_length, trailers, &call());
                (read_to_end(first), replay.has_failed(), replay.body().is_some())
            } else {
                let (first, replay) = ReplayBody::record(source(), 100, content_length, trailers, &call());
                (read_to_end(first), replay.has_failed(), replay.body().is_some())
            };
            assert_eq!((has_failed, is_replayable), (expected.is_err(), expected.is_ok()), "{case}");
            assert_eq!(result, expected, "{case}");
        }
    }
}
