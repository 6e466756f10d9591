//! Reads kubeconfigs. As in Prow's programs, every context of every kubeconfig is a cluster with the context's name;
//! `default` is the cluster that the process runs in or, elsewhere, the current context of the last file that has one.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::{
    AuthInfo, Config, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError, LoadDataError,
};
use secrecy::{ExposeSecret, SecretString};

use crate::detached_io;

use super::connection::{Connection, Origin};
use super::{Cluster, ConfigError, Options};

/// The name of the cluster that the process runs in or, elsewhere, of the current context. A context that happens to be
/// called `default` is not available under that name, unless it is the current one.
pub const DEFAULT: &str = "default";

/// The clusters that [`Options`] name. Loading them sends no request.
#[derive(Debug, Default)]
pub struct Clusters {
    known: BTreeMap<String, Cluster>,
    /// What is wrong with single files of [`Options::kubeconfig_dir`]: the file cannot be read as a kubeconfig, or its
    /// current context is in none. Everything else works.
    pub problems: Vec<ConfigError>,
}

impl Clusters {
    /// Reads the kubeconfigs. Blocks. It is an error if the directory or a file of [`Options::kubeconfigs`] cannot be
    /// read, if the current context of such a file is in none, if two contexts have the same name, or if there is no
    /// cluster at all. Whatever is wrong with one file of the directory alone goes to [`Clusters::problems`].
    pub fn load(options: &Options) -> Result<Self, ConfigError> {
        let mut clusters = Self::default();
        let mut files_by_context: BTreeMap<String, PathBuf> = BTreeMap::new();
        let mut current_contexts = Vec::new();
        let mut current = options.in_cluster.then_some(Origin::InCluster);
        let directory = match &options.kubeconfig_dir {
            Some(dir) => in_time(dir, files_of)?,
            None => Vec::new(),
        };
        let by_name = options.kubeconfigs.iter().map(|path| (path, true));
        for (path, is_by_name) in by_name.chain(directory.iter().map(|path| (path, false))) {
            let kubeconfig = match in_time(path, |path| Ok(read(path))).flatten() {
                Ok(kubeconfig) => kubeconfig,
                Err(error) => {
                    clusters.report(error, is_by_name)?;
                    continue;
                }
            };
            let wanted = kubeconfig.current_context.filter(|name| !name.is_empty() && !options.in_cluster);
            current_contexts.extend(wanted.map(|name| (name, path.clone(), is_by_name)));
            for context in kubeconfig.contexts {
                if let Some(first) = files_by_context.insert(context.name.clone(), path.clone()) {
                    return Err(ConfigError::Twice { name: context.name, first, second: path.clone() });
                }
                let origin = Origin::Context { path: path.clone(), name: context.name.clone() };
                clusters.add(&context.name, origin, options);
            }
        }
        // The context may be in another of the files: `kubectl config use-context` writes its name to the first one.
        // `kubectl config delete-context` leaves the name of the context that it deletes.
        for (name, path, is_by_name) in current_contexts {
            match files_by_context.get(&name) {
                Some(file) => current = Some(Origin::Context { path: file.clone(), name }),
                None => clusters.report(ConfigError::CurrentContext { name, path }, is_by_name)?,
            }
        }
        match current {
            Some(origin) => clusters.add(DEFAULT, origin, options),
            // A context that is called `default` is not what DEFAULT stands for. If it were used where there is no
            // current context, rules would mean another cluster as soon as there is one.
            None => {
                clusters.known.remove(DEFAULT);
            }
        }
        // A file that cannot be read now may have some.
        let is_all_read =
            clusters.problems.iter().all(|problem| matches!(problem, ConfigError::CurrentContext { .. }));
        if clusters.known.is_empty() && is_all_read {
            let paths: Vec<_> = options.kubeconfigs.iter().chain(&options.kubeconfig_dir).cloned().collect();
            return Err(if paths.is_empty() { ConfigError::None } else { ConfigError::NoContext { paths } });
        }
        Ok(clusters)
    }

    /// Reports what is wrong with a file: as an error if [`Options::kubeconfigs`] names it, else as a problem.
    fn report(&mut self, error: ConfigError, is_by_name: bool) -> Result<(), ConfigError> {
        if is_by_name {
            return Err(error);
        }
        self.problems.push(error);
        Ok(())
    }

    /// Adds a cluster. The current context is one cluster with two names, which share the limit of requests.
    fn add(&mut self, name: &str, origin: Origin, options: &Options) {
        let same = self.known.values().find(|cluster| *cluster.inner.origin() == origin);
        let inner = match same {
            Some(cluster) => cluster.inner.clone(),
            None => Arc::new(Connection::new(name, origin, options)),
        };
        self.known.insert(name.to_owned(), Cluster { inner });
    }

    /// Returns the cluster of that name.
    pub fn get(&self, name: &str) -> Result<&Cluster, ConfigError> {
        self.known.get(name).ok_or_else(|| ConfigError::Unknown {
            name: name.to_owned(),
            known: self.known.keys().cloned().collect(),
        })
    }

    /// Returns all names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
    }
}

/// Reads a file or a directory with a time limit: its file system may hang.
fn in_time<T: Send + 'static>(
    path: &Path,
    read: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, ConfigError> {
    let unreadable = |source| ConfigError::Read { path: path.to_owned(), source };
    detached_io::wait_for_io(path, read).map_err(unreadable)
}

/// Returns the files of a directory, sorted. Symbolic links are followed: a mounted Secret consists of them.
fn files_of(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        // A link to nothing is a file that cannot be read.
        let may_be_file = std::fs::metadata(&path).map_or(true, |metadata| metadata.is_file());
        if !entry.file_name().as_encoded_bytes().starts_with(b"..") && may_be_file {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Kubeconfig, ConfigError> {
    Kubeconfig::read_from(path).map_err(|error| match error {
        KubeconfigError::ReadConfig(source, path) => ConfigError::Read { path, source },
        // The parser's message quotes the lines around the mistake, which may hold tokens.
        KubeconfigError::Parse(error) => ConfigError::Malformed {
            path: path.to_owned(),
            line: error.location().map(|location| location.line()),
        },
        _ => ConfigError::Malformed { path: path.to_owned(), line: None },
    })
}

impl Origin {
    /// Reads address and credentials as they are in the files now. Blocking file I/O despite `async`.
    pub(super) async fn config(&self) -> Result<Config, ConfigError> {
        let (path, name) = match self {
            Self::InCluster => {
                let mut config = Config::incluster().map_err(|error| in_cluster(&error))?;
                read_files(&mut config.auth_info).map_err(|why| self.unusable(why))?;
                return Ok(config);
            }
            Self::Context { path, name } => (path, name),
        };
        let kubeconfig = read(path)?;
        let options = KubeConfigOptions { context: Some(name.clone()), ..KubeConfigOptions::default() };
        let unusable = |why: String| ConfigError::Context { name: name.clone(), path: path.clone(), why };
        let has_proxy = has_proxy(&kubeconfig, name);
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|error| unusable(describe(&error)))?;
        // kube matches NO_PROXY against the proxy's host instead of the server's, so it is matched again here. A
        // `proxy-url` of the kubeconfig stays as kube returns it.
        if !has_proxy && Matcher::from_env().intercept(&config.cluster_url).is_none() {
            config.proxy_url = None;
        }
        if config.auth_info.auth_provider.is_some() {
            let why = "`auth-provider` is no longer supported by Kubernetes' clients; use `exec`";
            return Err(unusable(why.to_owned()));
        }
        read_files(&mut config.auth_info).map_err(unusable)?;
        Ok(config)
    }

    /// Returns the error for a configuration from which no client can be made.
    pub(super) fn unusable(&self, why: String) -> ConfigError {
        match self {
            Self::InCluster => ConfigError::InCluster { why },
            Self::Context { path, name } => {
                ConfigError::Context { name: name.clone(), path: path.clone(), why }
            }
        }
    }
}

/// Reads the files that a user entry names into the entry itself. kube would read them later, blocking a thread of the
/// async runtime.
fn read_files(user: &mut AuthInfo) -> Result<(), String> {
    if let Some(file) = &user.token_file {
        match token_of(file) {
            Ok(token) => user.token = Some(token),
            // As in client-go, `token` stands in for a file that cannot be read, and only for that. (kube prefers
            // `token`.)
            Err(_) if user.token.as_ref().is_some_and(|token| !token.expose_secret().is_empty()) => {}
            Err(why) => return Err(why),
        }
    }
    // Of these the inline data come first, as in client-go.
    if user.client_certificate_data.is_none()
        && let Some(file) = &user.client_certificate
    {
        user.client_certificate_data = Some(STANDARD.encode(content("client certificate", file)?));
    }
    if user.client_key_data.is_none()
        && let Some(file) = &user.client_key
    {
        let key = STANDARD.encode(content("client key", file)?);
        user.client_key_data = Some(SecretString::from(key));
    }
    Ok(())
}

/// Reads the token of a user entry. An empty file has none: it may be about to be written.
fn token_of(file: &str) -> Result<SecretString, String> {
    let text = String::from_utf8(content("token", file)?);
    let text = text.map_err(|_| format!("its token in {file} is not text"))?;
    match text.trim() {
        "" => Err(format!("its token in {file} is empty")),
        token => Ok(SecretString::from(token)),
    }
}

/// Reads a file that a user entry names.
fn content(what: &str, file: &str) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("its {what} cannot be read from {file}: {error}"))
}

/// Returns true if the kubeconfig names a proxy for the context's cluster.
fn has_proxy(kubeconfig: &Kubeconfig, context: &str) -> bool {
    let context = kubeconfig.contexts.iter().find(|entry| entry.name == context);
    let Some(context) = context.and_then(|entry| entry.context.as_ref()) else { return false };
    let cluster = kubeconfig.clusters.iter().find(|entry| entry.name == context.cluster);
    let proxy = cluster.and_then(|entry| entry.cluster.as_ref()?.proxy_url.as_ref());
    proxy.is_some_and(|url| !url.is_empty())
}

fn in_cluster(error: &InClusterError) -> ConfigError {
    let why = match error {
        InClusterError::ReadEnvironmentVariable(_) => {
            "KUBERNETES_SERVICE_HOST or _PORT is not set".to_owned()
        }
        // The other errors name a file, a port or a certificate, never a file's content.
        other => other.to_string(),
    };
    ConfigError::InCluster { why }
}

/// Describes what is wrong with a kubeconfig. kube's own messages may quote values, which may be secret.
fn describe(error: &KubeconfigError) -> String {
    let data = |what: &str, error: &LoadDataError| match error {
        LoadDataError::DecodeBase64(_) => format!("its {what} is not base64"),
        LoadDataError::ReadFile(source, path) => {
            format!("its {what} cannot be read from {}: {source}", path.display())
        }
        LoadDataError::NoBase64DataOrFile => format!("its {what} is missing"),
    };
    match error {
        KubeconfigError::LoadContext(_) => "the context no longer exists".to_owned(),
        KubeconfigError::LoadClusterOfContext(cluster) => format!("its cluster {cluster} is not in the file"),
        KubeconfigError::MissingClusterUrl => "its cluster has no `server`".to_owned(),
        KubeconfigError::ParseClusterUrl(_) => "its cluster's `server` is not a URL".to_owned(),
        KubeconfigError::ParseProxyUrl(_) => "its proxy is not a URL".to_owned(),
        KubeconfigError::LoadCertificateAuthority(error) => data("certificate authority", error),
        KubeconfigError::LoadClientCertificate(error) => data("client certificate", error),
        KubeconfigError::LoadClientKey(error) => data("client key", error),
        KubeconfigError::ParseCertificates(_) => "its certificate authority is not PEM".to_owned(),
        KubeconfigError::ParseNoProxy(_) => "NO_PROXY cannot be read".to_owned(),
        _ => "it is not well-formed".to_owned(),
    }
}
