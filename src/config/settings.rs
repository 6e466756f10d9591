//! The valid side: every module's own options, with nothing left to interpret.

use std::num::NonZero;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::args::{self, Args};
use super::check::{Check, holds_password};
use super::credentials;
use super::env::Origins;
use super::error::Error;
use super::git_config;
use super::origin::{Hidden, Origin};
use super::personality::Personality;
use super::values::{self, path};
use crate::mirror::wire;
use crate::payload::{Limits, Symlinks};
use crate::phase::machine::{Patience, Timing};
use crate::revision::Ref;
use crate::sandbox::Sandbox;
use crate::sources::SetOptions;
use crate::store::OwnFile;
use crate::{admin, hooks, mirror, retention, retry, store, sync, telemetry};

/// git-sync's floor for its pauses; below it a period is a typing error.
const SHORTEST: Duration = Duration::from_millis(10);

/// The longest pause after failures, unless a flag says otherwise.
const LONGEST_BACKOFF: Duration = Duration::from_secs(300);

/// The same until the first success: an application waits for it.
const LONGEST_INIT_BACKOFF: Duration = Duration::from_secs(30);

/// The first pause after a failure is no longer than this, however long the period is.
const FIRST_BACKOFF: Duration = Duration::from_secs(10);

/// The values of `--submodules`. They are not clap's, for git-sync reports a wrong one in its turn.
pub(super) const SUBMODULES: [(&str, mirror::Submodules); 3] = [
    ("recursive", mirror::Submodules::Recursive),
    ("shallow", mirror::Submodules::First),
    ("off", mirror::Submodules::Off),
];

/// The values of `--git-gc`.
pub(super) const GIT_GC: [(&str, mirror::Gc); 4] = [
    ("auto", mirror::Gc::Auto),
    ("always", mirror::Gc::Always),
    ("aggressive", mirror::Gc::Aggressive),
    ("off", mirror::Gc::Off),
];

/// The values of `--sandbox`.
pub(super) const SANDBOX: [(&str, Sandbox); 3] =
    [("auto", Sandbox::Auto), ("require", Sandbox::Require), ("off", Sandbox::Off)];

/// Everything `sync` runs with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The mirror and the way to the remote; of several sources, what their mirrors have in common.
    pub mirror: mirror::Options,
    /// Several sources in place of one remote.
    pub sources: Option<SetOptions>,
    /// The root.
    pub store: store::Options,
    /// How long to wait for the root's lock.
    pub lock_wait: Duration,
    /// The loop.
    pub sync: sync::Options,
    /// Hooks.
    pub hooks: hooks::Options,
    /// The signal that asks for an attempt.
    pub signal: Option<i32>,
    /// What a webhook or a signal asks for begins within this time.
    pub trigger_spread: Duration,
    /// The listener, if there is to be one.
    pub admin: Option<admin::Options>,
    /// Whether the listener shows metrics.
    pub metrics: bool,
    /// Whether git-sync's are among them.
    pub git_sync_metrics: bool,
    /// Log format and level.
    pub telemetry: telemetry::Options,
    /// Where the error that ends the process goes.
    pub termination_log: Option<PathBuf>,
    /// Whether /etc/passwd is to name the user we run as.
    pub add_user: bool,
    /// What was given and has no effect, a line each.
    pub remarks: Vec<String>,
}

impl Settings {
    /// Checks everything that can be checked without touching anything; of several faults the one that git-sync would
    /// name is named first.
    pub fn new(args: &Args, origins: &Origins, hidden: &Hidden) -> Result<Self, Error> {
        let check = Check { args, origins };
        let root = check.root()?;
        let asked = check.asked()?;
        let depth = check.depth()?;
        let submodules = check.submodules()?;
        let gc = check.gc()?;
        let pace = check.pace()?;
        let signal = check.value("sync-on-signal", &args.pace.sync_on_signal, values::signal)?;
        let sync_timeout = check.at_least("sync-timeout", args.pace.sync_timeout, SHORTEST)?;
        let hooks = check.hooks()?;
        let mut credentials = credentials::named(args, origins, hidden.password.as_ref())?;
        let issuance = check.issuance(hidden)?;
        credentials.extend(credentials::listed(args, origins)?);
        let admin = check.admin(pace.period)?;
        let (entries, git) = check.git_config(hidden)?;
        let is_set = check.is_set()?;
        let style = check.style(&root)?;
        let wire = check.wire(credentials, sync_timeout, hidden, &git)?;
        if !is_set {
            check.remote(&wire)?;
        }
        let wire = wire::Options { issuance, program: check.program(entries), ..wire };
        let mirror_dir = match (args.root.mirror.as_str(), &style) {
            ("", store::Style::Kubelet) => root.join("..treeswap/mirror"),
            ("", store::Style::GitSync { .. }) => root.join(".git"),
            (dir, style) => check.mirror_dir(dir, &root, style)?,
        };
        let termination_log = match args.logging.termination_log.as_str() {
            "" => None,
            text if *origins.get("termination-log") == Origin::Default => Some(PathBuf::from(text)),
            text => Some(check.outside("termination-log", text, &root, &style)?),
        };
        let mirror = mirror::Options {
            others: match style {
                store::Style::Kubelet => vec![mirror_dir.clone(), check.dir_of_mirrors(&mirror_dir)],
                store::Style::GitSync { .. } => Vec::new(),
            },
            worktrees: style != store::Style::Kubelet,
            gc,
            depth,
            modules: mirror::Access {
                asked: submodules,
                // git-sync's users name hosts in `.gitmodules` and nowhere else.
                hosts: match origins.personality() {
                    Personality::GitSync => mirror::Hosts::Any,
                    Personality::Treeswap => mirror::Hosts::Known(Vec::new()),
                },
                local: git.local_submodules,
                limits: check.limits()?,
            },
            filter: (!args.source.filter.is_empty()).then(|| args.source.filter.clone()),
            index_memory: check.ceiling("index-memory", args.limits.index_memory)?,
            sandbox: check.one_of("sandbox", &args.limits.sandbox, &SANDBOX)?,
            max_bytes: check.ceiling("max-mirror-bytes", args.limits.max_mirror_bytes)?,
            durable: args.root.durability != "none",
            verify: args.limits.verify,
            ..mirror::Options::new(mirror_dir, asked.clone(), wire)
        };
        let set = is_set.then(|| check.set(&mirror, pace, sync_timeout, hidden)).transpose()?;
        Ok(Self {
            mirror,
            sources: set,
            sync: check.sync(&root, &style, &asked, pace, sync_timeout)?,
            store: check.store(root, style)?,
            lock_wait: args.root.lock_wait,
            hooks,
            signal,
            trigger_spread: args.pace.trigger_spread,
            admin,
            metrics: args.server.http_metrics,
            git_sync_metrics: origins.personality() == Personality::GitSync,
            telemetry: check.telemetry()?,
            termination_log,
            add_user: args.credentials.add_user,
            remarks: check.remarks(&git, hidden),
        })
    }
}

/// Relative paths are taken from the working directory once, at start.
pub(super) fn absolute(text: &str) -> PathBuf {
    // It only fails for an empty path and for a working directory that is gone; the first use names it then.
    std::path::absolute(text).unwrap_or_else(|_| PathBuf::from(text))
}

/// The link of git-sync's layout: as in git-sync, where none is given, the last part of the URL as it is written.
pub fn link_name<'t>(given: &'t str, repo: &'t str) -> &'t str {
    let last = repo.trim_matches('/').rsplit('/').next().unwrap_or_default();
    if given.is_empty() { last } else { given }
}

/// Without `.` and `..`, by the text alone, as git-sync has it.
fn cleaned(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut clean, part| {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            part => clean.push(part),
        }
        clean
    })
}

impl Check<'_> {
    fn root(&self) -> Result<PathBuf, Error> {
        let text = &self.args.root.root;
        if text.is_empty() { Err(self.wrong("root", text, "it is empty")) } else { Ok(absolute(text)) }
    }

    fn depth(&self) -> Result<mirror::Depth, Error> {
        Ok(match self.count("depth", self.args.source.depth, 0)? {
            0 => mirror::Depth::Full,
            commits => mirror::Depth::Commits(commits),
        })
    }

    fn asked(&self) -> Result<Ref, Error> {
        let text = &self.args.source.asked;
        text.parse().map_err(|error: crate::revision::BadRef| self.wrong("ref", text, error.why()))
    }

    fn submodules(&self) -> Result<mirror::Submodules, Error> {
        self.one_of("submodules", &self.args.source.submodules, &SUBMODULES)
    }

    /// Ceilings on a revision's content.
    fn limits(&self) -> Result<Limits, Error> {
        let limits = &self.args.limits;
        Ok(Limits {
            entries: self.count("max-tree-entries", limits.max_tree_entries, 1)?.into(),
            bytes: self.ceiling("max-tree-bytes", limits.max_tree_bytes)?,
            file_bytes: self.ceiling("max-file-bytes", limits.max_file_bytes)?,
            depth: self.count("max-path-depth", limits.max_path_depth, 1)?,
            ..Limits::default()
        })
    }

    fn gc(&self) -> Result<mirror::Gc, Error> {
        self.one_of("git-gc", &self.args.git.git_gc, &GIT_GC)
    }

    /// The program of `--git`, with all of git's settings: it understands each of them.
    fn program(&self, entries: Vec<git_config::Entry>) -> Option<wire::Program> {
        let config = entries.into_iter().map(|entry| (entry.key, entry.value)).collect();
        let program = |path| wire::Program { path, config, mirror: PathBuf::new() };
        path(&self.args.git.git).map(program)
    }

    /// git's settings, the flags' and then what git's own variables say, and what they come to.
    pub(super) fn git_config(
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

    /// What has no effect. Never a value: it may be a secret.
    fn remarks(&self, git: &git_config::Effect, hidden: &Hidden) -> Vec<String> {
        let settings = git.remarks(!self.args.git.git.is_empty());
        let ssh = hidden.ssh_command.as_deref().map(git_config::ssh_command).unwrap_or_default();
        let trusting = match (self.args.credentials.ssh_known_hosts, ssh.trusting) {
            (true, false) => None,
            (true, true) => Some("$GIT_SSH_COMMAND's StrictHostKeyChecking".to_owned()),
            (false, _) => Some(self.origins.name("ssh-known-hosts")),
        };
        let trusting = trusting.map(|why| format!("ssh host keys go unchecked ({why})"));
        let ssh = (!ssh.unused.is_empty()).then(|| {
            format!("of $GIT_SSH_COMMAND only -i and -o are understood, not {}", ssh.unused.join(" "))
        });
        let unchecked = git.unverified.then(|| "TLS certificates go unchecked (http.sslVerify)".to_owned());
        let visible = *self.origins.get("repo") == Origin::Flag && holds_password(&self.args.source.repo);
        let visible = visible.then(|| {
            "the password in --repo's URL can be read by every process of the machine: give it by --password-file, or \
             in $TREESWAP_PASSWORD"
                .to_owned()
        });
        settings.chain(ssh).chain(unchecked).chain(trusting).chain(visible).collect()
    }

    fn style(&self, root: &Path) -> Result<store::Style, Error> {
        let Args { root: given, source, .. } = self.args;
        if given.layout != "git-sync" {
            if !given.link.is_empty() {
                let one = self.origins.name("link");
                return Err(Error::Needs { one, other: "--layout=git-sync".into() });
            }
            return Ok(store::Style::Kubelet);
        }
        let link = link_name(&given.link, &source.repo);
        match cleaned(&root.join(link)) {
            clean if link.is_empty() || clean == root || root.starts_with(&clean) => {
                Err(self.wrong("link", link, "it is the name of a link in the root, or an absolute path"))
            }
            clean => Ok(store::Style::GitSync { link: clean }),
        }
    }

    pub(super) fn wire(
        &self,
        credentials: Vec<wire::Credential>,
        sync_timeout: Duration,
        hidden: &Hidden,
        git: &git_config::Effect,
    ) -> Result<wire::Options, Error> {
        let Args { credentials: given, limits, .. } = self.args;
        let mut wire = wire::Options::new(git.remote.clone());
        wire.credentials = credentials;
        let ssh = hidden.ssh_command.as_deref().map(git_config::ssh_command).unwrap_or_default();
        let known_hosts = ssh.known_hosts.unwrap_or_else(|| PathBuf::from(&given.ssh_known_hosts_file));
        wire.ssh = wire::ssh::Options {
            keys: ssh.keys.into_iter().chain(self.keys()).collect(),
            known_hosts: if given.ssh_known_hosts && !ssh.trusting {
                wire::ssh::KnownHosts::Strict(known_hosts)
            } else {
                wire::ssh::KnownHosts::Off
            },
        };
        wire.cookie_file = self.cookie_file().or_else(|| git.cookie_file.clone());
        wire.ca_file = path(&given.ca_file).or_else(|| git.ca_file.clone());
        wire.unverified = git.unverified;
        wire.headers = git.headers.clone();
        wire.proxy = git.proxy.clone();
        wire.timeouts = wire::Timeouts {
            connect: self.at_least("connect-timeout", limits.connect_timeout, SHORTEST)?,
            idle: self.at_least("idle-timeout", limits.idle_timeout, SHORTEST)?,
            overall: sync_timeout,
        };
        wire.max_refs_bytes = self.ceiling("max-refs-bytes", limits.max_refs_bytes)?;
        wire.max_fetch_bytes = self.ceiling("max-fetch-bytes", limits.max_fetch_bytes)?;
        Ok(wire)
    }

    /// Whether the remote's form is understood.
    fn remote(&self, wire: &wire::Options) -> Result<(), Error> {
        let refused = |error| Error::Remote { name: self.origins.name("repo"), source: Box::new(error) };
        wire::Client::new(wire.clone()).map_err(refused)?; // reads the forms, opens nothing
        Ok(())
    }

    /// As in git-sync, the variable holds a list, and the flag, which may be repeated, does not.
    fn keys(&self) -> Vec<PathBuf> {
        let given = self.args.credentials.ssh_key_file.iter();
        let separator = match self.origins.get("ssh-key-file") {
            Origin::Variable(_) => ':',
            Origin::Flag | Origin::Default => '\0',
        };
        given
            .flat_map(|text| text.split(separator))
            .filter(|text| !text.is_empty())
            .map(PathBuf::from)
            .collect()
    }

    /// As in git-sync, relative to the root; an absolute path replaces it.
    fn own(
        &self,
        flag: &str,
        text: &str,
        root: &Path,
        style: &store::Style,
    ) -> Result<Option<OwnFile>, Error> {
        let file = path(text).map(|path| OwnFile::new(root, style, &path)).transpose();
        file.map_err(|why| self.misplaced(flag, text, why, style))
    }

    fn misplaced(&self, flag: &str, text: &str, why: String, style: &store::Style) -> Error {
        let hint = match style {
            store::Style::Kubelet => "name a path outside of the root, or one in it that begins with \"..\"",
            store::Style::GitSync { .. } => {
                "name a path outside of the root, or one in it beside the link, .git and .worktrees"
            }
        };
        Error::Place { name: self.origins.name(flag), value: text.to_owned(), why, hint }
    }

    /// A path that is opened by name leads through nothing that a commit can shape, by its text and by what it resolves
    /// to.
    fn place(
        &self,
        flag: &str,
        text: &str,
        root: &Path,
        style: &store::Style,
        made_for: &[&str],
    ) -> Result<PathBuf, Error> {
        let path = absolute(text);
        store::check_place(root, style, &path)
            .and_then(|()| store::check_resolved(root, &path, style, made_for))
            .map(|()| path)
            .map_err(|why| self.misplaced(flag, text, why, style))
    }

    /// The same for a file that is never written in the root.
    fn outside(&self, flag: &str, text: &str, root: &Path, style: &store::Style) -> Result<PathBuf, Error> {
        let hint = "name a path outside of the root";
        store::check_outside(root, &absolute(text)).map_err(|why| Error::Place {
            name: self.origins.name(flag),
            value: text.to_owned(),
            why,
            hint,
        })?;
        self.place(flag, text, root, style, &[])
    }

    /// The places in the root that are made for a mirror are ours anyway.
    fn mirror_dir(&self, text: &str, root: &Path, style: &store::Style) -> Result<PathBuf, Error> {
        let dir = absolute(text);
        let made_for_it = |place| cleaned(&dir).starts_with(root.join(place));
        // With rules and without a root the mirror's directory is the root, which is not opened.
        if [".git", "..treeswap"].into_iter().any(made_for_it) || dir == root {
            Ok(dir)
        } else {
            self.place("mirror", text, root, style, &[".git", "..treeswap"])
        }
    }

    fn store(&self, root: PathBuf, style: store::Style) -> Result<store::Options, Error> {
        let Args { root: given, retention, logging, .. } = self.args;
        let in_root = |text: &String| {
            let path = path(text).map(|path| cleaned(&root.join(path)))?;
            Some(path.strip_prefix(&root).ok()?.components().next()?.as_os_str().to_owned())
        };
        let own = [&given.touch_file, &logging.error_file, &given.mirror].into_iter().filter_map(in_root);
        let own = own.collect();
        Ok(store::Options {
            root,
            style,
            own,
            durability: match given.durability.as_str() {
                "none" => store::Durability::None,
                _ => store::Durability::Syncfs,
            },
            spare: match given.spare.as_str() {
                "off" => store::Spare::Off,
                "link" => store::Spare::Link,
                "copy" => store::Spare::Copy,
                // What a gate looks at may stay open there.
                _ if self.args.hooks.pre_publish_gate => store::Spare::Copy,
                _ => store::Spare::Recycle,
            },
            group_write: given.group_write,
            // Beyond eight threads the file system's own locks are what they wait for.
            writers: std::thread::available_parallelism().map_or(2, NonZero::get).clamp(2, 8),
            retention: retention::Options {
                grace: retention.grace,
                max_pin: retention.max_pin,
                max_generations: self.count("max-generations", retention.max_generations, 1)?,
                max_bytes: (retention.max_bytes != 0).then_some(retention.max_bytes),
            },
        })
    }

    fn sync(
        &self,
        root: &Path,
        style: &store::Style,
        asked: &Ref,
        pace: Timing,
        sync_timeout: Duration,
    ) -> Result<sync::Options, Error> {
        let Args { source, root: given, pace: args::PaceArgs { one_time, .. }, logging, .. } = self.args;
        Ok(sync::Options {
            asked: match source.sources.as_str() {
                "" => asked.to_string(),
                _ => "its sources".to_owned(),
            },
            root: root.to_owned(),
            limits: self.limits()?,
            symlinks: match given.symlinks.as_str() {
                "keep" => Symlinks::Keep,
                _ => Symlinks::Safe,
            },
            path: self.subdirectory(style)?,
            sparse_file: path(&source.sparse_checkout_file),
            group_write: given.group_write,
            spare: given.spare != "off" && !one_time,
            pace,
            patience: self.patience()?,
            sync_timeout,
            one_time: *one_time,
            // As in git-sync. (treeswap goes on looking whether its root is as it should be.)
            park: self.origins.personality() == Personality::GitSync && matches!(asked, Ref::Commit(_)),
            every_failure: self.origins.personality() == Personality::GitSync,
            touch_file: self.own("touch-file", &given.touch_file, root, style)?,
            error_file: self.own("error-file", &logging.error_file, root, style)?,
        })
    }

    /// The directory that is published. git knows no worktree of a directory, nor submodules of one.
    fn subdirectory(&self, style: &store::Style) -> Result<Option<mirror::Subdirectory>, Error> {
        let args::Source { path, submodules, .. } = &self.args.source;
        if path.is_empty() {
            return Ok(None);
        }
        let name = |flag| self.origins.name(flag);
        let conflict = |other: String| Err(Error::Conflict { one: name("path"), other });
        if *style != store::Style::Kubelet {
            return conflict(format!("{}=git-sync", name("layout")));
        }
        if submodules != "off" {
            return conflict(format!("{}={submodules}", name("submodules")));
        }
        let found = path.parse().map_err(|why: mirror::NotBelow| Error::Value {
            name: name("path"),
            value: path.clone(),
            why: why.to_string(),
        });
        found.map(Some)
    }

    fn pace(&self) -> Result<Timing, Error> {
        let given = &self.args.pace;
        let period = self.at_least("period", given.period, SHORTEST)?;
        let init_period = match given.init_period {
            Duration::ZERO => period,
            own => self.at_least("init-period", own, SHORTEST)?,
        };
        let backoff = |period: Duration, longest: Duration| {
            let ceiling = match (given.max_backoff, self.origins.personality()) {
                // git-sync's pauses do not grow.
                (Duration::ZERO, Personality::GitSync) => {
                    return retry::Backoff { first: period, ceiling: period };
                }
                (Duration::ZERO, Personality::Treeswap) => longest.min(period.saturating_mul(10)),
                (own, _) => own,
            };
            retry::Backoff { first: period.min(FIRST_BACKOFF).min(ceiling), ceiling }
        };
        Ok(Timing {
            period,
            init_period,
            min_interval: given.min_interval,
            backoff: backoff(period, LONGEST_BACKOFF),
            init_backoff: backoff(init_period, LONGEST_INIT_BACKOFF),
            jitter: given.jitter,
        })
    }

    /// As in git-sync, 0 and 1 both mean the first failure, and a negative number means never.
    fn patience(&self) -> Result<Patience, Error> {
        let given = &self.args.pace;
        let limit = |flag: &str, value: i64| match value {
            ..0 => Ok(None),
            value => self.count(flag, value, 0).map(Some),
        };
        let failures = match given.max_failures {
            Some(value) => limit("max-failures", value)?,
            None => given.one_time.then_some(1),
        };
        let init_failures = match given.init_max_failures {
            Some(value) => limit("init-max-failures", value)?,
            None => failures,
        };
        Ok(Patience { failures, init_failures })
    }

    fn admin(&self, period: Duration) -> Result<Option<admin::Options>, Error> {
        let given = &self.args.server;
        let max_stale = Some(given.max_stale).filter(|max| !max.is_zero());
        if let Some(max) = max_stale.filter(|max| *max < period.saturating_mul(2)) {
            let of = |flag| self.origins.name(flag);
            return Err(Error::Needs {
                one: format!("{}={}", of("max-stale"), values::print_duration(max)),
                other: format!("a {} of at most {}", of("period"), values::print_duration(max / 2)),
            });
        }
        let personality = self.origins.personality();
        if !given.http_bind.is_empty() {
            if !admin::is_address(&given.http_bind) {
                return Err(Error::Value {
                    name: self.origins.name("http-bind"),
                    value: given.http_bind.clone(),
                    why: "write :8080, 127.0.0.1:8080 or [::1]:8080".to_owned(),
                });
            }
            return Ok(Some(admin::Options {
                bind: given.http_bind.clone(),
                webhook_secrets: given.webhook_secret_file.clone(),
                front: match personality {
                    Personality::Treeswap => admin::Front::Treeswap,
                    Personality::GitSync => admin::Front::GitSync { metrics: given.http_metrics },
                },
                pprof: given.http_pprof,
                max_stale,
            }));
        }
        let without =
            |flag: &str| Err(Error::Needs { one: self.origins.name(flag), other: "--http-bind".into() });
        if given.http_metrics && personality == Personality::GitSync {
            return without("http-metrics");
        }
        if given.http_pprof {
            return without("http-pprof");
        }
        if !given.webhook_secret_file.is_empty() {
            return without("webhook-secret-file");
        }
        // A job that publishes once may have the flags of a sidecar beside it.
        if max_stale.is_some() && !self.args.pace.one_time {
            return without("max-stale");
        }
        Ok(None)
    }

    fn telemetry(&self) -> Result<telemetry::Options, Error> {
        let given = &self.args.logging;
        let verbosity = match given.verbose {
            ..=0 => "info",
            // Of other crates no more than usual: what they say of a request may be secret.
            1..=4 => "info,treeswap=debug",
            _ => "info,treeswap=trace",
        };
        let filter = match given.log_level.as_str() {
            "" => std::env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty() && given.verbose <= 0),
            level => Some(level.to_owned()),
        };
        let by_verbosity = filter.is_none().then_some(given.verbose);
        let filter = filter.unwrap_or_else(|| verbosity.to_owned());
        let format = match given.log_format.as_str() {
            "json" => telemetry::Format::Json,
            "plain" => telemetry::Format::Plain,
            "git-sync" => telemetry::Format::GitSync,
            _ => telemetry::Format::Auto,
        };
        telemetry::Options::new(format, &filter)
            .map(|options| options.verbose(by_verbosity))
            .map_err(|why| self.wrong("log-level", filter, why.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Bare {
        #[command(flatten)]
        args: Args,
    }

    fn pace(flags: &[&str]) -> Timing {
        let given = ["treeswap", "--repo=https://git.example.com/x", "--root=/config"].iter().chain(flags);
        let args = Bare::try_parse_from(given).unwrap().args;
        Settings::new(&args, &Origins::default(), &Hidden::default()).unwrap().sync.pace
    }

    #[test]
    fn what_waits_for_a_first_revision_is_asked_again_within_half_a_minute() {
        const S: fn(u64) -> Duration = Duration::from_secs;
        let ceilings = |flags: &[&str]| {
            let pace = pace(flags);
            (pace.init_backoff.ceiling, pace.backoff.ceiling)
        };
        assert_eq!(ceilings(&[]), (S(30), S(100)));
        assert_eq!(ceilings(&["--period=1h"]), (S(30), S(300)));
        assert_eq!(ceilings(&["--period=1s"]), (S(10), S(10)));
        assert_eq!(ceilings(&["--max-backoff=2m"]), (S(120), S(120)), "who says it means it");
    }
}
