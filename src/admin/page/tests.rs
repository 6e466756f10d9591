use super::*;

#[test]
fn long_numbers_are_grouped() {
    assert_eq!(
        [0, 999, 1_000, 1_234_567].map(grouped),
        ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]
    );
}

#[test]
fn the_headline_names_the_state() {
    let now = clock::now();
    // By default the liveness deadline is 0 and nothing is published.
    let alive = Status { alive_until_ms: u64::MAX, ..Status::default() };
    assert_eq!(headline(&Status::default(), &now).word, "hangs");
    assert_eq!(headline(&alive, &now).word, "starting");
    assert_eq!(headline(&Status { consecutive_failures: 2, ..alive }, &now).word, "not serving");
}
