//! Validates the flags about the repository: the remote, how it is reached, and its mirror.

use std::path::PathBuf;
use std::time::Duration;

use super::{GIT_GC, MIN_PERIOD, SUBMODULES};
use crate::config::args::{Args, LimitArgs};
use crate::config::check::{Check, UrlPassword};
use crate::config::credentials;
use crate::config::error::Error;
use crate::config::git_config;
use crate::config::origin::{Hidden, Origin, PASSWORDS};
use crate::config::personality::Personality;
use crate::config::values::path;
use crate::mirror::{self, wire};
use crate::payload::{self, Limits};
use crate::revision::Ref;
use crate::secret::Secret;

/// The largest number of commits to fetch: a git server refuses more than an `int` can hold.
const DEPTH_MAX: u32 = i32::MAX.unsigned_abs();

/// Returns true if the text has one of the forms of git-rev-list(1)'s `--filter`.
fn is_filter(text: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.split_once(':') {
        Some(("blob", "none")) => true,
        Some(("blob", limit)) => limit
            .strip_prefix("limit=")
            .is_some_and(|size| is_number(size.strip_suffix(['k', 'm', 'g', 'K', 'M', 'G']).unwrap_or(size))),
        Some(("tree", depth)) => is_number(depth),
        Some(("object", kind)) => {
            matches!(kind, "type=commit" | "type=tag" | "type=tree" | "type=blob")
        }
        Some(("sparse", blob)) => blob.strip_prefix("oid=").is_some_and(|blob| !blob.is_empty()),
        // Its parts are URL-encoded.
        Some(("combine", parts)) => !parts.is_empty(),
        _ => false,
    }
}

/// The options in `$GIT_SSH_COMMAND`; none if it is not set.
fn ssh_command(hidden: &Hidden) -> git_config::SshCommand {
    hidden.ssh_command.as_deref().map(git_config::ssh_command).unwrap_or_default()
}

impl Check<'_> {
    /// The number of commits to fetch.
    pub(super) fn depth(&self) -> Result<mirror::Depth, Error> {
        Ok(match self.within("depth", self.args.source.depth, 0..=DEPTH_MAX)? {
            0 => mirror::Depth::Full,
            commits => mirror::Depth::Commits(commits),
        })
    }

    /// The partial clone filter.
    pub(super) fn filter(&self) -> Result<Option<String>, Error> {
        let text = &self.args.source.filter;
        if text.is_empty() {
            return Ok(None);
        }
        if is_filter(text) {
            return Ok(Some(text.clone()));
        }
        let why = "git knows blob:none, blob:limit=SIZE, tree:DEPTH, object:type=TYPE, sparse:oid=BLOB and combine:…";
        Err(self.invalid("filter", text, why))
    }

    /// The ref to follow.
    pub(super) fn followed_ref(&self) -> Result<Ref, Error> {
        let text = &self.args.source.ref_name;
        text.parse().map_err(|error: crate::revision::BadRef| self.invalid("ref", text, error.why()))
    }

    pub(super) fn submodules(&self) -> Result<mirror::Submodules, Error> {
        self.one_of("submodules", &self.args.source.submodules, &SUBMODULES)
    }

    /// Which submodules are fetched, and from where.
    pub(super) fn modules(
        &self,
        submodules: mirror::Submodules,
        git_effect: &git_config::Effect,
    ) -> Result<mirror::Access, Error> {
        Ok(mirror::Access {
            submodules,
            // Users of git-sync name the hosts of submodules in `.gitmodules` and nowhere else.
            hosts: match self.origins.personality() {
                Personality::GitSync => mirror::Hosts::Any,
                // The remote's own host, and those that credentials are for.
                Personality::Treeswap => mirror::Hosts::Known(Vec::new()),
            },
            local: git_effect.local_submodules,
            instead_of: git_effect.instead_of.clone(),
            // Relative URLs of submodules resolve against the URL as it was given: git_effect.remote is --repo after
            // insteadOf.
            written: (git_effect.remote != self.args.source.repo)
                .then(|| Secret::holder(&self.args.source.repo)),
            limits: self.limits()?,
        })
    }

    /// The limits on a revision's content.
    pub(super) fn limits(&self) -> Result<Limits, Error> {
        let limits = &self.args.limits;
        Ok(Limits {
            entries: self.count("max-tree-entries", limits.max_tree_entries, 1)?.into(),
            bytes: self.ceiling("max-tree-bytes", limits.max_tree_bytes)?,
            file_bytes: self.ceiling("max-file-bytes", limits.max_file_bytes)?,
            depth: self.within("max-path-depth", limits.max_path_depth, 1..=payload::DEPTH_MAX)?,
            ..Limits::default()
        })
    }

    pub(super) fn gc(&self) -> Result<mirror::Gc, Error> {
        self.one_of("git-gc", &self.args.git.git_gc, &GIT_GC)
    }

    /// The program of `--git` and the settings that it is given: all but `insteadOf`, which is already applied to the
    /// URLs.
    pub(super) fn program(&self, entries: Vec<git_config::Entry>) -> Option<wire::Program> {
        let left = entries.into_iter().filter(|entry| !git_config::is_rewriting(entry));
        let config = left.map(|entry| (entry.key, entry.value)).collect();
        let program = |path| wire::Program { path, config, mirror: PathBuf::new() };
        path(&self.args.git.git).map(program)
    }

    /// The settings of git, from flags and then from git's own variables, and their effect.
    pub(in crate::config) fn git_config(
        &self,
        hidden: &Hidden,
    ) -> Result<(Vec<git_config::Entry>, git_config::Effect), Error> {
        let given = &self.args.git;
        let mut entries = Vec::new();
        let added = given.git_config_add.iter().map(|text| ("git-config-add", text));
        for (flag, text) in std::iter::once(("git-config", &given.git_config)).chain(added) {
            let wrong = |why| Error::HiddenValue { name: self.origins.name(flag), why };
            entries.extend(git_config::parse(text).map_err(wrong)?);
        }
        let variables = hidden.git.iter().cloned();
        entries.extend(variables.map(|(key, value)| git_config::Entry { key, value }));
        let effect = git_config::apply(&entries, &self.args.source.repo)?;
        Ok((entries, effect))
    }

    /// Warnings about settings that have no effect or are unsafe. They never contain a value, which may be a secret.
    pub(super) fn warnings(&self, git_effect: &git_config::Effect, hidden: &Hidden) -> Vec<String> {
        let by_git = !self.args.git.git.is_empty();
        let settings = git_effect.warnings(by_git);
        let ssh = ssh_command(hidden);
        // The program of --git runs the command as it is.
        let ignored_options = (!by_git && !ssh.ignored.is_empty()).then(|| {
            format!(
                "ignored in $GIT_SSH_COMMAND: {} (only -i and -o IdentityFile, UserKnownHostsFile and \
                 StrictHostKeyChecking have an effect)",
                ssh.ignored.join(", ")
            )
        });
        let accepted_hosts = (!by_git && ssh.accepts_new).then(|| {
            "StrictHostKeyChecking=accept-new in $GIT_SSH_COMMAND counts as yes: no host is learnt".to_owned()
        });
        // For a submodule's URL the warning comes when its mirror is opened.
        let unchecked_certificates =
            git_effect.unverified.then(|| "TLS certificates go unchecked (http.sslVerify)".to_owned());
        let unchecked_host_keys = (!self.checks_host_keys(&ssh)).then(|| {
            let why = match ssh.checks {
                Some(_) => "$GIT_SSH_COMMAND's StrictHostKeyChecking".to_owned(),
                None => self.origins.name("ssh-known-hosts"),
            };
            format!("ssh host keys go unchecked ({why})")
        });
        settings
            .chain(ignored_options)
            .chain(accepted_hosts)
            .chain(unchecked_certificates)
            .chain(unchecked_host_keys)
            .chain(self.visible_password())
            .chain(self.ignored_parts_of_app(hidden))
            .chain(self.credential_without_effect(&git_effect.remote))
            .chain(self.level_without_effect())
            .collect()
    }

    /// Whether host keys of ssh are checked. git-sync appends its own option to the command, and of several ssh takes
    /// the first, so the command decides.
    fn checks_host_keys(&self, ssh: &git_config::SshCommand) -> bool {
        ssh.checks.unwrap_or(self.args.credentials.ssh_known_hosts)
    }

    /// The warning about a password in the URL of `--repo`.
    fn visible_password(&self) -> Option<String> {
        if *self.origins.get("repo") != Origin::Flag {
            return None;
        }
        let instead = match UrlPassword::of(&self.args.source.repo)? {
            UrlPassword::Sent => format!(
                ": give it by --password-file, or in {}",
                credentials::variable_for(self.origins.personality(), PASSWORDS)
            ),
            UrlPassword::OfSsh => {
                ", and ssh does not use it: remove it, and give a key by --ssh-key-file".to_owned()
            }
            UrlPassword::Unused => ", and is not used: remove it".to_owned(),
        };
        Some(format!("the password in --repo's URL can be read by every process of the machine{instead}"))
    }

    /// How the remote is reached.
    pub(in crate::config) fn wire(
        &self,
        credentials: Vec<wire::Credential>,
        sync_timeout: Duration,
        hidden: &Hidden,
        git_effect: &git_config::Effect,
    ) -> Result<wire::Options, Error> {
        let Args { credentials: given, limits: LimitArgs { fetch: limits, .. }, .. } = self.args;
        // Only for https does the program make TLS connections; for other URLs --ca-file is for webhooks.
        // git_effect.remote is --repo after insteadOf.
        let is_https_by_program = !self.args.git.git.is_empty() && git_effect.remote.starts_with("https:");
        if is_https_by_program && !given.ca_file.is_empty() && git_effect.ca_file.is_none() {
            return Err(Error::Needs {
                one: format!("{} with {}", self.origins.name("ca-file"), self.origins.name("git")),
                other: "--git-config=http.sslCAInfo:FILE, where FILE has the system's CA certificates, too: the git \
                        program trusts no others"
                    .to_owned(),
            });
        }
        let mut wire = wire::Options::new(git_effect.remote.clone());
        wire.credentials = credentials;
        let ssh = ssh_command(hidden);
        let checks = self.checks_host_keys(&ssh);
        let known_hosts = ssh.known_hosts.unwrap_or_else(|| PathBuf::from(&given.ssh_known_hosts_file));
        wire.ssh = wire::ssh::Options {
            keys: ssh.keys.into_iter().chain(self.keys()).collect(),
            known_hosts: if checks {
                wire::ssh::KnownHosts::Strict(known_hosts)
            } else {
                wire::ssh::KnownHosts::Off
            },
        };
        wire.cookie_file = self.cookie_file().or_else(|| git_effect.cookie_file.clone());
        wire.ca_file = path(&given.ca_file).or_else(|| git_effect.ca_file.clone());
        wire.unverified = git_effect.unverified;
        wire.headers = git_effect.headers.clone();
        wire.proxy = git_effect.proxy.clone();
        wire.by_url = Some(git_effect.by_url(path(&given.ca_file)));
        let timeout = |flag, value| match (self.origins.get(flag), self.origins.personality()) {
            (Origin::Default, Personality::GitSync) => Ok(sync_timeout), // git-sync has no other timeout
            _ => self.at_least(flag, value, MIN_PERIOD),
        };
        wire.timeouts = wire::Timeouts {
            connect: timeout("connect-timeout", limits.connect_timeout)?,
            idle: timeout("idle-timeout", limits.idle_timeout)?,
            overall: sync_timeout,
        };
        wire.max_refs_bytes = self.ceiling("max-refs-bytes", limits.max_refs_bytes)?;
        wire.max_fetch_bytes = self.ceiling("max-fetch-bytes", limits.max_fetch_bytes)?;
        Ok(wire)
    }

    /// Checks that the remote is a URL or path that is supported.
    pub(super) fn remote(&self, wire: &wire::Options) -> Result<(), Error> {
        let refused = |error| Error::Remote { name: self.origins.name("repo"), source: Box::new(error) };
        wire::Client::new(wire.clone()).map_err(refused)?; // parses the URL; no I/O
        Ok(())
    }

    /// The private keys for ssh. As in git-sync, the variable holds a list separated by `:`; the flag is repeated
    /// instead.
    pub(super) fn keys(&self) -> Vec<PathBuf> {
        let given = &self.args.credentials.ssh_key_file;
        let texts: Vec<&str> = if matches!(self.origins.get("ssh-key-file"), Origin::Variable(_)) {
            given.iter().flat_map(|list| list.split(':')).collect()
        } else {
            given.iter().map(String::as_str).collect()
        };
        texts.into_iter().filter(|text| !text.is_empty()).map(PathBuf::from).collect()
    }
}
