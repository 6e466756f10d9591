//! Finds the source that is the cause of a refusal of the composed revision.
//!
//! If the refusal is about a path, it is the source that is placed there. Otherwise sources are held back one after the
//! other (`choice`), and the last one made the difference. If none can be held back, as at the first publication, each
//! source's part is looked at alone. If none of them is refused alone, all that may be the cause are named. What was
//! named is in the status of these sources as well, for as long as the same set is chosen.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{SetError, SourceError, SourceSet};
use crate::mirror::{self, Composer, Part, Selection, UniqueBaseNames};
use crate::payload::{Parts, Refusal, escaped};
use crate::secret::REDACTED;

/// A set that was refused although no source can be held back.
pub(super) struct RefusedSet {
    parts: Vec<Part>,
    /// The cause was looked for, perhaps not to the end.
    is_examined: bool,
    /// The first source that is refused alone, and why. `None` until one was found.
    cause: Option<(String, Refusal)>,
}

/// The sources because of which a set cannot be published, although none of them is held back: two that cannot be placed
/// side by side, or those that are the cause of a refusal.
pub(super) struct NamedCause {
    pub(super) sources: Vec<String>,
    pub(super) why: SourceError,
    /// The set that was to be published, and the base names that had to be unique in it.
    pub(super) of_set: (Vec<Part>, UniqueBaseNames),
}

impl SourceSet {
    /// Handles a refusal of the set that names no source, if none can be held back. The first time it is `Ok`, so that
    /// the set is composed again; the cause is looked for there, because that takes blocking work. If the same set is
    /// then refused again, the error names the cause.
    pub(super) fn name_cause(&mut self, refusal: Refusal) -> Result<(), SetError> {
        let known = self.refused_set.take().filter(|known| known.parts == self.parts);
        let Some(RefusedSet { cause, .. }) = known else {
            self.refused_set =
                Some(RefusedSet { parts: self.parts.clone(), is_examined: false, cause: None });
            return Ok(());
        };
        let (names, refusal) = match cause {
            Some((name, alone)) => (vec![name], alone),
            None => {
                let parts = possible_causes(&self.parts, &refusal).into_iter();
                (parts.map(|part| part.name.clone()).collect(), refusal)
            }
        };
        Err(self.error_of(names, mirror::Error::from(refusal)))
    }

    /// The error of the chosen set, which cannot be published because of one of these sources.
    pub(super) fn error_of(&mut self, sources: Vec<String>, error: mirror::Error) -> SetError {
        let name = one_of(&sources);
        self.remember_cause(sources, &error);
        mirror::Error::OfSource { name, source: Box::new(error) }.into()
    }

    /// Remembers for the status of these sources that the chosen set cannot be published because of them.
    pub(super) fn remember_cause(&mut self, sources: Vec<String>, error: &mirror::Error) {
        let why = SourceError::of_mirror(error);
        let of_set = (self.parts.clone(), self.unique.clone());
        self.named_cause = Some(NamedCause { sources, why, of_set });
    }

    /// Looks for the source that is refused alone, if the chosen set was refused before and none could be held back.
    /// Does so once, and for a part of the attempt: reading a set's parts may take longer than it took to find that the
    /// set as a whole is refused.
    pub(super) async fn look_for_cause(&mut self, wanted: &Selection, cancel: &CancellationToken) {
        let Some(refused) =
            self.refused_set.as_mut().filter(|refused| refused.parts == self.parts && !refused.is_examined)
        else {
            return;
        };
        refused.is_examined = true;
        let composer = Arc::clone(&self.composer);
        let parts = refused.parts.clone();
        let wanted = wanted.clone();
        let cancel = cancel.child_token();
        let _ended = cancel.clone().drop_guard();
        let look = move || {
            parts.iter().find_map(|part| {
                let refusal = refusal_alone(&composer, part, &wanted, &cancel)?;
                Some((part.name.clone(), refusal))
            })
        };
        let limit = self.options.limit.time / 4;
        let found = tokio::time::timeout(limit, tokio::task::spawn_blocking(look)).await;
        refused.cause = found.ok().and_then(Result::ok).flatten();
    }
}

/// Returns why a set of this part alone is refused; `None` if it is not, or if that cannot be found out now.
fn refusal_alone(
    composer: &Composer,
    part: &Part,
    wanted: &Selection,
    cancel: &CancellationToken,
) -> Option<Refusal> {
    let composed = composer.compose(std::slice::from_ref(part), &UniqueBaseNames::default(), cancel);
    let read = composed.and_then(|revision| composer.objects().until(cancel).payload(revision, wanted));
    match read {
        Err(mirror::Error::Refused(refusal)) => Some(Refusal { revision: part.revision, ..refusal }),
        Ok(_) | Err(_) => None,
    }
}

/// The source that is the cause of the refusal. `None` if several may be.
pub(super) fn responsible_part<'p>(parts: &'p [Part], refusal: &Refusal) -> Option<&'p Part> {
    match possible_causes(parts, refusal)[..] {
        [part] => Some(part),
        _ => None,
    }
}

/// The sources that may be the cause of the refusal: those that are placed where the refused path is. All of them if
/// the refusal is not about one path, if none is placed there, or if the path is not known well enough: a part of it is
/// redacted, or it is cut and may be below a place of which only the beginning is left, too.
fn possible_causes<'p>(parts: &'p [Part], refusal: &Refusal) -> Vec<&'p Part> {
    // The refusal has the escaped path, so the places are escaped, too.
    let place = |part: &Part| escaped(part.to.as_bytes()).into_bytes();
    let places = Parts::new(parts.iter().map(place));
    let owner = places.owner(refusal.path.as_bytes());
    let is_long = is_cut(&refusal.path) && parts.iter().any(|part| is_cut(&escaped(part.to.as_bytes())));
    let is_known = refusal.is_of_one_path() && !refusal.path.contains(REDACTED) && !is_long;
    let owners: Vec<&Part> = parts.iter().filter(|part| is_known && place(part) == owner).collect();
    if owners.is_empty() { parts.iter().collect() } else { owners }
}

/// Returns true if [`escaped`] has cut the text, or if it looks like that.
fn is_cut(escaped: &str) -> bool {
    escaped.ends_with(" bytes)") && escaped.contains("... (")
}

/// Names as a phrase: `one, two or three`.
fn one_of(names: &[String]) -> String {
    match names {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        names => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{name_commit, opened_sources};
    use super::*;
    use crate::human::one_line;
    use crate::mirror::author::{Author, Content};
    use crate::mirror::fixture::part;
    use crate::payload::{Limits, Rule, Rules};
    use crate::revision::{ObjectId, Revision};

    #[test]
    fn the_source_of_a_refused_path_is_found_though_the_path_is_escaped() {
        let revision = Revision(ObjectId([7; 20]));
        let part = |to: &str| part(&format!("of-{to}"), revision, to);
        crate::secret::register("qK3vZ8wM-x");
        let parts = ["", r"team\a", "jobs", "qK3vZ8wM-x"].map(part);
        for (path, place) in [
            ("x", Some("")),
            (r"team\a/x", Some(r"team\a")),
            ("jobs/deep/x\n", Some("jobs")),
            ("qK3vZ8wM-x/x", None),
            ("jobs/qK3vZ8wM-x", None),
        ] {
            let refusal = Refusal { revision, path: escaped(path.as_bytes()), rule: Rule::NameDotGit };
            let found = responsible_part(&parts, &refusal).map(|part| part.to.as_str());
            assert_eq!(found, place, "{path}");
        }
        let deep = ["a"; 3].map(|name| name.repeat(200)).join("/");
        let long = format!("{deep}/x");
        let refusal =
            |path: &str| Refusal { revision, path: escaped(path.as_bytes()), rule: Rule::NameDotGit };
        let shallow = ["", "jobs"].map(part);
        for (path, place) in [(long.clone(), ""), (format!("jobs/{long}"), "jobs")] {
            let found = responsible_part(&shallow, &refusal(&path)).map(|part| part.to.as_str());
            assert_eq!(found, Some(place), "no place is cut");
        }
        let parts_with_deep = ["", deep.as_str()].map(part);
        assert_eq!(responsible_part(&parts_with_deep, &refusal(&long)), None, "it may be of either");
        assert!(responsible_part(&parts_with_deep, &refusal("x")).is_some());
        let of_tree = Refusal { revision, path: "jobs/x".to_owned(), rule: Rule::Entries { limit: 1 } };
        assert_eq!(responsible_part(&parts, &of_tree), None);
        assert!(responsible_part(&parts[..1], &of_tree).is_some(), "there is no other");
    }

    #[test]
    fn sources_are_named_as_a_phrase() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let phrases = [1, 2, 3].map(|count| one_of(&names[..count]));
        assert_eq!(phrases, ["a", "a or b", "a, b or c"]);
    }

    #[tokio::test]
    async fn the_cause_of_a_refusal_of_the_first_set_is_named_and_in_the_status_of_its_sources() {
        let (dir, mut set) = opened_sources().await;
        set.options.root = true;
        let repository = dir.path().join("repository");
        let author = Author::init(&repository).unwrap();
        let commit = |files: usize| {
            let names: Vec<String> = (0..files).map(|number| format!("f{number}")).collect();
            let files: Vec<_> = names.iter().map(|name| (name.as_str(), Content::File(b"x"))).collect();
            author.commit(&files, "x").unwrap()
        };
        let (small, half, large) = (commit(1), commit(30), commit(60));
        set.composer.read_from(&[repository]);
        let limits = Limits { entries: 50, ..Limits::default() };
        let wanted = Selection { rules: Rules { limits, ..Rules::default() }, ..Selection::default() };
        let rule = "is refused: the tree has more than 50 files and directories";
        for (one, two, named) in [(small, large, Some(("two", large))), (half, half, None)] {
            set.parts = vec![part("one", one, "one"), part("two", two, "two")];
            name_commit(&mut set, 0, one);
            name_commit(&mut set, 1, two);
            let revision = set.compose(&wanted).await.unwrap();
            let Err(mirror::Error::Refused(refusal)) = set.objects().payload(revision, &wanted) else {
                panic!("it is accepted")
            };
            set.hold_back(refusal.clone()).unwrap();
            assert_eq!(set.compose(&wanted).await.unwrap(), revision, "nothing is left out");
            let error = set.hold_back(refusal).unwrap_err();
            let (name, revision) = named.unwrap_or(("one or two", revision));
            let message = format!("source {name}: revision {} {rule}", revision.short());
            assert_eq!(one_line(&error), message);
            assert!(!error.hints().is_empty());
            let why = format!("revision {} {rule}", revision.short());
            let behind = format!("the set with its commit {} is not published", one.short());
            let errors: Vec<_> = set.source_statuses(None, true).into_iter().map(|row| row.error).collect();
            let of_one = if named.is_some() { behind } else { why.clone() };
            assert_eq!(errors, [Some(of_one), Some(why)]);
            set.compose(&wanted).await.unwrap();
            let errors = set.source_statuses(None, false).into_iter().map(|row| row.error);
            assert_eq!(errors.collect::<Vec<_>>(), [None, None], "it is composed once more, to be checked");
        }
    }
}
