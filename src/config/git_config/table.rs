//! The table of git's settings: which have an effect, and what to give instead of the others.
//! docs/reference/git-settings.md is generated from it.

/// A setting that has an effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Setting {
    ExtraHeader,
    SslVerify,
    SslCaInfo,
    CookieFile,
    Proxy,
    Allow,
    InsteadOf,
}

/// The effect of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// It is applied; the text describes its effect.
    Applied(Setting, &'static str),
    /// It has no effect unless git itself lists refs and fetches (`--git`). The text says what to give instead.
    ByGit(&'static str),
    /// It has no effect. The text says what to give instead, or why there is nothing to give.
    Never(&'static str),
}

use Setting::{Allow, CookieFile, ExtraHeader, InsteadOf, Proxy, SslCaInfo, SslVerify};
use Use::{Applied, ByGit, Never};

const CREDENTIALS: &str = "use --credential, --password-file or --askpass-url";
const CONTENT: &str = "files are published as they are committed";
const LFS: &str = "Git LFS is not supported: its pointer files are published as they are committed";
const WITH_GIT: &str = "only the git program of --git uses it";
const SUBMODULES: &str = "use --submodules";
const OWN_LIMITS: &str = "use the limits --max-fetch-bytes, --index-memory and others";
const UNNEEDED: &str = "treeswap does not need it";

/// Effects by `section.name`, or by `section` for all other names of it. Entries of `http` and `url` also stand for
/// `http.URL.NAME` and `url.BASE.NAME`.
pub(super) const SETTINGS: &[(&str, Use)] = &[
    (
        "http.extraHeader",
        Applied(ExtraHeader, "a header sent with every request; an empty value clears the ones before it"),
    ),
    ("http.sslVerify", Applied(SslVerify, "`false` turns off verification of the server's certificate")),
    ("http.sslCAInfo", Applied(SslCaInfo, "CA certificates to trust, unless `--ca-file` is given")),
    ("http.cookieFile", Applied(CookieFile, "file with cookies to send, unless `--cookie-file` is given")),
    ("http.proxy", Applied(Proxy, "the proxy; empty for none")),
    ("protocol.allow", Applied(Allow, "the default for `protocol.file.allow`")),
    (
        "protocol.file.allow",
        Applied(
            Allow,
            "`always` allows submodules whose URL is a local path or `file://`, wherever the repository itself is",
        ),
    ),
    (
        "url.insteadOf",
        Applied(
            InsteadOf,
            "a URL that starts with the value gets BASE in its place: that of the repository, and those of submodules",
        ),
    ),
    ("url.pushInsteadOf", Never("treeswap never pushes")),
    ("http.lowSpeedLimit", ByGit("use --idle-timeout")),
    ("http.lowSpeedTime", ByGit("use --idle-timeout")),
    ("http", ByGit(WITH_GIT)),
    ("credential", ByGit(CREDENTIALS)),
    ("core.sshCommand", ByGit("use --ssh-key-file and --ssh-known-hosts-file")),
    ("core.askPass", ByGit(CREDENTIALS)),
    ("core.autocrlf", Never(CONTENT)),
    ("core.eol", Never(CONTENT)),
    ("core.safecrlf", Never(CONTENT)),
    ("core.attributesFile", Never(CONTENT)),
    (
        "core.symlinks",
        Never("symbolic links are published as such; use --symlinks for those that point out of the tree"),
    ),
    ("core.sharedRepository", Never("use --group-write")),
    ("core.sparseCheckout", Never("use --sparse-checkout-file")),
    ("core.sparseCheckoutCone", Never("use --sparse-checkout-file")),
    ("core", Never(UNNEEDED)),
    ("ssh", ByGit(WITH_GIT)),
    ("protocol", ByGit(WITH_GIT)),
    ("fetch", ByGit(WITH_GIT)),
    ("transfer", ByGit(WITH_GIT)),
    ("submodule", Never(SUBMODULES)),
    ("gc", Never("use --git-gc")),
    ("maintenance", Never("use --git-gc")),
    ("repack", Never("use --git-gc")),
    ("pack", Never(OWN_LIMITS)),
    ("filter", Never(CONTENT)),
    ("lfs", Never(LFS)),
    ("safe", Never(UNNEEDED)),
    ("advice", Never(UNNEEDED)),
    ("init", Never(UNNEEDED)),
    ("user", Never("treeswap never commits to the repository")),
];

/// The effect of a setting; `section` and `name` are in lower case, `below` is the subsection.
pub(super) fn of(section: &str, below: Option<&str>, name: &str) -> Use {
    let file = below.filter(|_| section == "protocol");
    let exact = match file {
        Some("file") | None => format!("{section}.{name}"),
        Some(_) => section.to_owned(), // `protocol.file` is the only protocol with a setting that is applied
    };
    let find = |key: &str| SETTINGS.iter().find(|(known, _)| known.eq_ignore_ascii_case(key));
    find(&exact).or_else(|| find(section)).map_or(Never("treeswap does not know it"), |(_, found)| *found)
}

/// What to give instead of a setting without effect. `None` if it has an effect, or is passed to git (`by_git`).
pub(super) fn replacement(found: Use, by_git: bool) -> Option<&'static str> {
    match found {
        Applied(..) => None,
        ByGit(_) if by_git => None,
        ByGit(instead) | Never(instead) => Some(instead),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "docs/reference/git-settings.md";

    fn page() -> String {
        let mut page = String::from(
            "# Settings of git\n\n`--git-config` and `--git-config-add` take settings of git. Files such as \
             `~/.gitconfig` and `/etc/gitconfig` are not\nread. A setting that has no effect is named at the start, \
             and by `treeswap check`, without its value.\n\nGit's own variables are read only by the drop-in \
             (`treeswap git-sync`). `treeswap sync` and `treeswap check` warn about\nthem:\n\n\
             | variable | drop-in | other commands |\n| --- | --- | --- |\n\
             | `$GIT_CONFIG_COUNT`, `$GIT_CONFIG_KEY_N`, `$GIT_CONFIG_VALUE_N` | settings as below | \
             no effect; use `--git-config` |\n\
             | `$GIT_SSL_CAINFO` | as `http.sslCAInfo` | no effect without `--git`; use `--ca-file` |\n\
             | `$GIT_SSL_NO_VERIFY` | as `http.sslVerify=false` | no effect without `--git`; use \
             `--git-config=http.sslVerify:false` |\n\
             | `$GIT_SSH_COMMAND` | keys and known hosts of its options | no effect without `--git`; use \
             `--ssh-key-file` and `--ssh-known-hosts-file` |\n\n`http.NAME` is also `http.URL.NAME`, \
             for remotes below that URL; `url.NAME` is `url.BASE.NAME`.\n\n| setting | effect |\n| --- | --- |\n",
        );
        for (key, found) in SETTINGS {
            let key = match key.split_once('.') {
                Some(("url", name)) => format!("url.BASE.{name}"),
                Some(_) => (*key).to_owned(),
                None => format!("{key}.*"),
            };
            let text = match found {
                Applied(_, effect) => (*effect).to_owned(),
                ByGit(WITH_GIT) => format!("none; {WITH_GIT}"),
                ByGit(instead) => format!("none without `--git`; {instead}"),
                Never(why) => format!("none; {why}"),
            };
            page += &format!("| `{key}` | {text} |\n");
        }
        page
    }

    #[test]
    fn the_reference_of_git_settings_is_the_table() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
        if std::env::var_os("TREESWAP_TEST_WRITE").is_some() {
            std::fs::write(&path, page()).unwrap();
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            text == page(),
            "TREESWAP_TEST_WRITE=1 cargo test --lib the_reference_of_git writes {FILE} anew"
        );
    }

    #[test]
    fn the_closest_entry_of_the_table_counts() {
        assert!(matches!(of("http", None, "sslverify"), Applied(SslVerify, _)));
        assert_eq!(of("http", Some("https://h/"), "postbuffer"), ByGit(WITH_GIT));
        assert_eq!(of("core", None, "autocrlf"), Never(CONTENT));
        assert_eq!(of("core", None, "pager"), Never(UNNEEDED));
        assert!(matches!(of("protocol", Some("file"), "allow"), Applied(Allow, _)));
        assert_eq!(of("protocol", Some("https"), "allow"), ByGit(WITH_GIT));
        assert_eq!(of("remote", Some("origin"), "url"), Never("treeswap does not know it"));
    }
}
