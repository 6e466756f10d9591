//! The configuration of `sync`, from flags and environment variables. It is validated in one step: nothing is bound,
//! opened or written before [`Settings`] exist.
//!
//! Files, from the ground up: `values` parses single values; `origin` records where a value came from; `personality`
//! has the defaults, ours and git-sync's; `json` parses `--credential`; `gitsync` parses git-sync's command line;
//! `env` reads environment variables; `args` declares the flags for clap; `check` has the common checks of a value;
//! `credentials`, `git_config` and `hooks` validate their flags; `sources` validates `--sources`; `settings` validates
//! everything else and makes the options of each module; `print` shows the effective configuration without secrets;
//! `error` has the errors.

mod args;
mod check;
mod credentials;
mod env;
mod error;
#[cfg(any(test, fuzzing))]
#[path = "../../tests/fuzz/targets/git_config.rs"]
pub(crate) mod fuzz;
mod git_config;
pub mod gitsync;
mod hooks;
mod json;
mod origin;
#[cfg(test)]
pub(crate) mod patterns;
mod personality;
mod print;
mod settings;
mod sources;
mod values;

pub use args::{Args, CredentialArgs, FetchLimitArgs};
pub use env::{Origins, attach, instead_of_flag, warnings};
pub use error::Error;
pub use origin::{Hidden, Origin};
pub use personality::Personality;
pub use print::{Line, lines};
pub use settings::{NamedFile, Settings, link_name};
pub use sources::{listed, warnings_about};
pub use values::{
    at_least_one, boolean, duration, percent, period_or_zero, print_duration, signal_name, timeout,
};
