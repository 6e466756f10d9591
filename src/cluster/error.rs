//! The failures of requests and of kubeconfigs: whether trying again can help, and what an operator can do.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use super::operation::{Kind, Operation, Verb};
use crate::fsx::is_misnamed;
use crate::human::bytes;

fn place(namespace: &str) -> String {
    if namespace.is_empty() { "all namespaces".to_owned() } else { format!("namespace {namespace}") }
}

/// Returns paths as text, one after the other.
fn listed(paths: &[PathBuf]) -> String {
    let texts: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    texts.join(", ")
}

fn for_user(user: &str) -> String {
    if user.is_empty() { String::new() } else { format!(" for {user}") }
}

/// What an operator can do about a missing right.
fn grant_hint(kind: Kind, user: &str, verb: &str, resource: &str, namespace: &str) -> String {
    let user = if user.is_empty() { "our user" } else { user };
    if namespace.is_empty() {
        return format!(
            "grant {user} {verb} on {resource} of that name with a ClusterRole (resourceNames) and a \
             ClusterRoleBinding, as deploy/apply/prune.yaml does"
        );
    }
    // All rights that are needed, as otherwise the next missing one would show up only a minute later.
    let (rights, note) = match (kind, verb) {
        (Kind::Lease, _) => ("get, create and update", ""),
        (Kind::ConfigMap, "delete") => ("get, list, create, update and delete", ""),
        (Kind::ConfigMap, _) => {
            ("get, list, create and update", " (--prune and --recreate-immutable take delete, too)")
        }
    };
    format!(
        "grant {user} {rights} on {resource} with a Role and a RoleBinding in {namespace}, as \
         deploy/apply/rbac.yaml does{note}; it is noticed within a minute or two"
    )
}

/// A request failed.
#[derive(Debug, thiserror::Error)]
#[error("cluster {cluster}: cannot {operation}")]
pub struct Error {
    /// The cluster's name.
    pub cluster: String,
    /// What was tried.
    pub operation: Box<Operation>,
    /// Why it failed.
    #[source]
    pub why: Failure,
}

/// Why a request failed. The server's messages are shortened, and the values that they quote are left out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// 409: the object was written, deleted or created anew since it was read; or something that it depends on was.
    #[error("it was changed by another writer in the meantime")]
    Conflict,
    /// 409: there is an object of that name already.
    #[error("it exists already")]
    AlreadyExists,
    /// 404 with this reason: there is no such object.
    #[error("it does not exist")]
    NotFound,
    /// 404: there is no such namespace.
    #[error("the namespace {namespace} does not exist")]
    NamespaceNotFound {
        /// The namespace.
        namespace: String,
    },
    /// 403: the namespace is being deleted, and nothing can be created in it.
    #[error("the namespace {namespace} is being deleted")]
    NamespaceTerminating {
        /// The namespace.
        namespace: String,
    },
    /// 403: the quota of the namespace is used up.
    #[error("a quota of the namespace forbids it: {message}")]
    QuotaExceeded {
        /// The server's message: which quota, and by how much.
        message: String,
    },
    /// 403: no RBAC rule grants it.
    #[error("the right to {verb} {resource} in {} is missing{}", place(namespace), for_user(user))]
    Forbidden {
        /// The user without the right, as the server names us; empty if it does not say.
        user: String,
        /// The verb, as a Role spells it.
        verb: &'static str,
        /// The resource, as a Role spells it, with its group.
        resource: &'static str,
        /// The namespace; empty for all namespaces.
        namespace: String,
    },
    /// An admission plugin or webhook refuses it.
    #[error("the cluster's admission refuses it: {message}")]
    AdmissionDenied {
        /// Its message.
        message: String,
    },
    /// 401: also with the credentials read anew.
    #[error("the server does not accept our credentials")]
    Unauthorized,
    /// 413, 422 or 500: larger than the server, or etcd, takes for one object.
    #[error("it is too large for the server: {message}")]
    TooLarge {
        /// The server's message.
        message: String,
    },
    /// 422: the object is immutable.
    #[error("it is immutable")]
    Immutable,
    /// 422: the server's validation refuses it.
    #[error("the server finds it invalid: {message}")]
    Invalid {
        /// The fields and what is wrong with each.
        message: String,
    },
    /// 429 or 503: the server is overloaded.
    #[error("the server is busy (status {status})")]
    Busy {
        /// The HTTP status.
        status: u16,
        /// How long the server asks us to wait, at most [`super::Options::longest_pause`].
        pause: Option<Duration>,
    },
    /// 410: the list took so long that its `continue` token expired.
    #[error("the list took so long that its continue token expired")]
    Expired,
    /// No complete answer within [`super::Options::timeout`].
    #[error("no answer within {after:?}")]
    Timeout {
        /// The limit.
        after: Duration,
    },
    /// The connection broke before the answer was complete.
    #[error("the connection broke before the answer was complete: {why}")]
    ConnectionLost {
        /// The cause.
        why: String,
    },
    /// Another 5xx.
    #[error("the server failed (status {status}): {message}")]
    Server {
        /// The HTTP status.
        status: u16,
        /// The server's message.
        message: String,
    },
    /// A successful response with another content than the requested.
    #[error("the response is not the expected {expected}")]
    UnexpectedResponse {
        /// What was expected.
        expected: &'static str,
    },
    /// A response with more bytes than are read of one.
    #[error("the answer is longer than {}", bytes(*most as u64))]
    LongAnswer {
        /// How many are read.
        most: usize,
    },
    /// A list with more pages or metadata than are read, or with a page that leads to itself.
    #[error("the list has no end, or more than is read of one")]
    EndlessList,
    /// Another 3xx or 4xx.
    #[error("the server answered with status {status}: {message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// The server's message.
        message: String,
    },
    /// No connection: nothing was sent.
    #[error("cannot connect to {server}: {why}")]
    Unreachable {
        /// The server's URL, with its port.
        server: String,
        /// The cause.
        why: String,
        /// True if a later attempt may succeed: a refused connection may, a wrong certificate will not.
        transient: bool,
    },
    /// The kubeconfig, or what it names, cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl Error {
    /// Returns true if it is a write that may have taken effect, or may still do so. The caller has to read the object
    /// to find out.
    pub fn is_unknown(&self) -> bool {
        let unknown = matches!(
            self.why,
            Failure::Timeout { .. }
                | Failure::ConnectionLost { .. }
                | Failure::Server { .. }
                | Failure::UnexpectedResponse { .. }
                | Failure::LongAnswer { .. }
        );
        unknown && self.operation.verb.is_write()
    }

    /// Returns true if another attempt, after reading again, may succeed without an operator.
    pub fn is_transient(&self) -> bool {
        match &self.why {
            Failure::Conflict
            | Failure::AlreadyExists
            | Failure::Busy { .. }
            | Failure::Expired
            | Failure::Timeout { .. }
            | Failure::ConnectionLost { .. }
            | Failure::Server { .. }
            | Failure::UnexpectedResponse { .. }
            | Failure::LongAnswer { .. } => true,
            // The object was deleted between the read and the update.
            Failure::NotFound => self.operation.verb == Verb::Update,
            Failure::Unreachable { transient, .. } => *transient,
            Failure::Config(config) => config.is_transient(),
            Failure::Status { status, .. } => *status == 408,
            _ => false,
        }
    }

    /// Returns how long the server asked us to wait before the next request.
    pub fn pause(&self) -> Option<Duration> {
        match self.why {
            Failure::Busy { pause, .. } => pause,
            _ => None,
        }
    }

    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let Operation { kind, name, .. } = &*self.operation;
        let hint: &str = match &self.why {
            Failure::NamespaceNotFound { namespace } => &format!(
                "create the namespace {namespace}, or take it out of the rules; it is never created for you"
            ),
            Failure::NamespaceTerminating { namespace } => {
                &format!("wait until {namespace} is deleted and created again, or take it out of the rules")
            }
            Failure::QuotaExceeded { .. } => "raise the ResourceQuota, or take maps out of the rules",
            Failure::Forbidden { user, verb, resource, namespace } => {
                &grant_hint(*kind, user, verb, resource, namespace)
            }
            Failure::Unauthorized => {
                "the token or certificate may have expired, or belongs to another cluster"
            }
            Failure::TooLarge { .. } => {
                "spread the files over more ConfigMaps (`partitioned_names`), or compress them (`gzip`)"
            }
            Failure::Immutable => &format!("only deleting and recreating {name} can change its content"),
            Failure::UnexpectedResponse { .. } | Failure::LongAnswer { .. } | Failure::EndlessList => {
                "is something else than an API server answering at that address?"
            }
            Failure::Timeout { .. } if kind == &Kind::ConfigMap => {
                "a slow server or line may need a longer timeout"
            }
            Failure::Unreachable { transient: false, .. } => {
                "check `certificate-authority-data` and `server` in the kubeconfig"
            }
            Failure::Unreachable { server, .. } => &format!(
                "is the API server of {} up, is {server} its address (`server` in the kubeconfig), and do name \
                 service, firewall and proxy let us through?",
                self.cluster
            ),
            Failure::Config(config) => return config.hints(),
            Failure::Conflict | Failure::AlreadyExists | Failure::NotFound => {
                &format!("nothing, unless it persists: who else writes or deletes {name}?")
            }
            Failure::AdmissionDenied { .. } => {
                "ask who runs that admission policy or webhook, or change what it objects to"
            }
            Failure::Invalid { .. } => "correct the rule or the file that gives these fields",
            Failure::Busy { .. }
            | Failure::Expired
            | Failure::Timeout { .. }
            | Failure::ConnectionLost { .. }
            | Failure::Server { .. } => "nothing, unless it persists: then check the API server",
            Failure::Status { .. } => "check the API server, and proxies in between",
        };
        vec![hint.to_owned()]
    }
}

/// The hint for a file that is no kubeconfig.
const LIKE_KUBECTLS: &str = "compare it with what `kubectl config view --raw` prints where kubectl works";

/// A kubeconfig, or what it names, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file or directory cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file is no kubeconfig. Its content is not quoted, as it holds secrets.
    #[error("{} is not a kubeconfig{}", path.display(), line.map_or_else(String::new, |line| format!(" (line {line})")))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line of the mistake, if known.
        line: Option<u64>,
    },
    /// An entry of a directory of kubeconfigs is a directory, a FIFO, a socket or a device.
    #[error("{} is not a kubeconfig: it is not a regular file", path.display())]
    NotAFile {
        /// The entry.
        path: PathBuf,
    },
    /// Two contexts have the same name.
    #[error("the context {name} is in {} and in {}", first.display(), second.display())]
    Twice {
        /// The context.
        name: String,
        /// The file of the first context.
        first: PathBuf,
        /// The file of the second context, which may be the same.
        second: PathBuf,
    },
    /// The file's `current-context` is a context of no kubeconfig.
    #[error("the current-context {name} of {} is in no kubeconfig", path.display())]
    CurrentContext {
        /// The name.
        name: String,
        /// The file.
        path: PathBuf,
    },
    /// There is no cluster of that name.
    #[error("there is no cluster {name}")]
    Unknown {
        /// The requested name.
        name: String,
        /// The names of all clusters.
        known: Vec<String>,
    },
    /// There is no kubeconfig, and the process does not run in a cluster.
    #[error("no cluster is configured")]
    None,
    /// The kubeconfigs that were named, or the directory of them, name no cluster.
    #[error("no cluster is configured: there is no context in {}", listed(paths))]
    NoContext {
        /// The files, and the directory.
        paths: Vec<PathBuf>,
    },
    /// The context or an entry that it refers to is missing or invalid.
    #[error("the context {name} of {} cannot be used: {why}", path.display())]
    Context {
        /// The context.
        name: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The Pod's service account cannot be used.
    #[error("cannot use the Pod's ServiceAccount: {why}")]
    InCluster {
        /// What is missing or wrong.
        why: String,
    },
    /// The credential plugin cannot be started.
    #[error("cannot run the credential plugin {command}")]
    PluginStart {
        /// The program.
        command: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The credential plugin ended with another exit status than 0. Its output is not quoted.
    #[error("the credential plugin {command} ended with {status}")]
    PluginEnded {
        /// The program.
        command: String,
        /// The exit status.
        status: ExitStatus,
    },
    /// The credential plugin took too long.
    #[error("the credential plugin {command} gave no answer within {after:?}")]
    PluginSilent {
        /// The program.
        command: String,
        /// The limit.
        after: Duration,
    },
    /// The credential plugin's output is no credential.
    #[error("the credential plugin {command} printed no usable ExecCredential: {why}")]
    PluginAnswer {
        /// The program.
        command: String,
        /// What is wrong with the output, without quoting it.
        why: &'static str,
    },
}

impl ConfigError {
    /// Returns true if the same kubeconfigs may be valid later, without a change to them or to their names: a file
    /// could not be read for another reason than that there is none, as where a file system is gone.
    pub fn may_pass(&self) -> bool {
        match self {
            // The file is no text, or too large. No system call's error has one of these kinds.
            Self::Read { source, .. } => {
                let is_malformed = matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::Other);
                !is_malformed && !is_misnamed(source.kind())
            }
            _ => false,
        }
    }

    /// Returns true if another attempt may succeed without an operator.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::PluginEnded { .. } | Self::PluginSilent { .. } => true,
            Self::Read { source, .. } => source.kind() == io::ErrorKind::TimedOut,
            _ => false,
        }
    }

    /// If a file or a plugin gave no answer in time: the same error for another request that waited for it.
    pub(super) fn copy_of_timeout(&self) -> Option<Self> {
        match self {
            Self::Read { path, source } if source.kind() == io::ErrorKind::TimedOut => {
                let source = io::Error::new(io::ErrorKind::TimedOut, source.to_string());
                Some(Self::Read { path: path.clone(), source })
            }
            Self::PluginSilent { command, after } => {
                Some(Self::PluginSilent { command: command.clone(), after: *after })
            }
            _ => None,
        }
    }

    /// What an operator can do, a line each.
    pub fn hints(&self) -> Vec<String> {
        let hint: &str = match self {
            // A service that is to see a context that is added takes a restart; `apply` reads it in its next run.
            Self::Unknown { known, .. } if known.is_empty() => "no kubeconfig named any at the start",
            Self::Unknown { name, known } if name == "default" => &format!(
                "no kubeconfig has a current-context that exists, so no cluster is default: run \
                 `kubectl config use-context` and start again, or name a context in the rules: {}",
                known.join(", ")
            ),
            Self::Unknown { known, .. } => &format!(
                "there are: {}; a cluster has the name of its context, and contexts are read only at the start",
                known.join(", ")
            ),
            Self::None => "give --kubeconfig, --kubeconfig-dir or $KUBECONFIG; a Pod has its own cluster",
            Self::NoContext { .. } => {
                "name a kubeconfig with contexts; `kubectl config view --raw` prints one where kubectl works"
            }
            Self::Twice { .. } => "rename one of them: rules name clusters by their contexts",
            Self::CurrentContext { .. } => {
                "choose one that is there with `kubectl config use-context`, or remove `current-context`"
            }
            Self::InCluster { .. } => "it needs to run in a Pod with `automountServiceAccountToken`",
            Self::PluginStart { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "the program must be in our image and in PATH; a ServiceAccount's token needs none"
            }
            Self::PluginStart { .. } => "it must be executable for the user that treeswap runs as",
            Self::Read { source, .. } => match source.kind() {
                io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => {
                    "--kubeconfig and $KUBECONFIG name files, --kubeconfig-dir a directory of them"
                }
                io::ErrorKind::NotFound => {
                    "create it, or name another one: --kubeconfig, --kubeconfig-dir or $KUBECONFIG"
                }
                io::ErrorKind::PermissionDenied => "it must be readable by the user that treeswap runs as",
                io::ErrorKind::InvalidData => LIKE_KUBECTLS,
                io::ErrorKind::Other => {
                    "split it by contexts: `kubectl config view --raw --minify --context=NAME`"
                }
                _ => "check the volume that it is on, and its mount",
            },
            Self::Malformed { .. } => LIKE_KUBECTLS,
            Self::NotAFile { .. } => {
                "move it elsewhere: only files, and links to files, are read as kubeconfigs"
            }
            Self::Context { .. } => "correct that entry of the kubeconfig, or remove the context",
            Self::PluginEnded { command, .. }
            | Self::PluginSilent { command, .. }
            | Self::PluginAnswer { command, .. } => {
                &format!("run {command} by hand as the same user, and check its output")
            }
        };
        vec![hint.to_owned()]
    }
}

#[cfg(test)]
mod tests;
