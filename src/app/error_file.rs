//! The error file (`--error-file`) until the sync runs, which then writes its own failures there, and removes the file
//! after a success. What is written here is in the log, too, so a failed write is ignored.

use std::path::Path;

use serde_json::{Map, Value};

use super::Error;
use crate::human::one_line;
use crate::store::{OperatorFile, check_outside};
use crate::telemetry::{self, ExitReason};
use crate::{detached_io, sync};

/// Writes that opening the root or the mirrors failed and is tried again: a failed attempt.
pub(super) fn write_failed_start(options: &sync::Options, error: &str, hints: &[String], failures: u32) {
    let Some(file) = &options.error_file else { return };
    let mut arguments = with_hints(hints);
    arguments.insert("failCount".to_owned(), failures.into());
    arguments.insert("ref".to_owned(), options.ref_name.clone().into());
    write(file, telemetry::error_file("error syncing repo, will retry", error, &arguments));
}

/// Writes why the process ends before it could sync, with git-sync's message for that. A root that is refused, or
/// another writer's, is not touched for it.
pub(super) fn write_end(file: &OperatorFile, root: &Path, error: &Error) {
    if !error.prevented_sync() || error.keeps_out_of_root() && is_in(root, file) {
        return;
    }
    let reason = error.exit_reason();
    let mut arguments = with_hints(&error.hints());
    let place = match reason {
        ExitReason::NoRoot(path) => Some(("path", path.display().to_string())),
        ExitReason::NoListener(endpoint) => Some(("endpoint", endpoint.to_owned())),
        ExitReason::Other => None,
    };
    if let Some((key, value)) = place {
        arguments.insert(key.to_owned(), value.into());
    }
    write(file, telemetry::error_file(reason.message(), &one_line(error), &arguments));
}

/// Returns true if the file is in the root by its text or by what it resolves to, or if that cannot be found out.
fn is_in(root: &Path, file: &OperatorFile) -> bool {
    let (root, own) = (root.to_owned(), file.clone());
    detached_io::wait_for_io(file.path(), move |_| check_outside(&root, own.path())).is_err()
}

fn with_hints(hints: &[String]) -> Map<String, Value> {
    Map::from_iter([("hints".to_owned(), hints.into())])
}

fn write(file: &OperatorFile, text: String) {
    let own = file.clone();
    let _ = detached_io::wait_for_io(file.path(), move |_| own.write(text.as_bytes()));
}
