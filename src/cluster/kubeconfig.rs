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
use secrecy::SecretString;

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
    /// Files of [`Options::kubeconfig_dir`] that could not be read as kubeconfigs. The other files' clusters work.
    pub problems: Vec<ConfigError>,
}

impl Clusters {
    /// Reads the kubeconfigs. Blocks. It is an error if a file of [`Options::kubeconfigs`] cannot be read, or if two
    /// contexts have the same name. A file of the directory that cannot be read goes to [`Clusters::problems`].
    pub fn load(options: &Options) -> Result<Self, ConfigError> {
        let mut clusters = Self::default();
        let mut origins: BTreeMap<String, PathBuf> = BTreeMap::new();
        let mut current = None;
        let directory = options.kubeconfig_dir.as_deref().map(files_in_time).transpose()?.unwrap_or_default();
        let named = options.kubeconfigs.iter().map(|path| (path, true));
        for (path, named) in named.chain(directory.iter().map(|path| (path, false))) {
            let kubeconfig = match read_in_time(path) {
                Ok(kubeconfig) => kubeconfig,
                Err(error) if named => return Err(error),
                Err(error) => {
                    clusters.problems.push(error);
                    continue;
                }
            };
            let origin = |name: &str| Origin::Context { path: path.clone(), name: name.to_owned() };
            for context in kubeconfig.contexts {
                if let Some(first) = origins.insert(context.name.clone(), path.clone()) {
                    return Err(ConfigError::Twice { name: context.name, first, second: path.clone() });
                }
                clusters.add(&context.name, origin(&context.name), options);
            }
            if let Some(name) = kubeconfig.current_context.filter(|name| !name.is_empty()) {
                current = Some(origin(&name));
            }
        }
        if options.in_cluster {
            current = Some(Origin::InCluster);
        }
        match current {
            Some(origin) => clusters.add(DEFAULT, origin, options),
            None => drop(clusters.known.remove(DEFAULT)),
        }
        if clusters.known.is_empty() && clusters.problems.is_empty() {
            let paths: Vec<_> = options.kubeconfigs.iter().chain(&options.kubeconfig_dir).cloned().collect();
            return Err(if paths.is_empty() { ConfigError::None } else { ConfigError::NoContext { paths } });
        }
        Ok(clusters)
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

/// [`files`], with a time limit: the file system may hang.
fn files_in_time(dir: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    detached_io::wait_for_io(dir, files).map_err(|source| ConfigError::Read { path: dir.to_owned(), source })
}

/// [`read`], with a time limit: the file system may hang.
fn read_in_time(path: &Path) -> Result<Kubeconfig, ConfigError> {
    let own = path.to_owned();
    let late = || ConfigError::Read { path: path.to_owned(), source: detached_io::timeout_error() };
    detached_io::wait(path, detached_io::DEFAULT_TIMEOUT, move || read(&own)).unwrap_or_else(|| Err(late()))
}

/// Returns the files of a directory, sorted. Symbolic links are followed: a mounted Secret consists of them.
fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if !entry.file_name().as_encoded_bytes().starts_with(b"..") && path.is_file() {
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
    /// Fills `value` from `file`, if there is a file and no value yet.
    fn fill<T>(
        what: &str,
        value: &mut Option<T>,
        file: Option<&String>,
        wrap: impl Fn(Vec<u8>) -> Option<T>,
    ) -> Result<(), String> {
        let Some(file) = file.filter(|_| value.is_none()) else { return Ok(()) };
        let bytes =
            std::fs::read(file).map_err(|error| format!("its {what} cannot be read from {file}: {error}"))?;
        *value = Some(wrap(bytes).ok_or_else(|| format!("its {what} in {file} is not text"))?);
        Ok(())
    }
    let text = |bytes| Some(SecretString::from(String::from_utf8(bytes).ok()?.trim_end()));
    let base64 = |bytes| Some(STANDARD.encode(bytes));
    let AuthInfo { client_certificate: certificate, client_key: key, token_file, .. } = user.clone();
    fill("token", &mut user.token, token_file.as_ref(), text)?;
    fill("client certificate", &mut user.client_certificate_data, certificate.as_ref(), base64)?;
    fill("client key", &mut user.client_key_data, key.as_ref(), |bytes| base64(bytes).map(SecretString::from))
}

/// Returns true if the kubeconfig names a proxy for the context's cluster.
fn has_proxy(kubeconfig: &Kubeconfig, context: &str) -> bool {
    let context = kubeconfig.contexts.iter().find(|named| named.name == context);
    let Some(context) = context.and_then(|named| named.context.as_ref()) else { return false };
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == context.cluster);
    let proxy = cluster.and_then(|named| named.cluster.as_ref()?.proxy_url.as_ref());
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
