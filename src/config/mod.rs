//! Flags and variables, made valid in one step: nothing is bound, opened or written before [`Settings`] exist.
//!
//! Files, from the ground up: `values` how single values are written; `origin` where one came from; `personality`
//! defaults, ours and git-sync's; `json` the form of `--credential`; `gitsync` git-sync's command line; `env` variables;
//! `args` the raw side (clap); `check` how a value is refused; `credentials`, `git_config`, `hooks` their parts of the
//! valid side; `settings` all of it, made of each module's own options; `print` the effective configuration with
//! secrets replaced; `error`.

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

pub use args::{Args, Credentials};
pub use env::{Origins, UNSERVED, attach, warnings};
pub use error::Error;
pub use origin::{Hidden, Origin};
pub use personality::Personality;
pub use print::{Line, lines};
pub use settings::{Settings, link_name};
pub use sources::{listed, remarks_on};
pub use values::{at_least_one, boolean, duration, percent, print_duration, signal_name};
