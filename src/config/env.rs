//! Environment variables: which one a flag reads, where a flag's value came from, and warnings about unknown names.
//!
//! A flag wins over `TREESWAP_<NAME>`, that over `GITSYNC_<NAME>` (for flags that git-sync has too), that over the
//! default. One of ours that is empty, as a template may leave it, hides none of git-sync's. An unknown variable with
//! one of these prefixes is a warning, not an error: the kubelet itself sets `TREESWAP_PORT`, `TREESWAP_SERVICE_HOST`
//! and the like if there is a Service called `treeswap`.

use std::collections::BTreeMap;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use super::gitsync::{FLAGS, Lookup, is_text, of_sync, older_names, successor, variable};
use super::origin::{CREDENTIALS, Origin, PASSWORDS, PRIVATE_KEYS};
use super::personality::{Personality, as_git_sync};
use crate::human::nearest;

/// Flags without a variable. `--password` is refused as an argument and has `$TREESWAP_PASSWORD` instead.
const WITHOUT: [&str; 3] = ["password", "help", "version"];

/// Where the value of each flag came from, by the flag's name without dashes.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    flags: BTreeMap<String, Origin>,
    personality: Personality,
}

impl Origins {
    /// The origins of a command's flags; the command must have gone through [`attach`].
    pub fn of(command: &Command, matches: &ArgMatches) -> Self {
        let flags = command.get_arguments().filter_map(|arg| {
            let name = arg.get_long()?.to_owned();
            let origin = match matches.value_source(arg.get_id().as_str())? {
                ValueSource::CommandLine => Origin::Flag,
                ValueSource::EnvVariable => {
                    Origin::Variable(arg.get_env()?.to_str().unwrap_or_default().to_owned())
                }
                _ => Origin::Default,
            };
            Some((name, origin))
        });
        Self { flags: flags.collect(), personality: Personality::Treeswap }
    }

    /// Switches to git-sync's personality; `given` are the origins of the flags on git-sync's command line.
    #[must_use]
    pub fn as_git_sync(mut self, given: impl Iterator<Item = (String, Origin)>) -> Self {
        self.flags.extend(given);
        Self { personality: Personality::GitSync, ..self }
    }

    /// The personality that the program runs with.
    pub fn personality(&self) -> Personality {
        self.personality
    }

    /// Where the value of a flag came from.
    pub fn get(&self, flag: &str) -> &Origin {
        self.flags.get(flag).unwrap_or(&Origin::Default)
    }

    /// The name under which the operator gave a flag, for messages: `--ref`, or `$GITSYNC_REF`.
    pub fn name(&self, flag: &str) -> String {
        let known = of_sync(flag).filter(|_| self.personality == Personality::GitSync);
        self.get(flag).display_name(known.map_or(flag, |known| known.name))
    }
}

/// Gives every flag of a command its variable and the personality's default. clap reads only one variable for each
/// flag: it is git-sync's if that one is set and ours is not, or empty. As git-sync it is always ours, because
/// [`super::gitsync`] reads git-sync's variables. A flag that shows no default gets no variable while ours is empty:
/// the parser of a path or a number would refuse that. Where a default is shown, empty text may have a meaning.
pub fn attach(command: Command, personality: Personality, lookup: Lookup<'_>) -> Command {
    let command = match personality {
        Personality::Treeswap => command,
        Personality::GitSync => as_git_sync(command),
    };
    // As in git-sync, the last one of a repeated flag counts.
    command.args_override_self(true).mut_args(|arg| match arg.get_long() {
        Some(flag) if !WITHOUT.contains(&flag) => {
            let (ours, theirs) = variables(flag);
            let has_ours = is_text(lookup, &ours);
            let is_empty = !has_ours && lookup(&ours).is_some();
            let shows_default = !arg.get_default_values().is_empty() && !arg.is_hide_default_value_set();
            let reads_theirs = personality == Personality::Treeswap && !has_ours;
            let name = match theirs.filter(|theirs| reads_theirs && lookup(theirs).is_some()) {
                Some(theirs) => theirs,
                None if is_empty && !shows_default => return arg,
                None => ours,
            };
            // clap wants a static name; about fifty are leaked once per process.
            let name: &'static str = name.leak();
            arg.env(name).hide_env_values(true)
        }
        _ => arg,
    })
}

/// The names of a flag's variables: ours, and git-sync's if git-sync has the flag.
fn variables(flag: &str) -> (String, Option<String>) {
    let theirs = of_sync(flag).and_then(super::gitsync::Flag::variable);
    (variable("TREESWAP", flag), theirs)
}

/// What to do instead of using a flag of git-sync, v3's included, that `sync` does not have.
pub fn instead_of_flag(flag: &str) -> Option<String> {
    match flag {
        "man" => Some("run `treeswap man`".to_owned()),
        "ssh" => Some("leave it out".to_owned()),
        _ => successor(flag).map(|successor| format!("use --{successor}")),
    }
}

/// Variables of git that are read only as git-sync, and what to use instead; of several that belong together, one. The
/// last member tells whether the program of `--git` obeys it.
const GIT_VARIABLES: [(&str, &str, bool); 4] = [
    ("GIT_CONFIG_COUNT", "--git-config", false),
    ("GIT_SSL_CAINFO", "--ca-file", true),
    ("GIT_SSL_NO_VERIFY", "--git-config=http.sslVerify:false", true),
    ("GIT_SSH_COMMAND", "--ssh-key-file and --ssh-known-hosts-file", true),
];

/// The warning about a variable of git that has no effect.
fn without_effect(name: &str, command: &Command, origins: &Origins) -> Option<String> {
    let (_, instead, by_git) = GIT_VARIABLES.into_iter().find(|(known, ..)| *known == name)?;
    let reads_remote = command.get_arguments().any(|arg| arg.get_long() == Some("git-config"));
    let obeyed = by_git && *origins.get("git") != Origin::Default;
    (reads_remote && !obeyed && origins.personality() == Personality::Treeswap)
        .then(|| format!("the variable {name} has an effect only as git-sync: use {instead}"))
}

/// What to use instead of the variable of git-sync whose name ends like this, if its flag is one of those that we do
/// not have.
fn instead_of(rest: &str) -> Option<String> {
    let flag = rest.to_lowercase().replace('_', "-");
    // Variables of v3 that are not called like their flags.
    let flag = match flag.as_str() {
        "hook-command" => "sync-hook-command",
        "permissions" => "change-permissions",
        flag => flag,
    };
    instead_of_flag(flag)
}

/// Variables that hooks, `pin` and `watch` set for what they run, which may be this program, and one that every command
/// reads.
const OWN_VARIABLES: [&str; 7] = [
    "GITSYNC_HASH",
    "TREESWAP_DIR",
    "TREESWAP_GENERATION",
    "TREESWAP_LOG_FORMAT",
    "TREESWAP_PROCESS",
    "TREESWAP_REVISION",
    "TREESWAP_REVISIONS",
];

/// One warning for each variable in `set` that is not read although it has one of our prefixes, or git-sync reads it.
pub fn warnings(command: &Command, origins: &Origins, set: impl Iterator<Item = String>) -> Vec<String> {
    let personality = origins.personality();
    let secrets = PASSWORDS.into_iter().chain(PRIVATE_KEYS).chain(CREDENTIALS);
    let mut known: Vec<String> = secrets.chain(OWN_VARIABLES).map(str::to_owned).collect();
    if personality == Personality::GitSync {
        known.extend(older_names().map(str::to_owned));
    }
    // Only `sync` and what is like it went through `attach`: the flags of other commands have no variables.
    let reads_none = command.get_arguments().all(|arg| arg.get_env().is_none());
    let flags = command.get_arguments().filter_map(clap::Arg::get_long);
    for flag in flags.filter(|flag| !reads_none && !WITHOUT.contains(flag)) {
        let (ours, theirs) = variables(flag);
        known.push(ours);
        known.extend(theirs);
    }
    let set: Vec<String> = set.collect();
    set.iter()
        .filter(|name| !known.contains(name) && !is_service_link(name, &set))
        .filter_map(|name| {
            let elsewhere = if reads_none { of_other_commands(name, command) } else { None };
            elsewhere
                .or_else(|| without_reader(name, &known))
                .or_else(|| without_effect(name, command, origins))
        })
        .collect()
}

/// The warning about a variable of git-sync's or ours, to a command whose flags have no variables.
fn of_other_commands(name: &str, command: &Command) -> Option<String> {
    let flag = match FLAGS.iter().find(|flag| flag.older.contains(&name)) {
        Some(flag) => flag.here().to_owned(),
        None => {
            let rest = name.strip_prefix("TREESWAP_").or_else(|| name.strip_prefix("GITSYNC_"))?;
            rest.to_lowercase().replace('_', "-")
        }
    };
    let has = |flag: &str| command.get_arguments().any(|arg| arg.get_long() == Some(flag));
    // The flag itself first: `timeout` is an old flag of git-sync's, and one of `apply`.
    let here = [Some(flag.as_str()), successor(&flag)].into_iter().flatten().find(|flag| has(flag));
    let instead = here.map(|flag| format!("; write --{flag}")).unwrap_or_default();
    let command = command.get_name();
    Some(format!(
        "the variable {name} has no effect: the flags of `treeswap {command}` have no variables{instead}"
    ))
}

/// The warning about a variable with one of the prefixes that is not among the `known`: a name of git-sync's that we do
/// not have, or one that nobody has.
fn without_reader(name: &str, known: &[String]) -> Option<String> {
    let unknown = |prefix: &str, rest: &str| {
        let near = nearest(rest, known.iter().filter_map(|known| known.strip_prefix(prefix)));
        let meant = near.map(|near| format!("; did you mean {prefix}{near}?")).unwrap_or_default();
        format!("the variable {name} is unknown and has no effect{meant}")
    };
    if let Some(rest) = name.strip_prefix("TREESWAP_") {
        return Some(unknown("TREESWAP_", rest));
    }
    if let Some(rest) = name.strip_prefix("GITSYNC_") {
        return Some(match instead_of(rest) {
            Some(instead) => format!("the variable {name} is git-sync's and has no effect here: {instead}"),
            None => unknown("GITSYNC_", rest),
        });
    }
    let rest = name.strip_prefix("GIT_SYNC_");
    let renamed = rest.map(|rest| format!("GITSYNC_{rest}"));
    // Some have no prefix, and some another name than their flag: GIT_KNOWN_HOSTS is --ssh-known-hosts.
    let flag = FLAGS.iter().find(|flag| flag.older.contains(&name));
    let of_flag = flag.and_then(super::gitsync::Flag::variable);
    let is_v3s = of_flag.is_some() || older_names().any(|older| older == name);
    let instead = match rest.and_then(instead_of) {
        Some(instead) => format!(": {instead}"),
        None => match of_flag.or(renamed).filter(|newer| known.contains(newer)) {
            Some(newer) => format!(": use {newer}"),
            None if is_v3s => String::new(),
            None => return rest.map(|rest| unknown("GITSYNC_", rest)),
        },
    };
    Some(format!("the variable {name} is git-sync v3's and has no effect{instead}"))
}

/// Whether the kubelet sets this variable for a Service called `treeswap`, `gitsync` or `git-sync`, or like one of them
/// with more behind a dash (kubelet/envvars). `set` are all variables that are set: the kubelet sets a host for each
/// Service, so a port without it, such as `TREESWAP_HTTP_PORT`, is somebody's mistake.
fn is_service_link(name: &str, set: &[String]) -> bool {
    let services = set.iter().filter_map(|other| other.strip_suffix("SERVICE_HOST"));
    let mut tails = services.filter_map(|service| name.strip_prefix(service));
    tails.any(|tail| tail == "PORT" || tail.starts_with("PORT_") || tail.starts_with("SERVICE_"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn command() -> Command {
        let bare = <super::super::Args as clap::Args>::augment_args(Command::new("test"));
        attach(bare, Personality::Treeswap, &|_| None)
    }

    #[test]
    fn no_flag_reads_a_variable_that_a_kubelet_sets() {
        let may_be_link = |name: &str| name.contains("_SERVICE_") || format!("{name}_").contains("_PORT_");
        for flag in command().get_arguments().filter_map(clap::Arg::get_long) {
            let (ours, theirs) = variables(flag);
            for name in [Some(ours), theirs].into_iter().flatten() {
                assert!(!may_be_link(&name), "{name}");
            }
        }
        assert!(!older_names().any(may_be_link));
        let hosts = ["TREESWAP_SERVICE_HOST", "TREESWAP_A_SERVICE_HOST", "GITSYNC_SERVICE_HOST"];
        let hosts = hosts.map(str::to_owned);
        for name in [
            "TREESWAP_A_SERVICE_HOST",
            "TREESWAP_A_SERVICE_PORT_METRICS",
            "TREESWAP_PORT_9375_TCP_PROTO",
            "TREESWAP_A_PORT_53_UDP",
            "GITSYNC_PORT",
        ] {
            assert!(is_service_link(name, &hosts), "{name}");
        }
        for name in ["TREESWAP_REPORT", "TREESWAP_PORTS", "TREESWAP_HTTP_PORT", "GIT_SYNC_PORT"] {
            assert!(!is_service_link(name, &hosts), "{name}: its Service has no host");
        }
    }

    #[test]
    fn unknown_variables_are_named_and_service_links_are_not() {
        let set = [
            "TREESWAP_REPO",
            "TREESWAP_PASSWORD",
            "TREESWAP_GRACE",
            "GITSYNC_STALE_WORKTREE_TIMEOUT",
            "GITSYNC_REF",
            "TREESWAP_REPOSITORY",
            "TREESWAP_REVISION",
            "GITSYNC_HASH",
            "GITSYNC_NOTHING_SUCH",
            "GIT_SYNC_BRANCH",
            "TREESWAP_PORT",
            "TREESWAP_SERVICE_HOST",
            "TREESWAP_SERVICE_PORT_HTTP",
            "TREESWAP_PORT_9375_TCP_ADDR",
            "TREESWAP_ADMIN_SERVICE_HOST",
            "TREESWAP_ADMIN_SERVICE_PORT",
            "TREESWAP_ADMIN_PORT_9375_TCP",
            "HOME",
        ];
        let set = set.iter().map(|name| (*name).to_owned());
        let said = warnings(&command(), &Origins::default(), set);
        assert_eq!(said.len(), 3, "{said:#?}");
        assert!(said[0].contains("TREESWAP_REPOSITORY") && said[1].contains("GITSYNC_NOTHING_SUCH"));
        assert!(
            said[2].ends_with("and has no effect: use --ref"),
            "not a variable that is refused in turn: {said:#?}"
        );
        let v3 = |name: &str| {
            let said = warnings(&command(), &Origins::default(), std::iter::once(name.to_owned()));
            said[0].rsplit("has no effect").next().unwrap().to_owned()
        };
        assert_eq!(v3("GIT_SYNC_WAIT"), ": use --period");
        assert_eq!(v3("GIT_SYNC_HOOK_COMMAND"), ": use --exechook-command");
        assert_eq!(v3("GIT_SYNC_REPO"), ": use GITSYNC_REPO");
        assert_eq!(v3("GIT_SYNC_NOTHING_SUCH"), "");
        assert_eq!(v3("GIT_SYNC_KNOWN_HOSTS"), ": use GITSYNC_SSH_KNOWN_HOSTS");
        for (name, newer) in [
            ("GIT_SSH_KEY_FILE", "SSH_KEY_FILE"),
            ("GIT_KNOWN_HOSTS", "SSH_KNOWN_HOSTS"),
            ("GIT_SSH_KNOWN_HOSTS_FILE", "SSH_KNOWN_HOSTS_FILE"),
            ("GIT_ASKPASS_URL", "ASKPASS_URL"),
            ("GIT_COOKIE_FILE", "COOKIE_FILE"),
        ] {
            assert_eq!(v3(name), format!(": use GITSYNC_{newer}"));
        }
        assert!(warnings(&command(), &Origins::default(), ["GIT_DIR".to_owned()].into_iter()).is_empty());
        let as_git_sync = Origins::default().as_git_sync([].into_iter());
        let read = older_names().map(str::to_owned);
        assert_eq!(warnings(&command(), &as_git_sync, read), [""; 0], "git-sync reads them");
        assert_eq!(v3("TREESWAP_REEF"), "; did you mean TREESWAP_REF?");
    }

    #[test]
    fn a_misspelt_variable_of_git_sync_is_not_called_git_syncs_own() {
        let said = |command: &Command, name: &str| {
            warnings(command, &Origins::default(), std::iter::once(name.to_owned())).concat()
        };
        for (name, meant) in [("GITSYNC_REFF", "GITSYNC_REF"), ("GIT_SYNC_REPOO", "GITSYNC_REPO")] {
            let line = format!("the variable {name} is unknown and has no effect; did you mean {meant}?");
            assert_eq!(said(&command(), name), line);
        }
        assert!(said(&command(), "GIT_SYNC_KNOWN_HOSTS").contains("is git-sync v3's and has no effect"));
    }

    #[test]
    fn a_command_whose_flags_have_no_variables_names_the_flag_to_write() {
        let flags = ["repo", "ref", "timeout"].map(|flag| clap::Arg::new(flag).long(flag));
        let apply = Command::new("apply").args(flags);
        let set = [
            "TREESWAP_REPO",
            "GITSYNC_REPO",
            "GITSYNC_BRANCH",
            "TREESWAP_TIMEOUT",
            "TREESWAP_GRACE",
            "TREESWAP_PASSWORD",
            "GIT_SYNC_REPO",
            "GIT_COOKIE_FILE",
        ];
        let said = warnings(&apply, &Origins::default(), set.into_iter().map(str::to_owned));
        let none = "has no effect: the flags of `treeswap apply` have no variables";
        assert_eq!(
            said,
            [
                format!("the variable TREESWAP_REPO {none}; write --repo"),
                format!("the variable GITSYNC_REPO {none}; write --repo"),
                format!("the variable GITSYNC_BRANCH {none}; write --ref"),
                format!("the variable TREESWAP_TIMEOUT {none}; write --timeout"),
                format!("the variable TREESWAP_GRACE {none}"),
                format!("the variable GIT_SYNC_REPO {none}; write --repo"),
                format!("the variable GIT_COOKIE_FILE {none}"),
            ]
        );
    }

    #[test]
    fn variables_of_git_that_only_git_sync_reads_are_named_with_the_flag_to_use() {
        let said = |origins: &Origins| {
            let set =
                ["GIT_CONFIG_COUNT", "GIT_CONFIG_KEY_0", "GIT_SSL_CAINFO", "GIT_SSL_NO_VERIFY", "GIT_DIR"];
            let set = set.into_iter().chain(["GIT_SSH_COMMAND"]).map(str::to_owned);
            warnings(&command(), origins, set)
        };
        let all = said(&Origins::default());
        let flags = ["--git-config", "--ca-file", "--git-config=http.sslVerify:false", "--ssh-key-file and"];
        assert_eq!(all.len(), 4, "{all:#?}");
        for ((line, flag), (name, ..)) in all.iter().zip(flags).zip(GIT_VARIABLES) {
            assert!(line.contains(name) && line.contains(&format!("use {flag}")), "{line}");
        }
        let by_git = [("git".to_owned(), Origin::Flag)].into();
        assert_eq!(
            said(&Origins { flags: by_git, ..Origins::default() }),
            all[..1],
            "git itself reads the others"
        );
        assert!(said(&Origins::default().as_git_sync([].into_iter())).is_empty());
        let none = warnings(
            &Command::new("status"),
            &Origins::default(),
            ["GIT_SSH_COMMAND".to_owned()].into_iter(),
        );
        assert!(none.is_empty());
    }

    #[test]
    fn our_variable_wins_over_git_syncs_unless_it_is_empty() {
        let (ours, theirs) = ("TREESWAP_GRACE", "GITSYNC_STALE_WORKTREE_TIMEOUT");
        for (set, name) in [
            (&[(theirs, "1s")][..], theirs),
            (&[], ours),
            (&[(theirs, "1s"), (ours, "2s")], ours),
            (&[(theirs, "1s"), (ours, "")], theirs),
            (&[(theirs, ""), (ours, "")], theirs),
            (&[(ours, "")], ours),
        ] {
            assert_eq!(read_by("grace", set).as_deref(), Some(name), "{set:?}");
        }
    }

    /// The variable that a flag is read from while these are set.
    fn read_by(flag: &str, set: &[(&str, &str)]) -> Option<String> {
        let value =
            |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value));
        let bare = <super::super::Args as clap::Args>::augment_args(Command::new("test"));
        let command = attach(bare, Personality::Treeswap, &value);
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag)).unwrap();
        Some(arg.get_env()?.to_str().unwrap().to_owned())
    }

    #[test]
    fn an_empty_variable_of_a_flag_without_a_default_is_as_none() {
        let name = "TREESWAP_WEBHOOK_SECRET_FILE";
        assert_eq!(read_by("webhook-secret-file", &[(name, "")]), None);
        assert_eq!(read_by("webhook-secret-file", &[(name, "/f")]).as_deref(), Some(name));
        let id = "TREESWAP_GITHUB_APP_APPLICATION_ID";
        assert_eq!(read_by("github-app-application-id", &[(id, "")]), None, "its default is not shown");
        let signal = "TREESWAP_SYNC_ON_SIGNAL";
        assert_eq!(read_by("sync-on-signal", &[(signal, "")]).as_deref(), Some(signal), "empty is for none");
        // It is known all the same.
        let lookup = |_: &str| Some(OsString::new());
        let bare = <super::super::Args as clap::Args>::augment_args(Command::new("test"));
        let command = attach(bare, Personality::Treeswap, &lookup);
        assert!(warnings(&command, &Origins::default(), [name.to_owned()].into_iter()).is_empty());
    }
}
