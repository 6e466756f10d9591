//! Several sources of one root: what each of their refs names, and the revision that is composed of all.
//!
//! Each repository has a mirror, a connection and a pause after failures of its own, and is polled by a task of its own;
//! an attempt waits for those that answer soon. One that hangs or fails is not waited for: its sources stay at what was
//! last published of them, and it asks for another attempt when it has something new.
//!
//! Files: `options` what makes a set; `repository` one of its repositories; `answer` what deliveries ask.

mod answer;
mod options;
mod repository;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use options::{SetError, SetOptions, WireOf};
use repository::{Repository, is_key, key};

use super::SourceError;
use super::file::{BadFile, List, Listed, OnFailure};
use super::poll::{Answers, Question, poll};
use crate::detached_io;
use crate::human::one_line;
use crate::mirror::{self, Composer, Objects, Part, Tip, UniqueBaseNames, wire};
use crate::payload::{Parts, Refusal};
use crate::phase::SourceStatus;
use crate::repeats::{Repeats, suppressed};
use crate::revision::{ObjectId, Revision};

/// An attempt waits so long for repositories that are asked, once something is published. Those that need longer ask
/// for another attempt when they are done.
const PATIENCE: Duration = Duration::from_secs(1);

/// The same where ConfigMaps are made of the set: what depends on a source without an answer is not written.
const PATIENCE_FOR_RULES: Duration = Duration::from_secs(10);

/// Where composed revisions are, in the directory of the mirrors.
const COMPOSED: &str = "composed";

/// A source, and its repository.
struct Followed {
    listed: Listed,
    /// The repository's mirror, by the name of its directory.
    mirror: String,
    /// The repository without userinfo.
    repo: String,
    /// Its mirror cannot be opened.
    unopened: Option<SourceError>,
}

/// How a poll ends.
#[derive(Clone)]
struct Answering {
    send: mpsc::UnboundedSender<(String, Answers)>,
    /// Whether an attempt waits for answers; else what is new asks for one. Held while an answer is sent, so that each is
    /// either taken by the attempt that waits or asks for another.
    awaited: Arc<std::sync::Mutex<bool>>,
    trigger: Arc<OnceLock<Box<dyn Fn() + Send + Sync>>>,
}

impl Answering {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers are waited for until what is returned is dropped.
    fn await_answers(&self) -> Awaiting {
        *self.lock() = true;
        Awaiting(self.clone())
    }

    fn end(&self, name: String, answers: Answers) {
        let is_new = answers.is_new;
        let awaited = self.lock();
        let _ = self.send.send((name, answers)); // the set is gone: the process ends
        if !*awaited
            && is_new
            && let Some(trigger) = self.trigger.get()
        {
            trigger();
        }
    }
}

/// Two sources that could not lie beside each other.
struct Collided {
    names: [String; 2],
    why: SourceError,
    /// The set that they were in, and what was asked of it.
    of: (Vec<Part>, UniqueBaseNames),
}

struct Awaiting(Answering);

impl Drop for Awaiting {
    fn drop(&mut self) {
        *self.0.lock() = false;
    }
}

/// The sources of a root.
pub struct SourceSet {
    options: SetOptions,
    composer: Arc<Composer>,
    on_failure: OnFailure,
    unique: UniqueBaseNames,
    /// In the file's order.
    sources: Vec<Followed>,
    repositories: BTreeMap<String, Repository>,
    polls: JoinSet<()>,
    answers: mpsc::UnboundedReceiver<(String, Answers)>,
    answering: Answering,
    /// What was logged of each source.
    logged: BTreeMap<String, Repeats>,
    /// Revisions that a source may not be published at, and why.
    refused: BTreeMap<String, (Revision, SourceError)>,
    collided: Option<Collided>,
    /// What was last published of each source.
    published: Vec<Part>,
    /// What the next revision is composed of.
    parts: Vec<Part>,
    /// When the last question began.
    asked: Option<Instant>,
    /// Those that are kept where they were because of a refusal that names none.
    suspects: Vec<String>,
    /// How many deliveries wait for an answer.
    askers: Arc<AtomicUsize>,
}

impl SourceSet {
    /// Opens what is there of the mirrors. Blocking; no network.
    pub fn open(options: SetOptions) -> Result<Self, mirror::Error> {
        let composed = options.dir.join(COMPOSED);
        let limits = options.mirror.modules.limits;
        let composer = Arc::new(Composer::open(&composed, options.mirror.durable, limits)?);
        let (send, answers) = mpsc::unbounded_channel();
        let set = Self {
            options,
            composer,
            on_failure: OnFailure::Keep,
            unique: UniqueBaseNames::default(),
            sources: Vec::new(),
            repositories: BTreeMap::new(),
            polls: JoinSet::new(),
            answers,
            answering: Answering { send, awaited: Arc::default(), trigger: Arc::default() },
            logged: BTreeMap::new(),
            refused: BTreeMap::new(),
            collided: None,
            published: Vec::new(),
            parts: Vec::new(),
            asked: None,
            suspects: Vec::new(),
            askers: Arc::default(),
        };
        set.read_from_all();
        Ok(set)
    }

    /// Counts deliveries that wait for an answer, of which a root's set has none by itself.
    pub fn is_asked_by(&mut self, askers: Arc<AtomicUsize>) {
        self.askers = askers;
    }

    /// Whether a slow repository is waited for: what is made of it is not written without its answer.
    fn is_patient(&self) -> bool {
        self.options.rules && (!self.options.root || self.askers.load(Ordering::Relaxed) > 0)
    }

    /// What asks for an attempt when a repository has an answer that nobody waits for.
    pub fn on_answer(&self, trigger: impl Fn() + Send + Sync + 'static) {
        let _ = self.answering.trigger.set(Box::new(trigger));
    }

    /// The objects of all mirrors.
    pub fn objects(&self) -> Objects {
        self.composer.objects()
    }

    /// The directory of the mirrors.
    pub fn dir(&self) -> &Path {
        &self.options.dir
    }

    /// What counts the bytes that come.
    pub fn received(&self) -> mirror::Received {
        self.options.mirror.received.clone()
    }

    /// The file, for people.
    pub fn remote(&self) -> String {
        self.options.file.display().to_string()
    }

    /// Asks every repository, and says which set of revisions is to be published. `current` is what is; `held` must
    /// stay readable.
    pub async fn resolve(&mut self, current: Option<Revision>, held: &[Revision]) -> Result<Tip, SetError> {
        let file = self.options.file.clone();
        let own = file.clone();
        let list = detached_io::run(&file, move || List::read(&own));
        let unread = |why: &str| BadFile::unread(&self.options.file, why);
        let list = match tokio::time::timeout(detached_io::PATIENCE, list).await {
            Ok(Some(list)) => list?,
            Ok(None) => return Err(unread("there was no thread to read it on").into()),
            Err(_) => return Err(unread(&detached_io::late().to_string()).into()),
        };
        self.published = current.map(|current| self.composer.objects().parts(current)).unwrap_or_default();
        self.follow(list).await?;
        if self.repositories.values().all(|repository| !repository.busy) && self.composer.take_damage() {
            for repository in self.repositories.values_mut() {
                repository.mirror.lock().await.distrust();
                repository.known.clear();
            }
        }
        self.take_answers();
        let late = self.late();
        let awaiting = self.answering.await_answers();
        self.ask_all(held);
        self.wait(&late).await;
        drop(awaiting);
        self.take_answers();
        self.log();
        self.choose()?;
        Ok(self.tip())
    }

    /// Says which sources fail, and ever less often that they still do.
    fn log(&mut self) {
        for source in &self.sources {
            let name = &source.listed.name;
            let (_, why) = self.state_of(source);
            let logged = self.logged.entry(name.clone()).or_default();
            match why {
                None => logged.forget(),
                Some(why) => {
                    if let Some(times) = logged.should_log(&why.what) {
                        let hints = why.hints.join("; ");
                        tracing::warn!(
                            source = name,
                            error = why.what,
                            hints,
                            "source {name} is not where its ref is{}",
                            suppressed(times)
                        );
                    }
                }
            }
        }
    }

    /// The mirrors of the repositories that the file names; those that it names no more are forgotten.
    async fn follow(&mut self, list: List) -> Result<(), SetError> {
        // First what may be wrong with the file: nothing is changed then.
        let ways = list.sources.into_iter().map(|listed| self.way_to(listed));
        let ways = ways.collect::<Result<Vec<_>, _>>()?;
        let mut followed = Vec::new();
        for (listed, wire, repo) in ways {
            let mirror = key(&repo, &listed);
            // A secret in the URL may be another one now. Of several sources of one repository the first one's counts.
            if followed.iter().all(|other: &Followed| other.mirror != mirror) {
                self.repositories
                    .retain(|name, open| *name != mirror || open.busy || open.url == listed.repo);
            }
            let unopened = match self.repositories.contains_key(&mirror) {
                true => None,
                false => self.open_mirror(&mirror, wire, &listed).await.err(),
            };
            followed.push(Followed { listed, mirror, repo, unopened });
        }
        let is_followed = |name: &String| followed.iter().any(|source| source.mirror == *name);
        self.repositories.retain(|name, repository| repository.busy || is_followed(name));
        let listed =
            |sources: &[Followed]| sources.iter().map(|source| source.listed.clone()).collect::<Vec<_>>();
        if listed(&followed) != listed(&self.sources) {
            self.refused.clear(); // what was wrong may have been what the file said
        }
        (self.sources, self.on_failure, self.unique) = (followed, list.on_failure, list.unique);
        self.read_from_all();
        Ok(())
    }

    /// The way to a source's repository, and what that is called without userinfo.
    fn way_to(&self, listed: Listed) -> Result<(Listed, wire::Options, String), SetError> {
        let bad = |what: String| SetError::Source {
            name: listed.name.clone(),
            source: SourceError { what, hints: Vec::new(), transient: false },
        };
        let wire = (self.options.wire)(&listed).map_err(bad)?;
        let client = wire::Client::new(wire.clone()).map_err(mirror::Error::from);
        let repo = client.map_err(|error| of_source(&listed.name, &error))?.remote().to_owned();
        Ok((listed, wire, repo))
    }

    async fn open_mirror(
        &mut self,
        name: &str,
        wire: wire::Options,
        listed: &Listed,
    ) -> Result<(), SourceError> {
        let common = &self.options.mirror.wire;
        let issued = common.issued.clone();
        let wire = wire::Options { max_fetch_bytes: common.max_fetch_bytes, issued, ..wire };
        let options = mirror::Options {
            dir: self.options.dir.join(name),
            wire,
            asked: listed.wanted(),
            ..self.options.mirror.clone()
        };
        let composer = Arc::clone(&self.composer);
        let opened = blocking(move || composer.mirror(options)).await;
        let opened = opened.map_err(|error| SourceError::of_mirror(&error))?;
        self.repositories.insert(name.to_owned(), Repository::new(opened, listed.repo.clone()));
        Ok(())
    }

    /// Also those of sources that the file names no more: older generations are made of them.
    fn read_from_all(&self) {
        let found = std::fs::read_dir(&self.options.dir).into_iter().flatten().flatten();
        let dirs = found.map(|entry| entry.path()).filter(|dir| dir.join("objects").is_dir());
        let composed = self.composer.dir();
        self.composer.read_from(&dirs.filter(|dir| dir != composed).collect::<Vec<_>>());
    }

    /// Begins to ask those that are not being asked and have no pause.
    fn ask_all(&mut self, held: &[Revision]) {
        let objects = self.composer.objects();
        let held: Vec<Part> = held.iter().flat_map(|revision| objects.parts(*revision)).collect();
        let now = Instant::now();
        self.asked = Some(now);
        let may_pause = !self.options.root || !self.options.one_time;
        for (name, repository) in &mut self.repositories {
            let pauses = repository.not_before.is_some_and(|until| now < until) && may_pause;
            if repository.busy || pauses {
                continue;
            }
            let sources = self.sources.iter().filter(|source| source.mirror == *name);
            let refs: BTreeSet<String> = sources.map(|source| source.listed.asked.clone()).collect();
            if refs.is_empty() {
                continue; // it was asked while the file changed
            }
            let known = repository.known.clone();
            let of_it = held.iter().filter(|part| part.mirror == *name).map(|part| part.revision);
            let question = Question {
                mirror: Arc::clone(&repository.mirror),
                refs: refs.into_iter().collect(),
                known,
                refused: repository.refused.clone(),
                held: of_it.collect(),
                // Less than an attempt has, which then still has time to publish without this repository.
                timeout: self.options.timeout.mul_f64(0.9),
            };
            (repository.busy, repository.asked) = (true, Some(now));
            let answering = self.answering.clone();
            let name = name.clone();
            self.polls.spawn(async move { answering.end(name, poll(question).await) });
        }
    }

    /// Those that fail, or have not answered an earlier attempt yet.
    fn late(&self) -> BTreeSet<String> {
        let is_late =
            |repository: &Repository| repository.busy || repository.failures > 0 && !self.is_patient();
        let late = self.repositories.iter().filter(|(_, repository)| is_late(repository));
        late.map(|(name, _)| name.clone()).collect()
    }

    /// Waits for answers: for all of them where the set needs all, else as long as is worth it, and not for those that
    /// are late.
    async fn wait(&mut self, late: &BTreeSet<String>) {
        let &SetOptions { one_time, root, timeout, .. } = &self.options;
        let is_first = root && self.published.is_empty();
        let all = one_time || is_first || self.on_failure == OnFailure::Hold;
        // A repository that needs longer each time answers in time all the same.
        let slowest = self.repositories.values().filter_map(|repository| repository.took).max();
        let patience = match (all, self.is_patient()) {
            (true, _) => timeout.saturating_mul(2),
            (false, true) => PATIENCE_FOR_RULES.max(slowest.unwrap_or_default() * 2).min(timeout),
            (false, false) => PATIENCE,
        };
        let deadline = Instant::now() + patience;
        loop {
            let waits =
                |(name, repository): (&String, &Repository)| repository.busy && (all || !late.contains(name));
            if !self.repositories.iter().any(waits) {
                break;
            }
            match tokio::time::timeout_at(deadline, self.answers.recv()).await {
                Ok(Some((name, answers))) => self.take(&name, answers),
                Ok(None) | Err(_) => break,
            }
        }
        while let Some(ended) = self.polls.try_join_next() {
            if let Err(error) = ended
                && error.is_panic()
            {
                std::panic::resume_unwind(error.into_panic()); // it has no answer
            }
        }
    }

    fn take_answers(&mut self) {
        while let Ok((name, answers)) = self.answers.try_recv() {
            self.take(&name, answers);
        }
    }

    fn take(&mut self, name: &str, answers: Answers) {
        if let Some(repository) = self.repositories.get_mut(name) {
            repository.take(answers, &self.options.backoff);
        }
    }

    /// Chooses a revision for each source.
    fn choose(&mut self) -> Result<(), SetError> {
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
    fn state_of(&self, source: &Followed) -> (Option<Revision>, Option<SourceError>) {
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
    fn tip(&self) -> Tip {
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

    /// Keeps the mirrors' growth bounded. Blocking. One that is being asked is left for the next time.
    pub fn housekeep(&mut self, held: &[Revision]) -> Result<(), mirror::Error> {
        let objects = self.composer.objects();
        let parts: Vec<Part> = held.iter().flat_map(|revision| objects.parts(*revision)).collect();
        let mut kept = self.composer.collect_garbage(held);
        for (name, repository) in &self.repositories {
            if let Some(mut mirror) = repository.idle() {
                kept = kept.and(mirror.housekeep(&repository.held(name, &parts)));
            }
        }
        let needed: BTreeSet<&str> = parts.iter().map(|part| part.mirror.as_str()).collect();
        for entry in std::fs::read_dir(&self.options.dir).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_followed = self.sources.iter().any(|source| source.mirror == name)
                || self.repositories.contains_key(&*name); // it may be asked still
            if kept.is_ok() && is_key(&name) && !needed.contains(&*name) && !is_followed {
                tracing::info!(mirror = %entry.path().display(), "removed the mirror of a source that is no more");
                let _ = std::fs::remove_dir_all(entry.path()); // what is left is removed the next time
            }
        }
        self.read_from_all();
        kept
    }

    /// On a full volume: see `Mirror::make_room`.
    pub fn make_room(&mut self, keep: &[Revision]) -> Result<bool, mirror::Error> {
        let objects = self.composer.objects();
        let parts: Vec<Part> = keep.iter().flat_map(|revision| objects.parts(*revision)).collect();
        let mut made = Ok(false);
        for (name, repository) in &self.repositories {
            if let Some(mut mirror) = repository.idle() {
                let more = mirror.make_room(&repository.held(name, &parts));
                made = made.and_then(|made| more.map(|more| made || more));
            }
        }
        made
    }

    /// Bytes of the mirrors. Blocking.
    pub fn disk_bytes(&self) -> u64 {
        Composer::disk_bytes(&self.options.dir)
    }

    /// How each source is, in the file's order. `current` is the set that serves; `has_failed` whether it stays so
    /// although another one was chosen.
    pub fn rows(&self, current: Option<Revision>, has_failed: bool) -> Vec<SourceStatus> {
        let serves = current.map(|current| self.composer.objects().parts(current)).unwrap_or_default();
        let row = |source: &Followed| {
            let Followed { listed, mirror, repo, .. } = source;
            let (_, why) = self.state_of(source);
            let collided =
                self.collided.as_ref().filter(|Collided { names, of: (parts, unique), .. }| {
                    *parts == self.parts && *unique == self.unique && names.contains(&listed.name)
                });
            let why = why.or_else(|| collided.map(|collided| collided.why.clone()));
            let part = serves.iter().find(|part| part.name == listed.name);
            let chosen = self.parts.iter().find(|part| part.name == listed.name);
            let why = why.or_else(|| {
                chosen.filter(|chosen| has_failed && part != Some(*chosen)).map(SourceError::unpublished)
            });
            let repository = self.repositories.get(mirror);
            SourceStatus {
                name: listed.name.clone(),
                repo: repo.clone(),
                asked: listed.asked.clone(),
                path: listed.path.clone(),
                to: listed.to.clone(),
                revision: part.map(|part| part.revision),
                failing_since: repository.and_then(|repository| repository.failing_since),
                is_late: repository.is_some_and(|repository| repository.busy),
                hints: why.as_ref().map(|why| why.hints.clone()).unwrap_or_default(),
                error: why.map(|why| why.what),
            }
        };
        self.sources.iter().map(row).collect()
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

fn of_source(name: &str, error: &mirror::Error) -> SetError {
    SetError::Source { name: name.to_owned(), source: SourceError::of_mirror(error) }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
