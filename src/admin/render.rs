//! Renders the status for `/status` and the page, on a blocking thread and one at a time: a status may have megabytes,
//! and the processes that hold pins are searched in all of /proc. As long as the status stays the same, what was
//! rendered or found is shared for a second, so that clients cost little, however many ask.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, watch};

use super::page;
use crate::clock;
use crate::fsx::{self, Holder};
use crate::generation::Name;
use crate::phase::Status;
use crate::secret;

/// How long a rendering and a search are shared.
const SHARED: Duration = Duration::from_secs(1);

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
    pub(super) async fn render(
        &self,
        form: Form,
        stale: Option<String>,
    ) -> Result<String, serde_json::Error> {
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

struct Rendered {
    at: Instant,
    stale: Option<String>,
    text: String,
}

impl Inner {
    fn render(&mut self, form: Form, stale: Option<String>) -> Result<String, serde_json::Error> {
        if self.status.has_changed().unwrap_or(false) {
            self.rendered = [None, None];
        }
        let before = self.rendered[form as usize].as_ref();
        if let Some(before) = before.filter(|one| one.stale == stale && one.at.elapsed() < SHARED) {
            return Ok(before.text.clone());
        }
        let status = self.status.borrow_and_update().clone();
        let mut status = Status { stale: stale.clone(), ..status };
        self.add_holders(&mut status);
        let text = match form {
            Form::Json => secret::redacted_json(&serde_json::to_string_pretty(&status)?) + "\n",
            Form::Page => page::render(&status, &clock::now()),
        };
        self.rendered[form as usize] = Some(Rendered { at: Instant::now(), stale, text: text.clone() });
        Ok(text)
    }

    /// Adds the processes that hold pins to the status, if any generation is pinned.
    fn add_holders(&mut self, status: &mut Status) {
        let root = PathBuf::from(&status.root);
        let pinned = || status.retired.iter().filter(|generation| generation.pinned);
        let is_fresh = |(at, found): &(Instant, Found)| {
            let is_found = |name: &Name| found.iter().any(|(of, _)| of == name);
            at.elapsed() < SHARED && pinned().all(|generation| is_found(&generation.name))
        };
        if !self.holders.as_ref().is_some_and(is_fresh) {
            let holders = |name: &Name| match fs_err::metadata(root.join(name.relative_path())) {
                Ok(dir) => fsx::lock_holders(dir.dev(), dir.ino()),
                Err(_) => Vec::new(), // it was removed meanwhile
            };
            let found = pinned().map(|generation| (generation.name.clone(), holders(&generation.name)));
            self.holders = Some((Instant::now(), found.collect()));
        }
        let found = self.holders.iter().flat_map(|(_, found)| found);
        for (name, holders) in found {
            let generation = status.retired.iter_mut().find(|one| one.pinned && one.name == *name);
            generation.into_iter().for_each(|generation| generation.holders.clone_from(holders));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_rendering_is_shared_until_the_status_changes() {
        let (sender, status) = watch::channel(Status::default());
        let renderer = Renderer::new(status);
        let render = || renderer.render(Form::Json, None);
        let first = render().await.unwrap();
        assert!(!first.contains("\"stale\""));
        let inner = Arc::clone(&renderer.0);
        inner.lock().await.rendered[0].as_mut().unwrap().text = "shared".into();
        assert_eq!(render().await.unwrap(), "shared");
        assert!(renderer.render(Form::Json, Some("silent".into())).await.unwrap().contains("\"silent\""));
        sender.send_modify(|status| status.remote = "changed".into());
        assert!(render().await.unwrap().contains("\"changed\""));
    }
}
