use super::*;

#[test]
fn block_grants_its_permits_until_its_end() {
    let word = BlockWord::new();
    assert_eq!((word.take(1, 0), word.close()), (Take::NeedsLock, None));
    word.open(&Block { permits: 5, end: 10_240 });
    assert_eq!(word.take(1, 10_239), Take::Taken);
    assert_eq!(word.take(1, 10_240), Take::NeedsLock);
    assert_eq!(
        (word.take(5, 0), word.take(4, 0), word.take(1, 0)),
        (Take::NeedsLock, Take::Taken, Take::NeedsLock)
    );
    assert_eq!((word.close(), word.close()), (Some(0), None));
}

#[test]
fn refusal_states_the_exact_time_and_applies_to_one_permit() {
    let word = BlockWord::new();
    word.refuse_until(1_234_567);
    assert_eq!(word.take(1, 1_234_566), Take::NotBefore(1_234_567));
    assert_eq!((word.take(1, 1_234_567), word.take(2, 0)), (Take::NeedsLock, Take::NeedsLock));
    assert_eq!(word.close(), Some(0));
    word.refuse_until(u64::MAX);
    assert_eq!(word.take(1, 0), Take::NotBefore(EMPTY - 1));
}
