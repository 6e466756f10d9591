//! Parses git-sync v4's command line and environment by git-sync's rules, and translates them into flags of `sync`.
//!
//! The rules (observed on v4.7.1): a flag wins over the environment, that over the default. Variables are read before
//! flags: a malformed variable is fatal even if the flag is given, and an empty variable is malformed unless the flag
//! takes text. If several names of one variable are set, the oldest name wins; there is a note for each old name and
//! one for the overridden variable. The first `--ssh-key-file` replaces the variable's value, `--credential` adds to
//! it.
//!
//! treeswap's own flags are accepted in git-sync's notation, and its own variables as `TREESWAP_…`, which win over
//! `GITSYNC_…` as in `sync`.
//!
//! Files: `table` lists the flags; `pflag` splits a command line; `old` translates v3's flags; `refspec` parses
//! `--ref`. All of it is pure.

mod old;
mod pflag;
mod refspec;
mod table;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use clap::Command;

use super::error::Error;
use super::origin::{Hidden, Origin, Variable};
use super::values::{MAX_DURATION, any_duration, print_duration};
use crate::secret::Secret;
use pflag::FlagSpec;

pub(super) use old::successor;
use table::RENAMED;
use table::{DEPRECATED, SPECIAL};
pub use table::{FLAGS, Flag, Kind};
pub(super) use table::{of_sync, older_names, variable};

/// What the command line asks the program to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Sync.
    Run,
    /// `--version`.
    Version,
    /// `--help`.
    Help,
    /// `--man`.
    Manual,
}

/// A flag of `sync` with its value.
#[derive(Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its name in `sync`, without dashes.
    pub flag: String,
    /// Its value.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The value may contain a password, a token or a header.
        f.debug_struct("Setting")
            .field("flag", &self.flag)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// A parsed command line and environment.
#[derive(Debug)]
pub struct Call {
    /// What to do.
    pub action: Action,
    /// All flags that were given, by flag or variable.
    pub settings: Vec<Setting>,
    /// Secrets that only variables can hold.
    pub hidden: Hidden,
    /// Notes about deprecated and overridden names, to be printed before the start.
    pub notes: Vec<String>,
    /// The first error among those that git-sync checks before all others.
    pub first_error: Option<Error>,
}

impl Call {
    /// The last value of a flag of `sync`, if it was given.
    pub fn get(&self, flag: &str) -> Option<&str> {
        self.settings.iter().rev().find(|given| given.flag == flag).map(|given| given.value.as_str())
    }
}

/// Why a command line or an environment cannot be parsed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ParseError {
    /// An argument is malformed. The message is printed with the usage, and once more on stdout; exit code 2.
    #[error("{0}")]
    Arguments(String),
    /// A variable is malformed; exit code 1.
    #[error("{0}")]
    Environment(String),
}

/// A value and its origin.
#[derive(Clone)]
struct SourcedValue {
    value: String,
    origin: Origin,
}

impl fmt::Debug for SourcedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourcedValue").field("origin", &self.origin).finish_non_exhaustive() // as in `Setting`
    }
}

/// The values of git-sync's flags, by git-sync's names.
#[derive(Debug, Default)]
struct Values(BTreeMap<&'static str, Vec<SourcedValue>>);

impl Values {
    fn last(&self, name: &str) -> Option<&SourcedValue> {
        self.0.get(name).and_then(|given| given.last())
    }

    fn set(&mut self, name: &'static str, given: SourcedValue) {
        self.0.insert(name, vec![given]);
    }

    fn add(&mut self, name: &'static str, given: SourcedValue) {
        self.0.entry(name).or_default().push(given);
    }
}

/// Reads an environment variable.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Whether a variable is set, and not empty.
pub(super) fn is_text(lookup: Lookup<'_>, name: &str) -> bool {
    lookup(name).is_some_and(|value| !value.is_empty())
}

/// Parses arguments (without the program's name) and environment into flags of the command `sync`.
///
/// # Errors
/// When a variable or an argument is malformed.
pub fn read(sync: &Command, arguments: &[String], lookup: Lookup<'_>) -> Result<Call, ParseError> {
    let mut values = Values::default();
    let mut notes = Vec::new();
    for flag in FLAGS.iter().chain(DEPRECATED) {
        if let Some(given) = value_from_environment(flag, lookup, &mut notes)? {
            values.set(flag.name, given);
        }
    }
    let hidden = read_hidden(lookup, &mut notes)?;
    // If both variables are set, ours wins, also over v3's, unless it is empty. clap reads it together with the flags
    // of `sync`.
    let ours = |flag: &str| is_text(lookup, &variable("TREESWAP", flag));
    let here = |name: &str| flag_named(name).map(Flag::here).or_else(|| successor(name));
    values.0.retain(|name, _| here(name).is_none_or(|flag| !ours(flag)));
    let mut parsed = ParsedFlags { values, own: Vec::new(), actions: [false; 3], hidden };
    for (name, value) in pflag::split(arguments, &known_flags(sync))
        .map_err(|error| ParseError::Arguments(error.to_string()))?
    {
        parsed.add(&name, value)?;
    }
    let mut call = parsed.into_call(notes);
    let missing =
        ["root", "repo"].into_iter().find(|flag| call.get(flag).is_none_or(str::is_empty) && !ours(flag));
    // `--sources` is refused later, with a better error than a missing `--repo`.
    let several = call.get("sources").is_some() || ours("sources");
    if let Some(flag) = missing.filter(|_| !several) {
        let hint = format!("${} is its variable", variable("GITSYNC", flag));
        call.first_error = Some(Error::Required { name: format!("--{flag}"), hint });
    }
    Ok(call)
}

/// The flag of v4 with this name in git-sync.
fn flag_named(name: &str) -> Option<&'static Flag> {
    FLAGS.iter().find(|flag| flag.name == name)
}

/// All known flags: git-sync's, and ours.
fn known_flags(sync: &Command) -> Vec<FlagSpec> {
    let theirs = FLAGS.iter().chain(DEPRECATED).chain(SPECIAL);
    let theirs = theirs.map(|flag| FlagSpec { name: flag.name.to_owned(), switch: flag.kind.is_switch() });
    let ours = sync.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(|arg| {
        let name = arg.get_long().filter(|flag| of_sync(flag).is_none() && *flag != "help")?;
        let switch = arg.get_num_args().is_some_and(|values| values.min_values() == 0);
        Some(FlagSpec { name: name.to_owned(), switch })
    });
    // `--stale-worktree-timeout` is also accepted under our name, `--grace`.
    let renamed = FlagSpec { name: RENAMED.0.to_owned(), switch: false };
    theirs.chain(ours).chain(std::iter::once(renamed)).collect()
}

/// The value of a flag from the environment, if one of its variables is set.
fn value_from_environment(
    flag: &Flag,
    lookup: Lookup<'_>,
    notes: &mut Vec<String>,
) -> Result<Option<SourcedValue>, ParseError> {
    let newest = flag.variable().filter(|_| flag_named(flag.name).is_some());
    let Some((name, value)) = read_variable(newest.as_deref(), flag.older, lookup, notes)? else {
        return Ok(None);
    };
    match flag.kind.check(&value) {
        Ok(()) => Ok(Some(SourcedValue { value, origin: Origin::Variable(name) })),
        // git-sync ignores a malformed variable of this kind only.
        Err(why) if flag.kind == Kind::Json => {
            notes.push(format!("${name} is ignored: {why}"));
            Ok(None)
        }
        Err(why) => Err(ParseError::Environment(format!("invalid value {value:?} for ${name}: {why}"))),
    }
}

/// Reads a variable that has several names: the oldest name that is set, and its value. `older` is ordered from newer
/// to older. Notes tell of deprecated and overridden names.
fn read_variable(
    newest: Option<&str>,
    older: &[&str],
    lookup: Lookup<'_>,
    notes: &mut Vec<String>,
) -> Result<Option<(String, String)>, ParseError> {
    let set: Vec<&str> =
        newest.into_iter().chain(older.iter().copied()).filter(|name| lookup(name).is_some()).collect();
    let Some(&winner) = set.last() else { return Ok(None) };
    if let Some(newest) = newest {
        for old in set.iter().filter(|name| **name != newest) {
            notes.push(format!("${old} is deprecated: use ${newest}"));
        }
        if set.len() > 1 {
            notes.push(format!("${} is overridden by ${winner}", set[0]));
        }
    }
    let text = lookup(winner).and_then(|value| value.into_string().ok());
    match text {
        Some(text) => Ok(Some((winner.to_owned(), text))),
        None => Err(ParseError::Environment(format!("invalid value for ${winner}: it is not UTF-8"))),
    }
}

/// Reads the secrets that only variables can hold; our variables win over git-sync's.
fn read_hidden(lookup: Lookup<'_>, notes: &mut Vec<String>) -> Result<Hidden, ParseError> {
    let mut read = |ours: &'static str, theirs: &'static str, older: &[&str]| {
        let is_set = |(_, value): &(String, String)| !value.is_empty();
        let given = match read_variable(Some(ours), &[], lookup, notes)?.filter(is_set) {
            Some(given) => Some(given),
            None => read_variable(Some(theirs), older, lookup, notes)?.filter(is_set),
        };
        Ok::<_, ParseError>(
            given.map(|(name, value)| Variable { name: format!("${name}"), value: Secret::new(value) }),
        )
    };
    Ok(Hidden {
        password: read("TREESWAP_PASSWORD", "GITSYNC_PASSWORD", &["GIT_SYNC_PASSWORD"])?,
        private_key: read("TREESWAP_GITHUB_APP_PRIVATE_KEY", "GITSYNC_GITHUB_APP_PRIVATE_KEY", &[])?,
        git: git_variables(lookup),
        ssh_command: lookup("GIT_SSH_COMMAND").and_then(|command| command.into_string().ok()),
        ..Hidden::default()
    })
}

/// Settings from the variables that git itself reads. Of `GIT_CONFIG_COUNT` at most 1,000 are read.
fn git_variables(lookup: Lookup<'_>) -> Vec<(String, String)> {
    let text = |name: &str| lookup(name).and_then(|value| value.into_string().ok());
    let count = text("GIT_CONFIG_COUNT").and_then(|count| count.parse::<u32>().ok()).unwrap_or(0);
    let numbered = (0..count.min(1_000)).filter_map(|at| {
        Some((text(&format!("GIT_CONFIG_KEY_{at}"))?, text(&format!("GIT_CONFIG_VALUE_{at}"))?))
    });
    let named = [
        text("GIT_SSL_CAINFO").map(|file| ("http.sslCAInfo".to_owned(), file)),
        lookup("GIT_SSL_NO_VERIFY").map(|_| ("http.sslVerify".to_owned(), "false".to_owned())),
    ];
    numbered.chain(named.into_iter().flatten()).collect()
}

/// The flags parsed so far.
struct ParsedFlags {
    values: Values,
    /// Flags that git-sync does not have.
    own: Vec<Setting>,
    /// Whether `--version`, `--help`, `--man` are given.
    actions: [bool; 3],
    hidden: Hidden,
}

impl ParsedFlags {
    /// Adds one flag of the command line.
    fn add(&mut self, name: &str, value: String) -> Result<(), ParseError> {
        let flag = FLAGS.iter().chain(DEPRECATED).chain(SPECIAL).find(|flag| flag.name == name);
        let flag = flag.or_else(|| of_sync(name)); // `--grace`
        let Some(flag) = flag else {
            self.own.push(Setting { flag: name.to_owned(), value, origin: Origin::Flag });
            return Ok(());
        };
        if let Err(why) = flag.kind.check(&value) {
            let shown = if flag.kind == Kind::Json { String::new() } else { format!(" {value:?}") };
            return Err(ParseError::Arguments(format!("invalid value{shown} for --{name}: {why}")));
        }
        let on = || super::values::boolean(&value).unwrap_or_default();
        match flag.name {
            "version" => self.actions[0] = on(),
            "help" => self.actions[1] = on(),
            "man" => self.actions[2] = on(),
            "__env__GITSYNC_PASSWORD" => set_secret(&mut self.hidden.password, flag.name, value),
            "__env__GITSYNC_GITHUB_APP_PRIVATE_KEY" => {
                set_secret(&mut self.hidden.private_key, flag.name, value);
            }
            _ => {
                let given = SourcedValue { value, origin: Origin::Flag };
                let before = self.values.last(flag.name);
                let adds =
                    flag.kind == Kind::Json || before.is_some_and(|before| before.origin == Origin::Flag);
                if flag.kind.repeats() && adds {
                    self.values.add(flag.name, given);
                } else {
                    self.values.set(flag.name, given);
                }
            }
        }
        Ok(())
    }

    /// Translates all flags into those of `sync`.
    fn into_call(mut self, mut notes: Vec<String>) -> Call {
        let action = match self.actions {
            [true, ..] => Action::Version,
            [_, true, _] => Action::Help,
            [.., true] => Action::Manual,
            _ => Action::Run,
        };
        let old = old::translate(&mut self.values, &mut notes);
        if let Some(value) = old.password {
            self.hidden.password = Some(Variable { name: "--password".to_owned(), value });
        }
        let mut first_error = old.first_error;
        if let Some(given) = self.values.last("ref").filter(|given| !given.value.is_empty()).cloned() {
            match refspec::source(&given.value) {
                Ok(source) => {
                    notes.extend(refspec::warning(&given.origin.display_name("ref"), &given.value));
                    self.values.set("ref", SourcedValue { value: source.to_owned(), ..given });
                }
                Err(why) => {
                    let name = given.origin.display_name("ref");
                    first_error = first_error.or(Some(Error::Value { name, value: given.value, why }));
                }
            }
        }
        for flag in FLAGS.iter().filter(|flag| flag.kind == Kind::Duration) {
            let Some(given) = self.values.last(flag.name).cloned() else { continue };
            match any_duration(&given.value) {
                // git-sync accepts centuries. Nothing here lasts longer than one.
                Ok(found) if found > MAX_DURATION => {
                    self.values.set(flag.name, SourcedValue { value: print_duration(MAX_DURATION), ..given });
                }
                Ok(_) => {}
                // git-sync accepts a negative timeout and removes worktrees at once.
                Err(_) if flag.name == RENAMED.1 => {
                    self.values.set(flag.name, SourcedValue { value: "0s".to_owned(), ..given });
                }
                Err(why) => {
                    let name = given.origin.display_name(flag.name);
                    first_error = first_error.or(Some(Error::Value { name, value: given.value, why }));
                }
            }
        }
        let settings = FLAGS.iter().flat_map(|flag| {
            let given = self.values.0.get(flag.name).into_iter().flatten();
            given.map(|given| Setting {
                flag: flag.here().to_owned(),
                value: given.value.clone(),
                origin: given.origin.clone(),
            })
        });
        let settings = settings.chain(self.own).collect();
        Call { action, settings, hidden: self.hidden, notes, first_error }
    }
}

/// Sets a secret from one of git-sync's `--__env__…` flags. As in git-sync, an empty value is ignored.
fn set_secret(secret: &mut Option<Variable>, flag: &str, value: String) {
    if !value.is_empty() {
        *secret = Some(Variable { name: format!("--{flag}"), value: Secret::new(value) });
    }
}

#[cfg(test)]
mod tests;
