//! What hooks are told of a generation, and the wait for the pre-publish gate.

use std::path::Path;

use tokio::time::Instant;

use super::bounds::Bounds;
use super::error::Error;
use crate::generation::GenerationRecord;
use crate::hooks::{HookEvent, Hooks};
use crate::phase::Commit;
use crate::store::Staged;

/// The event of a generation that has its final name.
pub(super) fn of_record(record: &GenerationRecord, commit: Option<&Commit>, root: &Path) -> HookEvent {
    HookEvent {
        revision: record.revision,
        sources: sources(commit),
        selection: record.selection_digest.clone(),
        generation: Some(record.name.clone()),
        dir: root.join(record.name.relative_path()),
    }
}

/// The sources of a composed revision, as JSON; `None` for a commit of a single repository.
fn sources(commit: Option<&Commit>) -> Option<String> {
    let sources = commit.map(|commit| &commit.sources).filter(|sources| !sources.is_empty())?;
    serde_json::to_string(sources).ok()
}

/// Runs the gate, if there is one, on a staged generation, which has no name yet. Returns an error unless it passes.
pub(super) async fn ask_gate(
    hooks: Option<&Hooks>,
    bounds: &Bounds,
    staged: &Staged,
    commit: Option<&Commit>,
) -> Result<(), Error> {
    let Some(gate) = hooks.and_then(Hooks::gate) else { return Ok(()) };
    let event = HookEvent {
        revision: staged.revision(),
        sources: sources(commit),
        selection: String::new(), // events of the gate are not compared: each attempt runs it
        generation: None,
        dir: staged.path(),
    };
    let left = bounds.deadline.saturating_duration_since(Instant::now());
    bounds.gate(gate.pass(&event, left, &bounds.draining), gate.retries_refusals()).await
}
