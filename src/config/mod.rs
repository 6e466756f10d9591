//! Flags and variables, made valid in one step: nothing is bound, opened or written before [`Settings`] exist.
//!
//! Files: `args` the raw side (clap); `env` variables and where a value came from; `values` how single values are
//! written; `personality` defaults, ours and git-sync's; `gitsync` its command line; `git_config` git's own settings; `credentials`; `hooks`; `settings` the valid side, made of each module's own options; `print` the effective
//! configuration with secrets replaced; `error`.

mod args;
mod credentials;
mod env;
mod error;
mod git_config;
pub mod gitsync;
mod hooks;
mod personality;
mod print;
mod settings;
mod values;

pub use args::{Args, Credentials};
pub use env::{Hidden, Origin, Origins, attach, warnings};
pub use error::Error;
pub use personality::Personality;
pub use print::{Line, lines};
pub use settings::Settings;
pub use values::{boolean, duration, print_duration};
