//! Which commit of each source a set is composed of, and which sources are kept where they were because the set with their
//! new commits was refused.

use std::sync::Arc;
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

use super::{Collided, Followed, OnFailure, SetError, SourceError, SourceSet, blocking};
use crate::human::one_line;
use crate::mirror::{self, Part, Tip};
use crate::payload::{Parts, Refusal};
use crate::revision::{ObjectId, Revision};
use crate::sources::file::Listed;

impl SourceSet {
    /// Chooses a revision for each source.
    pub(super) fn choose(&mut self) -> Result<(), SetError> {
        let mut parts = Vec::new();
        for source in &self.sources {
            let Followed { listed, mirror, repo, .. } = source;
            let (named, why) = self.state_of(source);
            if let Some(why) = why.as_ref().filter(|_| self.on_failure == OnFailure::Hold) {
                return Err(SetError::Source { name: listed.name.clone(), source: why.clone() });
            }
            let new = |revision| Part {
                name: listed.name.clone(),
                repo: repo.clone(),
                asked: listed.asked.clone(),
                revision,
                path: listed.path.clone(),
                to: listed.to.clone(),
                sparse: listed.sparse.clone(),
                mirror: mirror.clone(),
            };
            // As it was published: the file may say something else of it since.
            let before = self.published.iter().find(|part| part.name == listed.name);
            match (named, before) {
                (Some(named), _) => parts.push(new(named)),
                (None, Some(before)) => parts.push(before.clone()),
                // What serves is without it, too; the first publication waits for what is not optional.
                (None, None) if listed.optional || !self.published.is_empty() || !self.options.root => {}
                (None, None) => {
                    let source = why.unwrap_or_else(SourceError::unanswered);
                    return Err(SetError::Source { name: listed.name.clone(), source });
                }
            }
        }
        self.keep_removed(&mut parts);
        if parts.is_empty()
            && !self.options.root
            && let Some(first) = self.sources.first()
        {
            let (_, why) = self.state_of(first);
            let (name, source) = (first.listed.name.clone(), why.unwrap_or_else(SourceError::unanswered));
            return Err(SetError::Source { name, source });
        }
        self.parts = parts;
        Ok(())
    }

    /// A source that the file lists no more goes once what it lists instead is there: one may only have another name.
    fn keep_removed(&self, parts: &mut Vec<Part>) {
        let is_listed = |name: &String| self.sources.iter().any(|source| source.listed.name == *name);
        let is_there = |listed: &Listed| parts.iter().any(|part| part.name == listed.name);
        let all_there = self.sources.iter().all(|source| source.listed.optional || is_there(&source.listed));
        if self.options.root && !all_there {
            let is_free = |before: &&Part| parts.iter().all(|part| part.to != before.to);
            let removed = self.published.iter().filter(|before| !is_listed(&before.name)).filter(is_free);
            let removed: Vec<Part> = removed.cloned().collect();
            parts.extend(removed);
        }
    }

    /// The revision that a source's ref named last, unless it is refused, and what is wrong with the source.
    pub(super) fn state_of(&self, source: &Followed) -> (Option<Revision>, Option<SourceError>) {
        let repository = self.repositories.get(&source.mirror);
        let named = repository.and_then(|repository| repository.known.get(&source.listed.asked));
        let named = named.map(|(_, revision)| *revision);
        let refused = self.refused.get(&source.listed.name);
        match refused.filter(|(revision, _)| Some(*revision) == named) {
            Some((_, why)) => (None, Some(why.clone())),
            // Another source may have opened it since: of one repository and ref there is one commit.
            None if repository.is_none() && source.unopened.is_some() => (None, source.unopened.clone()),
            None => (
                named,
                repository.and_then(|repository| repository.errors.get(&source.listed.asked).cloned()),
            ),
        }
    }

    /// The set and what is asked of it, as an id that is the same for the same.
    pub(super) fn tip(&self) -> Tip {
        let mut text = serde_json::to_vec(&(&self.parts, self.unique.globs())).unwrap_or_default();
        if self.repositories.values().any(|repository| repository.full.is_some()) {
            let again = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            text.extend_from_slice(&again.as_nanos().to_be_bytes()); // something is still to be fetched
        }
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &text);
        let mut object = [0; 20];
        object.copy_from_slice(&digest.as_ref()[..20]);
        Tip { name: None, object: ObjectId(object), peeled: None }
    }

    /// Composes the revision. A source that cannot be a part of it stays at what was published of it.
    pub async fn compose(&mut self) -> Result<Revision, SetError> {
        // The first attempt fails for it, so that the root makes room; the next ones go on without what it lacks.
        let full = self.repositories.values_mut().find_map(|repository| repository.full.take());
        if let Some(error) = full.filter(|_| self.options.root) {
            return Err(error.into());
        }
        let cancel = CancellationToken::new();
        let _dropped = cancel.clone().drop_guard();
        loop {
            let cancel = cancel.clone();
            let composer = Arc::clone(&self.composer);
            let (parts, unique) = (self.parts.clone(), self.unique.clone());
            match blocking(move || composer.compose(&parts, &unique, &cancel)).await {
                Ok(revision) => return Ok(revision),
                Err(mirror::Error::OfSource { name, source }) if !source.is_damage() => {
                    let why = SourceError::of_mirror(&source);
                    if !self.put_back(&name, &why)? {
                        return Err(mirror::Error::OfSource { name, source }.into());
                    }
                }
                Err(error) => {
                    self.collided = collision(&error).map(|names| Collided {
                        names,
                        why: SourceError::of_mirror(&error),
                        of: (self.parts.clone(), self.unique.clone()),
                    });
                    return Err(error.into());
                }
            }
        }
    }

    /// A composed revision was refused: whether another one can be had at once, without what one source has new; else
    /// the same with the name of the source, if one is to blame.
    pub fn hold_back(&mut self, refusal: Refusal) -> Result<(), mirror::Error> {
        let Some(part) = self.blamed(&refusal).cloned() else {
            let refused = mirror::Error::from(refusal);
            let (what, hints) = (one_line(&refused), refused.hints());
            return if self.hold_back_one_that_moved(&what, &hints) { Ok(()) } else { Err(refused) };
        };
        let own = mirror::Error::from(Refusal { revision: part.revision, ..refusal });
        let why = SourceError::of_mirror(&own);
        match self.put_back(&part.name, &why) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(mirror::Error::OfSource { name: part.name, source: Box::new(own) }),
        }
    }

    /// Something about the whole set was refused: one of the sources that moved is kept where it was, and whether there is
    /// one left. Which of them is to blame shows once a set is published: see [`Self::acquit`].
    pub fn hold_back_one_that_moved(&mut self, what: &str, hints: &[String]) -> bool {
        let moved = self.parts.iter().filter(|part| !self.published.contains(part));
        let moved: Vec<(String, Revision)> = moved.map(|part| (part.name.clone(), part.revision)).collect();
        for (name, revision) in moved {
            let what = format!("the set with its commit {} is refused: {what}", revision.short());
            let why = SourceError { what, hints: hints.to_vec(), transient: false };
            if self.put_back(&name, &why).unwrap_or(false) {
                self.suspects.push(name);
                return true;
            }
        }
        false
    }

    /// A set was not refused. Of those that were kept where they were for one refusal, it is the last one that made the
    /// difference; the others are tried again.
    pub fn acquit(&mut self) {
        self.suspects.pop();
        for name in self.suspects.drain(..) {
            self.refused.remove(&name);
        }
    }

    /// The source that a refused path belongs to; none where several are placed there.
    fn blamed(&self, refusal: &Refusal) -> Option<&Part> {
        let places = Parts::new(self.parts.iter().map(|part| part.to.clone().into_bytes()));
        let owner = places.owner(refusal.path.as_bytes());
        let mut owners = self.parts.iter().filter(|part| part.to.as_bytes() == owner);
        let owner = owners.next().filter(|_| refusal.is_of_one_path())?;
        owners.next().is_none().then_some(owner)
    }

    /// Keeps a source at what was published of it, or out of the set if it is optional. `false`: it is so already, or
    /// cannot be.
    fn put_back(&mut self, name: &str, why: &SourceError) -> Result<bool, SetError> {
        let Some(part) = self.parts.iter().find(|part| part.name == name) else { return Ok(false) };
        let is_new =
            self.published.iter().find(|before| before.name == name).is_none_or(|before| before != part);
        let is_known = self.refused.get(name).is_some_and(|(revision, _)| *revision == part.revision);
        let is_optional =
            self.sources.iter().any(|source| source.listed.name == name && source.listed.optional);
        if self.options.root && self.published.is_empty() && !is_optional || !is_new || is_known {
            return Ok(false);
        }
        self.refused.insert(name.to_owned(), (part.revision, why.clone()));
        self.log();
        self.choose()?;
        Ok(true)
    }
}

/// The sources that cannot lie beside each other.
fn collision(error: &mirror::Error) -> Option<[String; 2]> {
    match error {
        mirror::Error::Collision { one, other, .. } => Some([one.clone(), other.clone()]),
        mirror::Error::SameBaseName { one, other, .. } => Some([one.clone(), other.clone()]),
        mirror::Error::Trespass { owner, other, .. } => Some([owner.clone(), other.clone()]),
        _ => None,
    }
}
