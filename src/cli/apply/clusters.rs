//! The flags about clusters: where kubeconfigs are read from, and how requests are sent.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::cli::warn;
use crate::cluster::{self, Clusters, ConfigError};
use crate::deliver::{LeaseOptions, PoolSpec};
use crate::{config, detached_io, human};

/// Where to.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct ClusterArgs {
    /// Kubeconfig file; each of its contexts is a cluster of the rules
    ///
    /// Can be given several times. Without it, without --kubeconfig-dir and outside of a Pod: $KUBECONFIG, or
    /// ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Vec<PathBuf>,

    /// Directory of kubeconfig files, such as a mounted Secret
    #[arg(long, value_name = "DIR")]
    kubeconfig_dir: Option<PathBuf>,

    /// In a Pod, do not use the Pod's own cluster as `default`, but a kubeconfig's current context
    #[arg(long, hide_short_help = true, value_name = "BOOL", default_value = "false", value_parser = config::boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_in_cluster_config: bool,

    /// Most concurrent requests to one cluster
    #[arg(long, hide_short_help = true, value_name = "N", default_value = "8", value_parser = config::at_least_one)]
    pub(super) concurrency: u16,

    /// Timeout of one request
    ///
    /// It includes reading the credentials and connecting, each of which may take half of it, and asking again after a
    /// 401. Waiting until fewer than --concurrency requests are under way does not count.
    #[arg(long, hide_short_help = true, value_name = "DURATION", default_value = "30s", value_parser = config::timeout)]
    request_timeout: Duration,

    /// Duration of a Lease that its holder does not renew, after which others take over; 0s for no Leases
    ///
    /// Instances with the same owner take turns by a Lease in each namespace, which is acquired only when there is
    /// something to write. Correctness does not depend on it: without permissions for Leases, more writes conflict and
    /// are retried.
    #[arg(long, hide_short_help = true, value_name = "DURATION", default_value = "15s", value_parser = config::duration)]
    lease_duration: Duration,

    /// Limit how many instances of a fleet write at once: each must hold one of COUNT Leases
    ///
    /// For many instances, of any owner, that one push triggers at the same moment. An instance with something to write
    /// acquires any of the Leases NAME-0, NAME-1 and so on in that namespace of the cluster `default`, and releases it
    /// afterwards. Correctness does not depend on it: without permissions for Leases, or if all are held by others for
    /// a quarter of the time limit, the instance continues without one and logs that once.
    #[arg(long, hide_short_help = true, value_name = "NAMESPACE/NAME:COUNT")]
    lease_pool: Option<PoolSpec>,
}

impl ClusterArgs {
    /// Loads the clusters, with a warning for each of [`Clusters::problems`].
    pub(in crate::cli) fn load(&self) -> Result<Clusters, ConfigError> {
        load(&self.options())
    }

    /// Validates what can be read here. There may be other kubeconfigs where `sync` runs, or it runs in a Pod: so it is
    /// only a warning if there are none here, or if one is missing or cannot be read now. All others are validated.
    pub(in crate::cli) fn check(&self) -> Result<(), ConfigError> {
        let mut options = self.options();
        let mut has_left_out = false;
        loop {
            let Err(error) = load(&options) else { return Ok(()) };
            let is_warning = match &error {
                // The context may be in what was left out, of which there was a warning.
                ConfigError::None | ConfigError::NoContext { .. } | ConfigError::CurrentContext { .. }
                    if has_left_out =>
                {
                    return Ok(());
                }
                ConfigError::None => true,
                ConfigError::NoContext { .. } => self.kubeconfig.is_empty(),
                error => leave_out(&mut options, error),
            };
            if !is_warning {
                return Err(error);
            }
            let line = human::one_line(&error);
            warn(format_args!("{line}; where `treeswap sync` runs, there has to be one"));
            if !matches!(error, ConfigError::Read { .. }) {
                return Ok(());
            }
            has_left_out = true;
        }
    }

    /// The Leases by which instances take turns; `None` if they are turned off.
    pub(super) fn leases(&self) -> Result<Option<LeaseOptions>, config::Error> {
        match (self.lease_duration.is_zero(), &self.lease_pool) {
            (true, None) => Ok(None),
            (true, Some(_)) => {
                let one = "--lease-pool".into();
                let other = "--lease-duration=0s".into();
                Err(config::Error::Conflict { one, other })
            }
            (false, pool) => Ok(Some(LeaseOptions::new(self.lease_duration).pooled(pool.clone()))),
        }
    }

    /// The kubeconfigs, and what names each.
    pub(in crate::cli) fn files(&self, origins: &config::Origins) -> Vec<config::NamedFile> {
        let cluster::Options { kubeconfigs, kubeconfig_dir, .. } = self.options();
        let of_files = match std::env::var_os("KUBECONFIG") {
            _ if !self.kubeconfig.is_empty() => origins.name("kubeconfig"),
            Some(value) if !value.is_empty() => "$KUBECONFIG".to_owned(),
            _ => "~/.kube/config".to_owned(),
        };
        let files = kubeconfigs.into_iter().map(|file| (of_files.clone(), file));
        files.chain(kubeconfig_dir.map(|dir| (origins.name("kubeconfig-dir"), dir))).collect()
    }

    fn options(&self) -> cluster::Options {
        let in_cluster = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && !self.no_in_cluster_config;
        let none_given = self.kubeconfig.is_empty() && self.kubeconfig_dir.is_none() && !in_cluster;
        cluster::Options {
            kubeconfigs: if none_given { default_kubeconfigs() } else { self.kubeconfig.clone() },
            kubeconfig_dir: self.kubeconfig_dir.clone(),
            in_cluster,
            timeout: self.request_timeout,
            concurrency: self.concurrency.into(),
            ..cluster::Options::default()
        }
    }
}

/// Loads the clusters, with a warning for each of [`Clusters::problems`].
fn load(options: &cluster::Options) -> Result<Clusters, ConfigError> {
    let clusters = Clusters::load(options)?;
    clusters.problems.iter().for_each(|problem| warn(human::one_line(problem)));
    Ok(clusters)
}

/// Leaves out the file or directory of this error, if it is missing or cannot be read now. Returns true if it did.
fn leave_out(options: &mut cluster::Options, error: &ConfigError) -> bool {
    let ConfigError::Read { path, source } = error else { return false };
    let may_be_there_elsewhere = error.may_pass() || source.kind() == io::ErrorKind::NotFound;
    let is_given = options.kubeconfigs.contains(path) || options.kubeconfig_dir.as_ref() == Some(path);
    if !may_be_there_elsewhere || !is_given {
        return false;
    }
    options.kubeconfigs.retain(|file| file != path);
    options.kubeconfig_dir = options.kubeconfig_dir.take().filter(|dir| dir != path);
    true
}

/// The kubeconfigs that kubectl uses by default: those in `$KUBECONFIG`, or `~/.kube/config` if it exists.
fn default_kubeconfigs() -> Vec<PathBuf> {
    let named = std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty());
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".kube/config"));
    match named {
        Some(paths) => std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect(),
        // A file whose check hangs or fails counts as existing: reading it reports the error.
        None => home()
            .filter(|path| detached_io::wait_for_io(path, |path| path.try_exists()).unwrap_or(true))
            .into_iter()
            .collect(),
    }
}
