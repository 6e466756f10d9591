//! Kubeconfigs, and what an API server answers.

use std::time::Duration;

use hyper::http::{HeaderMap, HeaderValue, StatusCode};

use super::answer::{AnyObject, HttpResponse, MetadataList};
use super::error::Failure;
use super::kubeconfig::Clusters;
use super::operation::{Kind, Operation, Verb};
use super::{ConfigError, ConfigMap, Options};
use crate::fuzz::{Input, SECRET, Scratch, Target, at_once};
use crate::human::one_line;

pub(crate) const TARGETS: &[Target] =
    &[Target::new("kubeconfigs", kubeconfigs), Target::new("api_answers", api_answers)];

const STATUSES: [u16; 16] = [200, 201, 400, 401, 403, 404, 409, 410, 413, 422, 429, 500, 503, 504, 302, 418];

/// A failure is one short line that no terminal obeys, and no server makes us wait for longer than we want.
fn api_answers(data: &[u8]) {
    let input = &mut Input::new(data);
    let status = StatusCode::from_u16(*input.of(&STATUSES)).unwrap();
    let verb = *input.of(&[Verb::List, Verb::Get, Verb::Create, Verb::Update, Verb::Delete]);
    let act = Operation::of(verb, Kind::ConfigMap, "ci", "config");
    let mut headers = HeaderMap::new();
    if let Ok(pause) = HeaderValue::from_bytes(input.piece()) {
        headers.insert("retry-after", pause);
    }
    let shape = input.byte();
    let body = input.rest().to_vec();
    let longest = Duration::from_secs(60);
    let answer = HttpResponse { status, headers, body: body.clone() };
    let result = match shape % 3 {
        0 => answer.read::<MetadataList>(&act, longest).map(|_| ()),
        1 => answer.read::<ConfigMap>(&act, longest).map(|_| ()),
        _ => answer.read::<AnyObject>(&act, longest).map(|_| ()),
    };
    match result {
        Ok(()) => assert!(status.is_success() && matches!(body.trim_ascii_start()[0], b'{' | b'[')),
        Err(failure) => {
            if let Failure::Busy { pause: Some(pause), .. } = &failure {
                assert!(*pause <= longest);
            }
            let line = one_line(&failure);
            assert!(line.len() < 4_000 && !line.contains(|c: char| c.is_control()), "{line:?}");
        }
    }
}

/// Whatever stands in it, no message repeats a secret or the lines around a mistake.
fn kubeconfigs(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    // Files that a kubeconfig names are read, and there are some without an end.
    if ["/dev", "/proc", "/sys", "fifo"].iter().any(|dir| text.contains(dir)) {
        return;
    }
    Scratch::with(|dir| {
        let path = dir.join("kubeconfig");
        std::fs::write(&path, data).unwrap();
        let options = Options { kubeconfigs: vec![path], in_cluster: false, ..Options::default() };
        let unseen = |error: &ConfigError| {
            let line = one_line(error);
            // A name is shown, and a path.
            let is_named = ["name:", "cluster:", "current-context:", "-data:", "server:"]
                .iter()
                .any(|key| text.lines().any(|line| line.contains(key) && line.contains(SECRET)));
            assert!(is_named || !line.contains(SECRET) || text.contains(&format!("/{SECRET}")), "{line}");
            assert!(line.len() < 4_000 + 2 * text.len(), "{line}");
        };
        let clusters = match Clusters::load(&options) {
            Ok(clusters) => clusters,
            Err(error) => return unseen(&error),
        };
        for name in clusters.names() {
            let cluster = clusters.get(name).unwrap();
            match at_once(cluster.inner.origin.config_within(crate::detached_io::DEFAULT_TIMEOUT)) {
                Ok(config) => assert!(config.auth_info.auth_provider.is_none()),
                Err(error) => unseen(&error),
            }
        }
    });
}
