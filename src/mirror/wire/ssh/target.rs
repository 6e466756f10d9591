//! Where an ssh remote is.

/// Where to connect, and as whom.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The host: a name, or an address without brackets.
    pub host: String,
    /// The port; 22 by default.
    pub port: u16,
    /// The user; [`DEFAULT_USER`] where the remote names none.
    pub user: String,
}

/// The user of a remote that names none. ssh would take the local one, which in a container means nothing; every
/// hosting service expects this one.
pub const DEFAULT_USER: &str = "git";

impl Target {
    /// The server, for messages.
    pub fn server(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}
