//! Refuses files of which a commit would choose the content. A file that is read at every start or attempt must not be
//! in the tree that the same command publishes: a commit that breaks it makes every later start or attempt fail, and the
//! commit that mends it is never published.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Settings, absolute};
use crate::config::args::Args;
use crate::config::check::Check;
use crate::config::env::Origins;
use crate::config::error::Error;
use crate::config::origin::Origin;
use crate::config::settings::root::OUTSIDE;
use crate::config::values::path;
use crate::detached_io;
use crate::mirror::wire;
use crate::secret::SecretFrom;
use crate::store;

/// What is left for each file if others used up the time: enough for a file system that answers.
const LIMIT_MIN: Duration = Duration::from_millis(100);

/// A file or directory that is read, and the name of what gives it, for messages.
pub type NamedFile = (String, PathBuf);

impl Check<'_> {
    /// Refuses files that are in what the root publishes, or are reached through it. What another root publishes may be
    /// read: its commits do not depend on this command. A path that cannot be resolved, or not in time, is accepted: a
    /// file system that hangs must not be what a start fails for.
    pub(in crate::config) fn refuse_published(&self, files: &[NamedFile]) -> Result<(), Error> {
        self.refuse_published_by_text(files)?;
        if self.has_no_root() {
            return Ok(());
        }
        let root = self.root()?;
        let layout = self.layout(&root)?;
        let began = Instant::now();
        for (name, file) in files {
            let limit = detached_io::DEFAULT_TIMEOUT.saturating_sub(began.elapsed()).max(LIMIT_MIN);
            let (own, own_layout, path) = (root.clone(), layout.clone(), absolute(file));
            let check = move || store::check_resolved(&own, &path, &own_layout, &[]);
            // The store's own refusals have this kind, errors of system calls never.
            if let Some(Err(why)) = detached_io::wait(file, limit, check)
                && why.kind() == io::ErrorKind::Other
            {
                return Err(published(name.clone(), file, format!("by what it resolves to, {why}")));
            }
        }
        Ok(())
    }

    /// The same by the text of their paths alone, without I/O.
    pub(in crate::config) fn refuse_published_by_text(&self, files: &[NamedFile]) -> Result<(), Error> {
        if self.has_no_root() {
            return Ok(());
        }
        let root = self.root()?;
        let layout = self.layout(&root)?;
        for (name, file) in files {
            let place = store::clean(&absolute(file));
            // A directory of kubeconfigs may have the published link in it, but not be the root.
            let is_above_link = matches!(&layout, store::Layout::GitSync { link }
                if *link != place && link.starts_with(&place) && place != store::clean(&root));
            if !is_above_link {
                let placed = store::check_place(&root, &layout, &place);
                placed.map_err(|why| published(name.clone(), file, why))?;
            }
        }
        Ok(())
    }

    /// Without a root, its path is set to the mirror's, and nothing is published: see `mirror_dir`.
    fn has_no_root(&self) -> bool {
        self.args.root.root == self.args.root.mirror
    }

    /// The files by which the remote is reached, without the defaults, which nobody named, and without those of git's
    /// settings.
    pub(super) fn files_of_wire(&self, wire: &wire::Options) -> Vec<NamedFile> {
        let given = &self.args.credentials;
        let mut files = Vec::new();
        // A file is named by its flag or, if it is not the flag's, by `other`.
        let mut add = |flag: &str, is_of_flag: bool, other: &str, file: &PathBuf| {
            let is_default = is_of_flag && *self.origins.get(flag) == Origin::Default;
            let name = if is_of_flag { self.origins.name(flag) } else { other.to_owned() };
            files.extend((!is_default).then(|| (name, file.clone())));
        };
        let (ca_file, cookie_file) = (path(&given.ca_file), self.cookie_file());
        ca_file.iter().for_each(|file| add("ca-file", true, "", file));
        cookie_file.iter().for_each(|file| add("cookie-file", true, "", file));
        let keys = self.keys();
        for file in &wire.ssh.keys {
            add("ssh-key-file", keys.contains(file), "$GIT_SSH_COMMAND", file);
        }
        if let wire::ssh::KnownHosts::Strict(file) = &wire.ssh.known_hosts {
            let is_of_flag = file.as_os_str() == given.ssh_known_hosts_file.as_str();
            add("ssh-known-hosts-file", is_of_flag, "$GIT_SSH_COMMAND", file);
        }
        for credential in &wire.credentials {
            if let SecretFrom::File(file) = &credential.password {
                let is_of_flag = file.as_os_str() == given.password_file.as_str();
                add("password-file", is_of_flag, "the password-file of a credential", file);
            }
        }
        if let Some(wire::Issuance::GitHubApp(wire::App { key: SecretFrom::File(file), .. })) = &wire.issuance
        {
            add("github-app-private-key-file", true, "", file);
        }
        files
    }
}

/// The error for a file that the root publishes.
fn published(name: String, file: &Path, why: String) -> Error {
    Error::Place { name, value: file.display().to_string(), why, hint: OUTSIDE }
}

impl Settings {
    /// Refuses files that are in what the root publishes, as [`Settings::new`] does with those of the settings: for
    /// files that only the command knows.
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Bare {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_file_that_hangs_leaves_time_to_refuse_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let [root, hung, link] = ["root", "hung", "link"].map(|name| dir.path().join(name));
        std::fs::create_dir(&root).unwrap();
        std::os::unix::fs::symlink(root.join("..data/key"), &link).unwrap();
        let given = ["treeswap", "--repo=https://git.example.com/x", "--root", root.to_str().unwrap()];
        let args = Bare::try_parse_from(given).unwrap().args;
        let (end, ended) = std::sync::mpsc::channel::<()>();
        assert!(detached_io::wait(&hung, Duration::ZERO, move || ended.recv().is_ok()).is_none());
        let files = [("--ca-file".to_owned(), hung), ("--rules".to_owned(), link)];
        let refused = Settings::refuse_published(&args, &Origins::default(), &files).unwrap_err().to_string();
        assert!(refused.contains("for --rules: by what it resolves to, \"..data\""), "{refused}");
        drop(end);
    }
}
