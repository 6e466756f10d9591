//! Regular expressions for the syntax of flag values, for the Helm chart's schema. They are made of the same tables
//! that the parsers use. Upper bounds are left to the parsers.

use super::settings::{GIT_GC, SUBMODULES};
use super::values::{BOOLEANS, SIZES, TIMES};
use crate::shutdown::SYNC_SIGNALS;

fn alternatives<T>(table: &[(&str, T)]) -> String {
    table.iter().map(|(word, _)| *word).collect::<Vec<_>>().join("|")
}

/// The lower bound of a value: none, 0, or greater than 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LowerBound {
    Any,
    Zero,
    MoreThanZero,
}

pub(crate) fn duration(least: LowerBound) -> String {
    let units = alternatives(&TIMES);
    let any = format!(r"([0-9]+\.?[0-9]*|\.[0-9]+)({units})");
    let more = format!(r"([0-9]*[1-9][0-9]*\.?[0-9]*|[0-9]*\.[0-9]*[1-9][0-9]*)({units})");
    match least {
        LowerBound::MoreThanZero => format!(r"^\+?({any})*{more}({any})*$"),
        LowerBound::Any | LowerBound::Zero => format!(r"^\+?(0|({any})+)$"),
    }
}

pub(crate) fn bytes(least: LowerBound) -> String {
    let digits = if least == LowerBound::MoreThanZero { "[0-9_]*[1-9][0-9_]*" } else { "[0-9][0-9_]*" };
    format!(r"^_*\+?_*{digits}({})?$", alternatives(&SIZES))
}

pub(crate) fn integer(least: LowerBound) -> String {
    let any = "0[xX](_?[0-9a-fA-F])+|0[oO](_?[0-7])+|0[bB](_?[01])+|0(_?[0-7])*|[1-9](_?[0-9])*";
    let more = "0[xX](_?0)*_?[1-9a-fA-F](_?[0-9a-fA-F])*|0[oO](_?0)*_?[1-7](_?[0-7])*|0[bB](_?0)*_?1(_?[01])*\
                |0(_?0)*_?[1-7](_?[0-7])*|[1-9](_?[0-9])*";
    match least {
        LowerBound::Any => format!("^[-+]?({any})$"),
        LowerBound::Zero => format!(r"^(\+?({any})|-0([xXoObB]_?0)?(_?0)*)$"),
        LowerBound::MoreThanZero => format!(r"^\+?({more})$"),
    }
}

/// A whole number from 0 to 100.
pub(crate) const PERCENT: &str = r"^\+?0*(100|[0-9]{1,2})$";
pub(crate) const AT_LEAST_ONE: &str = r"^\+?0*[1-9][0-9]*$";
/// A number from 0 to 1.
pub(crate) const FRACTION: &str = r"^(\+?(0+(\.[0-9]*)?|0*\.[0-9]+|0*1(\.0*)?)|-(0+\.?0*|\.0+)|[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+)$";
/// Empty, or an http(s) URL.
pub(crate) const URL: &str = r"^$|^\s*[Hh][Tt][Tt][Pp][Ss]?:";

/// A pool of Leases: NAMESPACE/NAME:COUNT.
pub(crate) fn pool() -> String {
    let label = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?";
    format!(r"^{label}/{label}:\+?0*([1-9][0-9]?|100)$")
}

/// A signal: its name in either case, with or without SIG, or its number; or empty.
pub(crate) fn signal() -> String {
    let either = |c: char| format!("[{}{}]", c, c.to_ascii_lowercase());
    let name = |name: &str| name.chars().map(either).collect::<String>();
    let each = SYNC_SIGNALS.map(|(known, number)| format!("{}|{number}", name(known)));
    format!("^(({})?({}))?$", name("SIG"), each.join("|"))
}

pub(crate) fn signals() -> Vec<i32> {
    SYNC_SIGNALS.iter().map(|(_, number)| *number).collect()
}

pub(crate) fn booleans() -> Vec<&'static str> {
    BOOLEANS.concat()
}

/// The values of flags whose choices are checked by us and not by clap.
pub(crate) fn choices(flag: &str) -> Option<Vec<&'static str>> {
    match flag {
        "submodules" => Some(SUBMODULES.iter().map(|(word, _)| *word).collect()),
        "git-gc" => Some(GIT_GC.iter().map(|(word, _)| *word).collect()),
        _ => None,
    }
}
