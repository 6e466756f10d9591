//! Submodules. Each is a mirror of its own below the one of the repository that has it, `DIR/modules/NAME`, so that
//! what holds for a mirror (one round trip, containment, depth, damage, growth) holds for it, and no server learns of
//! another one's commits.
//!
//! A payload needs no network and does not know of mirrors: all their objects are read as one database, and a submodule
//! that is asked for is a directory with its commit's tree.
//!
//! `declared` reads `.gitmodules`; `address` says from where, and whether that is allowed; `found` which submodules a
//! tree has; `allowance` what all of them together may come to; here they are fetched and kept;
//! `linked` makes git work in those that are published in git-sync's layout.

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
use std::fmt::Write as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};

use fs_err as fs;

use super::error::{Error, Libgit2};
use super::files::local;
use super::lack::Lack;
use super::{Mirror, Options, Tip};
use crate::payload::{Limits, Refusal, Rule, escaped};
use crate::revision::{ObjectId, Ref, Revision};

pub use address::Hosts;
pub(super) use allowance::Allowance;
pub use depth::Submodules;
use dirs::entries;
pub(super) use dirs::{DIR, object_dirs};
pub(super) use found::{Link, Modules, Trouble, links};
pub(super) use linked::Seat;

/// What may be fetched as a submodule, and from where.
#[derive(Clone, Debug)]
pub struct Access {
    /// Which.
    pub asked: Submodules,
    /// From which hosts.
    pub hosts: Hosts,
    /// From repositories on this machine (`protocol.file.allow=always`). Those of a repository that itself is on this
    /// machine always may.
    pub local: bool,
    /// What a revision may come to, its submodules included.
    pub limits: Limits,
}

impl Default for Access {
    fn default() -> Self {
        let hosts = Hosts::Known(Vec::new());
        Self { asked: Submodules::Off, hosts, local: false, limits: Limits::default() }
    }
}

/// A directory's name may be 255 bytes long everywhere.
const KEY_MAX: usize = 200;

/// The mirror of one submodule, as far as it was needed since this process began.
#[derive(Debug)]
pub(super) struct Child {
    /// From where.
    url: String,
    mirror: Mirror,
}

/// All of one repository, by their directory's name.
pub(super) type Children = BTreeMap<String, Child>;

/// Boxed: a submodule may have submodules.
pub(super) type Fetching<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

impl Mirror {
    /// Makes sure that the submodules of a revision that is held are held, too, down to the last, within what all of
    /// them together may come to. `held`: as in [`Mirror::fetch`].
    pub(super) fn fetch_modules<'a>(
        &'a mut self,
        revision: Revision,
        held: &'a [Revision],
        allowance: &'a mut Allowance,
    ) -> Fetching<'a> {
        Box::pin(self.fetch_modules_of(revision, held, allowance))
    }

    async fn fetch_modules_of(
        &mut self,
        revision: Revision,
        held: &[Revision],
        allowance: &mut Allowance,
    ) -> Result<(), Error> {
        if self.options.modules.asked == Submodules::Off {
            return Ok(());
        }
        self.fill_lists(revision).await?;
        let links = self.links_of(revision).await?;
        let before = self.links_of_readable(held).await?;
        // Of a revision that could not be published there may be any number before this one, each with names of its own.
        self.forget_modules_but(links.iter().chain(before.iter().flatten())).await;
        let refuse = |link: &Link, rule| Error::from(refusal(revision, link, rule));
        if let Some(last) = links.last() {
            allowance.declare(links.len()).map_err(|rule| refuse(last, rule))?;
        }
        for link in links {
            let url =
                self.address(&link).map_err(|why| refuse(&link, Rule::Submodule { why: why.to_string() }))?;
            // Newest first, as the published revisions are.
            let held: Vec<_> = before.iter().flatten().filter(|old| old.name == link.name).collect();
            let held: Vec<_> = held.into_iter().map(|old| Revision(old.commit)).collect();
            let tip = Tip { name: None, object: link.commit, peeled: Some(link.commit) };
            allowance.enter(&link.path).map_err(|rule| refuse(&link, rule))?;
            let child = self.child(&link.name, &url, link.commit).await?;
            let before = child.received_bytes();
            let usual = child.options.wire.max_fetch_bytes;
            child.options.wire.max_fetch_bytes = allowance.fetch_bytes(usual);
            let fetched = child.fetch_own(&tip, &held).await;
            child.options.wire.max_fetch_bytes = usual;
            let measured = match fetched {
                Ok(commit) => child.measure(commit).await.map(|(bytes, entries)| (commit, bytes, entries)),
                Err(Error::FetchBytes { limit }) if limit < usual => {
                    return Err(refuse(&link, allowance.spent()));
                }
                Err(error) => Err(error),
            };
            let done = match measured {
                Ok((commit, bytes, entries)) => {
                    allowance.take(bytes, entries).map_err(|rule| refuse(&link, rule))?;
                    child.fetch_modules(commit, &held, allowance).await
                }
                Err(error) => Err(error),
            };
            let received = child.received_bytes() - before;
            self.received += received;
            done.map_err(|error| within(revision, &link.path, &url, error))?;
            allowance.leave();
        }
        Ok(())
    }

    /// Bytes of the packs, and entries below a commit's tree (none where there are too many to count, which the payload
    /// will find).
    async fn measure(&self, commit: Revision) -> Result<(u64, u64), Error> {
        let layout = Arc::clone(&self.layout);
        let shared = Arc::clone(&self.shared);
        super::blocking::blocking(move || {
            let store = shared.store()?;
            let reader = store.reader();
            let reader = reader.map_err(|source| Error::Git {
                act: "open the mirror's objects".into(),
                source: Libgit2(source),
            })?;
            let damaged = |lack| Error::damaged(commit, lack);
            let tree = reader.commit(&commit.0).map_err(damaged)?.tree;
            let entries = crate::mirror::tree::count(&reader, &tree).map_err(damaged)?;
            Ok((layout.bytes()?, entries.unwrap_or(0)))
        })
        .await
    }

    /// Removes the mirrors of submodules that none of these revisions has: those of one that was refused.
    pub(super) async fn forget_modules(&mut self, held: &[Revision]) {
        let Ok(links) = self.links_of_readable(held).await else { return };
        self.forget_modules_but(links.iter().flatten()).await;
    }

    async fn forget_modules_but<'l>(&mut self, needed: impl Iterator<Item = &'l Link>) {
        let needed: BTreeSet<_> = needed.map(|link| key(&link.name)).collect();
        self.children.retain(|key, _| needed.contains(key));
        let dir = self.layout.dir().join(DIR);
        let shared = Arc::clone(&self.shared);
        let forgotten = super::blocking::blocking(move || {
            remove_all_but(&dir, shared.alone(), |key| needed.contains(key))
        });
        if let Err(error) = forgotten.await {
            tracing::warn!(%error, "what was fetched and not published stays until the next look after the house");
        }
    }

    /// Bounds what the submodules of these revisions weigh, and removes what none of them has any more.
    pub(super) fn keep_modules(&mut self, held: &[Revision]) -> Result<(), Error> {
        let needed = self.modules_of(held)?;
        for (key, commits) in &needed {
            if let Some(child) = self.children.get_mut(key) {
                child.mirror.housekeep(commits)?;
            }
        }
        self.remove_modules_but(&needed)?;
        Ok(())
    }

    /// Gives back what the submodules hold of other revisions than these. `true`: there was something.
    pub(super) fn free_modules(&mut self, keep: &[Revision]) -> Result<bool, Error> {
        let needed = self.modules_of(keep)?;
        let mut freed = self.remove_modules_but(&needed)?;
        for (key, commits) in &needed {
            if let Some(child) = self.children.get_mut(key) {
                freed |= child.mirror.free_space(commits)?;
            }
        }
        Ok(freed)
    }

    /// The mirrors of the submodules of these revisions, and the commits that each is to hold.
    fn modules_of(&self, held: &[Revision]) -> Result<BTreeMap<String, Vec<Revision>>, Error> {
        let mut needed: BTreeMap<String, Vec<Revision>> = BTreeMap::new();
        if self.options.modules.asked == Submodules::Off {
            return Ok(needed);
        }
        let store = self.shared.store()?;
        for link in readable_links(&store, held).into_iter().flatten() {
            needed.entry(key(&link.name)).or_default().push(Revision(link.commit));
        }
        Ok(needed)
    }

    fn remove_modules_but(&mut self, needed: &BTreeMap<String, Vec<Revision>>) -> Result<bool, Error> {
        let removed = remove_all_but(&self.layout.dir().join(DIR), self.shared.alone(), |key| {
            needed.contains_key(key)
        })?;
        self.children.retain(|key, _| !removed.contains(key));
        Ok(!removed.is_empty())
    }

    /// The submodules of a revision that is held.
    async fn links_of(&self, revision: Revision) -> Result<Vec<Link>, Error> {
        let shared = Arc::clone(&self.shared);
        super::blocking::blocking(move || links_in(&shared.store()?, revision)).await
    }

    /// Those of each of these revisions that can be read.
    async fn links_of_readable(&self, revisions: &[Revision]) -> Result<Vec<Vec<Link>>, Error> {
        let shared = Arc::clone(&self.shared);
        let revisions = revisions.to_vec();
        super::blocking::blocking(move || Ok(readable_links(&shared.store()?, &revisions))).await
    }

    fn address(&self, link: &Link) -> Result<String, address::Unfit> {
        let wire = &self.options.wire;
        let access = &self.options.modules;
        let credentials = wire.credentials.iter().filter_map(|credential| credential.url.as_deref());
        let mut known: Vec<_> = credentials.filter_map(address::host_of).collect();
        let mut here = false;
        match super::wire::RemoteHost::of(&wire.remote) {
            Ok(super::wire::RemoteHost::Host(host)) => known.push(host),
            Ok(super::wire::RemoteHost::Here) => here = true,
            Err(_) => {}
        }
        let policy = address::Policy { hosts: &access.hosts, known: &known, local: here || access.local };
        address::address(&wire.remote, link.url.as_deref(), &policy)
    }

    /// The mirror of a submodule, opened or made.
    async fn child(
        &mut self,
        name: &str,
        url: &str,
        commit: crate::revision::ObjectId,
    ) -> Result<&mut Self, Error> {
        let key = key(name);
        if self.children.get(&key).is_some_and(|child| child.url != url) {
            self.children.remove(&key); // its lock goes before the next one takes it
        }
        if !self.children.contains_key(&key) {
            let asked = self.options.modules.asked.next();
            let access = Access { asked, ..self.options.modules.clone() };
            let options = Options {
                dir: self.layout.dir().join(DIR).join(&key),
                asked: Ref::Commit(commit),
                wire: self.options.wire.for_remote(url),
                modules: access,
                filter: None,     // all of a submodule's files are published
                worktrees: false, // a bare one may have linked worktrees, too
                ..self.options.clone()
            };
            let shared = Arc::clone(&self.shared);
            let mirror = super::blocking::blocking(move || {
                dirs::make_way(&options.dir)?;
                Self::open_below(options, &shared)
            })
            .await?;
            self.children.insert(key.clone(), Child { url: url.to_owned(), mirror });
        }
        match self.children.get_mut(&key) {
            Some(child) => Ok(&mut child.mirror),
            None => unreachable!("it was inserted above"),
        }
    }
}

/// The submodules of a revision that is held.
fn links_in(store: &super::odb::Store, revision: Revision) -> Result<Vec<Link>, Error> {
    let reader = store
        .reader()
        .map_err(|source| Error::Git { act: "open the mirror's objects".into(), source: Libgit2(source) })?;
    let commit = reader.commit(&revision.0).map_err(|lack| Error::damaged(revision, lack))?;
    links(&reader, commit.tree).map(|(links, _)| links).map_err(|trouble| trouble.of(revision))
}

/// The object that has to be there first for the submodules of a revision to be known.
pub(super) fn absent_of_links(
    store: &super::odb::Store,
    revision: Revision,
) -> Result<Option<ObjectId>, Error> {
    let reader = store
        .reader()
        .map_err(|source| Error::Git { act: "open the mirror's objects".into(), source: Libgit2(source) })?;
    let commit = reader.commit(&revision.0).map_err(|lack| Error::damaged(revision, lack))?;
    match links(&reader, commit.tree) {
        Err(found::Trouble::Lack(Lack::Missing { id, .. })) => Ok(Some(id)),
        _ => Ok(None),
    }
}

/// Those of the revisions of which they can be read; of the others nothing can be published.
fn readable_links(store: &super::odb::Store, revisions: &[Revision]) -> Vec<Vec<Link>> {
    revisions.iter().filter_map(|revision| links_in(store, *revision).ok()).collect()
}

/// Removes the mirrors of submodules but for those that are needed, while there are no readers. Which it removed.
fn remove_all_but(
    dir: &Path,
    alone: Option<MutexGuard<'_, ()>>,
    needed: impl Fn(&str) -> bool,
) -> Result<Vec<String>, Error> {
    let Some(_alone) = alone else { return Ok(Vec::new()) }; // the next call does it
    let mut gone = entries(dir)?;
    gone.retain(|key| !needed(key));
    for key in &gone {
        let path = dir.join(key);
        fs::remove_dir_all(&path)
            .map_err(local("remove the mirror of a submodule that is not published,", &path))?;
    }
    Ok(gone)
}

fn refusal(revision: Revision, link: &Link, rule: Rule) -> Refusal {
    Refusal { revision, path: escaped(link.path.as_bytes()), rule }
}

/// An error of a submodule, seen from the repository that has it.
fn within(revision: Revision, path: &str, url: &str, error: Error) -> Error {
    let full = |inner: &str| format!("{}/{inner}", escaped(path.as_bytes()));
    match error {
        Error::Refused(refusal) => Refusal { revision, path: full(&refusal.path), rule: refusal.rule }.into(),
        Error::Module { path: inner, url, source } => Error::Module { path: full(&inner), url, source },
        Error::Cancelled => Error::Cancelled,
        error => Error::Module {
            path: escaped(path.as_bytes()),
            url: crate::secret::redact(&crate::secret::quoted(url)),
            source: Box::new(error),
        },
    }
}

/// A submodule's name as the name of one directory. Never the same for two: what is not plain is written as `%xx`, and
/// what becomes too long as `%%` and a digest.
fn key(name: &str) -> String {
    let mut key = String::new();
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => key.push(char::from(byte)),
            b'.' if !key.is_empty() => key.push('.'),
            // Writing to a string doesn't fail.
            other => _ = write!(key, "%{other:02x}"),
        }
    }
    if key.len() > KEY_MAX {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name.as_bytes());
        key = digest.as_ref().iter().fold("%%".to_owned(), |text, byte| text + &format!("{byte:02x}"));
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_becomes_one_directory_of_its_own() {
        assert_eq!(key("lib"), "lib");
        assert_eq!(key("lib/foo.rs"), "lib%2ffoo.rs");
        assert_eq!(key(".git"), "%2egit");
        assert_eq!(key("a%2fb"), "a%252fb");
        assert!(key(&"/".repeat(200)).len() < 100);
        assert_ne!(key(&"/".repeat(200)), key(&"/".repeat(199)));
    }
}
