//! Submodules. Each has a mirror of its own inside the mirror of the repository that contains it, `DIR/modules/NAME`.
//! The properties of a mirror (one round trip, containment, depth, recovery from damage, bounded growth) apply to
//! it, and no server learns the commits of another one: if a submodule's URL changes, its mirror stays, but a request
//! to the new URL names only commits that were declared with that URL.
//!
//! A payload needs no network and does not deal with mirrors: all their objects are read as one database, and a
//! published submodule appears as a directory with its commit's tree.
//!
//! Files: `declared` parses `.gitmodules`; `address` resolves a submodule's URL and decides whether it is allowed;
//! `found` determines the submodules of a tree; `allowance` limits all of them together; `dirs` finds their mirrors on
//! disk; `linked` makes published submodules linked worktrees in git-sync's layout; this file fetches the mirrors and
//! bounds their growth.

mod address;
mod allowance;
mod declared;
mod depth;
mod dirs;
mod found;
#[cfg(any(test, fuzzing))]
#[path = "../../../tests/fuzz/targets/modules.rs"]
pub(crate) mod fuzz;
mod linked;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::error::Error;
use super::files::{Freed, remove_mirrors};
use super::{Mirror, Options, Role, Tip, tree};
use crate::payload::{Limits, Refusal, Rule, escaped};
use crate::revision::{ObjectId, Ref, Revision};
use crate::secret::Secret;

use address::Address;
pub use address::{Hosts, InsteadOf};
use allowance::{Allowance, Fetched};
pub use depth::Submodules;
pub(super) use dirs::{DIR, object_dirs};
use dirs::{dir_name, entries, pack_bytes};
use found::{KeptLinks, kept_links, links_in};
pub(super) use found::{Link, Modules, ModulesError, missing_object_of_links};
pub(super) use linked::RepositoryPath;

/// Which submodules are fetched, and from where.
#[derive(Clone, Debug)]
pub struct Access {
    /// Which submodules are published with their content.
    pub submodules: Submodules,
    /// The hosts that they may be fetched from.
    pub hosts: Hosts,
    /// Whether they may be fetched from repositories on this machine (`protocol.file.allow=always`). As in git, it makes
    /// no difference where the followed repository is: a commit could name any directory that treeswap may read
    /// (CVE-2022-39253).
    pub local: bool,
    /// Which of their URLs are fetched from elsewhere.
    pub instead_of: InsteadOf,
    /// The URL of the repository that contains them as it was before it was rewritten: as in git, relative URLs are
    /// relative to it. `None` if it was not rewritten.
    pub written: Option<Secret>,
    /// The limits for a revision with all its submodules.
    pub limits: Limits,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            submodules: Submodules::Off,
            hosts: Hosts::Known(Vec::new()),
            local: false,
            instead_of: InsteadOf::default(),
            written: None,
            limits: Limits::default(),
        }
    }
}

/// The open mirror of one submodule.
#[derive(Debug)]
pub(super) struct Child {
    /// The address that it was opened for.
    address: Address,
    mirror: Mirror,
}

/// The open mirrors of one repository's submodules, by directory name. A mirror is opened when it is first fetched
/// from.
pub(super) type Children = BTreeMap<String, Child>;

/// The published revisions of a repository, newest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeptRevisions<'a> {
    /// All of them. They must stay readable.
    pub(super) all: &'a [Revision],
    /// Those that belong to the remote that is fetched from now, which it may therefore learn.
    pub(super) of_remote: &'a [Revision],
}

impl<'a> KeptRevisions<'a> {
    /// Revisions that all belong to the remote.
    pub(super) fn of_one_remote(kept: &'a [Revision]) -> Self {
        Self { all: kept, of_remote: kept }
    }
}

impl Mirror {
    /// Ensures that the mirrors hold the submodules of a revision, recursively if configured, within the limits for all
    /// of them together, in two passes if a commit has several paths (see `allowance`). The revision itself must be in
    /// the mirror. Their packs are measured with their garbage, which must not count when a revision is refused.
    pub(super) async fn fetch_modules_without_garbage(
        &mut self,
        revision: Revision,
        kept: KeptRevisions<'_>,
    ) -> Result<(), Error> {
        loop {
            let mut allowance = Allowance::of_first_pass(&self.options);
            let mut fetched = self.fetch_modules(revision, kept, &mut allowance).await;
            if fetched.is_ok() && allowance.has_skipped() {
                allowance = Allowance::of_second_pass(&self.options, allowance);
                fetched = self.fetch_modules(revision, kept, &mut allowance).await;
            }
            if fetched.is_ok() || !allowance.is_spent() {
                return fetched;
            }
            // What the revision needs stays, and is not fetched again. So there is less garbage each time.
            match self.collect_in_modules(revision, kept.all).await {
                Ok(Freed { any: true, .. }) => {}
                Ok(Freed { in_use: true, .. }) => {
                    return Err(Error::GarbageInUse { limit: self.options.max_bytes });
                }
                Ok(_) if allowance.is_crowded() => {
                    return Err(Error::KeptSubmodules { limit: self.options.max_bytes });
                }
                Ok(_) => return fetched,
                Err(Error::KeptSubmodules { .. }) if allowance.is_too_large_alone() => return fetched,
                // The commit is not the cause, and another one would not help: somebody has to remove that mirror.
                Err(error @ (Error::Irreplaceable { .. } | Error::KeptSubmodules { .. })) => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot collect garbage of submodules");
                    return fetched;
                }
            }
        }
    }

    /// The same within an allowance.
    async fn fetch_modules(
        &mut self,
        revision: Revision,
        kept: KeptRevisions<'_>,
        allowance: &mut Allowance,
    ) -> Result<(), Error> {
        if self.options.modules.submodules == Submodules::Off {
            return Ok(());
        }
        self.fill_lists(revision).await?;
        let links = self.links_of(revision).await?;
        let before = self.links_of_kept(kept.all).await?;
        // Any number of earlier revisions may have been fetched but never published, each with other submodules. Their
        // mirrors are removed here.
        self.forget_modules_but(&before, &links).await;
        allowance.add_kept(self.bytes_of_others(&links).await?);
        let refuse = |link: &Link, rule| Error::from(refusal(revision, link, rule));
        if let Some(last) = links.last() {
            allowance.declare(links.len()).map_err(|rule| refuse(last, rule))?;
        }
        for (number, link) in links.into_iter().enumerate() {
            let address = self.address(&link).map_err(|why| refuse(&link, Rule::Submodule { why }))?;
            if allowance.skip(number, link.commit).map_err(|rule| refuse(&link, rule))? {
                continue;
            }
            // In the order of `kept`: newest first.
            let same = before.links.iter().filter(|(_, old)| old.name == link.name);
            let is_of_remote = |(of, old): &&(Revision, Link)| {
                kept.of_remote.contains(of) && self.address(old).is_ok_and(|old| old.url == address.url)
            };
            let all: Vec<_> = same.clone().map(|(_, old)| Revision(old.commit)).collect();
            let of_remote: Vec<_> = same.filter(is_of_remote).map(|(_, old)| Revision(old.commit)).collect();
            let kept = KeptRevisions { all: &all, of_remote: &of_remote };
            let tip = Tip { name: None, object: link.commit, peeled: Some(link.commit) };
            allowance.enter(number, &link.path).map_err(|rule| refuse(&link, rule))?;
            let child = self.child(&link.name, &address, link.commit).await?;
            let received_before = child.complete_pack_bytes();
            let usual = child.options.wire.max_fetch_bytes;
            let fetched = match allowance.fetched_before() {
                Some(before) => Ok(before), // only of the submodules in it some are missing
                // An argument, not an option of the mirror: the mirror outlives a fetch whose future is dropped.
                None => child.fetch_measured(&tip, kept, allowance.fetch_bytes(usual)).await,
            };
            let in_module = |error| module_error(revision, &link.path, &address.url, error);
            let done = match fetched {
                Ok(fetched) => match allowance.take(fetched) {
                    Ok(()) => {
                        let in_it = Box::pin(child.fetch_modules(fetched.commit, kept, allowance)); // it is recursive
                        in_it.await.map_err(in_module)
                    }
                    Err(rule) => Err(refuse(&link, rule)),
                },
                Err(Error::FetchBytes { limit }) if limit < usual => Err(refuse(&link, allowance.spent())),
                Err(error) => Err(in_module(error)),
            };
            // Before any return: what was received counts, whether or not it is of use.
            self.complete_pack_bytes += child.complete_pack_bytes() - received_before;
            done?;
            allowance.leave(link.commit);
        }
        Ok(())
    }

    /// Fetches a submodule without those in it, and returns its size. The number of entries is 0 if there are too many
    /// trees to count; building the payload detects that.
    async fn fetch_measured(
        &mut self,
        tip: &Tip,
        kept: KeptRevisions<'_>,
        max_bytes: u64,
    ) -> Result<Fetched, Error> {
        self.client.attempt_begins(); // for the credential: the ref was looked up at another remote
        let commit = self.fetch_own(tip, kept, max_bytes).await?;
        let layout = Arc::clone(&self.layout);
        let shared = Arc::clone(&self.shared);
        let cancel = CancellationToken::new();
        let _dropped = cancel.clone().drop_guard();
        super::blocking::blocking(move || {
            let store = shared.store()?;
            let reader = store.objects()?;
            let found = reader.commit(&commit.0).map_err(|error| Error::damaged(commit, error));
            let entries = found.and_then(|found| tree::count(&reader, commit, &found.tree, &cancel));
            let entries = entries.inspect_err(|error| shared.note_if_damage(error))?;
            Ok(Fetched { commit, bytes: layout.bytes()?, entries: entries.unwrap_or(0) })
        })
        .await
    }

    /// Collects garbage in the open mirrors of the submodules of `revision`, which is not published yet, and of the
    /// `kept` revisions.
    pub(super) async fn collect_in_modules(
        &mut self,
        revision: Revision,
        kept: &[Revision],
    ) -> Result<Freed, Error> {
        let links = self.links_of_kept(&[&[revision], kept].concat()).await?;
        let Some(needed) = by_mirror(links) else {
            return Err(Error::KeptSubmodules { limit: self.options.max_bytes }); // nothing may be removed
        };
        // They are moved to the other thread. If this future is dropped or fails, they are opened again later.
        let mut children = std::mem::take(&mut self.children);
        let cancel = CancellationToken::new();
        let _dropped = cancel.clone().drop_guard();
        let (children, freed) = super::blocking::blocking(move || {
            let freed = free_space(&mut children, &needed, &cancel)?;
            Ok((children, freed))
        })
        .await?;
        self.children = children;
        Ok(freed)
    }

    /// Removes the mirrors of submodules that none of the `kept` revisions has, after a revision was refused.
    pub(super) async fn forget_modules(&mut self, kept: &[Revision]) {
        let Ok(links) = self.links_of_kept(kept).await else { return };
        self.forget_modules_but(&links, &[]).await;
    }

    /// Removes the mirrors of all submodules but those of kept revisions and `more`.
    async fn forget_modules_but(&mut self, kept: &KeptLinks, more: &[Link]) {
        if !kept.are_all_read {
            return;
        }
        let needed = kept.links.iter().map(|(_, link)| link).chain(more);
        let needed: BTreeSet<_> = needed.map(|link| dir_name(&link.name)).collect();
        self.children.retain(|key, _| needed.contains(key));
        let dir = self.layout.dir().to_owned();
        let shared = Arc::clone(&self.shared);
        let forgotten = super::blocking::blocking(move || {
            remove_all_but(&dir, || shared.exclusive(), |key| needed.contains(key))
        });
        if let Err(error) = forgotten.await {
            tracing::warn!(%error, "cannot remove unpublished objects before the next maintenance");
        }
    }

    /// Collects garbage in the mirrors of the submodules of the `kept` revisions, which are published, and of what was
    /// fetched last, and removes the mirrors of others.
    pub(super) fn keep_modules(&mut self, kept: &[Revision]) -> Result<(), Error> {
        let Some(needed) = self.modules_of(&self.with_tip(kept))? else { return Ok(()) };
        // First, because it takes little time. An error of one mirror does not keep the others from becoming smaller.
        let mut done = self.remove_modules_but(&needed).map(drop);
        // Each mirror keeps by itself what was fetched last. What the tip alone names may not have come, and must not
        // look like something that was kept and is gone.
        let Some(published) = self.modules_of(kept)? else { return done };
        for key in needed.keys() {
            if self.cancel.is_cancelled() {
                return Err(Error::Cancelled);
            }
            if let Some(child) = self.children.get_mut(key) {
                let commits = published.get(key).map(Vec::as_slice).unwrap_or_default();
                done = done.and(child.mirror.cancelled_by(&self.cancel).housekeep(commits));
            }
        }
        done
    }

    /// Frees space in the mirrors of submodules by removing everything that the revisions in `keep` do not need.
    pub(super) fn free_modules(&mut self, keep: &[Revision]) -> Result<Freed, Error> {
        let Some(needed) = self.modules_of(keep)? else { return Ok(Freed::default()) };
        // A mirror that cannot be removed is tried again each time, and must not keep all else from being removed.
        let removed = self.remove_modules_but(&needed).unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot remove the mirrors of other submodules");
            false
        });
        Ok(free_space(&mut self.children, &needed, &self.cancel)?.and(Freed { any: removed, in_use: false }))
    }

    /// The submodules of the `kept` revisions: see [`by_mirror`].
    fn modules_of(&self, kept: &[Revision]) -> Result<Option<BTreeMap<String, Vec<Revision>>>, Error> {
        if self.options.modules.submodules == Submodules::Off {
            return Ok(Some(BTreeMap::new()));
        }
        Ok(by_mirror(kept_links(&self.shared.store()?, kept, self.shared.linked)))
    }

    /// Removes the mirrors of other submodules. Returns true if any was removed.
    fn remove_modules_but(&mut self, needed: &BTreeMap<String, Vec<Revision>>) -> Result<bool, Error> {
        // Closed first: on NFS a directory with an open file cannot be removed. If it is read and stays, it is opened
        // again when it is needed.
        self.children.retain(|key, _| needed.contains_key(key));
        remove_all_but(self.layout.dir(), || self.shared.exclusive(), |key| needed.contains_key(key))
    }

    /// The submodules of a revision in the mirror.
    async fn links_of(&self, revision: Revision) -> Result<Vec<Link>, Error> {
        let shared = Arc::clone(&self.shared);
        let links = move || {
            let store = shared.store()?;
            links_in(&store, revision).inspect_err(|error| shared.note_if_damage(error))
        };
        super::blocking::blocking(links).await
    }

    /// The submodules of each of the `kept` revisions.
    async fn links_of_kept(&self, kept: &[Revision]) -> Result<KeptLinks, Error> {
        let shared = Arc::clone(&self.shared);
        let kept = kept.to_vec();
        super::blocking::blocking(move || Ok(kept_links(&shared.store()?, &kept, shared.linked))).await
    }

    /// The bytes of the mirrors of submodules that are not among `links` and were not removed, because kept revisions
    /// have or may have them. They count, because an author may rename a submodule in each commit, and each name has a
    /// mirror of its own.
    async fn bytes_of_others(&self, links: &[Link]) -> Result<u64, Error> {
        let own: BTreeSet<_> = links.iter().map(|link| dir_name(&link.name)).collect();
        let dir = self.layout.dir().join(DIR);
        super::blocking::blocking(move || {
            let others = entries(&dir)?.into_iter().filter(|key| !own.contains(key));
            others.map(|key| pack_bytes(&dir.join(key))).sum()
        })
        .await
    }

    /// Where to fetch a submodule from, if it is allowed.
    fn address(&self, link: &Link) -> Result<Address, String> {
        let wire = &self.options.wire;
        let access = &self.options.modules;
        let credentials = wire.credentials.iter().filter_map(|credential| credential.url.as_deref());
        let mut known: Vec<_> = credentials.filter_map(address::host_of).collect();
        let written = access.written.as_ref().map_or(wire.remote.as_str(), Secret::expose);
        // The URL of a submodule was written by a commit's author.
        let by_operator = (self.role != Role::Submodule).then_some(written);
        for remote in by_operator.into_iter().chain([wire.remote.as_str()]) {
            if let Ok(super::wire::RemoteHost::Host(host)) = super::wire::RemoteHost::of(remote) {
                known.push(host);
            }
        }
        let Access { hosts, instead_of, .. } = access;
        let policy = address::Policy { hosts, known: &known, local: access.local, instead_of };
        address::address(written, link.url.as_deref(), &policy)
    }

    /// The mirror of a submodule, opened if necessary.
    async fn child(&mut self, name: &str, address: &Address, commit: ObjectId) -> Result<&mut Self, Error> {
        let key = dir_name(name);
        // One with another address is dropped, which releases the lock that the new mirror takes.
        let open = self.children.remove(&key).filter(|child| child.address == *address);
        let child = match open {
            Some(child) => child,
            None => Child { address: address.clone(), mirror: self.open_child(&key, address, commit).await? },
        };
        Ok(&mut self.children.entry(key).or_insert(child).mirror)
    }

    /// Opens the mirror of a submodule, or creates it.
    async fn open_child(&self, key: &str, address: &Address, commit: ObjectId) -> Result<Self, Error> {
        let submodules = self.options.modules.submodules.next();
        let written = Some(Secret::holder(&address.written));
        let access = Access { submodules, written, ..self.options.modules.clone() };
        let url = address.url.as_str();
        let wire = self.options.wire.for_remote(url);
        if wire.unverified && !self.options.wire.unverified && url.starts_with("https:") {
            tracing::warn!(url = address::shown(url), "TLS certificates go unchecked (http.sslVerify)");
        }
        let options = Options {
            dir: self.layout.dir().join(DIR).join(key),
            followed: Ref::Commit(commit),
            wire,
            modules: access,
            filter: None,     // all files of a submodule are published
            worktrees: false, // always bare; a bare repository may have linked worktrees, too
            ..self.options.clone()
        };
        let shared = Arc::clone(&self.shared);
        super::blocking::blocking(move || {
            dirs::make_way(&options.dir)?;
            Self::open_submodule(options, &shared)
        })
        .await
    }
}

/// Frees space in open mirrors of submodules. One that cannot be read fails only if the others have nothing to free.
fn free_space(
    children: &mut Children,
    needed: &BTreeMap<String, Vec<Revision>>,
    cancel: &CancellationToken,
) -> Result<Freed, Error> {
    let mut all = Freed::default();
    let mut irreplaceable = None;
    for (key, commits) in needed {
        let Some(child) = children.get_mut(key) else { continue };
        match child.mirror.cancelled_by(cancel).free_space(commits) {
            Ok(freed) => all = all.and(freed),
            Err(error @ Error::Irreplaceable { .. }) => irreplaceable = irreplaceable.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    irreplaceable.map_or(Ok(all), |error| all.or_failure(error))
}

/// The commits that each mirror of a submodule must hold, by the mirror's directory name. `None` if they are not all
/// known, so that nothing may be removed.
fn by_mirror(kept: KeptLinks) -> Option<BTreeMap<String, Vec<Revision>>> {
    let mut commits: BTreeMap<String, Vec<Revision>> = BTreeMap::new();
    for (_, link) in kept.links {
        commits.entry(dir_name(&link.name)).or_default().push(Revision(link.commit));
    }
    kept.are_all_read.then_some(commits)
}

/// Removes the mirrors of submodules in `mirror` for which `needed` is false: see [`remove_mirrors`]. Returns true if
/// any was removed.
fn remove_all_but<G>(
    mirror: &Path,
    exclusive: impl FnOnce() -> Option<G>,
    needed: impl Fn(&str) -> bool,
) -> Result<bool, Error> {
    let dir = mirror.join(DIR);
    let gone = entries(&dir)?.into_iter().filter(|key| !needed(key)).map(|key| dir.join(key));
    let gone: Vec<_> = gone.collect();
    let mut any = false;
    remove_mirrors(&gone, mirror, exclusive, |_| any = true)?;
    Ok(any)
}

fn refusal(revision: Revision, link: &Link, rule: Rule) -> Refusal {
    Refusal { revision, path: escaped(link.path.as_bytes()), rule }
}

/// Converts an error of a submodule into one of the repository that contains it, with the path from there.
fn module_error(revision: Revision, path: &str, url: &str, error: Error) -> Error {
    let full = |inner: &str| format!("{}/{inner}", escaped(path.as_bytes()));
    match error {
        Error::Refused(refusal) => Refusal { revision, path: full(&refusal.path), rule: refusal.rule }.into(),
        Error::Module { path: inner, url, source } => Error::Module { path: full(&inner), url, source },
        Error::Cancelled => Error::Cancelled,
        error => Error::Module {
            path: escaped(path.as_bytes()),
            url: address::shown(url),
            source: Box::new(error),
        },
    }
}
