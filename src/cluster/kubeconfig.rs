//! Reads kubeconfigs. As in Prow's programs, every context of every kubeconfig is a cluster with the context's name;
//! `default` is the cluster that the process runs in or, elsewhere, the current context of the last file that has one.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::{
    AuthInfo, Cluster as ClusterEntry, Config, InClusterError, KubeConfigOptions, Kubeconfig,
    KubeconfigError, LoadDataError,
};
use secrecy::{ExposeSecret, SecretString};

use crate::{detached_io, fsx, tls};

use super::connection::{Connection, Origin};
use super::{Cluster, ConfigError, Options};

/// The name of the cluster that the process runs in or, elsewhere, of the current context. A context that happens to be
/// called `default` is not available under that name, unless it is the current one.
pub const DEFAULT: &str = "default";

/// Where a Pod has the files of its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io";

/// The clusters that [`Options`] name. Loading them sends no request.
#[derive(Debug, Default)]
pub struct Clusters {
    known: BTreeMap<String, Cluster>,
    /// What is wrong with single entries of [`Options::kubeconfig_dir`]: one is no file or cannot be read as a
    /// kubeconfig, or its current context is in none. Everything else works.
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
        for file in KubeconfigFile::all(options)? {
            let kubeconfig = match file.read() {
                Ok(kubeconfig) => kubeconfig,
                Err(error) => {
                    clusters.report(error, file.is_named)?;
                    continue;
                }
            };
            for context in kubeconfig.contexts {
                if let Some(first) = files_by_context.insert(context.name.clone(), file.path.clone()) {
                    return Err(ConfigError::Twice { name: context.name, first, second: file.path });
                }
                let origin = Origin::Context { path: file.path.clone(), name: context.name.clone() };
                clusters.add(&context.name, origin, options);
            }
            if let Some(name) = kubeconfig.current_context.filter(|name| !name.is_empty()) {
                current_contexts.push((name, file));
            }
        }
        let default = if options.in_cluster {
            Some(Origin::InCluster)
        } else {
            clusters.last_current_context(current_contexts, &files_by_context)?
        };
        match default {
            Some(origin) => clusters.add(DEFAULT, origin, options),
            // A context that is called `default` is not what DEFAULT stands for. If it were used where there is no
            // current context, rules would mean another cluster as soon as there is one.
            None => {
                clusters.known.remove(DEFAULT);
            }
        }
        // A file that cannot be read now may have some.
        let may_have_contexts = |problem: &ConfigError| {
            !matches!(problem, ConfigError::CurrentContext { .. } | ConfigError::NotAFile { .. })
        };
        if clusters.known.is_empty() && !clusters.problems.iter().any(may_have_contexts) {
            let paths: Vec<_> = options.kubeconfigs.iter().chain(&options.kubeconfig_dir).cloned().collect();
            return Err(if paths.is_empty() { ConfigError::None } else { ConfigError::NoContext { paths } });
        }
        Ok(clusters)
    }

    /// Returns the last of the current contexts that exists, and reports those that do not.
    fn last_current_context(
        &mut self,
        current_contexts: Vec<(String, KubeconfigFile)>,
        files_by_context: &BTreeMap<String, PathBuf>,
    ) -> Result<Option<Origin>, ConfigError> {
        let mut last = None;
        for (name, KubeconfigFile { path, is_named }) in current_contexts {
            // It may be in another of the files: `kubectl config use-context` writes its name to the first one.
            match files_by_context.get(&name) {
                Some(file) => last = Some(Origin::Context { path: file.clone(), name }),
                // `kubectl config delete-context` leaves the name of the context that it deletes.
                None => self.report(ConfigError::CurrentContext { name, path }, is_named)?,
            }
        }
        Ok(last)
    }

    /// Reports what is wrong with a file: as an error if [`Options::kubeconfigs`] names it, else as a problem.
    fn report(&mut self, error: ConfigError, is_named: bool) -> Result<(), ConfigError> {
        if is_named {
            return Err(error);
        }
        self.problems.push(error);
        Ok(())
    }

    /// Adds a cluster. The current context is one cluster with two names, which share the limit of requests.
    fn add(&mut self, name: &str, origin: Origin, options: &Options) {
        let same = self.known.values().find(|cluster| cluster.inner.origin == origin);
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

/// A file that should be a kubeconfig.
struct KubeconfigFile {
    path: PathBuf,
    /// True if [`Options::kubeconfigs`] names it, false if it is in [`Options::kubeconfig_dir`].
    is_named: bool,
}

impl KubeconfigFile {
    /// Returns the files that are named, and then those in the directory.
    fn all(options: &Options) -> Result<Vec<Self>, ConfigError> {
        let named = options.kubeconfigs.iter().map(|path| Self { path: path.clone(), is_named: true });
        let mut files: Vec<Self> = named.collect();
        if let Some(dir) = &options.kubeconfig_dir {
            let entries = in_time(dir, entries_of)?.into_iter();
            files.extend(entries.map(|path| Self { path, is_named: false }));
        }
        Ok(files)
    }

    /// Reads it. An entry of the directory that is no regular file is not opened: a FIFO would hang. A link to nothing
    /// is a file that cannot be read.
    fn read(&self) -> Result<Kubeconfig, ConfigError> {
        let is_named = self.is_named;
        let checked = move |path: &Path| {
            if !is_named && std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
                return Ok(Err(ConfigError::NotAFile { path: path.to_owned() }));
            }
            Ok(read(path))
        };
        in_time(&self.path, checked).flatten()
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

/// The same without blocking, and for `limit` at most.
async fn within<T: Send + 'static>(
    limit: Duration,
    path: &Path,
    read: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, ConfigError> {
    let done = tokio::time::timeout(limit, detached_io::run(path, read)).await;
    // Without a thread to read it on there is no answer either.
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
    let done = done.ok().flatten().unwrap_or_else(|| Err(late()));
    done.map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

/// Returns what is in a directory, sorted, without the names that begin with `..`: in a mounted Secret these are the
/// kubelet's, and the others are links.
fn entries_of(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b"..") {
            entries.push(entry.path());
        }
    }
    entries.sort();
    Ok(entries)
}

/// The most bytes of a kubeconfig. A thousand clusters with certificates have 10 MB.
const KUBECONFIG_MAX: u64 = 64 << 20;

fn read(path: &Path) -> Result<Kubeconfig, ConfigError> {
    let unreadable = |source| ConfigError::Read { path: path.to_owned(), source };
    let open = std::fs::File::open(path);
    let text = open.and_then(|file| fsx::read_whole(file, KUBECONFIG_MAX)).map_err(unreadable)?;
    // kube panics at UTF-16 text that ends within a character.
    if text.len() % 2 == 1 && (text.starts_with(b"\xff\xfe") || text.starts_with(b"\xfe\xff")) {
        return Err(ConfigError::Malformed { path: path.to_owned(), line: None });
    }
    drop(text);
    // It is read once more, because only this resolves the relative paths in it. Parsing takes far longer.
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(|error| match error {
        KubeconfigError::ReadConfig(source, path) => ConfigError::Read { path, source },
        // The parser's message quotes the lines around the mistake, which may hold tokens.
        KubeconfigError::Parse(error) => ConfigError::Malformed {
            path: path.to_owned(),
            line: error.location().map(|location| location.line()),
        },
        _ => ConfigError::Malformed { path: path.to_owned(), line: None },
    })?;
    drop_empty(&mut kubeconfig, path);
    Ok(kubeconfig)
}

/// Takes away what a kubeconfig gives as empty, as templates do: to client-go, and so to kubectl, it is not given.
fn drop_empty(kubeconfig: &mut Kubeconfig, path: &Path) {
    // An empty path was resolved to this one, which no file has.
    let directory = path.parent().map(|parent| parent.join("")).unwrap_or_default();
    let drop_path = |path: &mut Option<String>| {
        path.take_if(|path| path.is_empty() || directory.as_os_str() == path.as_str());
    };
    let drop_text = |text: &mut Option<String>| {
        text.take_if(|text| text.is_empty());
    };
    let drop_secret = |secret: &mut Option<SecretString>| {
        secret.take_if(|secret| secret.expose_secret().is_empty());
    };
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|entry| entry.cluster.as_mut()) {
        drop_path(&mut cluster.certificate_authority);
        drop_text(&mut cluster.certificate_authority_data);
        drop_text(&mut cluster.proxy_url);
        drop_text(&mut cluster.tls_server_name);
    }
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|entry| entry.auth_info.as_mut()) {
        drop_path(&mut user.token_file);
        drop_path(&mut user.client_certificate);
        drop_path(&mut user.client_key);
        drop_text(&mut user.client_certificate_data);
        drop_text(&mut user.username);
        drop_text(&mut user.impersonate);
        drop_text(&mut user.impersonate_uid);
        drop_secret(&mut user.client_key_data);
        drop_secret(&mut user.token);
        // Without a name it is nobody's. With one it may be empty.
        user.password.take_if(|_| user.username.is_none());
    }
}

impl Origin {
    /// Reads address and credentials as they are in the files now, within the limit of a request: the kubeconfig in
    /// half of it, as its contexts may all read it now, one after the other, and each other file in a quarter of it, at
    /// most [`detached_io::DEFAULT_TIMEOUT`]. If a file system hangs, the error names the file.
    pub(super) async fn config_within(&self, request: Duration) -> Result<Config, ConfigError> {
        let limit = detached_io::DEFAULT_TIMEOUT.min(request / 4);
        let mut config = match self {
            Self::InCluster => {
                let read = || Ok(Config::incluster().map_err(|error| in_cluster(&error)));
                within(limit, Path::new(SERVICE_ACCOUNT), read).await.flatten()?
            }
            Self::Context { path, name } => self.config_of(path, name, request / 2, limit).await?,
        };
        self.read_files(&mut config.auth_info, limit).await?;
        Ok(config)
    }

    /// Reads a context of a kubeconfig, without the files that its user entry names.
    async fn config_of(
        &self,
        path: &Path,
        name: &str,
        own_limit: Duration,
        limit: Duration,
    ) -> Result<Config, ConfigError> {
        let own = path.to_owned();
        let mut kubeconfig = within(own_limit, path, move || Ok(read(&own))).await.flatten()?;
        let mut has_proxy = false;
        if let Some(cluster) = cluster_of(&mut kubeconfig, name) {
            has_proxy = cluster.proxy_url.is_some();
            // kube would read the file itself, with no limit on the time. The inline data come first, as in client-go.
            if cluster.certificate_authority_data.is_none()
                && let Some(file) = &cluster.certificate_authority
            {
                let authority = self.content("certificate authority", file, limit).await?;
                cluster.certificate_authority_data = Some(STANDARD.encode(authority));
            }
        }
        let options = KubeConfigOptions { context: Some(name.to_owned()), ..KubeConfigOptions::default() };
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let mut config = config.map_err(|error| self.unusable(describe(&error)))?;
        // kube matches NO_PROXY against the proxy's host instead of the server's, so it is matched again here. A
        // `proxy-url` of the kubeconfig stays as kube returns it.
        if !has_proxy && is_direct(&config, &Matcher::from_env()) {
            config.proxy_url = None;
        }
        if config.auth_info.auth_provider.is_some() {
            let why = "`auth-provider` is no longer supported by Kubernetes' clients; use `exec`";
            return Err(self.unusable(why.to_owned()));
        }
        Ok(config)
    }

    /// Reads the files that a user entry names into the entry itself. kube would read them later, blocking a thread of
    /// the async runtime.
    async fn read_files(&self, user: &mut AuthInfo, limit: Duration) -> Result<(), ConfigError> {
        if let Some(file) = &user.token_file {
            match self.token_of(file, limit).await {
                Ok(token) => user.token = Some(token),
                // As in client-go, `token` stands in for a file that cannot be read, and only for that. (kube prefers
                // `token`.)
                Err(_) if user.token.is_some() => {}
                Err(error) => return Err(error),
            }
        }
        // Of these the inline data come first, as in client-go.
        if user.client_certificate_data.is_none()
            && let Some(file) = &user.client_certificate
        {
            let certificate = self.content("client certificate", file, limit).await?;
            user.client_certificate_data = Some(STANDARD.encode(certificate));
        }
        if user.client_key_data.is_none()
            && let Some(file) = &user.client_key
        {
            let key = STANDARD.encode(self.content("client key", file, limit).await?);
            user.client_key_data = Some(SecretString::from(key));
        }
        Ok(())
    }

    /// Reads the token of a user entry. An empty file has none: it may be about to be written.
    async fn token_of(&self, file: &str, limit: Duration) -> Result<SecretString, ConfigError> {
        let text = String::from_utf8(self.content("token", file, limit).await?);
        let text = text.map_err(|_| self.unusable(format!("its token in {file} is not text")))?;
        match text.trim() {
            "" => Err(self.unusable(format!("its token in {file} is empty"))),
            token => Ok(SecretString::from(token)),
        }
    }

    /// Reads a file that an entry of the kubeconfig names. If it gives no answer, nothing is wrong with the entry.
    async fn content(&self, what: &str, file: &str, limit: Duration) -> Result<Vec<u8>, ConfigError> {
        let own = PathBuf::from(file);
        let read = within(limit, Path::new(file), move || std::fs::read(own)).await;
        read.map_err(|error| match error {
            ConfigError::Read { source, .. } if source.kind() != io::ErrorKind::TimedOut => {
                self.unusable(format!("its {what} cannot be read from {file}: {source}"))
            }
            silent => silent,
        })
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

/// Returns true if the server is reached without the environment's proxies.
fn is_direct(config: &Config, environment: &Matcher) -> bool {
    let server = &config.cluster_url;
    server.host().is_some_and(tls::is_local) || environment.intercept(server).is_none()
}

/// Returns the entry of the context's cluster.
fn cluster_of<'k>(kubeconfig: &'k mut Kubeconfig, context: &str) -> Option<&'k mut ClusterEntry> {
    let context = kubeconfig.contexts.iter().find(|entry| entry.name == context)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter_mut().find(|entry| entry.name == context.cluster)?;
    cluster.cluster.as_mut()
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

#[cfg(test)]
mod tests;
