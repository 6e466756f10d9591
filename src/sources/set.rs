//! Several sources of one root: what each of their refs names, and the revision that is composed of all.
//!
//! Each repository has a mirror, a connection and a pause after failures of its own, and is polled by a task of its own;
//! an attempt waits for those that answer soon. One that hangs or fails is not waited for: its sources stay at what was
//! last published of them, and it asks for another attempt when it has something new.
//!
//! Files: `options` what makes a set; `repository` one of its repositories; `choice` the commit of each source, and what
//! is kept where it was; `answer` replies to deliveries, and rows of the status; `upkeep` the mirrors' growth.

mod answer;
mod choice;
mod options;
mod repository;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use options::{SetError, SetOptions, WireOf};
use repository::{Repository, key};

use super::SourceError;
use super::file::{BadFile, List, Listed, OnFailure};
use super::poll::{Answers, Question, poll};
use super::requests::{Requested, Requests};
use crate::detached_io;
use crate::mirror::{self, Composer, Objects, Part, Tip, UniqueBaseNames, wire};
use crate::phase::LastAnswer;
use crate::repeats::{Repeats, suppressed};
use crate::revision::Revision;

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
    requests: Requests,
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

    /// `was_failing` is how its repository was before, `again` whether somebody asked for it meanwhile.
    fn end(&self, name: String, answers: Answers, (was_failing, again): (bool, bool)) {
        let is_new = answers.is_new || answers.has_failed() || was_failing;
        let awaited = self.lock();
        let _ = self.send.send((name, answers)); // the set is gone: the process ends
        if again || is_new && !*awaited {
            self.trigger();
        }
    }

    /// Asks for an attempt, in which a source's time has come.
    fn trigger(&self) {
        self.requests.note_due();
        self.trigger.get().into_iter().for_each(|trigger| trigger());
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
    /// What is known of a remote whose mirror cannot be opened.
    opened: LastAnswer,
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
            answering: Answering {
                send,
                awaited: Arc::default(),
                trigger: Arc::default(),
                requests: Requests::default(),
            },
            logged: BTreeMap::new(),
            refused: BTreeMap::new(),
            collided: None,
            published: Vec::new(),
            parts: Vec::new(),
            asked: None,
            suspects: Vec::new(),
            askers: Arc::default(),
            opened: LastAnswer::not_yet(),
        };
        set.read_from_all();
        Ok(set)
    }

    /// Asks before their time for what is requested here.
    pub fn obeys(&mut self, requests: Requests) {
        self.answering.requests = requests;
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
        let requested = self.answering.requests.take();
        self.ask(&requested, held);
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

    /// Notes which repositories somebody asked for. They stay so until they are asked.
    fn note(&mut self, requested: &Requested) {
        let now = Instant::now();
        for (name, repository) in &mut self.repositories {
            let mut sources = self.sources.iter().filter(|source| source.mirror == *name);
            let is_requested = match requested {
                Requested::Nothing => false,
                Requested::All => true,
                Requested::Sources(named) => sources.any(|source| named.contains(&source.listed.name)),
            };
            if is_requested
                && !repository.requested.swap(true, Ordering::Relaxed)
                && let Some(until) = repository.pauses(now)
            {
                wake_at(until, &self.answering, &mut self.polls);
            }
        }
    }

    /// Begins to ask those that are not being asked and have no pause: all of them, or those that are requested.
    fn ask(&mut self, requested: &Requested, held: &[Revision]) {
        self.note(requested);
        // What is made of the set needs the answers of all.
        let asks_all = !matches!(requested, Requested::Sources(_)) || self.is_patient();
        let objects = self.composer.objects();
        let held: Vec<Part> = held.iter().flat_map(|revision| objects.parts(*revision)).collect();
        let now = Instant::now();
        self.asked = Some(now);
        let may_pause = !self.options.root || !self.options.one_time;
        for (name, repository) in &mut self.repositories {
            let pauses = may_pause && repository.pauses(now).is_some();
            if repository.busy || pauses {
                continue;
            }
            let sources = self.sources.iter().filter(|source| source.mirror == *name);
            let refs: BTreeSet<String> = sources.map(|source| source.listed.asked.clone()).collect();
            let is_meant = asks_all || repository.is_due(&refs, now, self.options.period);
            if refs.is_empty() || !is_meant {
                continue; // without refs it was asked while the file changed
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
            repository.requested.store(false, Ordering::Relaxed);
            let (was_failing, again) = (repository.failures > 0, Arc::clone(&repository.requested));
            self.polls.spawn(async move {
                let answers = poll(question).await;
                answering.end(name, answers, (was_failing, again.load(Ordering::Relaxed)));
            });
        }
    }

    /// Those that have not answered an earlier attempt yet; and those that fail, unless their answer is needed.
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
        let Some(repository) = self.repositories.get_mut(name) else { return };
        repository.take(answers, &self.options.backoff);
        let now = Instant::now();
        // Sooner than the next attempt.
        if let Some(until) = repository.pauses(now).filter(|until| *until < now + self.options.period)
            && repository.may_recover()
        {
            wake_at(until, &self.answering, &mut self.polls);
        }
    }
}

/// Asks for an attempt then.
fn wake_at(then: Instant, answering: &Answering, polls: &mut JoinSet<()>) {
    let answering = answering.clone();
    polls.spawn(async move {
        tokio::time::sleep_until(then).await;
        answering.trigger();
    });
}

fn of_source(name: &str, error: &mirror::Error) -> SetError {
    SetError::Source { name: name.to_owned(), source: SourceError::of_mirror(error) }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
