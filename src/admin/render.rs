//! Renders the status for `/status` and the page, on a blocking thread and one at a time: a status may have megabytes,
//! and pins are looked for when it is shown, the processes that hold them in all of /proc. As long as the status stays
//! the same, what was rendered or found is shared for a second, so that clients cost little, however many ask.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Mutex, watch};

use super::page;
use crate::clock;
use crate::detached_io;
use crate::fsx::{self, Holder};
use crate::generation::Name;
use crate::phase::Status;
use crate::secret;

/// How long a rendering and a search are shared.
const SHARED: Duration = Duration::from_secs(1);

/// How long the look for pins may take. On a volume that hangs the status is shown without it.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// What the status is rendered as.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Json,
    Page,
}

/// Renders the newest status.
pub(super) struct Renderer(Arc<Mutex<Inner>>);

impl Renderer {
    pub(super) fn new(status: watch::Receiver<Status>) -> Self {
        Self(Arc::new(Mutex::new(Inner { status, rendered: [None, None], holders: None })))
    }

    /// Renders the status, secrets redacted. `stale` is added to it.
    pub(super) async fn render(&self, form: Form, stale: Option<String>) -> Result<Bytes, serde_json::Error> {
        let mut inner = Arc::clone(&self.0).lock_owned().await;
        match tokio::task::spawn_blocking(move || inner.render(form, stale)).await {
            Ok(rendered) => rendered,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => std::future::pending().await, // only a runtime that shuts down refuses to start it
            },
        }
    }
}

struct Inner {
    status: watch::Receiver<Status>,
    /// The last rendering in each form.
    rendered: [Option<Rendered>; 2],
    /// The processes that held pins, by generation, and when they were found.
    holders: Option<(Instant, Found)>,
}

/// The processes that hold pins, by generation.
type Found = Vec<(Name, Vec<Holder>)>;

/// A pinned generation, with the metadata of its directory.
type Pinned = (Name, std::fs::Metadata);

struct Rendered {
    at: Instant,
    stale: Option<String>,
    /// Shared by the responses that begin within [`SHARED`]. A client that reads nothing keeps it for longer:
    /// [`super::MAX_LARGE`] limits how many do.
    text: Bytes,
}

impl Inner {
    fn render(&mut self, form: Form, stale: Option<String>) -> Result<Bytes, serde_json::Error> {
        if self.status.has_changed().unwrap_or(false) {
            self.rendered = [None, None];
        }
        let before = self.rendered[form as usize].as_ref();
        if let Some(before) = before.filter(|one| one.stale == stale && one.at.elapsed() < SHARED) {
            return Ok(before.text.clone());
        }
        let status = self.status.borrow_and_update().clone();
        let mut status = Status { stale: stale.clone(), ..status };
        let pinned = look_for_pins(&mut status);
        self.add_holders(&mut status, &pinned);
        let text = Bytes::from(match form {
            Form::Json => secret::redacted_json(&serde_json::to_string_pretty(&status)?) + "\n",
            Form::Page => page::render(&status, &clock::now()),
        });
        self.rendered[form as usize] = Some(Rendered { at: Instant::now(), stale, text: text.clone() });
        Ok(text)
    }

    /// Adds the processes that hold pins to the status, if any generation is pinned.
    fn add_holders(&mut self, status: &mut Status, pinned: &[Pinned]) {
        let is_fresh = |(at, found): &(Instant, Found)| {
            let is_found = |name: &Name| found.iter().any(|(of, _)| of == name);
            at.elapsed() < SHARED && pinned.iter().all(|(name, _)| is_found(name))
        };
        if !self.holders.as_ref().is_some_and(is_fresh) {
            let holders = |dir: &std::fs::Metadata| fsx::lock_holders(dir.dev(), dir.ino());
            let found = pinned.iter().map(|(name, dir)| (name.clone(), holders(dir)));
            self.holders = Some((Instant::now(), found.collect()));
        }
        let found = self.holders.iter().flat_map(|(_, found)| found);
        for (name, holders) in found {
            let mut all = status.current.iter_mut().chain(&mut status.retired);
            let generation = all.find(|one| one.pinned && one.name == *name);
            generation.into_iter().for_each(|generation| generation.holders.clone_from(holders));
        }
    }
}

/// Looks which generations are pinned now, as `treeswap status` does. What the status has is as old as the last attempt
/// and about retired generations only, because the current one is kept in any case. It stays where the pins are not
/// known. Returns those whose directories were seen.
fn look_for_pins(status: &mut Status) -> Vec<Pinned> {
    let recorded = status.current.iter().chain(&status.retired);
    let recorded: Vec<_> = recorded.map(|generation| (generation.name.clone(), generation.pinned)).collect();
    if recorded.is_empty() {
        return Vec::new();
    }
    let root = PathBuf::from(&status.root);
    let own = root.clone();
    let pinned = detached_io::wait(&root, LOOK_LIMIT, move || pinned_in(&own, recorded)).flatten();
    let Some(pinned) = pinned else { return Vec::new() };
    for generation in status.current.iter_mut().chain(&mut status.retired) {
        generation.pinned = pinned.iter().any(|(name, _)| *name == generation.name);
    }
    pinned
}

/// Returns which of these generations are pinned. Whether each is, as recorded, counts where the lock cannot be tried.
/// `None` if the root cannot be opened.
fn pinned_in(root: &Path, recorded: Vec<(Name, bool)>) -> Option<Vec<Pinned>> {
    let dir = fsx::open_dir_at_path(root).ok()?;
    let is_pinned =
        |(name, was_pinned): &(Name, bool)| fsx::is_locked(&dir, name.relative_path()).unwrap_or(*was_pinned);
    let with_metadata = |(name, _): (Name, bool)| {
        let found = fs_err::metadata(root.join(name.relative_path())).ok()?; // it may be gone by now
        Some((name, found))
    };
    Some(recorded.into_iter().filter(is_pinned).filter_map(with_metadata).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::phase::GenerationStatus;

    #[tokio::test]
    async fn a_rendering_is_shared_until_the_status_changes() {
        let (sender, status) = watch::channel(Status::default());
        let renderer = Renderer::new(status);
        let render = || renderer.render(Form::Json, None);
        let has = |text: &Bytes, part: &str| String::from_utf8_lossy(text).contains(part);
        let first = render().await.unwrap();
        assert!(!has(&first, "\"stale\""));
        let inner = Arc::clone(&renderer.0);
        let shared = Bytes::from("shared".to_owned());
        inner.lock().await.rendered[0].as_mut().unwrap().text = shared.clone();
        assert_eq!(render().await.unwrap().as_ptr(), shared.as_ptr(), "the same bytes, not a copy of them");
        let stale = renderer.render(Form::Json, Some("silent".into())).await.unwrap();
        assert!(has(&stale, "\"silent\""));
        sender.send_modify(|status| status.remote = "changed".into());
        assert!(has(&render().await.unwrap(), "\"changed\""));
    }

    #[tokio::test]
    async fn on_a_volume_that_hangs_the_status_is_shown_with_the_pins_that_it_has() {
        let root = tempfile::tempdir().unwrap();
        let generation = GenerationStatus {
            name: Name::parse("..2026_11_20_15_04_05.000000001").unwrap(),
            revision: None,
            commit: None,
            entries: 0,
            bytes: 0,
            published: "2026-11-20T15:04:05Z".parse().unwrap(),
            retired: None,
            pinned: true,
            holders: Vec::new(),
            reason: "pinned".into(),
        };
        let shown = root.path().display().to_string();
        let status = Status { root: shown, retired: vec![generation], ..Status::default() };
        let (sender, status) = watch::channel(status);
        let renderer = Renderer::new(status);
        let is_pinned = async || {
            let text = renderer.render(Form::Json, None).await.unwrap();
            serde_json::from_slice::<Status>(&text).unwrap().retired[0].pinned
        };
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let hung = detached_io::wait(root.path(), Duration::ZERO, move || ended.recv().is_ok());
        assert_eq!(hung, None);
        assert!(is_pinned().await, "nobody could look");
        end.send(()).unwrap();
        sender.send_modify(|status| status.remote = "changed".into());
        assert!(!is_pinned().await, "there is no such directory, let alone a lock on it");
    }
}
