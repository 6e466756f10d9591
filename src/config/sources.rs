//! `--sources`: several repositories in one root.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::args::Args;
use super::check::Check;
use super::credentials;
use super::env::Origins;
use super::error::Error;
use super::origin::Hidden;
use super::settings::absolute;
use super::values::path;
use crate::mirror::{self, wire};
use crate::retry::Backoff;
use crate::secret::Source;
use crate::sources::{Listed, SetOptions};

impl Check<'_> {
    /// Refuses what a set of sources excludes: what the file says of each source, and what is of one repository.
    pub(super) fn is_set(&self) -> Result<bool, Error> {
        let source = &self.args.source;
        if source.sources.is_empty() {
            return Ok(false);
        }
        let default = |flag: &str| *self.origins.get(flag) == super::origin::Origin::Default;
        let given = [
            ("repo", !source.repo.is_empty()),
            ("ref", !default("ref")),
            ("path", !source.path.is_empty()),
            ("sparse-checkout-file", !source.sparse_checkout_file.is_empty()),
            ("submodules", source.submodules != "off"),
            ("filter", !source.filter.is_empty()),
            ("git", !self.args.git.git.is_empty()),
        ];
        let one = || self.origins.name("sources");
        if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
            return Err(Error::Conflict { one: one(), other: self.origins.name(flag) });
        }
        if self.args.root.layout == "git-sync" {
            let other = format!("{}=git-sync", self.origins.name("layout"));
            return Err(Error::Conflict { one: one(), other });
        }
        Ok(true)
    }

    /// What makes the set.
    pub(super) fn set(
        &self,
        mirror: &mirror::Options,
        backoff: Backoff,
        timeout: Duration,
        hidden: &Hidden,
    ) -> Result<SetOptions, Error> {
        let file = absolute(&self.args.source.sources);
        let (args, origins, hidden) = (self.args.clone(), self.origins.clone(), hidden.clone());
        let settings = WireSettings { args, origins, hidden, timeout };
        let dir = match self.args.root.mirror.as_str() {
            "" => mirror.dir.with_file_name("mirrors"),
            _ => mirror.dir.join("mirrors"),
        };
        let mirror = mirror.clone();
        let one_time = self.args.pace.one_time;
        let wire = Arc::new(move |source: &Listed| settings.of(source).map_err(|error| error.to_string()));
        Ok(SetOptions { file, dir, mirror, wire, backoff, timeout, one_time, rules: false, root: true })
    }
}

/// What is known of every way to a repository.
struct WireSettings {
    args: Args,
    origins: Origins,
    hidden: Hidden,
    timeout: Duration,
}

impl WireSettings {
    /// The way to one source: the flags' settings for its URL, and its own credentials in place of theirs.
    fn of(&self, source: &Listed) -> Result<wire::Options, Error> {
        let mut args = self.args.clone();
        args.source.repo.clone_from(&source.repo);
        let own = &source.credentials;
        if let Some(key) = named(&own.ssh_key_file) {
            args.credentials.ssh_key_file = vec![key];
        }
        if let Some(file) = named(&own.ssh_known_hosts_file) {
            args.credentials.ssh_known_hosts_file = file;
        }
        let check = Check { args: &args, origins: &self.origins };
        let mut credentials = match own.username.as_str() {
            "" => credentials::named(&args, &self.origins, self.hidden.password.as_ref())?,
            username => vec![wire::Credential {
                url: None,
                username: Some(username.to_owned()),
                password: Source::File(own.password_file.clone()),
            }],
        };
        credentials.extend(credentials::listed(&args, &self.origins)?);
        let (_, git) = check.git_config(&self.hidden)?;
        let wire = check.wire(credentials, self.timeout, &self.hidden, &git)?;
        Ok(wire::Options { issuance: check.issuance(&self.hidden)?, ..wire })
    }
}

fn named(file: &Path) -> Option<String> {
    path(&file.display().to_string()).map(|path| path.display().to_string())
}
