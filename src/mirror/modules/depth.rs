//! How deep submodules are followed.

/// Which submodules are published with their content; the others are empty directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Submodules {
    /// None.
    #[default]
    Off,
    /// Those of the repository itself (`--submodules=shallow`).
    First,
    /// All of them, down to the last.
    Recursive,
}

impl Submodules {
    /// The same, asked of a submodule about its own.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Recursive => Self::Recursive,
            Self::Off | Self::First => Self::Off,
        }
    }
}
