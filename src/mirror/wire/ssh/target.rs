//! The address of an ssh remote.

/// The server to connect to, and the user to authenticate as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The host: a name, or an address without brackets.
    pub host: String,
    /// The port; 22 by default.
    pub port: u16,
    /// The user; [`DEFAULT_USER`] if the remote names none.
    pub user: String,
}

/// The user for a remote that names none. ssh would use the local user, which means nothing in a container; every
/// hosting service expects this one.
pub const DEFAULT_USER: &str = "git";

impl Target {
    /// The server as `host:port`, for messages.
    pub fn server(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}
