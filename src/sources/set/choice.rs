//! Chooses the commit of each source that a set is composed of, and composes it. A source whose new commit was refused
//! is held back at its published commit, so that the others can be updated.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cause::responsible_part;
use super::{Followed, OnFailure, Repository, SetError, SourceError, SourceSet};
use crate::human::one_line;
use crate::mirror::blocking::blocking;
use crate::mirror::{self, Part, Selection, Tip};
use crate::payload::Refusal;
use crate::retry::ErrorClass;
use crate::revision::{ObjectId, Revision};
use crate::sha256::sha256;
use crate::sources::file::SourceSpec;
use crate::sources::stage::{Stage, StagedError};

impl SourceSet {
    /// Chooses the set of an attempt. If it differs from the last one, sources that were held back without effect are
    /// tried again: the set was refused without them, too.
    pub(super) fn choose_anew(&mut self) -> Result<(), SetError> {
        let before = self.parts.clone();
        self.choose()?;
        if self.suspects.is_empty() || self.parts == before {
            return Ok(());
        }
        self.release_suspects();
        self.choose()
    }

    /// Chooses the commit of each source. An error says that a source is missing which the set cannot do without.
    pub(super) fn choose(&mut self) -> Result<(), SetError> {
        let mut parts = Vec::new();
        for source in &self.sources {
            let Followed { listed, mirror, repo, .. } = source;
            let (named, why) = self.state_of(source);
            if let Some(why) = why.as_ref().filter(|_| self.on_failure == OnFailure::Hold) {
                return Err(self.failure_of(source, Some(why.clone()), self.pause_of(source)));
            }
            let new = |revision| Part {
                name: listed.name.clone(),
                repo: repo.clone(),
                ref_name: listed.ref_text.clone(),
                revision,
                path: listed.path.clone(),
                to: listed.to.clone(),
                sparse: listed.sparse.clone(),
                mirror: mirror.clone(),
            };
            // A source without a usable commit stays as published, even if the file places it elsewhere now.
            let before = self.published.iter().find(|part| part.name == listed.name);
            match (named, before) {
                (Some(named), _) => parts.push(new(named)),
                (None, Some(before)) => parts.push(before.clone()),
                // Only the first publication needs all sources that are not optional.
                (None, None) if self.may_be_absent(listed) || !self.is_first_publication() => {}
                (None, None) => {
                    let why = self.with_hint_if_served(listed, why);
                    return Err(self.failure_of(source, Some(why), self.pause_of(source)));
                }
            }
        }
        self.keep_removed(&mut parts);
        // Optional sources may be missing, but an empty set is never published: it would remove all files.
        if parts.is_empty()
            && let Some(first) = self.sources.first()
        {
            let (_, why) = self.state_of(first);
            return Err(self.failure_of(first, why, None)); // no pause: another source may answer sooner
        }
        self.parts = parts;
        Ok(())
    }

    /// Tells the set of which sources the root serves files. That is known even if the composed revision, with the parts
    /// of what is published, was lost with the mirrors.
    pub fn set_served(&mut self, served: BTreeSet<String>) {
        self.served = served;
    }

    /// Returns true if the first publication may go ahead without the source. If what is published cannot be read, the
    /// next set is chosen like the first one, and must not take away the files of an optional source that are served.
    pub(super) fn may_be_absent(&self, listed: &SourceSpec) -> bool {
        listed.optional && !(self.published.is_empty() && self.served.contains(&listed.name))
    }

    /// Why the first publication lacks a source, with a hint if the root serves files of it already.
    fn with_hint_if_served(&self, listed: &SourceSpec, why: Option<SourceError>) -> SourceError {
        let mut why = why.unwrap_or_else(|| self.not_answered());
        if self.served.contains(&listed.name) {
            let hint = "the root serves files of this source, so nothing is published without it; to go on without \
                        them, remove it from the file of --sources";
            why.hints.push(hint.to_owned());
        }
        why
    }

    /// How long a set that needs this source has to wait for its server. A daemon reads its file at each attempt, which
    /// may list other sources after a period.
    fn pause_of(&self, source: &Followed) -> Option<Duration> {
        let now = Instant::now();
        let until = self.repositories.get(&source.mirror)?.requestable_from(now)?;
        let longest = if self.options.one_time { Duration::MAX } else { self.options.period };
        Some(until.duration_since(now).min(longest))
    }

    /// The error of a set that cannot do without a source. An attempt before `retry_after` would fail without having
    /// asked.
    pub(super) fn failure_of(
        &self,
        source: &Followed,
        why: Option<SourceError>,
        retry_after: Option<Duration>,
    ) -> SetError {
        let source_error = why.unwrap_or_else(|| self.not_answered());
        SetError::Source { name: source.listed.name.clone(), source: source_error, retry_after }
    }

    /// Keeps sources that are no longer listed until all listed ones have a commit: a source may only have been
    /// renamed.
    fn keep_removed(&self, parts: &mut Vec<Part>) {
        let is_listed = |name: &String| self.sources.iter().any(|source| source.listed.name == *name);
        let is_present = |listed: &SourceSpec| parts.iter().any(|part| part.name == listed.name);
        let all_present =
            self.sources.iter().all(|source| source.listed.optional || is_present(&source.listed));
        if self.options.root && !all_present {
            let is_free = |before: &&Part| parts.iter().all(|part| part.to != before.to);
            let removed = self.published.iter().filter(|before| !is_listed(&before.name)).filter(is_free);
            let removed: Vec<Part> = removed.cloned().collect();
            parts.extend(removed);
        }
    }

    /// Returns the commit that the source's ref named last, unless it is refused, and what is wrong with the source.
    pub(super) fn state_of(&self, source: &Followed) -> (Option<Revision>, Option<SourceError>) {
        let (named, why) = self.staged_state_of(source);
        (named, why.map(|why| why.error))
    }

    /// The same, with the stage in which the source failed.
    pub(super) fn staged_state_of(&self, source: &Followed) -> (Option<Revision>, Option<StagedError>) {
        let repository = self.repositories.get(&source.mirror);
        let named = repository.and_then(|repository| repository.known.get(&source.listed.ref_text));
        let named = named.map(|(_, revision)| *revision);
        match named.and_then(|named| self.refusal_of(source, named)) {
            Some(why) => (None, Some(StagedError::new(Stage::Export, why))),
            // If another source has opened the shared repository since, its commits are used.
            None if repository.is_none() && source.unopened.is_some() => {
                (None, source.unopened.clone().map(unresolved))
            }
            None => {
                let why =
                    repository.and_then(|repository| repository.errors.get(&source.listed.ref_text).cloned());
                // The attempt has waited for required sources as long as it could, so no answer is a failure. An
                // optional source may answer later.
                let is_late = |repository: &Repository| {
                    repository.busy && self.is_required(&source.mirror, &self.sources, self.on_failure)
                };
                let late = || repository.is_some_and(is_late).then(|| unresolved(self.not_answered()));
                (named, why.or_else(late))
            }
        }
    }

    /// Why the commit that the source's ref names cannot be part of the set. It was refused, or another source of the
    /// same ref is held back for it: a set has one commit of a ref.
    fn refusal_of(&self, source: &Followed, named: Revision) -> Option<SourceError> {
        let refusal = |name: &str| {
            let (revision, why) = self.refused.get(name)?;
            (*revision == named).then_some(why)
        };
        if let Some(why) = refusal(&source.listed.name) {
            return Some(why.clone());
        }
        if self.on_failure == OnFailure::Hold {
            return None; // nothing moves, and the error is that of the source whose commit was refused
        }
        // A source of which nothing is published may be missing in the set. It holds back no other source of the ref.
        let held_back = self.published.iter().filter(|part| {
            part.mirror == source.mirror && part.ref_name == source.listed.ref_text && part.revision != named
        });
        let is_listed = |name: &str| self.sources.iter().any(|other| other.listed.name == name);
        let mut listed = held_back.filter(|part| is_listed(&part.name));
        let (name, why) = listed.find_map(|part| Some((&part.name, refusal(&part.name)?)))?;
        let what = format!("source {name} of the same repository and ref is held back: {}", why.what);
        Some(SourceError { what, ..why.clone() })
    }

    /// Returns a tip whose object id is a digest of the chosen parts and the unique base names, so that the same set
    /// has the same tip. The digest includes what decides which part may be held back or left out (the listed names,
    /// `optional` and `on-failure`): a refused set is tried again when that changes. If what is published cannot be read
    /// any more, the tip is another one.
    pub fn tip(&self) -> Tip {
        let listed = self.sources.iter().map(|source| (source.listed.name.as_str(), source.listed.optional));
        let holds = self.on_failure == OnFailure::Hold;
        let chosen = (&self.parts, self.unique.globs(), listed.collect::<Vec<_>>(), holds);
        let mut text = serde_json::to_vec(&chosen).unwrap_or_default();
        if self.repositories.values().any(|repository| repository.full.is_some()) {
            let again = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            text.extend_from_slice(&again.as_nanos().to_be_bytes()); // a fetch failed on a full volume: never settled
        }
        let mut object = [0; 20];
        object.copy_from_slice(&sha256(&[&text])[..20]);
        object[0] ^= u8::from(self.must_recompose);
        Tip { name: None, object: ObjectId(object), peeled: None }
    }

    /// Composes the revision. A source that cannot be part of it is held back at its published commit. If the same set
    /// was refused before, the cause is looked for in what `wanted` selects.
    pub async fn compose(&mut self, wanted: &Selection) -> Result<Revision, SetError> {
        // The error is returned once, so that the sync makes room; later calls compose without what could not be
        // fetched.
        let full = self.repositories.values_mut().find_map(|repository| repository.full.take());
        if let Some(error) = full.filter(|_| self.options.root) {
            return Err(error.into());
        }
        let cancel = CancellationToken::new();
        let _dropped = cancel.clone().drop_guard();
        self.look_for_cause(wanted, &cancel).await;
        self.named_cause = None;
        loop {
            let cancel = cancel.clone();
            let composer = Arc::clone(&self.composer);
            let parts = self.parts.clone();
            let unique = self.unique.clone();
            match blocking(move || composer.compose(&parts, &unique, &cancel)).await {
                Ok(revision) => return Ok(revision),
                Err(mirror::Error::OfSource { name, source }) if !source.is_damage() => {
                    let why = SourceError::of_mirror(&source);
                    if !self.keep_at_published(&name, &why)? {
                        return Err(self.error_of(vec![name], *source));
                    }
                }
                Err(error) => {
                    if let Some(sources) = colliding_sources(&error) {
                        if self.drop_removed(&sources) {
                            continue;
                        }
                        self.remember_cause(sources, &error);
                    }
                    return Err(error.into());
                }
            }
        }
    }

    /// Drops the parts of those sources that are no longer listed, and were kept only because they may have been
    /// renamed. Returns false if there is none.
    fn drop_removed(&mut self, sources: &[String]) -> bool {
        let before = self.parts.len();
        let is_listed = |name: &str| self.sources.iter().any(|source| source.listed.name == name);
        self.parts.retain(|part| !sources.contains(&part.name) || is_listed(&part.name));
        self.parts.len() < before
    }

    /// Holds back a source after the composed revision was refused, so that another one can be composed at once. If no
    /// source can be held back, returns the refusal with the name of the source that is the cause. It is `Ok` as well
    /// if that is not known yet: then the same set is composed again, which looks for the cause.
    pub fn hold_back(&mut self, refusal: Refusal) -> Result<(), SetError> {
        let Some(part) = responsible_part(&self.parts, &refusal).cloned() else {
            let refused = mirror::Error::from(refusal.clone());
            let held_back = self.hold_back_one_updated(&one_line(&refused), &refused.hints());
            return if held_back { Ok(()) } else { self.name_cause(refusal) };
        };
        let own = mirror::Error::from(Refusal { revision: part.revision, ..refusal });
        let why = SourceError::of_mirror(&own);
        if self.keep_at_published(&part.name, &why)? {
            return Ok(());
        }
        Err(self.error_of(vec![part.name], own))
    }

    /// Holds back one of the updated sources after a refusal of the set that names no source. Returns false if none is
    /// left. Which of them is responsible turns out once a set is accepted: see [`Self::clear_suspects`].
    pub fn hold_back_one_updated(&mut self, what: &str, hints: &[String]) -> bool {
        // With `hold`, no set without the source is ever accepted, so nothing would clear one that is not at fault.
        if self.on_failure == OnFailure::Hold {
            return false;
        }
        let updated = self.parts.iter().filter(|part| !self.published.contains(part));
        let updated: Vec<(String, Revision)> =
            updated.map(|part| (part.name.clone(), part.revision)).collect();
        for (name, revision) in updated {
            let what = format!("the set with its commit {} is refused: {what}", revision.short());
            let why = SourceError { what, hints: hints.to_vec(), class: ErrorClass::Refused };
            if self.keep_at_published(&name, &why).unwrap_or(false) {
                self.suspects.push(name);
                return true;
            }
        }
        false
    }

    /// Tells the set that its revision was not refused. Of the sources held back one after the other for one refusal,
    /// the last one made the difference and stays held back; the others are tried again.
    pub fn clear_suspects(&mut self) {
        self.refused_set = None;
        self.suspects.pop();
        self.release_suspects();
    }

    fn release_suspects(&mut self) {
        for name in self.suspects.drain(..) {
            self.refused.remove(&name);
        }
    }

    /// Keeps a source at its published commit, or out of the set if nothing was published of it, and chooses again.
    /// Returns false if the source is there already, or if the first publication needs it. With `on-failure: hold` the
    /// error is that of the source, which is counted with it.
    fn keep_at_published(&mut self, name: &str, why: &SourceError) -> Result<bool, SetError> {
        let Some(part) = self.parts.iter().find(|part| part.name == name) else { return Ok(false) };
        let is_new =
            self.published.iter().find(|before| before.name == name).is_none_or(|before| before != part);
        let is_known = self.refused.get(name).is_some_and(|(revision, _)| *revision == part.revision);
        let mut listed = self.sources.iter().filter(|source| source.listed.name == name);
        let may_be_absent = listed.any(|source| self.may_be_absent(&source.listed));
        if self.is_first_publication() && !may_be_absent || !is_new || is_known {
            return Ok(false);
        }
        self.refused.insert(name.to_owned(), (part.revision, why.clone()));
        self.count_refusal(name);
        self.log_failures();
        self.choose()?;
        Ok(true)
    }
}

/// The error of a source whose remote has not said yet what the ref names.
fn unresolved(error: SourceError) -> StagedError {
    StagedError::new(Stage::Resolve, error)
}

/// The two sources that cannot be placed side by side, if that is the error.
fn colliding_sources(error: &mirror::Error) -> Option<Vec<String>> {
    match error {
        mirror::Error::Collision { one, other, .. }
        | mirror::Error::SameBaseName { one, other, .. }
        | mirror::Error::Trespass { owner: one, other, .. } => Some(vec![one.clone(), other.clone()]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::repository::Pause;
    use super::super::tests::{name_commit, opened_sources};
    use super::*;
    use crate::mirror::author::{Author, Content};

    #[tokio::test]
    async fn a_source_whose_poll_outlasts_the_attempt_is_named() {
        let (_dir, mut set) = opened_sources().await;
        set.on_failure = OnFailure::Hold;
        for repository in set.repositories.values_mut() {
            repository.errors.clear();
            repository.busy = false;
        }
        let last = set.sources[1].mirror.clone();
        set.repositories.get_mut(&last).unwrap().busy = true;
        let error = set.choose().unwrap_err();
        let SetError::Source { name, source, .. } = error else { panic!("{error:?}") };
        assert_eq!((name.as_str(), source.what), ("two", set.not_answered().what));
    }

    #[tokio::test]
    async fn only_a_source_that_the_set_needs_is_late() {
        use OnFailure::{Hold, Keep};

        let (_dir, mut set) = opened_sources().await;
        set.options.root = true;
        name_commit(&mut set, 0, Revision(ObjectId([1; 20])));
        let last = set.sources[1].mirror.clone();
        let repository = set.repositories.get_mut(&last).unwrap();
        repository.errors.clear();
        repository.busy = true;
        for (optional, on_failure, late) in [(false, Keep, true), (true, Keep, false), (true, Hold, true)] {
            set.sources[1].listed.optional = optional;
            set.on_failure = on_failure;
            assert_eq!(set.state_of(&set.sources[1]).1.is_some(), late, "{optional} {on_failure:?}");
            assert_eq!(set.choose().is_err(), late, "{optional} {on_failure:?}");
        }
    }

    #[tokio::test]
    async fn the_next_attempt_comes_after_the_pause_of_a_source_that_the_set_needs() {
        let (_dir, mut set) = opened_sources().await;
        set.options.root = true;
        name_commit(&mut set, 0, Revision(ObjectId([1; 20])));
        let last = set.sources[1].mirror.clone();
        let minute = Duration::from_secs(60);
        set.options.period = minute;
        let earliest = Instant::now() + minute;
        set.repositories.get_mut(&last).unwrap().pause = Some(Pause { until: earliest + minute, earliest });
        let error = set.choose().unwrap_err();
        let wait = error.retry_after().unwrap();
        assert!(minute / 2 < wait && wait <= minute, "{wait:?}");
        set.repositories.get_mut(&last).unwrap().pause = None;
        assert_eq!(set.choose().unwrap_err().retry_after(), None);
    }

    #[tokio::test]
    async fn a_ref_has_one_commit_in_a_set() {
        let (_dir, mut set) = opened_sources().await;
        set.options.root = true;
        let mirror = set.sources[0].mirror.clone();
        set.sources[1].mirror.clone_from(&mirror);
        let [first, bad, next] = [1, 2, 3].map(|number| Revision(ObjectId([number; 20])));
        let chosen = |set: &SourceSet| set.parts.iter().map(|part| part.revision).collect::<Vec<_>>();
        let why = SourceError { what: "a test".to_owned(), hints: Vec::new(), class: ErrorClass::Refused };
        name_commit(&mut set, 0, first);
        set.choose().unwrap();
        set.published.clone_from(&set.parts);
        name_commit(&mut set, 0, bad);
        set.choose().unwrap();
        assert_eq!(chosen(&set), [bad; 2]);
        assert!(set.keep_at_published("one", &why).unwrap());
        assert_eq!(chosen(&set), [first; 2]);
        let (_, of_other) = set.state_of(&set.sources[1]);
        assert_eq!(of_other.unwrap().what, "source one of the same repository and ref is held back: a test");
        name_commit(&mut set, 0, next);
        set.choose().unwrap();
        assert_eq!(chosen(&set), [next; 2]);
        // One that is not in the set has no other commit there.
        set.published.remove(0);
        name_commit(&mut set, 0, bad);
        set.choose().unwrap();
        assert_eq!(chosen(&set), [bad]);
    }

    #[tokio::test]
    async fn a_set_of_nothing_does_not_replace_the_published_one() {
        let (_dir, mut set) = opened_sources().await;
        set.options.root = true;
        name_commit(&mut set, 0, Revision(ObjectId([1; 20])));
        name_commit(&mut set, 1, Revision(ObjectId([1; 20])));
        set.choose().unwrap();
        let mut removed = set.parts.remove(0);
        removed.name = "removed".to_owned();
        set.published = vec![removed];
        for source in &mut set.sources {
            source.listed.optional = true;
        }
        for repository in set.repositories.values_mut() {
            repository.known.clear();
        }
        assert!(matches!(set.choose(), Err(SetError::Source { name, .. }) if name == "one"));
    }

    #[tokio::test]
    async fn a_source_that_was_removed_is_in_the_way_of_no_listed_one() {
        let (dir, mut set) = opened_sources().await;
        set.options.root = true;
        let repository = dir.path().join("repository");
        let author = Author::init(&repository).unwrap();
        let commit = |path| author.commit(&[(path, Content::File(b"x"))], "x").unwrap();
        let (plain, below) = (commit("f"), commit("deep/f"));
        set.composer.read_from(&[repository]);
        name_commit(&mut set, 0, plain);
        set.choose().unwrap_err(); // the first publication needs `two`
        name_commit(&mut set, 1, plain);
        set.choose().unwrap();
        let mut removed = set.parts[1].clone();
        (removed.name, removed.to) = ("removed".to_owned(), "one/deep".to_owned());
        set.published = vec![removed];
        let last = set.sources[1].mirror.clone();
        set.repositories.get_mut(&last).unwrap().known.clear();
        let names = |set: &SourceSet| set.parts.iter().map(|part| part.name.clone()).collect::<Vec<_>>();
        set.choose().unwrap();
        set.compose(&Selection::default()).await.unwrap();
        assert_eq!(names(&set), ["one", "removed"], "they may have been renamed");
        name_commit(&mut set, 0, below);
        set.choose().unwrap();
        set.compose(&Selection::default()).await.unwrap();
        assert_eq!(names(&set), ["one"]);
    }

    /// The first set is refused, with its optional source and without.
    #[tokio::test]
    async fn a_source_that_was_held_back_in_vain_is_tried_again_with_the_next_set() {
        let (_dir, mut set) = opened_sources().await;
        set.options.root = true;
        set.sources[1].listed.optional = true;
        let [first, other, next] = [1, 2, 3].map(|number| Revision(ObjectId([number; 20])));
        let chosen = |set: &SourceSet| set.parts.iter().map(|part| part.revision).collect::<Vec<_>>();
        name_commit(&mut set, 0, first);
        name_commit(&mut set, 1, other);
        set.choose_anew().unwrap();
        assert_eq!(chosen(&set), [first, other]);
        assert!(set.hold_back_one_updated("it is too large", &[]));
        set.choose_anew().unwrap();
        assert!(!set.hold_back_one_updated("it is too large", &[]), "the other one is needed");
        set.choose_anew().unwrap();
        assert_eq!(chosen(&set), [first], "the next attempt finds the same set, which is refused");
        name_commit(&mut set, 0, next);
        set.choose_anew().unwrap();
        assert_eq!(chosen(&set), [next, other]);
        // If its omission made the difference, it stays out.
        assert!(set.hold_back_one_updated("it is too large", &[]));
        set.clear_suspects();
        name_commit(&mut set, 0, first);
        set.choose_anew().unwrap();
        assert_eq!(chosen(&set), [first]);
    }
}
