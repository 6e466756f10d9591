//! Partial clones (`--filter`): fetches objects that the filter left out, once they are needed.
//!
//! A generation needs the files that its selection names. So after a fetch, absent ones are requested by their ids, in
//! requests of bounded size. Such a request must not claim any commit as present: the server would conclude that we
//! have all of its files, and send an empty pack without an error. The indexing child checks that wanted objects
//! arrived.
//!
//! Not all of them need to. With `tree:0` git leaves out a wanted object that it has already met as an entry of another
//! wanted directory (`NOT_USER_GIVEN` in its list-objects.c). So the pack is kept if it has any of them, and the next
//! round requests the rest. Rounds stay bounded: an object whose directories are all here is left out no more, so each
//! round completes another level of the tree.
//!
//! Packs get a `.promisor` file, and the configuration of `ROOT/.git` an entry, so that git also knows that absent
//! objects can be fetched from `origin` (gitrepository-layout(5), and partial-clone in git's manual).

use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::blocking::blocking;
use super::error::Error;
use super::indexer::Task;
use super::modules;
use super::object_error::ObjectError;
use super::odb::ObjectReader;
use super::repo_kind;
use super::sparse::Patterns;
use super::subdirectory::Lookup;
use super::tree::{Budget, DIRECTORY, FORMAT, LINK, REGULAR, Step, TreeWalk};
use super::wire::Request;
use super::{Mirror, Selection};
use crate::revision::{ObjectId, Revision};

/// The most objects per request. Each request costs a server half a second, regardless of their number. This many lines
/// of fifty bytes stay below one megabyte, the default limit of a proxy (nginx) for the body of a request.
const WANTS_MAX: usize = 20_000;

/// The most objects per request with an external git program (`--git`), which gets them as arguments: every system
/// accepts some 128 KiB of those.
const WANTS_OF_PROGRAM_MAX: usize = 2_000;

/// The most objects that are fetched, one by one, to list a revision's submodules in one attempt. Of the thousand
/// submodules that are allowed, each may be in a directory of its own.
const LIST_OBJECTS_MAX: usize = 2_000;

impl Mirror {
    /// Fetches those files of a selection that `--filter` left out. Does nothing without a filter.
    pub async fn fill(&mut self, revision: Revision, selection: &Selection) -> Result<(), Error> {
        if self.options.filter.is_none() {
            return Ok(());
        }
        let mut left = self.options.wire.max_fetch_bytes;
        let per_request = if self.options.wire.program.is_some() { WANTS_OF_PROGRAM_MAX } else { WANTS_MAX };
        // A fetched tree may name further absent trees and files: one round per level of directories, and a last one that
        // finds nothing absent. What a server leaves out of a round takes no additional one; see the module.
        for _ in 0..=u64::from(selection.rules.limits.depth) + 2 {
            let absent = self.absent(revision, selection).await?;
            if absent.is_empty() {
                return Ok(());
            }
            tracing::debug!(
                objects = absent.len(),
                "fetching what the filter left out and the selection names"
            );
            for wants in absent.chunks(per_request) {
                let request = self.by_id(wants.to_vec());
                left = left.saturating_sub(self.receive_within(&request, left).await?);
            }
        }
        Err(incomplete(revision, "all of what is selected of"))
    }

    /// Fetches the objects that list a revision's submodules, if `--filter` left them out: `.gitmodules`, and the trees
    /// on the paths of the submodules. All of them together are one fetch to `--max-fetch-bytes`.
    pub(super) async fn fill_lists(&mut self, revision: Revision) -> Result<(), Error> {
        if self.options.filter.is_none() {
            return Ok(());
        }
        let mut left = self.options.wire.max_fetch_bytes;
        for _ in 0..LIST_OBJECTS_MAX {
            let shared = Arc::clone(&self.shared);
            let find = move || {
                let store = shared.store()?;
                let missing = modules::missing_object_of_links(&store, revision);
                missing.inspect_err(|error| shared.note_if_damage(error))
            };
            let Some(id) = blocking(find).await? else { return Ok(()) };
            let request = self.by_id(vec![id]);
            left = left.saturating_sub(self.receive_within(&request, left).await?);
        }
        Err(incomplete(revision, "all that lists the submodules of")) // the next attempt goes on from here
    }

    /// The request for objects by their ids.
    fn by_id(&self, wants: Vec<ObjectId>) -> Request {
        let has_program = self.options.wire.program.is_some();
        // A server sends the objects that are wanted by id whatever the filter says, but with each tree also what that
        // names, unless the filter leaves trees out. A git program needs the filter to accept a pack that is not
        // complete, and the boundary so as not to fetch the parents of the commits at it.
        let filter = self.options.filter.clone().filter(|filter| has_program || filter.starts_with("tree:"));
        let shallow = if has_program { self.layout.shallow() } else { Vec::new() };
        Request { wants, shallow, filter, ..Request::default() }
    }

    /// Receives the pack of one request, of at most the bytes that are `left` of `--max-fetch-bytes`. Returns its size
    /// in bytes.
    async fn receive_within(&mut self, request: &Request, left: u64) -> Result<u64, Error> {
        let layout = Arc::clone(&self.layout);
        let task = Task::Fill(request.wants.len());
        let received = self.receive_into(layout.dir(), left, request, task).await;
        let (answer, ..) = received.map_err(|error| {
            self.shared.note_if_damage(&error);
            match error {
                Error::FetchBytes { .. } => Error::FetchBytes { limit: self.options.wire.max_fetch_bytes },
                error => error,
            }
        })?;
        self.complete_pack_bytes += answer.bytes;
        Ok(answer.bytes)
    }

    /// The same as the function. Once nothing is absent, the record that the tip is complete is made again, because the
    /// one of the fetch does not name the packs that came since.
    async fn absent(&self, revision: Revision, selection: &Selection) -> Result<Vec<ObjectId>, Error> {
        let shared = Arc::clone(&self.shared);
        let selection = selection.clone();
        let needs_all_trees = self.shared.linked; // a worktree's index lists the files that patterns leave out, too
        let cancel = CancellationToken::new();
        let _dropped = cancel.clone().drop_guard();
        let is_settled = self.is_settled(revision);
        blocking(move || {
            let patterns = shared.patterns(&selection)?;
            let patterns = patterns.as_ref();
            let store = shared.store()?;
            let reader = store.objects()?;
            let found = absent(&reader, revision, &selection, patterns, needs_all_trees, &cancel);
            let found = found.inspect_err(|error| shared.note_if_damage(error))?;
            if found.is_empty() && is_settled {
                shared.note_complete(revision.0);
            }
            Ok(found)
        })
        .await
    }
}

/// The error if objects are still absent after the last round. What came stays.
fn incomplete(revision: Revision, expected: &str) -> Error {
    let id = revision.0;
    let source = ObjectError::Missing { id, expected: expected.into() };
    Error::Incomplete { requested: id, at: None, source }
}

/// Lists the selected files of a revision that are absent, and absent trees.
fn absent(
    reader: &ObjectReader<'_>,
    revision: Revision,
    selection: &Selection,
    patterns: Option<&Patterns>,
    needs_all_trees: bool,
    cancel: &CancellationToken,
) -> Result<Vec<ObjectId>, Error> {
    let limits = selection.rules.limits;
    let top = reader.commit(&revision.0).map_err(|error| Error::damaged(revision, error))?.tree;
    let top = match &selection.path {
        None => top,
        Some(path) => match path.find(reader, revision, top)? {
            Lookup::Tree(tree) => tree,
            Lookup::Absent(tree) => return Ok(vec![tree]), // what is absent below it is found in the next round
        },
    };
    if !reader.has(&top) {
        return Ok(vec![top]);
    }
    let budget = Budget::new(revision, top, limits.entries, patterns.is_some(), cancel);
    // Noted with each tree: whether the patterns select it. An entry that no pattern matches inherits that.
    let mut walk = TreeWalk::new(reader, budget, limits.depth, patterns.is_none())?;
    let mut found = Vec::new();
    while let Some(Step { path, line, note: inherited }) = walk.step()? {
        let is_wanted = patterns.is_none_or(|patterns| patterns.selects(path, line.mode, inherited));
        let may_lead_to_wanted =
            || patterns.is_none_or(|patterns| patterns.may_select_below(path, is_wanted));
        let is_needed = match line.mode & FORMAT {
            DIRECTORY => needs_all_trees || may_lead_to_wanted(),
            REGULAR | LINK => is_wanted,
            _ => false,
        };
        if !is_needed {
            continue;
        }
        let id = line.id;
        let is_dir = line.is_dir();
        if is_dir {
            walk.check_depth()?;
        }
        if reader.has(&id) {
            if is_dir {
                walk.enter(id, is_wanted)?;
            }
            continue;
        }
        found.push(id);
        // An object may be named any number of times.
        if found.len() as u64 > limits.entries.saturating_mul(2) {
            remove_duplicates(&mut found);
            if found.len() as u64 > limits.entries {
                return Err(walk.too_many());
            }
        }
    }
    remove_duplicates(&mut found);
    Ok(found)
}

fn remove_duplicates(ids: &mut Vec<ObjectId>) {
    ids.sort_unstable();
    ids.dedup();
}

/// Configures the repository for git as a partial clone of `origin`.
pub(super) fn name_promisor(dir: &Path, filter: &str) -> Result<(), Error> {
    repo_kind::configure(dir, "remote.origin.promisor", "true")?;
    repo_kind::configure(dir, "remote.origin.partialclonefilter", filter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::fixture::{Fixture, everything};
    use crate::payload::Rule;

    /// As deep as `--max-path-depth` may allow, on the stack of a test's thread.
    #[test]
    fn what_is_absent_a_thousand_levels_down_is_found_and_no_deeper() {
        const DEEPEST: u32 = 1_000;
        let fixture = Fixture::new();
        let (file, other) = (fixture.blob(b"absent"), fixture.blob(b"other"));
        let bottom = fixture.tree(&[("100644", b"f", file), ("100644", b"g", other)]);
        let [deep, deeper] =
            [DEEPEST, DEEPEST + 1].map(|dirs| fixture.commit(fixture.nested(bottom, dirs), &[]));
        fixture.lose(file);
        let mut selection = everything();
        selection.rules.limits.depth = DEEPEST;
        let patterns = Patterns::parse("f\n").unwrap();
        let cancel = CancellationToken::new();
        let of = |revision: Revision, patterns: Option<&Patterns>| {
            let store = fixture.shared.store().unwrap();
            let reader = store.objects().unwrap();
            absent(&reader, revision, &selection, patterns, false, &cancel)
        };
        for patterns in [None, Some(&patterns)] {
            assert_eq!(of(deep, patterns).unwrap(), [file]);
            match of(deeper, patterns) {
                Err(Error::Refused(refusal)) => assert_eq!(refusal.rule, Rule::Depth { limit: DEEPEST }),
                other => panic!("{other:?}"),
            }
        }
        fixture.lose(bottom);
        assert_eq!(of(deep, None).unwrap(), [bottom]);
    }

    #[test]
    fn what_came_and_is_of_another_type_than_its_entry_is_refused() {
        let fixture = Fixture::new();
        let (file, dir) = (fixture.blob(b"x"), fixture.tree(&[]));
        let file_as_dir = fixture.commit(fixture.tree(&[("40000", b"d", file)]), &[]);
        let dir_as_file = fixture.commit(fixture.tree(&[("100644", b"f", dir)]), &[]);
        let store = fixture.shared.store().unwrap();
        let reader = store.objects().unwrap();
        let cancel = CancellationToken::new();
        let of = |revision: Revision| absent(&reader, revision, &everything(), None, false, &cancel);
        match of(file_as_dir) {
            Err(Error::Refused(refusal)) => assert_eq!(refusal.path, "d"),
            other => panic!("{other:?}"),
        }
        assert_eq!(of(dir_as_file).unwrap(), [], "it is not read before the payload is built");
        let error = fixture.objects().payload(dir_as_file, &everything()).unwrap_err();
        assert!(error.is_refusal(), "{error:?}");
    }
}
