//! Requests about ConfigMaps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::answer::{AnyObject, MetadataList, Partial};
use super::connection::Request;
use super::error::{Error, Failure};
use super::object::{ConfigMap, ConfigMapDraft, Meta};
use super::operation::{Kind, Verb};
use super::{Cluster, Mode};

/// Objects per page of a list, as in client-go's pager. Where they have too much metadata for one answer, fewer.
const PAGE: usize = 500;
/// How often a list is started over because its `continue` token expired (410 Gone).
const RESTARTS: u32 = 2;
/// The most pages of a list: 100,000 objects, fewer by those where smaller pages are asked for.
const PAGES_MAX: usize = 200;
/// The most metadata that a list keeps, in bytes: 8 KiB for each of the 2,000 or so ConfigMaps that an inventory can
/// list. As many namespaces of a cluster are listed at once as requests may be in flight, each within this limit.
const KEPT_MAX: usize = 16 << 20;

/// The objects of a list, by namespace and name.
type Listed = BTreeMap<(String, String), Meta>;

impl Cluster {
    /// Returns the metadata of every ConfigMap of a namespace, by name: all of them, or an error. Content is not
    /// transferred, and long annotations are left out.
    pub async fn list(&self, namespace: &str) -> Result<BTreeMap<String, Meta>, Error> {
        self.list_if(namespace, |_| true).await
    }

    /// [`Self::list`] of those that `keep` returns true for. No others are held beyond their page: a namespace may have
    /// any number of them.
    async fn list_if(
        &self,
        namespace: &str,
        keep: impl Fn(&Meta) -> bool,
    ) -> Result<BTreeMap<String, Meta>, Error> {
        let found = self.list_matching(namespace, "", keep).await?;
        Ok(found.into_iter().map(|((_, name), meta)| (name, meta)).collect())
    }

    /// Returns the metadata of every ConfigMap of that name in all namespaces: all of them, or an error. Needs the
    /// right to list ConfigMaps in the whole cluster, which a ClusterRole can limit to the name (`resourceNames`).
    pub async fn list_everywhere(&self, name: &str) -> Result<Vec<Meta>, Error> {
        let found = self.list_matching("", name, |_| true).await?;
        Ok(found.into_values().collect())
    }

    /// Lists the objects of a namespace (empty: of all) with this name (empty: any) that `keep` returns true for.
    async fn list_matching(
        &self,
        namespace: &str,
        name: &str,
        keep: impl Fn(&Meta) -> bool,
    ) -> Result<Listed, Error> {
        // This limits what all lists in progress keep together. An error means that the semaphore was closed, which it
        // never is.
        let _place = self.inner.lists.acquire().await;
        let mut restarts = 0;
        loop {
            match self.list_once(namespace, name, &keep).await {
                Err(Error { why: Failure::Expired, .. }) if restarts < RESTARTS => restarts += 1,
                result => return result,
            }
        }
    }

    /// Requests one page after the other. The server decides how many there are, so their number and what is kept of
    /// them have limits, and what was not asked for is dropped.
    async fn list_once(
        &self,
        namespace: &str,
        name: &str,
        keep: &impl Fn(&Meta) -> bool,
    ) -> Result<Listed, Error> {
        let is_asked_for = |meta: &Meta| {
            (namespace.is_empty() || meta.namespace == namespace) && (name.is_empty() || meta.name == name)
        };
        let mut found = Listed::new();
        let (mut pages, mut kept, mut limit) = (0, 0, PAGE);
        let mut next = String::new();
        loop {
            let mut request = Request::new(Verb::List, Kind::ConfigMap, namespace, name);
            if !name.is_empty() {
                request.query("fieldSelector", &format!("metadata.name={name}"));
            }
            request.query("limit", &limit.to_string());
            if !next.is_empty() {
                request.query("continue", &next);
            }
            let page = match self.inner.call::<MetadataList>(&request).await {
                // One object always fits.
                Err(Error { why: Failure::LongAnswer { .. }, .. }) if limit > 1 => {
                    limit = limit.div_ceil(10);
                    continue;
                }
                page => page?,
            };
            // Pages grow again: a few objects that anybody annotated must not make all pages after them small.
            limit = (2 * limit).min(PAGE);
            for meta in page.items.into_iter().filter(|meta| is_asked_for(meta) && keep(meta)) {
                let meta = meta.without_long_annotations();
                kept += meta.bytes();
                found.insert((meta.namespace.clone(), meta.name.clone()), meta);
            }
            pages += 1;
            // A page may be empty and not the last one, but each token says where the next page begins.
            match page.next {
                None if kept <= KEPT_MAX => return Ok(found),
                Some(token) if token != next && pages < PAGES_MAX && kept <= KEPT_MAX => next = token,
                _ => return Err(self.inner.failed(&request, Failure::EndlessList)),
            }
        }
    }

    /// Returns the metadata of one ConfigMap; `None` if there is no such ConfigMap or namespace.
    pub async fn head(&self, namespace: &str, name: &str) -> Result<Option<Meta>, Error> {
        let request = Request::new(Verb::Get, Kind::ConfigMap, namespace, name);
        let found: Option<Partial> = self.inner.find(&request).await?;
        Ok(found.map(|partial| partial.meta))
    }

    /// [`Self::head`] as one of many, which together keep as much as a list: `kept` has the bytes of the others.
    async fn head_within(
        &self,
        kept: &AtomicUsize,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Meta>, Error> {
        let found = self.head(namespace, name).await?.map(Meta::without_long_annotations);
        let bytes = found.as_ref().map_or(0, Meta::bytes);
        if kept.fetch_add(bytes, Ordering::Relaxed) + bytes > KEPT_MAX {
            let request = Request::new(Verb::Get, Kind::ConfigMap, namespace, name);
            return Err(self.inner.failed(&request, Failure::EndlessList));
        }
        Ok(found)
    }

    /// Returns the metadata of those of the named ConfigMaps that exist, by name. Uses one list; without the right to
    /// list, one request for each.
    pub async fn survey(&self, namespace: &str, names: &[&str]) -> Result<BTreeMap<String, Meta>, Error> {
        let wanted: BTreeSet<&str> = names.iter().copied().collect();
        match self.list_if(namespace, |meta| wanted.contains(meta.name.as_str())).await {
            Err(Error { why: Failure::Forbidden { .. }, .. }) => {
                let _place = self.inner.lists.acquire().await; // as for a list
                let kept = AtomicUsize::new(0);
                let found = names.iter().map(|name| self.head_within(&kept, namespace, name));
                let found = futures_util::future::try_join_all(found).await?;
                Ok(found.into_iter().flatten().map(|meta| (meta.name.clone(), meta)).collect())
            }
            listed => listed,
        }
    }

    /// Returns one ConfigMap with its content; `None` if there is no such ConfigMap or namespace.
    pub async fn get(&self, namespace: &str, name: &str) -> Result<Option<ConfigMap>, Error> {
        let request = Request::new(Verb::Get, Kind::ConfigMap, namespace, name);
        self.inner.find(&request).await
    }

    /// Creates a ConfigMap and returns its metadata as stored. Fails with [`Failure::AlreadyExists`] if there is one of
    /// that name.
    pub async fn create(&self, draft: ConfigMapDraft, mode: Mode) -> Result<Meta, Error> {
        let request = Request::new(Verb::Create, Kind::ConfigMap, &draft.namespace, &draft.name);
        let request = request.mode(mode).body(&draft.into_kube(None));
        let written: Partial = self.inner.call(&request).await?;
        Ok(written.meta)
    }

    /// Replaces the object that was read by `draft`, which also names it, and returns the metadata as stored.
    /// Finalizers and owner references stay. Fails with [`Failure::Conflict`] if the object was written or created anew
    /// since it was read, with [`Failure::NotFound`] if it is gone.
    pub async fn replace(&self, read: &Meta, draft: ConfigMapDraft, mode: Mode) -> Result<Meta, Error> {
        let request = Request::new(Verb::Update, Kind::ConfigMap, &draft.namespace, &draft.name);
        self.require_version(&request, read)?;
        let request = request.mode(mode).body(&draft.into_kube(Some(read)));
        let written: Partial = self.inner.call(&request).await?;
        Ok(written.meta)
    }

    /// Deletes the object that was read. Returns false if there is none of that name any more. Fails with
    /// [`Failure::Conflict`] if it was written or created anew since it was read. An object with finalizers stays until
    /// those are removed.
    pub async fn delete(&self, read: &Meta, mode: Mode) -> Result<bool, Error> {
        let request = Request::new(Verb::Delete, Kind::ConfigMap, &read.namespace, &read.name);
        self.require_version(&request, read)?;
        match self.inner.call::<AnyObject>(&request.deletion(read, mode)).await {
            Ok(_) => Ok(true),
            Err(Error { why: Failure::NotFound, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Fails if no resourceVersion was read: a PUT without one would overwrite the object unconditionally.
    pub(super) fn require_version(&self, request: &Request, read: &Meta) -> Result<(), Error> {
        if read.resource_version.is_empty() {
            Err(self.inner.failed(request, Failure::Conflict))
        } else {
            Ok(())
        }
    }
}
