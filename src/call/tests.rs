use super::*;

#[test]
fn earliest_deadline_applies_with_its_setting() {
    let (start, second) = (clock::now() + Duration::from_secs(9), Duration::from_secs(1));
    let earliest = EarliestDeadline::default();
    assert_eq!(earliest.get(start), None);
    for (deadline, setting, expected) in [
        (start + second * 9, DeadlineSetting::TotalTimeout, true),
        (start + second * 8, DeadlineSetting::RequestTimeout, true),
        (start + second * 8, DeadlineSetting::TotalTimeout, false),
        (start + second * 9, DeadlineSetting::Extension, false),
        (start, DeadlineSetting::Extension, true),
        (start - Duration::from_nanos(1), DeadlineSetting::TotalTimeout, true),
    ] {
        earliest.narrow(deadline.checked_duration_since(start), setting);
        assert_eq!(earliest.get(start) == Some((deadline, setting)), expected, "{deadline:?}");
    }
    let latest = EarliestDeadline::default();
    let century = clock::after(start, Duration::MAX);
    latest.narrow(century.checked_duration_since(start), DeadlineSetting::TotalTimeout);
    assert_eq!(latest.get(start), Some((century, DeadlineSetting::TotalTimeout)));
}

#[test]
fn deadline_has_passed_from_the_first_nanosecond_after_it() {
    let (earliest, second) = (EarliestDeadline::default(), Duration::from_secs(1));
    let has_passed = |elapsed: Duration| earliest.has_passed(elapsed.into());
    assert!(!has_passed(Duration::MAX));
    earliest.narrow(Some(second), DeadlineSetting::TotalTimeout);
    assert!(!has_passed(second) && has_passed(second + Duration::from_nanos(1)));
    earliest.narrow(Some(Duration::ZERO), DeadlineSetting::Extension);
    assert!(!has_passed(Duration::ZERO) && has_passed(Duration::from_nanos(1)));
    earliest.narrow(None, DeadlineSetting::Extension);
    assert!(has_passed(Duration::ZERO));
}

#[cfg(feature = "client")]
#[test]
fn second_wait_for_a_connection_keeps_the_times_of_the_opened_connection() {
    let (call, second) = (CallContext::of(&mut Extensions::new()), Duration::from_secs(1));
    let times = ConnectTimes { connect: Some(second), ..ConnectTimes::default() };
    call.start_attempt(clock::now()).unwrap();
    call.add_connection(second, Some(times));
    call.add_connection(second, None);
    let attempt = call.0.attempts().pop().unwrap();
    assert_eq!((attempt.connection_wait, attempt.connect), (second * 2, Some(times)));
}
