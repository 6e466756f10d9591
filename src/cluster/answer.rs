//! Turns HTTP responses, and failed exchanges, into values and [`Failure`]s.

use std::error::Error as StdError;
use std::pin::Pin;
use std::time::Duration;

use hyper::body::Body as _;
use hyper::http::{HeaderMap, StatusCode, header};
use jiff::Timestamp;
use kube::client::Body;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::error::Failure;
use super::object::{ConfigMap, Lease, Meta};
use super::operation::{Kind, Operation, Verb};
use crate::human::sanitize;
use crate::retry::retry_after;
use crate::{secret, tls};

/// How many characters of a server's message are shown.
const SHOWN: usize = 300;
/// How many bytes of a server's message are looked at for that.
const READ: usize = 4 << 10;

/// A value that a successful response can hold.
pub(super) trait Expect {
    /// Its name in errors.
    const NAME: &'static str;
    /// The value of its `kind` field; `None` for any.
    const KIND: Option<&'static str>;
    /// The media type that asks for it.
    const ACCEPT: &'static str = "application/json";
}

impl Expect for ConfigMap {
    const NAME: &'static str = "ConfigMap";
    const KIND: Option<&'static str> = Some("ConfigMap");
}

impl Expect for Lease {
    const NAME: &'static str = "Lease";
    const KIND: Option<&'static str> = Some("Lease");
}

/// An object's metadata (`PartialObjectMetadata`).
#[derive(Debug, Deserialize)]
pub(super) struct Partial {
    #[serde(rename = "metadata")]
    pub(super) meta: Meta,
}

impl Expect for Partial {
    const NAME: &'static str = "object's metadata";
    const KIND: Option<&'static str> = Some("PartialObjectMetadata");
    const ACCEPT: &'static str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
}

/// A page of a list of metadata (`PartialObjectMetadataList`).
#[derive(Debug)]
pub(super) struct MetadataList {
    pub(super) items: Vec<Meta>,
    /// The `continue` token of the next page; `None` on the last one.
    pub(super) next: Option<String>,
}

impl Expect for MetadataList {
    const NAME: &'static str = "list of metadata";
    const KIND: Option<&'static str> = Some("PartialObjectMetadataList");
    const ACCEPT: &'static str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
}

impl<'de> Deserialize<'de> for MetadataList {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Raw {
            metadata: Head,
            items: Option<Vec<Partial>>, // null in an empty list
        }
        #[derive(Deserialize)]
        struct Head {
            #[serde(default, rename = "continue")]
            next: String,
        }
        let Raw { metadata, items } = Raw::deserialize(from)?;
        let items = items.unwrap_or_default().into_iter().map(|partial| partial.meta).collect();
        Ok(Self { items, next: Some(metadata.next).filter(|next| !next.is_empty()) })
    }
}

/// The response to a deletion: the object or a `Status`. Neither is used.
#[derive(Debug, Deserialize)]
pub(super) struct AnyObject {}

impl Expect for AnyObject {
    const NAME: &'static str = "object or status";
    const KIND: Option<&'static str> = None;
}

/// The fields of `metav1.Status` that are used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    message: String,
    reason: String,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    kind: String,
    causes: Vec<Cause>,
    retry_after_seconds: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
    message: String,
    field: String,
}

/// A complete HTTP response of any status.
#[derive(Debug)]
pub(super) struct HttpResponse {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl HttpResponse {
    /// Parses a successful response; returns the failure that any other one means.
    pub(super) fn read<T: DeserializeOwned + Expect>(
        self,
        operation: &Operation,
        longest_pause: Duration,
    ) -> Result<T, Failure> {
        if !self.status.is_success() {
            return Err(self.failure(operation, longest_pause));
        }
        #[derive(Deserialize)]
        struct Named {
            kind: String,
        }
        let unexpected = Failure::UnexpectedResponse { expected: T::NAME };
        let Ok(Named { kind }) = serde_json::from_slice(&self.body) else { return Err(unexpected) };
        if T::KIND.is_some_and(|expected| expected != kind) {
            return Err(unexpected);
        }
        serde_json::from_slice(&self.body).map_err(|_| unexpected)
    }

    fn failure(&self, operation: &Operation, longest_pause: Duration) -> Failure {
        // A proxy between us and the server may answer without a `Status`; then the HTTP status decides. But its 404
        // does not say that there is no such object: the API server gives that as the reason.
        let body: Status = serde_json::from_slice(&self.body).unwrap_or_default();
        let namespace = operation.namespace.clone();
        let message = if body.message.is_empty() { "no message".to_owned() } else { shown(&body.message) };
        let mentions = |words: &str| body.message.contains(words);
        let has_cause = |reason: &str| body.details.causes.iter().any(|cause| cause.reason == reason);
        // A webhook chooses the status of its denial, and a policy has a choice of four. A denial with 429 or 5xx may
        // pass: many webhooks answer so if they themselves fail.
        let may_pass = self.status == StatusCode::TOO_MANY_REQUESTS || self.status.is_server_error();
        let is_denied = (mentions("admission webhook") && mentions("denied the request"))
            || (mentions("ValidatingAdmissionPolicy") && mentions("denied request"));
        match self.status.as_u16() {
            _ if is_denied && !may_pass => Failure::AdmissionDenied { message },
            401 => Failure::Unauthorized,
            403 if has_cause("NamespaceTerminating") => Failure::NamespaceTerminating { namespace },
            403 if mentions("exceeded quota") => Failure::QuotaExceeded { message },
            403 if mentions("User \"") => Failure::Forbidden {
                user: user_of(&body.message),
                verb: operation.verb.label(),
                resource: match operation.kind {
                    Kind::ConfigMap => "configmaps",
                    Kind::Lease => "leases.coordination.k8s.io",
                },
                namespace,
            },
            // A proxy's, which says nothing of our rights: the API server gives a reason.
            403 if body.reason.is_empty() => Failure::Status { status: 403, message },
            403 => Failure::AdmissionDenied { message },
            404 if body.details.kind == "namespaces" => Failure::NamespaceNotFound { namespace },
            404 if body.reason == "NotFound" => Failure::NotFound,
            409 if body.reason == "AlreadyExists" => Failure::AlreadyExists,
            409 => Failure::Conflict,
            410 if operation.verb == Verb::List => Failure::Expired,
            413 => Failure::TooLarge { message },
            422 if mentions("field is immutable when `immutable` is set") => Failure::Immutable,
            422 if has_cause("FieldValueTooLong") => Failure::TooLarge { message: body.fields() },
            422 => Failure::Invalid { message: body.fields() },
            status @ (429 | 503) => {
                Failure::Busy { status, pause: self.pause(&body).map(|pause| pause.min(longest_pause)) }
            }
            // etcd's limit, passed through as a 500. It is permanent: the same request always gets it.
            500 if mentions("request is too large") || mentions("larger than max") => {
                Failure::TooLarge { message }
            }
            status @ 500.. => Failure::Server { status, message },
            _ if mentions("admission webhook") => Failure::AdmissionDenied { message },
            status => Failure::Status { status, message },
        }
    }

    /// Returns how long the server asks to wait: the `Retry-After` header, else `retryAfterSeconds` of the `Status`.
    /// A header that cannot be parsed, such as a proxy's, does not hide what the server itself says.
    fn pause(&self, body: &Status) -> Option<Duration> {
        let header = self.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let asked = header.and_then(|value| retry_after(value, Timestamp::now()));
        let in_body = Some(body.details.retry_after_seconds).filter(|&seconds| seconds > 0);
        asked.or_else(|| in_body.map(Duration::from_secs))
    }
}

impl Status {
    /// Lists the invalid fields and what is wrong with each, without the values that the server quotes.
    fn fields(&self) -> String {
        let causes = self.details.causes.iter().take(SHOWN).map(|cause| match cause.field.as_str() {
            "" => without_value(&cause.message).to_owned(),
            field => format!("{field}: {}", without_value(&cause.message)),
        });
        match (causes.collect::<Vec<_>>().join("; ").as_str(), self.reason.as_str()) {
            ("", "") => "no message".to_owned(),
            ("", text) | (text, _) => shown(text),
        }
    }
}

/// Extracts the user from `... is forbidden: User "system:serviceaccount:ci:config-apply" cannot update ...`; empty if
/// there is none.
fn user_of(message: &str) -> String {
    let quoted = message.split_once("User ").map_or("", |(_, rest)| rest);
    // Go's %q, which equals JSON for all ordinary names.
    let mut values = serde_json::Deserializer::from_str(quoted).into_iter::<String>();
    values.next().and_then(Result::ok).map_or_else(String::new, |user| shown(&user))
}

/// Cuts `Invalid value: "...": why` and the other forms of the server's validation messages down to `why`.
fn without_value(message: &str) -> &str {
    let kinds = ["Invalid value: ", "Unsupported value: ", "Duplicate value: ", "Not found: "];
    match kinds.iter().find_map(|kind| message.strip_prefix(kind)) {
        None => message,
        Some(rest) => {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<IgnoredAny>();
            let end = match values.next() {
                Some(Ok(_)) => values.byte_offset(),
                _ => rest.len(),
            };
            let why = rest[end..].trim_start_matches([':', ' ']);
            if why.is_empty() { "its value is not allowed" } else { why }
        }
    }
}

/// Returns a server's text as one short line, without control characters and known secrets.
fn shown(text: &str) -> String {
    // Looking for secrets takes time for each byte. Of one that is cut here the rest is found as well.
    let end = (0..=READ.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or_default();
    let quoted = secret::quoted(&text[..end]);
    sanitize(&quoted.split_whitespace().collect::<Vec<_>>().join(" "), SHOWN)
}

/// Reads a response's body to its end, or until there are more than `most` bytes. Returns true at its end.
pub(super) async fn read_up_to(most: usize, body: &mut Body, bytes: &mut Vec<u8>) -> Result<bool, Failure> {
    while bytes.len() <= most {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        let Some(frame) = frame else { return Ok(true) };
        let frame = frame.map_err(|error| Failure::ConnectionLost { why: deepest(&error) })?;
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    Ok(false)
}

/// Classifies a request without a response: [`Failure::Unreachable`] if there was no connection, so that nothing was
/// sent, or [`Failure::ConnectionLost`] if the connection broke, so that the outcome is unknown.
pub(super) fn connection_failure(error: &kube::Error, server: &str) -> Failure {
    let tls = tls::problem(error);
    let why = tls.as_ref().map_or_else(|| deepest(error), |problem| shown(&format!("TLS: {}", problem.text)));
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.downcast_ref::<hyper_util::client::legacy::Error>().is_some_and(|error| error.is_connect()) {
            let transient = tls.is_none_or(|problem| problem.transient);
            return Failure::Unreachable { server: server.to_owned(), why, transient };
        }
        cause = error.source();
    }
    Failure::ConnectionLost { why }
}

/// Describes why no client can be made of a configuration.
pub(super) fn describe_client_error(error: &kube::Error) -> String {
    match error {
        kube::Error::ProxyProtocolUnsupported { .. } => {
            "its proxy speaks a protocol that we do not (http, https and socks5)".to_owned()
        }
        // Errors of rustls and http never contain the bytes of a key or a header.
        error => deepest(error),
    }
}

/// Returns the message of the innermost cause, which says what happened; the outer ones only say where.
fn deepest(error: &(dyn StdError + 'static)) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    shown(&error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    fn response(status: u16, body: &str) -> HttpResponse {
        let status = StatusCode::from_u16(status).unwrap();
        HttpResponse { status, headers: HeaderMap::new(), body: body.into() }
    }

    fn answered(status: u16, body: &serde_json::Value) -> HttpResponse {
        response(status, &body.to_string())
    }

    fn put() -> Operation {
        Operation::of(Verb::Update, Kind::ConfigMap, "ci", "jobs")
    }

    #[test]
    fn retry_after_is_capped() {
        let mut answer = answered(429, &serde_json::json!({}));
        answer.headers.insert(header::RETRY_AFTER, "3600".parse().unwrap());
        let failure = answer.failure(&put(), LONGEST);
        assert!(matches!(failure, Failure::Busy { status: 429, pause: Some(LONGEST) }), "{failure:?}");
        let answer = answered(503, &serde_json::json!({ "details": { "retryAfterSeconds": 2 } }));
        let failure = answer.failure(&put(), LONGEST);
        assert!(matches!(failure, Failure::Busy { status: 503, pause: Some(pause) } if pause.as_secs() == 2));
    }

    #[test]
    fn a_header_that_means_nothing_does_not_hide_the_pause_in_the_body() {
        let mut answer = answered(429, &serde_json::json!({ "details": { "retryAfterSeconds": 2 } }));
        for (header, pause) in [("soon", 2), ("-1", 2), ("\u{fc}", 2), ("7", 7), ("0", 0)] {
            answer.headers.insert(header::RETRY_AFTER, header.parse().unwrap());
            let failure = answer.failure(&put(), LONGEST);
            assert!(
                matches!(failure, Failure::Busy { pause: Some(found), .. } if found.as_secs() == pause),
                "{header}: {failure:?}"
            );
        }
    }

    #[test]
    fn quoted_values_are_removed_from_messages() {
        assert_eq!(without_value(r#"Invalid value: "s3cret \"x\"": must be a label"#), "must be a label");
        assert_eq!(without_value(r#"Invalid value: {"a":"s3cret"}: no"#), "no");
        assert_eq!(without_value("Invalid value: s3cret: must be a label"), "its value is not allowed");
        assert_eq!(without_value("Required value"), "Required value");
        let cause = serde_json::json!({
            "reason": "FieldValueInvalid", "field": "metadata.labels", "message": "Invalid value: \"s3cret\": no label",
        });
        let body = serde_json::json!({ "message": "x is invalid: s3cret", "details": { "causes": [cause] } });
        let line = answered(422, &body).failure(&put(), LONGEST).to_string();
        assert_eq!(line, "the server finds it invalid: metadata.labels: no label");
    }

    #[test]
    fn a_forbidden_request_names_the_user_and_all_needed_rights() {
        let message = "configmaps \"jobs\" is forbidden: User \"system:serviceaccount:ci:config-apply\" cannot update \
                       resource \"configmaps\" in API group \"\" in the namespace \"ci\"";
        let refused = |message: &str| {
            let why = answered(403, &serde_json::json!({ "message": message })).failure(&put(), LONGEST);
            let error = super::super::Error { cluster: "c".into(), operation: Box::new(put()), why };
            (error.why.to_string(), error.hints().concat())
        };
        let (why, hint) = refused(message);
        let user = "system:serviceaccount:ci:config-apply";
        assert_eq!(why, format!("the right to update configmaps in namespace ci is missing for {user}"));
        assert!(
            hint.starts_with(&format!("grant {user} get, list, create and update on configmaps")),
            "{hint}"
        );
        let (why, hint) = refused("User \"unended");
        assert_eq!(why, "the right to update configmaps in namespace ci is missing");
        assert!(hint.starts_with("grant our user get"), "{hint}");
        assert_eq!(user_of("User \"unended"), "");
    }

    #[test]
    fn server_messages_become_one_short_line() {
        assert_eq!(shown(" a\n b\u{1b}[0m\u{202e} "), "a b\u{fffd}[0m\u{fffd}");
        for text in ["ä".repeat(1_000), "🦀".repeat(READ), format!("a{}", "🦀".repeat(READ))] {
            assert_eq!(shown(&text).chars().count(), SHOWN);
        }
    }

    #[test]
    fn a_long_message_or_list_of_causes_takes_no_time() {
        let message = "a ".repeat(32 << 20);
        let cause = serde_json::json!({ "message": "Invalid value: [[],[],[]]: no", "field": "data" });
        let causes = vec![cause; 20_000];
        let answer = answered(422, &serde_json::json!({ "details": { "causes": causes } }));
        let began = std::time::Instant::now();
        assert_eq!(shown(&message).chars().count(), SHOWN);
        let failure = answer.failure(&put(), LONGEST);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        assert!(
            matches!(&failure, Failure::Invalid { message } if message.starts_with("data: no; data: no; "))
        );
    }

    #[test]
    fn a_denial_is_one_whatever_its_4xx_and_a_proxys_403_is_no_missing_right() {
        let webhook = "admission webhook \"team.example.com\" denied the request: label team is missing";
        let policy = "configmaps \"jobs\" is forbidden: ValidatingAdmissionPolicy 'team' with binding 'all' denied \
                      request: no team";
        for message in [webhook, policy] {
            let body = serde_json::json!({ "message": message, "reason": "Invalid" });
            let failure_with = |status| answered(status, &body).failure(&put(), LONGEST);
            for status in [400, 401, 403, 404, 409, 413, 422] {
                let failure = failure_with(status);
                let is_denied =
                    matches!(&failure, Failure::AdmissionDenied { message } if message.contains("team"));
                assert!(is_denied, "{status}: {failure:?}");
            }
            for status in [429, 503] {
                assert!(matches!(failure_with(status), Failure::Busy { .. }), "{status}");
            }
            assert!(matches!(failure_with(500), Failure::Server { message, .. } if message.contains("team")));
        }
        let html = response(403, "<html>blocked</html>");
        assert!(matches!(html.failure(&put(), LONGEST), Failure::Status { status: 403, .. }));
        let plugin = serde_json::json!({ "message": "no Pod may use it", "reason": "Forbidden" });
        let failure = answered(403, &plugin).failure(&put(), LONGEST);
        assert!(matches!(&failure, Failure::AdmissionDenied { .. }), "{failure:?}");
        let invalid = answered(422, &serde_json::json!({})).failure(&put(), LONGEST).to_string();
        assert_eq!(invalid, "the server finds it invalid: no message");
    }

    #[test]
    fn a_success_with_another_body_is_a_failure() {
        for body in
            ["<html>hello</html>", r#"{"kind":"ConfigMap"}"#, r#"{"kind":"Secret","metadata":{}}"#, ""]
        {
            let failure = response(200, body).read::<Partial>(&put(), LONGEST).unwrap_err();
            assert!(matches!(failure, Failure::UnexpectedResponse { .. }), "{body}: {failure:?}");
        }
    }

    #[test]
    fn a_proxys_answer_counts_by_its_status() {
        let answer = |status| response(status, "<html>502</html>");
        assert!(matches!(answer(502).failure(&put(), LONGEST), Failure::Server { status: 502, .. }));
        assert!(matches!(answer(503).failure(&put(), LONGEST), Failure::Busy { pause: None, .. }));
        assert!(matches!(answer(302).failure(&put(), LONGEST), Failure::Status { status: 302, .. }));
        assert!(matches!(answer(413).failure(&put(), LONGEST), Failure::TooLarge { .. }));
        assert!(matches!(answer(404).failure(&put(), LONGEST), Failure::Status { status: 404, .. }));
        let server = answered(404, &serde_json::json!({ "kind": "Status", "reason": "NotFound" }));
        assert!(matches!(server.failure(&put(), LONGEST), Failure::NotFound));
    }
}
