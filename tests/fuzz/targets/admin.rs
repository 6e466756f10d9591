//! What a webhook's sender claims.

use aws_lc_rs::hmac;
use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::proof::{Claims, Key};
use crate::fuzz::{Input, SECRET, Target};

pub(crate) const TARGETS: &[Target] = &[Target::new("webhooks", webhooks)];

const HEADERS: [&str; 10] = [
    "x-hub-signature-256",
    "x-gitea-signature",
    "x-forgejo-signature",
    "x-gitlab-token",
    "authorization",
    "x-github-delivery",
    "idempotency-key",
    "x-hub-signature",
    "content-length",
    "x-gitea-delivery",
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A request is genuine if one header, given once, holds the secret or the body's tag, and never else.
fn webhooks(data: &[u8]) {
    let input = &mut Input::new(data);
    let other = "another secret";
    let keys = [Key::new(SECRET.as_bytes()), Key::new(other.as_bytes())];
    let body = input.piece();
    let tag =
        |secret: &str| hex(hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), body).as_ref());
    let mut headers = HeaderMap::new();
    let mut given: Vec<(&str, Vec<u8>)> = Vec::new();
    while given.len() < 8 && !input.is_empty() {
        let name = *input.of(&HEADERS);
        let value: Vec<u8> = match input.byte() % 12 {
            0 => SECRET.into(),
            1 => format!("Bearer {SECRET}").into(),
            2 => format!("sha256={}", tag(SECRET)).into(),
            3 => tag(other).to_uppercase().into(),
            4 => format!("sha256={}", tag("no secret")).into(),
            5 => format!("bearer  {other} ").into(),
            6 => format!("sha256={}", &tag(SECRET)[1..]).into(),
            7 => SECRET[..usize::from(input.byte()) % SECRET.len()].into(),
            8 => format!("{SECRET} ").into(),
            9 => format!("Bearer{SECRET}").into(),
            _ => input.piece().to_vec(),
        };
        let Ok(wrapped) = HeaderValue::from_bytes(&value) else { continue };
        headers.append(HeaderName::from_static(name), wrapped);
        given.push((name, value));
    }
    let once = |name: &str| {
        let mut all = given.iter().filter(|(other, _)| *other == name);
        all.next()
            .filter(|_| all.next().is_none())
            .map(|(_, value)| String::from_utf8_lossy(value).into_owned())
    };
    let tags = [tag(SECRET), tag(other)];
    let signed = |text: Option<String>, before: &str| {
        text.and_then(|text| text.strip_prefix(before).map(str::to_ascii_lowercase))
            .is_some_and(|text| tags.contains(&text))
    };
    let is_secret = |text: &str| text == SECRET || text == other;
    let bearer = once("authorization").filter(|text| text.len() > 7 && text.is_char_boundary(7));
    let expected = signed(once("x-hub-signature-256"), "sha256=")
        || signed(once("x-gitea-signature"), "")
        || signed(once("x-forgejo-signature"), "")
        || once("x-gitlab-token").is_some_and(|text| is_secret(&text))
        || bearer.is_some_and(|text| {
            text[..7].eq_ignore_ascii_case("bearer ") && is_secret(text[7..].trim_ascii())
        });
    let claims = Claims::read(&headers);
    let mut contexts: Vec<_> = keys.iter().map(Key::context).collect();
    for piece in body.chunks(7) {
        contexts.iter_mut().for_each(|context| context.update(piece));
    }
    let tags: Vec<_> = contexts.into_iter().map(hmac::Context::sign).collect();
    let is_valid = claims.valid(&keys, &tags);
    assert_eq!(is_valid, expected, "{given:?}");
    assert!(!is_valid || (claims.may_be_valid(&keys) && !claims.is_empty()));
    let traces = claims.traces();
    assert!(traces.len() <= 7 && traces.iter().all(|trace| trace.len() <= 600));
}
