//! The flags of credentials.

use std::fmt;

use super::super::values::{boolean, integer};

/// The base URL of GitHub's API, but for GitHub Enterprise.
pub(in crate::config) const GITHUB_API: &str = "https://api.github.com/";

/// Credentials.
#[derive(clap::Args, Clone)]
#[command(next_help_heading = "Credentials")]
pub struct CredentialArgs {
    /// User for http(s); with --password-file or $TREESWAP_PASSWORD
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub username: String,

    /// File with the password or token, read again at every attempt
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub password_file: String,

    /// A password would be visible in the process list.
    #[arg(long, hide = true)]
    pub password: Option<String>,

    /// Credential as JSON: {"url":…, "username":…, "password-file":…}, or a list of them
    ///
    /// `password` instead of `password-file` is accepted in $TREESWAP_CREDENTIAL only: arguments are visible to every
    /// process of the machine. Given several times, all of them count.
    #[arg(long, value_name = "JSON", hide_short_help = true)]
    pub credential: Vec<String>,

    /// URL whose response to GET has the lines username= and password=, requested before every attempt
    ///
    /// It must respond with status 200 within a second; redirects are not followed.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub askpass_url: String,

    /// File with cookies for http(s), as curl writes them, read again at every request
    ///
    /// Without a value, or with `true` (as in git-sync), the file is /etc/git-secret/cookie_file.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub cookie_file: String,

    /// Base URL of GitHub's API, for a GitHub App
    #[arg(long, value_name = "URL", default_value = GITHUB_API, hide_short_help = true)]
    pub github_base_url: String,

    /// Application id of the GitHub App to authenticate as; its client id can be given instead
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true, value_parser = integer, allow_negative_numbers = true, hide_short_help = true)]
    pub github_app_application_id: i64,

    /// Client id of the GitHub App to authenticate as
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub github_app_client_id: String,

    /// Installation id of the GitHub App
    #[arg(long, value_name = "N", default_value = "0", hide_default_value = true, value_parser = integer, allow_negative_numbers = true, hide_short_help = true)]
    pub github_app_installation_id: i64,

    /// PEM file with the GitHub App's private key, read for every token; or $TREESWAP_GITHUB_APP_PRIVATE_KEY
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true, hide_short_help = true)]
    pub github_app_private_key_file: String,

    /// Private key for ssh (repeatable)
    ///
    /// In the environment variable, paths are separated by `:`. A file that does not exist is ignored.
    #[arg(long, value_name = "FILE", default_value = "/etc/git-secret/ssh")]
    pub ssh_key_file: Vec<String>,

    /// Require that the ssh server's host key is known
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    pub ssh_known_hosts: bool,

    /// File with the ssh host keys, as ssh-keyscan(1) prints them
    #[arg(long, value_name = "FILE", default_value = "/etc/git-secret/known_hosts")]
    pub ssh_known_hosts_file: String,

    /// PEM file with CA certificates to trust besides the system's
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    pub ca_file: String,
}

impl fmt::Debug for CredentialArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CredentialArgs").finish_non_exhaustive() // nearly each value is a secret or may contain one
    }
}
