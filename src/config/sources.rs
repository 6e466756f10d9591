//! Validates `--sources`: several repositories that are published as one tree.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::args::Args;
use super::check::{Check, UrlPassword};
use super::credentials;
use super::env::Origins;
use super::error::Error;
use super::origin::Hidden;
use super::personality::Personality;
use super::settings::absolute;
use crate::detached_io;
use crate::mirror::{self, wire};
use crate::phase::machine::Timing;
use crate::secret::SecretFrom;
use crate::sources::{AttemptLimit, BadFile, SetOptions, SourceSpec, SourcesFile};

impl Check<'_> {
    /// Whether `--sources` is given. Refuses flags that it excludes: those that the file has for each source, and
    /// those that are about one repository.
    pub(super) fn has_sources(&self) -> Result<bool, Error> {
        let source = &self.args.source;
        if source.sources.is_empty() {
            return Ok(false);
        }
        if self.origins.personality() == Personality::GitSync {
            let hint = "git-sync has one repository: use `treeswap sync --sources`";
            return Err(Error::Unsupported { name: self.origins.name("sources"), hint });
        }
        let default = |flag: &str| *self.origins.get(flag) == super::origin::Origin::Default;
        let given = [
            ("repo", !source.repo.is_empty()),
            ("ref", !default("ref")),
            ("path", !source.path.is_empty()),
            ("sparse-checkout-file", !source.sparse_checkout_file.is_empty()),
            ("submodules", source.submodules != "off"),
            ("filter", !source.filter.is_empty()),
            ("git", !self.args.git.git.is_empty()),
        ];
        let one = || self.origins.name("sources");
        if let Some((flag, _)) = given.iter().find(|(_, given)| *given) {
            return Err(Error::Conflict { one: one(), other: self.origins.name(flag) });
        }
        if self.args.root.layout == "git-sync" {
            let other = format!("{}=git-sync", self.origins.name("layout"));
            return Err(Error::Conflict { one: one(), other });
        }
        Ok(true)
    }

    /// The directory of the sources' mirrors; `mirror` is where the mirror of one repository would be.
    pub(super) fn dir_of_mirrors(&self, mirror: &Path) -> PathBuf {
        match self.args.root.mirror.as_str() {
            "" => mirror.with_file_name(mirror::MIRRORS),
            _ => mirror.join(mirror::MIRRORS),
        }
    }

    /// The options of the set of sources.
    pub(super) fn source_set(
        &self,
        mirror: &mirror::Options,
        pace: Timing,
        timeout: Duration,
        hidden: &Hidden,
    ) -> Result<SetOptions, Error> {
        let file = absolute(&self.args.source.sources);
        let settings = WireSettings {
            args: self.args.clone(),
            origins: self.origins.clone(),
            hidden: hidden.clone(),
            timeout,
        };
        let dir = self.dir_of_mirrors(&mirror.dir);
        let mirror = mirror.clone();
        let one_time = self.args.pace.one_time;
        let wire =
            Arc::new(move |source: &SourceSpec| settings.of(source).map_err(|error| error.to_string()));
        let Timing { period, backoff, .. } = pace;
        Ok(SetOptions {
            file,
            dir,
            mirror,
            wire,
            period,
            backoff,
            limit: AttemptLimit::sync_timeout(timeout),
            one_time,
            attempt_is_bounded: false,
            rules: false,
            root: true,
        })
    }
}

/// Reads the file of sources. It is most of the configuration, so unlike other files that flags name it is also read by
/// commands that publish nothing.
///
/// # Errors
/// When the file is absent or invalid, or cannot be read now.
pub fn listed(sources: &SetOptions) -> Result<SourcesFile, Error> {
    const NAME: &str = "--sources";
    let path = &sources.file;
    let invalid = |file| Error::Sources { name: NAME.to_owned(), file };
    let unread = |why| invalid(BadFile { path: path.clone(), why });
    let text = detached_io::wait_for_io(path, SourcesFile::text);
    let text = text.map_err(|error| Error::unread(NAME, path, error, unread))?;
    let list = SourcesFile::of(path, &text).map_err(invalid)?;
    sources.check(&list).map_err(invalid)?;
    Ok(list)
}

/// Warnings about likely mistakes in the file of sources. They never contain a value, which may be a secret.
pub fn warnings_about(list: &SourcesFile) -> Vec<String> {
    let mut remarks = Vec::new();
    for SourceSpec { name, repo, credentials, .. } in &list.sources {
        let mut remark = |text: &str| remarks.push(format!("source {name}: {text}"));
        if let Some(password) = UrlPassword::of(repo) {
            let instead = match password {
                UrlPassword::Sent => ": give it by `credentials`, in a file of its own",
                UrlPassword::OfSsh => {
                    ", and ssh does not use it: remove it, and give a key by `ssh-key-file`"
                }
                UrlPassword::Unused => ", and is not used: remove it",
            };
            remark(&format!(
                "the password in the URL of `repo` can be read by everybody who can read the file{instead}"
            ));
        }
        let is_http = repo.starts_with("https://") || repo.starts_with("http://");
        let has_no_password = credentials.username.is_empty() && UrlPassword::of(repo).is_none();
        if is_http && has_no_password && credentials::has_userinfo(repo) {
            remark(
                "the user in the URL of `repo` has no password, and --username is not for it: without a \
                 --credential for its host an empty one is sent",
            );
        }
        let is_ssh = repo.starts_with("ssh://") || (!repo.contains("://") && repo.contains('@'));
        if is_http && !credentials.ssh_key_file.as_os_str().is_empty() {
            remark("`ssh-key-file` has no effect: the URL of `repo` is not for ssh");
        }
        if is_ssh && !credentials.username.is_empty() {
            remark("`username` and `password-file` have no effect: `repo` is reached over ssh");
        }
    }
    let places: Vec<&str> = list.sources.iter().map(|source| source.to.as_str()).collect();
    let globs = list.unique.out_of(&places);
    let of_glob = |glob| format!("unique-base-names: {glob:?} matches no path below the `to` of any source");
    remarks.extend(globs.into_iter().map(of_glob));
    remarks
}

/// The flags and variables that apply to the connection of every source.
struct WireSettings {
    args: Args,
    origins: Origins,
    hidden: Hidden,
    timeout: Duration,
}

impl WireSettings {
    /// How one source is reached: by the flags for its URL, with its own credentials in place of theirs.
    fn of(&self, source: &SourceSpec) -> Result<wire::Options, Error> {
        let mut args = self.args.clone();
        args.source.repo.clone_from(&source.repo);
        let own = &source.credentials;
        if !own.ssh_known_hosts_file.as_os_str().is_empty() {
            args.credentials.ssh_known_hosts_file = own.ssh_known_hosts_file.display().to_string();
        }
        let check = Check { args: &args, origins: &self.origins };
        let credentials = match own.username.as_str() {
            "" => self.of_flags(&args)?,
            username => vec![wire::Credential {
                url: None,
                username: Some(username.to_owned()),
                password: SecretFrom::File(own.password_file.clone()),
            }],
        };
        let (_, git) = check.git_config(&self.hidden)?;
        let mut wire = check.wire(credentials, self.timeout, &self.hidden, &git)?;
        if !own.ssh_key_file.as_os_str().is_empty() {
            wire.ssh.keys = vec![own.ssh_key_file.clone()]; // one file, where the flag's variable is a list
        }
        let files = [
            ("ssh-key-file", &own.ssh_key_file),
            ("ssh-known-hosts-file", &own.ssh_known_hosts_file),
            ("password-file", &own.password_file),
        ];
        let given = files.into_iter().filter(|(_, file)| !file.as_os_str().is_empty());
        let named = given.map(|(key, file)| (format!("its {key}"), file.clone()));
        // By their text only: this runs where waiting for a file system would delay every source.
        check.refuse_published_by_text(&named.collect::<Vec<_>>())?;
        Ok(wire::Options { issuance: check.issuance(&self.hidden)?, ..wire })
    }

    /// The flags' credentials, for a source without a user of its own. One whose URL names a user (`ssh://git@…`) is
    /// for that user, so `--username` is not for it.
    fn of_flags(&self, args: &Args) -> Result<Vec<wire::Credential>, Error> {
        let Hidden { password, credential, .. } = &self.hidden;
        let mut all = if credentials::has_userinfo(&args.source.repo) {
            Vec::new()
        } else {
            credentials::of_username_flag(args, &self.origins, password.as_ref())?
        };
        all.extend(credentials::of_credential_flags(args, &self.origins, credential.as_ref())?);
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::origin::Origin;

    #[derive(Parser)]
    struct Bare {
        #[command(flatten)]
        args: Args,
    }

    /// The settings of these flags.
    fn settings(flags: &[&str], origins: Origins) -> WireSettings {
        let given = ["treeswap", "--sources=/sources.yaml", "--root=/config"].iter().chain(flags);
        let args = Bare::try_parse_from(given).unwrap().args;
        WireSettings { args, origins, hidden: Hidden::default(), timeout: Duration::from_secs(1) }
    }

    /// How a source of this text is reached.
    fn reached(settings: &WireSettings, source: &str) -> wire::Options {
        let text = format!("version: 1\nsources:\n  - {{name: a, to: a, {source}}}\nend: true\n");
        settings.of(&SourcesFile::parse(&text).unwrap().sources[0]).unwrap()
    }

    #[test]
    fn the_credentials_of_a_source_replace_those_of_the_flags() {
        let flag = r#"--credential={"url":"http://h/team","username":"flag","password-file":"/f"}"#;
        let users = |flags: &[&str], source: &str| {
            let all = reached(&settings(flags, Origins::default()), source).credentials;
            all.into_iter().filter_map(|one| one.username).collect::<Vec<_>>()
        };
        let own = "repo: 'http://h/team/x.git', credentials: {username: own, password-file: /o}";
        assert_eq!(users(&[flag], own), ["own"], "that of the flag has the longer path");
        assert_eq!(users(&[flag], "repo: 'http://h/team/x.git'"), ["flag"]);
        let user = ["--username=me", "--password-file=/p"];
        assert_eq!(users(&[flag, user[0], user[1]], "repo: 'http://h/team/x.git'"), ["me", "flag"]);
        // A user in the URL is no mistake: --username is for the other sources.
        let with_key = "repo: 'ssh://git@h/y.git', credentials: {ssh-key-file: /k}";
        assert_eq!(users(&user, with_key), [""; 0]);
        assert_eq!(users(&user, "repo: 'https://bob@h/y.git'"), [""; 0]);
        assert_eq!(users(&user, "repo: 'git@h:y.git'"), ["me"]);
    }

    #[test]
    fn a_key_of_the_file_is_one_path_also_if_a_variable_lists_others() {
        let variable = Origin::Variable("TREESWAP_SSH_KEY_FILE".to_owned());
        let origins = Origins::default().as_git_sync([("ssh-key-file".to_owned(), variable)].into_iter());
        let settings = settings(&["--ssh-key-file=/a:/b"], origins);
        let keys = |credentials: &str| reached(&settings, &format!("repo: 'git@h:x'{credentials}")).ssh.keys;
        assert_eq!(keys(""), [PathBuf::from("/a"), PathBuf::from("/b")]);
        let own = keys(", credentials: {ssh-key-file: '/keys:old/id'}");
        assert_eq!(own, [PathBuf::from("/keys:old/id")]);
    }

    #[test]
    fn what_has_no_effect_or_shows_a_password_is_remarked_on() {
        let remarks = |source: &str| {
            let text = format!(
                "version: 1\nunique-base-names: 'jobs/**'\nsources:\n  - {{name: a, {source}}}\nend: true\n"
            );
            warnings_about(&SourcesFile::parse(&text).unwrap())
        };
        for (source, words) in [
            (
                "repo: 'https://me:hunter2@h/x', to: jobs",
                "source a: the password in the URL of `repo` can be read",
            ),
            (
                "repo: 'https://h/x', to: jobs, credentials: {ssh-key-file: /k}",
                "source a: `ssh-key-file` has no effect",
            ),
            (
                "repo: 'git@h:x', to: jobs, credentials: {username: u, password-file: /p}",
                "source a: `username` and `password-file` have no effect",
            ),
            ("repo: 'https://bob@h/x', to: jobs", "source a: the user in the URL of `repo` has no password"),
            ("repo: 'https://h/x', to: job", "unique-base-names: \"jobs/**\" matches no path below the `to`"),
        ] {
            let found = remarks(source);
            assert!(matches!(&found[..], [one] if one.contains(words)), "{source}: {found:?}");
            assert!(!found[0].contains("hunter2"), "{found:?}");
        }
        assert!(remarks("repo: 'git@h:x', to: jobs/b, credentials: {ssh-key-file: /k}").is_empty());
    }
}
