//! Requests about Leases.

use super::Cluster;
use super::connection::Request;
use super::error::Error;
use super::object::{Lease, LeaseDraft, Meta};
use super::operation::{Kind, Verb};

impl Cluster {
    /// Reads a Lease; `None` if there is no such Lease or namespace.
    pub async fn lease(&self, namespace: &str, name: &str) -> Result<Option<Lease>, Error> {
        let request = Request::new(Verb::Get, Kind::Lease, namespace, name);
        self.inner.find(&request).await
    }

    /// Creates a Lease. Fails with [`super::Failure::AlreadyExists`] if there is one of that name.
    pub async fn create_lease(&self, draft: LeaseDraft) -> Result<Lease, Error> {
        let request = Request::new(Verb::Create, Kind::Lease, &draft.namespace, &draft.name);
        self.inner.call(&request.body(&draft.into_kube(None))).await
    }

    /// Replaces the Lease that was read. Fails with [`super::Failure::Conflict`] if it was written since.
    pub async fn replace_lease(&self, read: &Meta, draft: LeaseDraft) -> Result<Lease, Error> {
        let request = Request::new(Verb::Update, Kind::Lease, &draft.namespace, &draft.name);
        self.require_version(&request, read)?;
        self.inner.call(&request.body(&draft.into_kube(Some(read)))).await
    }
}
