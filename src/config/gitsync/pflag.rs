//! Splits a command line into flags and values as git-sync's parser (Go's pflag) does. Pure.
//!
//! Long flags have two dashes; `--x=y` and `--x y` are the same, except that a switch takes a value only after `=`. A
//! value may itself begin with a dash. Short flags can be combined, and the first one that needs a value takes the
//! rest. Positional arguments are ignored, wherever they are; `--` ends the flags.

use crate::human;

/// What the parser has to know about a flag.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FlagSpec {
    /// Its name, without dashes.
    pub(super) name: String,
    /// Whether the flag takes a value only after `=`, and is true without one.
    pub(super) switch: bool,
}

/// Short flags and their long names.
const SHORT: [(char, &str); 3] = [('v', "verbose"), ('h', "help"), ('?', "help")];

/// Why an argument cannot be parsed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Malformed {
    #[error("unknown flag --{name}{}", hint("did you mean", .like.as_deref()))]
    Unknown { name: String, like: Option<String> },
    #[error("unknown flag -{short} in {argument}{}", hint("long flags have two dashes:", .long.as_deref()))]
    UnknownShort { short: char, argument: String, long: Option<String> },
    #[error("{argument} is not how a flag is written: --name or --name=value")]
    Syntax { argument: String },
    #[error("--{name} needs a value")]
    NoValue { name: String },
}

/// An argument without what is behind `=`, which may be a password.
fn without_value(argument: &str) -> String {
    argument.split_inclusive('=').next().unwrap_or_default().to_owned()
}

fn hint(words: &str, flag: Option<&str>) -> String {
    flag.map(|flag| format!("; {words} --{flag}")).unwrap_or_default()
}

/// The flags in the order they are given, each with its value.
pub(super) fn split(arguments: &[String], known: &[FlagSpec]) -> Result<Vec<(String, String)>, Malformed> {
    let mut found = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.strip_prefix("--") {
            Some("") => break,
            Some(long) => found.push(long_flag(argument, long, known, &mut rest)?),
            None => match argument.strip_prefix('-') {
                Some(short) if !short.is_empty() => {
                    short_flags(argument, short, known, &mut rest, &mut found)?;
                }
                _ => {}
            },
        }
    }
    Ok(found)
}

fn long_flag(
    argument: &str,
    text: &str,
    known: &[FlagSpec],
    rest: &mut std::slice::Iter<'_, String>,
) -> Result<(String, String), Malformed> {
    if text.starts_with(['-', '=']) {
        return Err(Malformed::Syntax { argument: without_value(argument) });
    }
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let Some(flag) = known.iter().find(|flag| flag.name == name) else {
        return Err(Malformed::Unknown { name: name.to_owned(), like: nearest(name, known) });
    };
    let value = match value {
        Some(value) => value.to_owned(),
        None if flag.switch => "true".to_owned(),
        None => rest.next().cloned().ok_or_else(|| Malformed::NoValue { name: name.to_owned() })?,
    };
    Ok((name.to_owned(), value))
}

fn short_flags(
    argument: &str,
    text: &str,
    known: &[FlagSpec],
    rest: &mut std::slice::Iter<'_, String>,
    found: &mut Vec<(String, String)>,
) -> Result<(), Malformed> {
    let mut left = text;
    while let Some(short) = left.chars().next() {
        let tail = &left[short.len_utf8()..];
        let stands_for = SHORT.iter().find(|(known, _)| *known == short).map(|(_, name)| *name);
        let Some(flag) = stands_for.and_then(|name| known.iter().find(|flag| flag.name == name)) else {
            let name = text.split('=').next().unwrap_or_default();
            let long = known.iter().find(|flag| flag.name == name).map(|flag| flag.name.clone());
            return Err(Malformed::UnknownShort { short, argument: without_value(argument), long });
        };
        let value = match tail.strip_prefix('=').filter(|value| !value.is_empty()) {
            Some(value) => value.to_owned(),
            None if flag.switch => {
                found.push((flag.name.clone(), "true".to_owned()));
                left = tail;
                continue;
            }
            None if !tail.is_empty() => tail.to_owned(),
            None => rest.next().cloned().ok_or_else(|| Malformed::NoValue { name: flag.name.clone() })?,
        };
        found.push((flag.name.clone(), value));
        break;
    }
    Ok(())
}

/// The known flag that `name` is most likely a typo of, if any.
fn nearest(name: &str, known: &[FlagSpec]) -> Option<String> {
    human::nearest(name, known.iter().map(|flag| flag.name.as_str())).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Vec<FlagSpec> {
        let flag = |name: &str, switch| FlagSpec { name: name.to_owned(), switch };
        vec![
            flag("repo", false),
            flag("ref", false),
            flag("one-time", true),
            flag("verbose", false),
            flag("help", true),
        ]
    }

    fn parsed(arguments: &[&str]) -> Result<Vec<(String, String)>, String> {
        let arguments: Vec<String> = arguments.iter().map(|text| (*text).to_owned()).collect();
        split(&arguments, &known()).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_are_cut_as_pflag_cuts_them() {
        type Case = (&'static [&'static str], &'static [(&'static str, &'static str)]);
        let cases: &[Case] = &[
            (&[], &[]),
            (&["--repo=a=b", "--ref", "main"], &[("repo", "a=b"), ("ref", "main")]),
            (&["--repo="], &[("repo", "")]),
            (&["--repo", "--ref"], &[("repo", "--ref")]),
            (&["--one-time", "false", "--ref=x"], &[("one-time", "true"), ("ref", "x")]),
            (&["--one-time=false"], &[("one-time", "false")]),
            (&["file", "--ref=x", "-", "more"], &[("ref", "x")]),
            (&["--ref=x", "--", "--repo=y"], &[("ref", "x")]),
            (&["-v6"], &[("verbose", "6")]),
            (&["-v=6"], &[("verbose", "6")]),
            (&["-v", "6"], &[("verbose", "6")]),
            (&["-v-1"], &[("verbose", "-1")]),
            (&["-hv6"], &[("help", "true"), ("verbose", "6")]),
            (&["-?"], &[("help", "true")]),
            (&["-h=false"], &[("help", "false")]),
            (&["--ref=a", "--ref=b"], &[("ref", "a"), ("ref", "b")]),
        ];
        for (arguments, wanted) in cases {
            let wanted = wanted.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            assert_eq!(parsed(arguments), Ok(wanted.collect()), "{arguments:?}");
        }
    }

    #[test]
    fn what_is_no_flag_is_named_with_what_may_have_been_meant() {
        for (arguments, said) in [
            (&["--reff=x"][..], "unknown flag --reff; did you mean --ref"),
            (&["--onetime"], "unknown flag --onetime; did you mean --one-time"),
            (&["--nothing-like-it"], "unknown flag --nothing-like-it"),
            (&["-one-time"], "unknown flag -o in -one-time; long flags have two dashes: --one-time"),
            (&["-x"], "unknown flag -x in -x"),
            (&["---ref"], "---ref is not how a flag is written: --name or --name=value"),
            (&["-password=s3cret"], "unknown flag -p in -password="),
            (&["---password=s3cret"], "---password= is not how a flag is written: --name or --name=value"),
            (&["--=x"], "--= is not how a flag is written: --name or --name=value"),
            (&["--repo"], "--repo needs a value"),
            (&["-v"], "--verbose needs a value"),
        ] {
            assert_eq!(parsed(arguments), Err(said.to_owned()), "{arguments:?}");
        }
    }
}
