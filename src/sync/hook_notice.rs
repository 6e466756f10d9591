//! Notices to hooks, and the wait for the gate.

use std::path::Path;

use super::bounds::Bounds;
use super::error::Error;
use crate::generation::GenerationRecord;
use crate::hooks::{Hooks, Notice};
use crate::store::Staged;

/// Of a generation in its place.
pub(super) fn notice(record: &GenerationRecord, root: &Path) -> Notice {
    Notice {
        revision: record.revision,
        selection: record.selection.clone(),
        generation: Some(record.name.clone()),
        dir: root.join(record.name.place()),
    }
}

/// Asks the gate, where there is one, about a generation that has no name yet.
pub(super) async fn ask_gate(hooks: Option<&Hooks>, bounds: &Bounds, staged: &Staged) -> Result<(), Error> {
    let Some(gate) = hooks.and_then(Hooks::gate) else { return Ok(()) };
    let selection = String::new(); // nothing is compared: each attempt asks anew
    let notice = Notice { revision: staged.revision(), selection, generation: None, dir: staged.path() };
    bounds.gate(gate.pass(&notice, &bounds.draining), gate.again()).await
}
