//! Several sources of one root: polls what each of their refs names, and composes one revision of all.
//!
//! Each repository has its own mirror, connection and backoff, and is polled by its own task. An attempt waits for the
//! repositories that answer soon. It does not wait for one that hangs or fails: the sources of that repository stay at
//! their last published commits, and its answer requests another attempt if it brings something new.
//!
//! Files: `options` settings and errors; `opening` how mirrors are opened; `repository` one repository and its backoff;
//! `polling` which repositories are polled, and how long answers are waited for; `answer_sender` what a poll does with
//! its answers; `choice` the commit of each source, and which sources are held back; `cause` which source a refusal is
//! about; `failures` what is logged and counted of failures, and the failure of all; `answer` questions of deliveries,
//! and the sources' status; `upkeep` garbage collection.

mod answer;
mod answer_sender;
mod cause;
mod choice;
mod failures;
mod opening;
mod options;
mod polling;
mod repository;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;

use answer_sender::AnswerSender;
use cause::{NamedCause, RefusedSet};
use failures::Failing;
use opening::{EndedOpenings, Opening};
pub use options::{SetError, SetOptions, WireOf};
use repository::{Repository, mirror_name};

use super::SourceError;
use super::file::{BadFile, OnFailure, SourceSpec, SourcesFile};
use super::poll::PollResult;
use super::requests::Requests;
use crate::detached_io;
use crate::mirror::{self, Composer, Objects, Part, Tip, UniqueBaseNames, wire};
use crate::phase::LastAnswer;
use crate::retry::ErrorClass;
use crate::revision::Revision;

/// The name, in the directory of the mirrors, of the repository of composed revisions.
const COMPOSED: &str = "composed";

/// A listed source and its repository.
struct Followed {
    listed: SourceSpec,
    /// The name of its repository's mirror.
    mirror: String,
    /// The repository's URL without userinfo.
    repo: String,
    /// Why the mirror cannot be opened.
    unopened: Option<SourceError>,
}

/// The sources of a root.
pub struct SourceSet {
    options: SetOptions,
    composer: Arc<Composer>,
    on_failure: OnFailure,
    unique: UniqueBaseNames,
    /// The sources, in the file's order.
    sources: Vec<Followed>,
    /// The repositories, by the name of their mirror.
    repositories: BTreeMap<String, Repository>,
    /// The mirrors that are being opened, by name.
    opening: BTreeMap<String, Opening>,
    /// The openings that have ended and were not yet taken by an attempt.
    ended_openings: EndedOpenings,
    /// Limits how many mirrors are checked at the same time.
    checks: Arc<Semaphore>,
    polls: JoinSet<()>,
    answers: mpsc::UnboundedReceiver<(String, PollResult)>,
    answer_sender: AnswerSender,
    /// The consecutive failures of each source.
    failing: BTreeMap<String, Failing>,
    /// The repositories whose polls have ended since the last attempt, and whether one of them was reached.
    polled: BTreeSet<String>,
    any_reached: bool,
    /// The sources whose failure in this attempt is counted.
    counted: BTreeSet<String>,
    /// Failures that were not taken yet: stage and class.
    untaken: Vec<(&'static str, ErrorClass)>,
    /// By source, a commit that must not be part of a set, and why.
    refused: BTreeMap<String, (Revision, SourceError)>,
    /// Why the last set that was composed cannot be published.
    named_cause: Option<NamedCause>,
    /// The last set that was refused as a whole, until the cause is named.
    refused_set: Option<RefusedSet>,
    /// The parts of the published set; empty if it cannot be read.
    published: Vec<Part>,
    /// The sources of which the root serves files.
    served: BTreeSet<String>,
    /// The parts that the next revision is composed of.
    parts: Vec<Part>,
    /// True if what is published cannot be read any more, so that the same set is to be composed again.
    must_recompose: bool,
    /// True if there may be mirrors of sources that are no longer listed.
    may_have_unlisted: bool,
    /// When polls were last started.
    polled_at: Option<Instant>,
    /// Sources that are held back because of a refusal that names no source.
    suspects: Vec<String>,
    /// The number of deliveries that wait for an answer.
    waiting_deliveries: Arc<AtomicUsize>,
    /// The last answer of remotes whose mirror cannot be opened: there was none since the set was opened.
    never_answered: LastAnswer,
}

impl SourceSet {
    /// Opens the set with the mirrors that exist. Blocking; no network.
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
            opening: BTreeMap::new(),
            ended_openings: EndedOpenings::default(),
            checks: Arc::new(Semaphore::new(opening::CHECKS_MAX)),
            polls: JoinSet::new(),
            answers,
            answer_sender: AnswerSender {
                send,
                awaited: Arc::default(),
                trigger: Arc::default(),
                requests: Requests::default(),
            },
            failing: BTreeMap::new(),
            polled: BTreeSet::new(),
            any_reached: false,
            counted: BTreeSet::new(),
            untaken: Vec::new(),
            refused: BTreeMap::new(),
            named_cause: None,
            refused_set: None,
            published: Vec::new(),
            served: BTreeSet::new(),
            parts: Vec::new(),
            must_recompose: false,
            may_have_unlisted: true,
            polled_at: None,
            suspects: Vec::new(),
            waiting_deliveries: Arc::default(),
            never_answered: LastAnswer::not_yet(),
        };
        set.update_read_dirs();
        Ok(set)
    }

    /// Sets where requests to poll sources before they are due come from.
    pub fn set_requests(&mut self, requests: Requests) {
        self.answer_sender.requests = requests;
    }

    /// Sets the counter of deliveries that wait for an answer. Without it, none do.
    pub fn set_waiting_deliveries(&mut self, waiting_deliveries: Arc<AtomicUsize>) {
        self.waiting_deliveries = waiting_deliveries;
    }

    /// Returns true if a delivery needs the answers, so that slow repositories are waited for: targets that depend on a
    /// source without an answer are not written.
    fn delivery_waits(&self) -> bool {
        self.options.rules && (!self.options.root || self.waiting_deliveries.load(Ordering::Relaxed) > 0)
    }

    /// Sets the function that requests an attempt when a repository answers and no attempt is waiting for it.
    pub fn on_answer(&self, trigger: impl Fn() + Send + Sync + 'static) {
        let _ = self.answer_sender.trigger.set(Box::new(trigger));
    }

    /// A handle to the objects of all mirrors.
    pub fn objects(&self) -> Objects {
        self.composer.objects()
    }

    /// The directory of the mirrors.
    pub fn dir(&self) -> &Path {
        &self.options.dir
    }

    /// The counter of received bytes.
    pub fn received(&self) -> mirror::Received {
        self.options.mirror.received.clone()
    }

    /// The path of the sources file, for messages.
    pub fn shown_name(&self) -> String {
        self.options.file.display().to_string()
    }

    /// Reads the file, polls the repositories, and chooses the set to be published. `current` is the published set; the
    /// mirrors keep the revisions in `kept`. The tip's object id is a digest of the chosen set.
    pub async fn resolve(&mut self, current: Option<Revision>, kept: &[Revision]) -> Result<Tip, SetError> {
        let start = Instant::now();
        let file = self.options.file.clone();
        let own = file.clone();
        let list = detached_io::run(&file, move || SourcesFile::read(&own));
        let unread = |why: &str| BadFile::unread(&self.options.file, why);
        let list = match tokio::time::timeout(detached_io::DEFAULT_TIMEOUT, list).await {
            Ok(Some(list)) => list?,
            Ok(None) => return Err(unread("there was no thread to read it on").into()),
            Err(_) => return Err(unread(&detached_io::timeout_error().to_string()).into()),
        };
        self.published = current.map(|current| self.composer.objects().parts(current)).unwrap_or_default();
        self.apply_list(list, start).await?;
        if self.repositories.values().all(|repository| !repository.busy) && self.composer.take_damage() {
            for repository in self.repositories.values_mut() {
                repository.mirror.lock().await.distrust();
                repository.forget_answers();
            }
        }
        // In a root that is missing nothing is made, in case something else takes its place. So this is asked last.
        let dir = self.options.dir.clone();
        let is_in_root = dir.parent().is_some_and(|parent| parent.ends_with("..treeswap"));
        let may_recreate = || !is_in_root || dir.parent().is_some_and(Path::is_dir);
        for (name, repository) in &mut self.repositories {
            if !repository.busy && !dir.join(name).join("objects").is_dir() && may_recreate() {
                repository.forget_answers(); // the mirror was removed
            }
        }
        self.polled.clear();
        self.any_reached = false;
        self.accept_answers();
        // Without a repository that answers there is nothing to publish, so waiting for one holds up nobody.
        let is_outage = self.options.root && !self.repositories.values().any(Repository::last_poll_succeeded);
        let not_awaited = if is_outage { BTreeSet::new() } else { self.not_awaited() };
        let waiting = self.answer_sender.begin_waiting();
        let requested = self.answer_sender.requests.take();
        self.start_polls(&requested, kept, is_outage);
        self.wait_for_answers(&not_awaited, is_outage, start).await;
        drop(waiting);
        self.accept_answers();
        self.update_read_dirs(); // after the polls, which recreate mirrors that were removed
        self.log_failures();
        self.count_failures();
        self.request_overlooked();
        let is_lost = self.options.root && current.is_some() && self.published.is_empty();
        self.must_recompose = is_lost && may_recreate();
        self.choose_anew()?;
        Ok(self.tip())
    }

    /// Follows the listed sources: opens the mirrors of new repositories, and closes those that are no longer listed.
    /// The attempt began at `start`.
    async fn apply_list(&mut self, list: SourcesFile, start: Instant) -> Result<(), SetError> {
        // All checks of the file come first, so that an error changes nothing.
        let checked = list.sources.into_iter().map(|listed| self.wire_options(listed));
        let checked = checked.collect::<Result<Vec<_>, _>>()?;
        let mut followed = Vec::new();
        let taking = self.ended_openings.begin_taking(&self.answer_sender);
        for (listed, wire, repo) in checked {
            let mirror = mirror_name(&repo, &listed);
            // Reopen the mirror if the secret in the URL has changed. If sources share a repository, the first one's
            // URL is used.
            if followed.iter().all(|other: &Followed| other.mirror != mirror) {
                self.repositories
                    .retain(|name, open| *name != mirror || open.busy || open.url == listed.repo);
            }
            if !self.repositories.contains_key(&mirror) {
                self.begin_opening(&mirror, wire, &listed);
            }
            followed.push(Followed { listed, mirror, repo, unopened: None });
        }
        let mirrors = followed.iter().map(|source| &source.mirror);
        let required = mirrors.filter(|mirror| self.is_required(mirror, &followed, list.on_failure));
        let required: BTreeSet<String> = required.cloned().collect();
        let mut unopened = BTreeMap::new();
        for source in &mut followed {
            let is_required = required.contains(&source.mirror);
            if let Err(why) = self.finish_opening(&source.mirror, start, is_required).await {
                unopened.insert(source.mirror.clone(), why);
            }
            source.unopened = unopened.get(&source.mirror).cloned();
        }
        let is_followed = |name: &String| followed.iter().any(|source| source.mirror == *name);
        self.repositories.retain(|name, repository| repository.busy || is_followed(name));
        self.opening.retain(|name, opening| is_followed(name) || !opening.is_finished());
        self.ended_openings.retain(|name| self.opening.contains_key(name));
        drop(taking);
        let listed =
            |sources: &[Followed]| sources.iter().map(|source| source.listed.clone()).collect::<Vec<_>>();
        if listed(&followed) != listed(&self.sources) {
            self.refused.clear(); // the refusals may have been due to the old content of the file
            self.may_have_unlisted = true;
        }
        self.sources = followed;
        self.on_failure = list.on_failure;
        self.unique = list.unique;
        Ok(())
    }

    /// Returns the connection options of a source's repository, and its URL without userinfo.
    fn wire_options(&self, listed: SourceSpec) -> Result<(SourceSpec, wire::Options, String), SetError> {
        let bad = |what: String| {
            let hints = vec!["fix `repo` or `credentials` of the source in the file of --sources".to_owned()];
            let source = SourceError { what, hints, class: ErrorClass::Permanent };
            SetError::Source { name: listed.name.clone(), source, retry_after: None }
        };
        let wire = (self.options.wire)(&listed).map_err(bad)?;
        let client = wire::Client::new(wire.clone()).map_err(mirror::Error::from);
        let repo = client.map_err(|error| of_source(&listed.name, &error))?.remote().to_owned();
        Ok((listed, wire, repo))
    }

    /// Returns true if nothing can be published without an answer from this repository of the sources, or the process
    /// ends with this attempt. The first publication needs every source that is not optional, or is served already.
    fn is_required(&self, mirror: &str, sources: &[Followed], on_failure: OnFailure) -> bool {
        let needs = |source: &Followed| source.mirror == mirror && !self.may_be_absent(&source.listed);
        self.options.one_time
            || on_failure == OnFailure::Hold
            || self.is_first_publication() && sources.iter().any(needs)
    }

    /// Returns true if nothing is published in the root yet, or what is published cannot be read.
    fn is_first_publication(&self) -> bool {
        self.options.root && self.published.is_empty()
    }
}

fn of_source(name: &str, error: &mirror::Error) -> SetError {
    let source = SourceError::of_mirror(error);
    SetError::Source { name: name.to_owned(), source, retry_after: error.retry_after() }
}

#[cfg(test)]
pub(super) mod tests;
