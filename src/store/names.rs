//! Names in the root that are ours: see the drawing in [`super::layout`].

/// Where the next link is made; the kubelet's name for it, which watchers know.
pub(crate) const LINK_TMP: &str = "..data_tmp";
/// Our own directory.
pub(crate) const PRIVATE: &str = "..treeswap";
/// The writer's lock, in our own directory.
pub(crate) const LOCK: &str = "lock";
/// The records of the generations.
pub(crate) const STATE: &str = "state";
/// The last status record.
pub(crate) const STATUS: &str = "status.json";
/// The socket at which the writer says how it is, in the same directory.
pub(crate) const SOCKET: &str = "status.sock";
/// What was attempted in clusters.
pub(crate) const LEDGER: &str = "ledger.json";
/// The mirror, unless it is elsewhere.
pub(crate) const MIRROR: &str = "mirror";
/// Generations being written.
pub(crate) const STAGING: &str = "staging";
/// The spare.
pub(crate) const SPARE: &str = "spare";
/// What is being deleted.
pub(crate) const TRASH: &str = "trash";
/// Begins the name of what was moved aside.
pub(crate) const QUARANTINE: &str = "quarantine-";

/// Begins the name of what stood where our own directory belongs, and of what cannot be moved into that: no commit has
/// one like it.
pub(crate) const PRIVATE_ASIDE: &str = "..treeswap-quarantine-";

/// Our directories are readable by every uid: tools that walk the whole root must not trip over them.
pub(crate) const DIR_MODE: u32 = 0o755;
