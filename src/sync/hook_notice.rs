//! Notices to hooks, and the wait for the gate.

use std::path::Path;

use super::bounds::Bounds;
use super::error::Error;
use crate::generation::GenerationRecord;
use crate::hooks::{Hooks, Notice};
use crate::phase::Commit;
use crate::store::Staged;

/// Of a generation in its place.
pub(super) fn notice(record: &GenerationRecord, commit: Option<&Commit>, root: &Path) -> Notice {
    Notice {
        revision: record.revision,
        sources: sources(commit),
        selection: record.selection.clone(),
        generation: Some(record.name.clone()),
        dir: root.join(record.name.place()),
    }
}

/// The sources that a composed revision consists of.
fn sources(commit: Option<&Commit>) -> Option<String> {
    let sources = commit.map(|commit| &commit.sources).filter(|sources| !sources.is_empty())?;
    serde_json::to_string(sources).ok()
}

/// Asks the gate, where there is one, about a generation that has no name yet.
pub(super) async fn ask_gate(
    hooks: Option<&Hooks>,
    bounds: &Bounds,
    staged: &Staged,
    commit: Option<&Commit>,
) -> Result<(), Error> {
    let Some(gate) = hooks.and_then(Hooks::gate) else { return Ok(()) };
    let selection = String::new(); // nothing is compared: each attempt asks anew
    let (revision, sources) = (staged.revision(), sources(commit));
    let notice = Notice { revision, sources, selection, generation: None, dir: staged.path() };
    bounds.gate(gate.pass(&notice, &bounds.draining), gate.again()).await
}
