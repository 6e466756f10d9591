//! The names treeswap uses in a root: see the drawing in [`super::layout`].

/// The temporary name of the next published link. The kubelet uses the same name, so watchers know it.
pub(crate) const LINK_TMP: &str = "..data_tmp";
/// Our private directory. The following names are inside it.
pub(crate) const PRIVATE: &str = "..treeswap";
/// The writer's lock.
pub(crate) const LOCK: &str = "lock";
/// The records of the generations.
pub(crate) const STATE: &str = "state";
/// The last status record.
pub(crate) const STATUS: &str = "status.json";
/// The socket on which the running writer reports its status.
pub(crate) const SOCKET: &str = "status.sock";
/// The ledger: what was last attempted in each cluster.
pub(crate) const LEDGER: &str = "ledger.json";
/// The mirror, unless another directory is configured for it.
pub(crate) const MIRROR: &str = "mirror";
/// The directory for generations that are being written.
pub(crate) const STAGING: &str = "staging";
/// The directory of the spare.
pub(crate) const SPARE: &str = "spare";
/// The directory for what is being deleted.
pub(crate) const TRASH: &str = "trash";
/// Prefix of the names of foreign files and directories that were moved out of the way.
pub(crate) const QUARANTINE: &str = "quarantine-";

/// The same prefix in the root itself: for what had the private directory's name, and for what cannot be moved into the
/// private directory. No commit can have a top-level name like it, because it starts with `..`.
pub(crate) const PRIVATE_ASIDE: &str = "..treeswap-quarantine-";

/// Mode of our directories. Every uid may read them, so that tools that walk the whole root get no errors.
pub(crate) const DIR_MODE: u32 = 0o755;

/// Mode of the spare's directory. What others change in a tree that is idle there would be published later.
pub(crate) const SPARE_MODE: u32 = 0o700;
