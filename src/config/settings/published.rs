//! Refuses files of which a commit would choose the content. A file that is read at every start or attempt must not be
//! in the tree that the same command publishes: a commit that breaks it makes every later start or attempt fail, and the
//! commit that mends it is never published.

use std::io;
use std::path::PathBuf;

use super::{Settings, absolute};
use crate::config::args::Args;
use crate::config::check::Check;
use crate::config::env::Origins;
use crate::config::error::Error;
use crate::config::settings::root::other_place;
use crate::detached_io;
use crate::mirror::wire;
use crate::secret::SecretFrom;
use crate::store;

/// A file or directory that is read, and the name of what gives it, for messages.
pub type NamedFile = (String, PathBuf);

impl Check<'_> {
    /// Refuses files that are in what the root publishes, or are reached through it. What another root publishes may be
    /// read: its commits go on. A path that cannot be resolved now is accepted; reading it fails, too.
    pub(in crate::config) fn refuse_published(&self, files: &[NamedFile]) -> Result<(), Error> {
        if self.args.root.root == self.args.root.mirror {
            return Ok(()); // there is no root, and nothing is published: see `mirror_dir`
        }
        let root = self.root()?;
        let layout = self.layout(&root)?;
        for (name, file) in files {
            let refused = |why| {
                let (name, value) = (name.clone(), file.display().to_string());
                Err(Error::Place { name, value, why, hint: other_place(&layout) })
            };
            let path = absolute(file);
            if let Err(why) = store::check_place(&root, &layout, &path) {
                return refused(why);
            }
            let (own, own_layout, resolved) = (root.clone(), layout.clone(), path.clone());
            let check = move || store::check_resolved(&own, &resolved, &own_layout, &[]);
            match detached_io::wait(&path, detached_io::DEFAULT_TIMEOUT, check) {
                // The store's own refusals have this kind, errors of system calls never.
                Some(Err(error)) if error.kind() == io::ErrorKind::Other => {
                    return refused(format!("by what it resolves to, {error}"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The files by which the remote is reached.
    pub(super) fn files_of_wire(&self, wire: &wire::Options) -> Vec<NamedFile> {
        let given = &self.args.credentials;
        let named = |flag: &str, is_given: bool, other: &str, file: &PathBuf| {
            (if is_given { self.origins.name(flag) } else { other.to_owned() }, file.clone())
        };
        let ca = wire
            .ca_file
            .iter()
            .map(|file| named("ca-file", !given.ca_file.is_empty(), "http.sslCAInfo", file));
        let is_cookie_flag = self.cookie_file().is_some();
        let cookies =
            wire.cookie_file.iter().map(|file| named("cookie-file", is_cookie_flag, "http.cookieFile", file));
        let flag_keys = self.keys();
        let keys = wire
            .ssh
            .keys
            .iter()
            .map(|key| named("ssh-key-file", flag_keys.contains(key), "$GIT_SSH_COMMAND", key));
        let hosts = match &wire.ssh.known_hosts {
            wire::ssh::KnownHosts::Strict(file) => Some(file),
            wire::ssh::KnownHosts::Off => None,
        };
        let hosts = hosts.map(|file| {
            let is_given = file.as_os_str() == given.ssh_known_hosts_file.as_str();
            named("ssh-known-hosts-file", is_given, "$GIT_SSH_COMMAND", file)
        });
        let passwords = wire.credentials.iter().filter_map(|one| match &one.password {
            SecretFrom::File(file) => {
                let is_given = file.as_os_str() == given.password_file.as_str();
                Some(named("password-file", is_given, "the password-file of a credential", file))
            }
            SecretFrom::Value(_) => None,
        });
        let app = match &wire.issuance {
            Some(wire::Issuance::GitHubApp(wire::App { key: SecretFrom::File(file), .. })) => {
                Some(named("github-app-private-key-file", true, "", file))
            }
            _ => None,
        };
        ca.chain(cookies).chain(keys).chain(hosts).chain(passwords).chain(app).collect()
    }
}

impl Settings {
    /// The same for files of a command that are not in these settings.
    pub fn refuse_published(args: &Args, origins: &Origins, files: &[NamedFile]) -> Result<(), Error> {
        Check { args, origins }.refuse_published(files)
    }

    /// The files that these settings name, and that are read at every start or attempt.
    pub(super) fn files(&self, check: &Check<'_>) -> Vec<NamedFile> {
        let named = |flag: &str, file: &PathBuf| (check.origins.name(flag), file.clone());
        let mut files = check.files_of_wire(&self.mirror.wire);
        files.extend(self.sources.iter().map(|set| named("sources", &set.file)));
        files.extend(self.sync.sparse_file.iter().map(|file| named("sparse-checkout-file", file)));
        let secrets = self.admin.iter().flat_map(|admin| &admin.webhook_secrets);
        files.extend(secrets.map(|file| named("webhook-secret-file", file)));
        files
    }
}
