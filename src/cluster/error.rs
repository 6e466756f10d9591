//! What can go wrong with a cluster, whether trying again helps, and what an operator can do.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use super::act::{Act, Kind, Verb};

/// Whom to grant something.
fn named(user: &str) -> &str {
    if user.is_empty() { "our user" } else { user }
}

fn place(namespace: &str) -> String {
    if namespace.is_empty() { "all namespaces".to_owned() } else { format!("namespace {namespace}") }
}

fn of_user(user: &str) -> String {
    if user.is_empty() { String::new() } else { format!(" for {user}") }
}

/// A request failed.
#[derive(Debug, thiserror::Error)]
#[error("cluster {cluster}: cannot {act}")]
pub struct Error {
    /// The cluster's name.
    pub cluster: String,
    /// What was tried.
    pub act: Box<Act>,
    /// Why it failed.
    #[source]
    pub why: Failure,
}

/// Why a request failed. Texts of the server are shortened, and values it repeats are left out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// 409: the object was written, deleted or made anew since it was read; or something it depends on was.
    #[error("it was changed by another writer in the meantime")]
    Conflict,
    /// 409: there is one of that name already.
    #[error("it exists already")]
    Exists,
    /// 404: there is no such object.
    #[error("it does not exist")]
    Absent,
    /// 404: there is no such namespace.
    #[error("the namespace {namespace} does not exist")]
    NamespaceAbsent {
        /// The namespace.
        namespace: String,
    },
    /// 403: the namespace is being deleted and takes nothing new.
    #[error("the namespace {namespace} is being deleted")]
    NamespaceTerminating {
        /// The namespace.
        namespace: String,
    },
    /// 403: the quota of the namespace is used up.
    #[error("a quota of the namespace forbids it: {said}")]
    Quota {
        /// Which, and by how much.
        said: String,
    },
    /// 403: no rule grants it.
    #[error("the right to {verb} {resource} in {} is missing{}", place(namespace), of_user(user))]
    Forbidden {
        /// Who lacks it, as the server calls us; empty if it does not say.
        user: String,
        /// The verb, as a Role spells it.
        verb: &'static str,
        /// The resource, as a Role spells it, with its group.
        resource: &'static str,
        /// Where.
        namespace: String,
    },
    /// An admission plugin or webhook said no.
    #[error("the cluster's admission refuses it: {said}")]
    Refused {
        /// In its words.
        said: String,
    },
    /// 401: even with the credentials as they are now.
    #[error("the server does not accept our credentials")]
    Unauthorized,
    /// 413, 422 or 500: more than the server, or the store beneath it, takes for one object.
    #[error("it is too large for the server: {said}")]
    TooLarge {
        /// In the server's words.
        said: String,
    },
    /// 422: its content was fixed when it was made.
    #[error("it is immutable")]
    Immutable,
    /// 422: the server's validation refuses it.
    #[error("the server finds it invalid: {said}")]
    Invalid {
        /// The fields and what is wrong with each.
        said: String,
    },
    /// 429 or 503: the server has no time for us.
    #[error("the server is busy (status {status})")]
    Busy {
        /// Its answer's status.
        status: u16,
        /// How long it asks us to wait, at most [`super::Options::longest_pause`].
        pause: Option<Duration>,
    },
    /// 410: a list that took so long that the server forgot the state it began with.
    #[error("the list took so long that the server forgot its beginning")]
    Expired,
    /// No complete answer within [`super::Options::timeout`].
    #[error("no answer within {after:?}")]
    Silent {
        /// The limit.
        after: Duration,
    },
    /// The connection broke before the answer was complete.
    #[error("the connection broke before the answer was complete: {why}")]
    Cut {
        /// How.
        why: String,
    },
    /// Another 5xx.
    #[error("the server failed (status {status}): {said}")]
    Server {
        /// The status.
        status: u16,
        /// In its words.
        said: String,
    },
    /// A success, but not with what was asked for.
    #[error("what was answered is no {expected}")]
    Strange {
        /// What was expected.
        expected: &'static str,
    },
    /// Another 3xx or 4xx.
    #[error("the server answered with status {status}: {said}")]
    Status {
        /// The status.
        status: u16,
        /// In its words.
        said: String,
    },
    /// No connection: nothing was sent.
    #[error("cannot connect to {server}: {why}")]
    Unreachable {
        /// The server's URL, with its port.
        server: String,
        /// Why.
        why: String,
        /// Whether it may pass by itself: a refused connection may, a wrong certificate does not.
        transient: bool,
    },
    /// The kubeconfig, or what it names, cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Error {
    /// Whether the write may have taken effect, or may still do so: read before deciding.
    pub fn is_unknown(&self) -> bool {
        let unknown = matches!(
            self.why,
            Failure::Silent { .. } | Failure::Cut { .. } | Failure::Server { .. } | Failure::Strange { .. }
        );
        unknown && self.act.verb.is_write()
    }

    /// Whether the same may succeed later, after reading again, without an operator's help.
    pub fn is_transient(&self) -> bool {
        match &self.why {
            Failure::Conflict
            | Failure::Exists
            | Failure::Busy { .. }
            | Failure::Expired
            | Failure::Silent { .. }
            | Failure::Cut { .. }
            | Failure::Server { .. }
            | Failure::Strange { .. } => true,
            // Gone while it was to be replaced: reading again shows that.
            Failure::Absent => self.act.verb == Verb::Update,
            Failure::Unreachable { transient, .. } => *transient,
            Failure::Config(config) => config.is_transient(),
            Failure::Status { status, .. } => *status == 408,
            _ => false,
        }
    }

    /// How long the server asked us to wait before anything else is sent.
    pub fn pause(&self) -> Option<Duration> {
        match self.why {
            Failure::Busy { pause, .. } => pause,
            _ => None,
        }
    }

    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let Act { kind, name, .. } = &*self.act;
        let hint = match &self.why {
            Failure::NamespaceAbsent { namespace } => {
                format!(
                    "create the namespace {namespace}, or take it out of the rules; it is never created for you"
                )
            }
            Failure::NamespaceTerminating { namespace } => {
                format!("wait until {namespace} is gone and made anew, or take it out of the rules")
            }
            Failure::Quota { .. } => "raise the ResourceQuota, or take maps out of the rules".to_owned(),
            Failure::Forbidden { user, verb, resource, namespace } if namespace.is_empty() => format!(
                "grant {} {verb} on {resource} of that name with a ClusterRole (resourceNames) and a \
                 ClusterRoleBinding, as deploy/apply/prune.yaml does",
                named(user)
            ),
            // All that it takes: who grants them one by one sees the next one missing a minute later.
            Failure::Forbidden { user, verb, resource, namespace } => format!(
                "grant {} {} on {resource} with a Role and a RoleBinding in {namespace}, as deploy/apply/rbac.yaml \
                 does{}; it is noticed within a minute or two",
                named(user),
                match (kind, *verb) {
                    (Kind::Lease, _) => "get, create and update",
                    (Kind::ConfigMap, "delete") => "get, list, create, update and delete",
                    (Kind::ConfigMap, _) => "get, list, create and update",
                },
                match (kind, *verb) {
                    (Kind::Lease, _) | (_, "delete") => "",
                    _ => " (--prune and --recreate-immutable take delete, too)",
                }
            ),
            Failure::Unauthorized => {
                "the token or certificate may have expired, or belongs to another cluster".to_owned()
            }
            Failure::TooLarge { .. } => {
                "spread the files over more ConfigMaps (`partitioned_names`), or compress them (`gzip`)"
                    .to_owned()
            }
            Failure::Immutable => {
                format!("only deleting {name} and creating it anew gives it other content")
            }
            Failure::Strange { .. } => {
                "is something else than an API server answering at that address?".to_owned()
            }
            Failure::Silent { .. } if kind == &Kind::ConfigMap => {
                "a slow server or line may need a longer timeout".to_owned()
            }
            Failure::Unreachable { transient: false, .. } => {
                "check `certificate-authority-data` and `server` in the kubeconfig".to_owned()
            }
            Failure::Unreachable { server, .. } => format!(
                "is the API server of {} up, is {server} its address (`server` in the kubeconfig), and do name \
                 service, firewall and proxy let us through?",
                self.cluster
            ),
            Failure::Config(config) => return config.hints(),
            Failure::Conflict | Failure::Exists | Failure::Absent => {
                format!("nothing, unless it lasts: who else writes or deletes {name}?")
            }
            Failure::Refused { .. } => {
                "ask who runs that admission policy or webhook, or change what it objects to".to_owned()
            }
            Failure::Invalid { .. } => "correct the rule or the file that gives these fields".to_owned(),
            Failure::Busy { .. } | Failure::Expired | Failure::Cut { .. } | Failure::Server { .. } => {
                "nothing, unless it lasts: then look at the API server".to_owned()
            }
            Failure::Silent { .. } => "nothing, unless it lasts: then look at the API server".to_owned(),
            Failure::Status { .. } => "look at the API server, and at proxies in between".to_owned(),
        };
        vec![hint]
    }
}

/// A kubeconfig, or what it names, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file or directory cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// Not a kubeconfig. What it holds is not repeated: it has secrets in it.
    #[error("{} is no kubeconfig{}", path.display(), line.map_or_else(String::new, |line| format!(" (line {line})")))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where it stops being one.
        line: Option<u64>,
    },
    /// Two files, or two entries, with one name.
    #[error("the context {name} is in {} and in {}", first.display(), second.display())]
    Twice {
        /// The context.
        name: String,
        /// One file.
        first: PathBuf,
        /// The other.
        second: PathBuf,
    },
    /// No kubeconfig has that cluster.
    #[error("there is no cluster {name}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// No kubeconfig and not in a cluster.
    #[error("no cluster is configured")]
    None,
    /// The context's entries do not fit together, or a part of them is unusable.
    #[error("the context {name} of {} cannot be used: {why}", path.display())]
    Context {
        /// The context.
        name: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The Pod's service account is not there.
    #[error("this process cannot speak for its Pod: {why}")]
    InCluster {
        /// What is missing.
        why: String,
    },
    /// The credential plugin cannot be started.
    #[error("cannot run the credential plugin {command}")]
    PluginStart {
        /// The program.
        command: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// It ended otherwise than with exit code 0. What it printed is not repeated.
    #[error("the credential plugin {command} ended with {status}")]
    PluginEnded {
        /// The program.
        command: String,
        /// How.
        status: ExitStatus,
    },
    /// It took longer than a request may.
    #[error("the credential plugin {command} gave no answer within {after:?}")]
    PluginSilent {
        /// The program.
        command: String,
        /// The limit.
        after: Duration,
    },
    /// Its answer is no credential.
    #[error("the credential plugin {command} printed no usable ExecCredential: {why}")]
    PluginAnswer {
        /// The program.
        command: String,
        /// What is wrong, without what it printed.
        why: &'static str,
    },
}

impl ConfigError {
    /// Whether the same may succeed later without an operator's help.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::PluginEnded { .. } | Self::PluginSilent { .. })
    }

    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let hint = match self {
            Self::Unknown { known, .. } if known.is_empty() => "no kubeconfig names any".to_owned(),
            Self::Unknown { known, .. } => {
                format!("a cluster has the name of its context: {}", known.join(", "))
            }
            Self::None => {
                "give --kubeconfig, --kubeconfig-dir or $KUBECONFIG; a Pod has its own cluster".to_owned()
            }
            Self::Twice { .. } => "rename one of them: rules name clusters by their contexts".to_owned(),
            Self::InCluster { .. } => {
                "it needs to run in a Pod with `automountServiceAccountToken`".to_owned()
            }
            Self::PluginStart { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "the program must be in our image and in PATH; a ServiceAccount's token needs none".to_owned()
            }
            Self::Read { .. } => "it must be readable by the user that treeswap runs as".to_owned(),
            Self::Malformed { .. } => {
                "compare it with what `kubectl config view --raw` prints where kubectl works".to_owned()
            }
            Self::Context { .. } => "correct that entry of the kubeconfig, or remove the context".to_owned(),
            Self::PluginStart { .. } => "it must be executable for the user that treeswap runs as".to_owned(),
            Self::PluginEnded { command, .. }
            | Self::PluginSilent { command, .. }
            | Self::PluginAnswer { command, .. } => {
                format!("run {command} by hand as the same user, and see what it says")
            }
        };
        vec![hint]
    }
}

#[cfg(test)]
mod tests;
