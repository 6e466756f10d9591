use proptest::prelude::*;

use super::*;

#[allow(missing_docs, dead_code, unreachable_pub)] // tests/canary uses it, too
mod encodings {
    include!("../encodings.rs");
}
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use encodings::ENCODINGS;
use url::Url;

fn parts(secret: &str) -> Parts {
    let mut parts = Parts::default();
    parts.add(secret);
    parts
}

fn cleaned(parts: &Parts, text: &[u8], cut: Cut) -> Vec<u8> {
    without(text, &parts.find(text, cut))
}

/// Whether six bytes of the secret in a row are left. Placeholders are no part of what is left.
fn leaks(secret: &[u8], text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text).replace(REDACTED, "\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}");
    let known: HashSet<&[u8]> = secret.windows(MIN_LENGTH).collect();
    text.as_bytes().windows(MIN_LENGTH).any(|part| known.contains(part) && !is_in_public_text(part))
}

/// What is left of a secret in any encoding.
fn trace(secret: &str, text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text).replace(REDACTED, "\u{fffd}");
    let text = encodings::collapsed(&text);
    encodings::traces(secret.as_bytes()).into_iter().find(|trace| text.contains(trace))
}

/// So many encodings, the first ones, have no escapes.
const AS_IT_IS: usize = 3;

/// What is out of reach, see `readings`.
fn is_itself_quoted(secret: &str) -> bool {
    secret.contains(r"\\") || secret.contains('\\') && secret.contains(['%', '&'])
}

fn is_fit(secret: &str) -> bool {
    !is_public(secret)
}

/// How an answer, a page, a log line or a URL may write a text.
fn written(text: &str) -> Vec<String> {
    let json = serde_json::to_string(text).unwrap();
    let mut url = Url::parse("http://h/").unwrap();
    url.set_username("bob").unwrap();
    url.set_password(Some(text)).unwrap();
    vec![
        text.to_owned(),
        json[1..json.len() - 1].to_owned(),
        format!("{text:?}"),
        text.as_bytes().escape_ascii().to_string(),
        serde_json::to_string(&text.as_bytes().escape_ascii().to_string()).unwrap(),
        STANDARD.encode(text),
        url.to_string(),
        url::form_urlencoded::Serializer::new(String::new()).append_pair("a", text).finish(),
        text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, max_global_rejects: 10_000, ..ProptestConfig::default() })]

    #[test]
    fn a_whole_secret_never_leaves_however_it_is_written(
        secret in "[!-~äß]{6,60}", before in "[ -$'-\\[\\]-~]{0,30}", after in "( [ -~]{0,29})?"
    ) {
        prop_assume!(is_fit(&secret) && !is_itself_quoted(&secret));
        let parts = parts(&secret);
        for form in written(&secret) {
            prop_assume!(!leaks(form.as_bytes(), before.as_bytes()) && !leaks(form.as_bytes(), after.as_bytes()));
            let clean = cleaned(&parts, format!("{before}{form}{after}").as_bytes(), Cut::No);
            let rest = [before.as_bytes(), REDACTED.as_bytes(), after.as_bytes()].concat();
            // What is left is what stood around it, and at most a quote or an escape at either end.
            prop_assert!(clean.len() <= rest.len() + 24, "{}", String::from_utf8_lossy(&clean));
            prop_assert!(!leaks(secret.as_bytes(), &clean), "{}", String::from_utf8_lossy(&clean));
        }
    }

    #[test]
    fn a_whole_secret_never_leaves_in_any_encoding(
        secret in "[!-~äß]{6,40}", before in "[ -$'-\\[\\]-~]{0,9}", which in 0..ENCODINGS.len()
    ) {
        prop_assume!(is_fit(&secret) && !is_itself_quoted(&secret));
        let (name, encode) = ENCODINGS[which];
        if name.starts_with("signs") || name.starts_with("blanks") {
            return Ok(()); // only what others said is read like this
        }
        // Out of reach, too: which of several layers of escapes is the secret's own.
        let is_nested = ["twice", "thrice", "five times", " in JSON", "once more"].iter().any(|word| name.contains(word));
        prop_assume!(!is_nested || readings::layers(secret.as_bytes()).len() == 1);
        // A backslash before an escape is one of the escape's as well.
        prop_assume!(!(name.starts_with("an escaped NUL") && secret.contains('\\')));
        let text = format!("{before} {} {before}", encode(secret.as_bytes()));
        let clean = cleaned(&parts(&secret), text.as_bytes(), Cut::No);
        prop_assert_eq!(trace(&secret, &clean), None, "{}: {:?}", name, String::from_utf8_lossy(&clean));
    }

    #[test]
    fn of_what_others_said_no_part_is_left_in_any_encoding_wherever_it_was_cut(
        secret in "[!-~äß]{6,40}", before in "[ -$'-\\[\\]-~]{0,9}", which in 0..ENCODINGS.len(), from in 0usize..60, to in 0usize..400
    ) {
        prop_assume!(is_fit(&secret));
        let (name, encode) = ENCODINGS[which];
        // Between signs only letters and digits are told from what was put there.
        let is_spread = name.starts_with("signs") || name.starts_with("blanks");
        prop_assume!(!is_spread || secret.chars().all(char::is_alphanumeric));
        // What begins an escape in the secret itself may be undone with the escapes around a part of it, or cut from
        // them.
        prop_assume!(which < AS_IT_IS || !secret.contains(['%', '&', '\\']));
        let text = format!("{before}{}{before}", encode(secret.as_bytes())).into_bytes();
        let from = from.min(text.len());
        let piece = &text[from..text.len().min(from + to)];
        let clean = cleaned(&parts(&secret), piece, Cut::Anywhere);
        prop_assert_eq!(trace(&secret, &clean), None, "{}: {:?}", name, String::from_utf8_lossy(&clean));
    }

    #[test]
    fn no_text_is_too_odd_to_be_read(text in proptest::collection::vec(any::<u8>(), 0..200), signs in "[%\\\\&#x;0-9a-fu{}=]{0,80}") {
        let parts = parts("canary-of-odd-texts");
        for text in [&text[..], signs.as_bytes()] {
            prop_assert_eq!(&cleaned(&parts, text, Cut::Anywhere)[..], text);
        }
    }

    #[test]
    fn of_what_others_said_no_part_is_left_wherever_it_was_cut(
        secret in "[!-~äß]{6,60}", around in "[ -~]{0,30}", from in 0usize..90, to in 0usize..90
    ) {
        prop_assume!(is_fit(&secret) && !is_itself_quoted(&secret));
        let parts = parts(&secret);
        for form in written(&secret) {
            let text = format!("{around}{form}{around}");
            let (from, to) = (from.min(text.len()), to.min(text.len()));
            let piece = &text.as_bytes()[from.min(to)..from.max(to)];
            prop_assert!(!leaks(secret.as_bytes(), &cleaned(&parts, piece, Cut::Anywhere)));
        }
    }

    #[test]
    fn what_holds_nothing_secret_stays_as_it_is_and_characters_stay_whole(
        secret in "[A-Z]{6,40}", text in "[a-z0-9 äöü€]{0,200}", at in 0usize..200
    ) {
        let parts = parts(&secret);
        prop_assert_eq!(&cleaned(&parts, text.as_bytes(), Cut::No), text.as_bytes());
        let at = (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap();
        let mixed = format!("{}{secret}{}", &text[..at], &text[at..]);
        let wanted = format!("{}{REDACTED}{}", &text[..at], &text[at..]);
        prop_assert_eq!(String::from_utf8(cleaned(&parts, mixed.as_bytes(), Cut::No)).unwrap(), wanted);
    }
}

#[test]
fn words_that_a_password_shares_with_ours_stay_and_what_is_public_is_shown() {
    let all = parts("github_pat_11ABCDEFG0123456789");
    let shown = |text: &str, cut| String::from_utf8(cleaned(&all, text.as_bytes(), cut)).unwrap();
    assert_eq!(shown("https://github.com/acme/x", Cut::Anywhere), "https://github.com/acme/x");
    assert_eq!(shown("see github_pat_", Cut::Anywhere), "see github_pat_");
    assert_eq!(shown("see github_pat_11AB", Cut::Anywhere), "see [redacted]");
    assert_eq!(shown("see 1ABCDE", Cut::Anywhere), "see [redacted]");
    let all = parts("password-2024");
    let shown = |text: &str, cut| String::from_utf8(cleaned(&all, text.as_bytes(), cut)).unwrap();
    assert_eq!(shown("the password is password-2024", Cut::No), "the password is [redacted]");
    assert_eq!(shown("the password is password-2024", Cut::Anywhere), "the [redacted] is [redacted]");
}

#[test]
fn every_encoding_is_found_and_what_is_around_it_stays() {
    let secret = "pW\"q\\z/e@f#g?h&i<j>k'l%25m n+ä\u{1f511}";
    let all = parts(secret);
    for (name, encode) in ENCODINGS {
        let text = format!("before ( {} ) after", encode(secret.as_bytes()));
        let clean = String::from_utf8(cleaned(&all, text.as_bytes(), Cut::Anywhere)).unwrap();
        assert_eq!(trace(secret, clean.as_bytes()), None, "{name}: {clean}");
        assert!(clean.starts_with("before ( ") && clean.ends_with(") after"), "{name}: {clean}");
        assert!(clean.contains(REDACTED) && clean.len() < 60, "{name}: {clean}");
    }
}

#[test]
fn a_long_text_is_read_in_pieces_and_in_time_that_grows_with_it() {
    let secret = "canary-of-a-long-text";
    let all = parts(secret);
    let mut texts: Vec<Vec<u8>> = [&b"%25"[..], b"\\", b"&amp;", b"QUJD", b"414 ", b"1 ", b"a"]
        .map(|piece| piece.repeat((1 << 16) / piece.len()))
        .into();
    for text in &mut texts {
        for at in [0, 16_380, 30_700, 50_000] {
            text.splice(at..at, format!(" {secret} ").into_bytes());
        }
        let began = std::time::Instant::now();
        let clean = cleaned(&all, text, Cut::Anywhere);
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{:?}", began.elapsed());
        assert_eq!(trace(secret, &clean), None);
        assert!(clean.len() > (1 << 16) - 100, "no more was taken out than was found: {}", clean.len());
    }
}

#[test]
fn a_secret_is_found_across_the_end_of_a_piece() {
    let secret = "canary-kQ3x-9wZ";
    let before = " ".repeat((16 << 10) - secret.len() / 2);
    let clean = cleaned(&parts(secret), format!("{before}{secret}").as_bytes(), Cut::No);
    assert_eq!(String::from_utf8(clean).unwrap().trim_start(), REDACTED);
}

#[test]
fn a_key_is_known_by_its_lines() {
    let all =
        parts("-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\nabcdef\n-----END PRIVATE KEY-----\n");
    let text = "-----BEGIN PRIVATE KEY----- MIIEvQIBADANBgkqhkiG9w0BAQ abcdef -----END";
    let clean = String::from_utf8(cleaned(&all, text.as_bytes(), Cut::No)).unwrap();
    assert_eq!(clean, "-----BEGIN PRIVATE KEY----- [redacted] [redacted] -----END");
    for password in ["-----gY4kQ2vT", "-----BEGIN-gY4kQ2vT", "-----gY4kQ2vT\n"] {
        let clean = cleaned(&parts(password), password.trim().as_bytes(), Cut::No);
        assert_eq!(String::from_utf8(clean).unwrap(), REDACTED, "{password}");
    }
}

#[test]
fn what_nobody_holds_is_forgotten_in_the_end_and_nothing_else() {
    let mut known = SecretRegistry::default();
    known.add("given-by-a-variable", true);
    let held = known.add("still-held-by-somebody", false);
    known.add("held-and-then-for-good", false);
    known.add("held-and-then-for-good", true);
    let last = 10 * REMEMBERED;
    for number in 0..=last {
        known.add(&format!("token-{number:08}"), false);
    }
    let stays = |known: &SecretRegistry, text: &str| known.parts.find(text.as_bytes(), Cut::No).is_empty();
    assert!(known.secrets.len() <= 2 * REMEMBERED + 2);
    assert!(stays(&known, "token-00000000"), "forgotten");
    let young = format!("token-{:08}", last - 100);
    for text in [held.expose_secret(), "given-by-a-variable", "held-and-then-for-good", &young] {
        assert!(!stays(&known, text), "{text} is known");
    }
}

#[test]
fn so_many_are_remembered_and_at_most_twice_as_many() {
    let mut known = SecretRegistry::default();
    for number in 0..2 * REMEMBERED {
        known.add(&format!("{number:08}-token"), false);
    }
    assert_eq!(known.secrets.len(), 2 * REMEMBERED);
    let _held = known.add("one-more-and-held", false);
    assert_eq!(known.secrets.len(), REMEMBERED + 1);
    let is_known = |number: usize| {
        let found = known.parts.find(format!("{number:08}-token").as_bytes(), Cut::No);
        !found.is_empty()
    };
    assert!(!is_known(REMEMBERED - 1) && is_known(REMEMBERED));
}

#[test]
fn every_write_loses_its_secrets() {
    use std::io::Write as _;
    let _held = super::super::Secret::new("canary-of-the-writer");
    let mut lines = Redacting(std::io::BufWriter::new(Vec::new()));
    writeln!(lines, "sent canary-of-the-writer to it").unwrap();
    lines.flush().unwrap();
    assert_eq!(String::from_utf8(lines.0.get_ref().clone()).unwrap(), "sent [redacted] to it\n");
    assert_eq!(&*quoted_bytes(b"( the-writer"), b"( [redacted]", "a part of it, said by another");
    assert_eq!(&*quoted_bytes(b"( )"), b"( )");
}

#[test]
fn a_short_secret_is_only_taken_out_of_what_others_said() {
    for (secret, said) in [("qZ7", "( qZ7 )"), ("qZ7v", "( [redacted] )"), ("qZ7v9", "( [redacted] )")] {
        let known = parts(secret);
        let text = format!("( {secret} )");
        assert_eq!(cleaned(&known, text.as_bytes(), Cut::No), text.as_bytes());
        assert_eq!(cleaned(&known, text.as_bytes(), Cut::Anywhere), said.as_bytes());
    }
    assert_eq!(cleaned(&parts("qZ7v9x"), b"( qZ7v9x )", Cut::No), b"( [redacted] )");
    add_short_password("sP6-qZ");
    add_short_password("sP3");
    assert!(!is_within(b"sP6-qZ") && !is_within(b"sP3"), "too long, and too short for one");
}

#[test]
fn what_is_found_before_what_another_reading_found_is_taken_out_too() {
    let secret = "canary-kQ3x-9wZ";
    let text = format!("{} and {secret}", STANDARD.encode(secret));
    assert_eq!(cleaned(&parts(secret), text.as_bytes(), Cut::No), b"[redacted] and [redacted]");
}

#[test]
fn a_text_that_is_shorter_than_a_part_has_none() {
    // Before so many bytes were read, zeros stand for the others.
    assert!(parts("\0\0\0\0\0a").find(b"a", Cut::No).is_empty());
}

#[test]
fn different_parts_have_different_hashes() {
    let parts = Parts::default();
    let hashes: HashSet<u64> = (0..1 << 16).map(|window| parts.window_hash(window)).collect();
    assert_eq!(hashes.len(), 1 << 16);
}

#[test]
fn a_short_secret_of_several_lines_is_known_as_a_whole() {
    let lines = |count: usize| "kQ2\n".repeat(count);
    for (count, is_known) in [(3, true), (63, true), (64, false)] {
        let found = parts(&lines(count)).find(lines(10).as_bytes(), Cut::No);
        assert_eq!(!found.is_empty(), is_known, "{count} lines");
    }
}

#[test]
fn what_is_no_escape_stays_when_percent_is_decoded() {
    for (text, plain) in [("a%41%zz%4", "aA%zz%4"), ("%2541", "%41"), ("x41", "x41"), ("%+1", "%+1")] {
        assert_eq!(percent_decoded(text.as_bytes()), plain.as_bytes());
    }
}

#[test]
fn a_placeholder_stands_for_whole_characters() {
    let clean = |text: &[u8], found: &[(usize, usize)]| {
        let found: Vec<Range<usize>> = found.iter().map(|(from, to)| *from..*to).collect();
        String::from_utf8(without(text, &found)).unwrap()
    };
    assert_eq!(clean("aäb".as_bytes(), &[(2, 3)]), "a[redacted]b");
    assert_eq!(clean("aäb".as_bytes(), &[(1, 2)]), "a[redacted]b");
    assert_eq!(clean("aäb".as_bytes(), &[(0, 1)]), "[redacted]äb");
    assert_eq!(clean("a🔑b".as_bytes(), &[(1, 2), (3, 4)]), "a[redacted][redacted]b");
    assert_eq!(clean(b"\xa4b", &[(0, 1)]), "[redacted]b");
}
