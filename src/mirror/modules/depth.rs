//! The setting for which submodules are published.

/// Which submodules are published with their content. The others become empty directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Submodules {
    /// None.
    #[default]
    Off,
    /// Those of the repository itself (`--submodules=shallow`).
    First,
    /// Those of the repository, and their submodules, recursively.
    Recursive,
}

impl Submodules {
    /// The setting that applies to the submodules of a submodule.
    pub(super) fn next(self) -> Self {
        match self {
            Self::Recursive => Self::Recursive,
            Self::Off | Self::First => Self::Off,
        }
    }
}
