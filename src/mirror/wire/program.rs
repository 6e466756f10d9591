//! `--git`: fetches with a program that the operator names, for transports or credentials that this client does not
//! have, or through a wrapper script. The program is git, or accepts git's arguments.
//!
//! It runs as `PROGRAM fetch URL ID --verbose …` in an empty scratch repository (`GIT_DIR`) that has the mirror's
//! objects as an alternate and the same boundary, so that it fetches only missing objects and cannot damage the mirror.
//! The one pack that it writes there is then read and verified like a pack from the network. The scratch repository is
//! removed when the fetch ends; one that a killed process left is swept with the mirror's other unfinished directories.
//!
//! Secrets are never on disk, in an argument or in the environment: configuration and credentials are in anonymous
//! files of this process (memfd_create(2)), which the program reads as `/proc/PID/fd/N`, accessible to our own user
//! only. Each credential has a credential helper, which git itself calls only for the origin that it is for.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::MemfdFlags;
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::Command;

use crate::descendants::Descendants;
use crate::detached_io;
use crate::fsx;
use crate::revision::{ObjectId, Ref};
use crate::secret::Secret;

use super::credential::TOKEN_USER;
use super::error::{Budget, FILTER};
use super::issuer::Issuer;
use super::refs::{self, FoundRefs};
use super::remote::{self, Remote};
use super::ssh::{KnownHosts, quote};
use super::stderr::Stderr;
use super::{Deepen, Error, Options, PackResponse, Program, Request};

/// Prefix of a scratch repository's name; a number follows. The mirror sweeps directories with this prefix.
pub(in crate::mirror) const UNFINISHED: &str = "tmp_worktree-fetch-";

/// A pack without objects, for the indexer when the program found nothing to fetch.
const EMPTY_PACK: &[u8] =
    b"PACK\0\0\0\x02\0\0\0\0\x02\x9d\x08\x82\x3b\xd8\xa8\xea\xb5\x10\xad\x6a\xc7\x5c\x82\x3c\xfd\x3e\xd3\x1e";

/// How often the size of the pack is checked while the program writes it.
const SIZE_CHECK: Duration = Duration::from_millis(250);

/// Environment variables that would make git use another repository than the scratch repository.
const REPOSITORY_VARIABLES: [&str; 7] = [
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_SHALLOW_FILE",
];

/// Why a URL with a secret is refused. `url.BASE.insteadOf` would not help: the URL would still be an argument of the
/// programs that git starts, `git-remote-https` and ssh.
const SECRET_IN_URL: &str = "with --git it is an argument of programs, which every user of the machine can read, and a password or a query \
     string stands in it; give a secret with --password-file, --credential or --ssh-key-file";

/// Runs the git program.
#[derive(Debug)]
pub(super) struct Fetcher {
    name: String,
    /// The remote as passed to the program: an http URL without the user name and password.
    url: String,
    program: Program,
    options: Options,
    issuer: Option<Issuer>,
}

impl Fetcher {
    pub(super) fn new(program: Program, options: Options) -> Result<Self, Error> {
        let name = crate::secret::redact(&options.remote);
        let bad = |why| Error::BadRemote { remote: name.clone(), why };
        if options.remote.starts_with('-') || options.remote.bytes().any(|byte| byte < b' ') {
            return Err(bad("it begins with `-`, or has control characters in it"));
        }
        let parsed = remote::parse(&options.remote);
        let is_local = matches!(parsed, Ok((Remote::Local(_), _)));
        let url = match parsed {
            Ok((Remote::Http(url), _)) => url.to_string(),
            Ok((Remote::Local(path), _)) if !options.remote.contains("://") => {
                path.into_os_string().into_string().map_err(|_| bad("it is not UTF-8"))?
            }
            _ => options.remote.clone(),
        };
        if !is_local && has_secret(&url) {
            return Err(bad(SECRET_IN_URL));
        }
        let issuer =
            Issuer::of(&options).map_err(|source| Error::Connect { remote: name.clone(), source })?;
        Ok(Self { name, url, program, options, issuer })
    }

    /// Starts a new attempt: a credential that is valid for one attempt only is requested again.
    pub(super) fn attempt_begins(&mut self) {
        if let Some(issuer) = &mut self.issuer {
            issuer.attempt_begins();
        }
    }

    /// Resolves refs with `ls-remote`, for a remote whose URL only the program understands.
    pub(super) async fn resolve(&mut self, wanted: &[Ref]) -> Result<FoundRefs, Error> {
        let candidates = refs::candidates(wanted);
        let mut args = vec!["ls-remote".to_owned(), self.url.clone()];
        args.extend(candidates.iter().flat_map(|name| [name.clone(), format!("{name}^{{}}")]));
        let listing = self.run(&args, None).await?;
        let mut found = FoundRefs::none(&self.name);
        for (id, name) in listing.lines().filter_map(|line| line.split_once('\t')) {
            if let Some(id) = ObjectId::from_hex(id) {
                found.take(&candidates, name.as_bytes(), id);
            }
        }
        Ok(found)
    }

    pub(super) async fn fetch(
        &mut self,
        request: &Request,
        sink: &mut (dyn AsyncWrite + Unpin + Send),
    ) -> Result<PackResponse, Error> {
        if request.only_filtered {
            // If the remote does not support filters, git fetches everything, and only reports that afterwards.
            return Err(Error::Unsupported { remote: self.name.clone(), feature: FILTER });
        }
        let scratch = ScratchRepo::make(&self.program.mirror, request)
            .map_err(|source| self.failed("make a repository for it", source))?;
        let mut args = vec!["fetch".to_owned(), self.url.clone()];
        args.extend(request.wants.iter().map(ToString::to_string));
        args.extend(["--verbose", "--no-progress", "--no-auto-gc", "--no-tags"].map(str::to_owned));
        match request.depth {
            Deepen::To(commits) => args.extend(["--depth".to_owned(), commits.to_string()]),
            Deepen::Full if !request.shallow.is_empty() => args.push("--unshallow".to_owned()),
            Deepen::Full | Deepen::No => {}
        }
        if let Some(filter) = &request.filter {
            args.push(format!("--filter={filter}"));
        }
        let limit = self.options.max_fetch_bytes;
        // The program has no such limit itself, and would fill the volume.
        let ran = tokio::select! {
            ran = self.run(&args, Some(&scratch.0)) => ran,
            () = scratch.outgrows(limit) => {
                Err(Error::TooMuch { remote: self.name.clone(), budget: Budget::Pack, limit })
            }
        };
        match ran {
            // git checks that all wanted objects arrived. Of objects that are wanted by id a server may leave some out, and
            // the mirror asks for these again.
            Err(Error::Program { .. })
                if request.is_by_id() && scratch.packs().is_ok_and(|packs| packs.len() == 1) => {}
            ended => drop(ended?),
        }
        let bytes = self.send_pack(&scratch, sink).await?;
        let after = scratch.shallow().map_err(|source| self.failed("read the boundary of", source))?;
        let unshallow = request.shallow.iter().filter(|id| !after.contains(id)).copied().collect();
        Ok(PackResponse { unshallow, shallow: after, filtered: request.filter.is_some(), bytes })
    }

    /// Copies the pack that the program wrote to the sink, and returns its size. Without a pack it sends an empty one.
    async fn send_pack(
        &self,
        scratch: &ScratchRepo,
        sink: &mut (dyn AsyncWrite + Unpin + Send),
    ) -> Result<u64, Error> {
        let broken = |source| Error::Sink { remote: self.name.clone(), source };
        let packs = scratch.packs().map_err(|source| self.failed("read the pack of", source))?;
        let mut bytes = 0;
        match packs.as_slice() {
            [] => {
                sink.write_all(EMPTY_PACK).await.map_err(broken)?;
                bytes += EMPTY_PACK.len() as u64;
            }
            [pack] => {
                let unread = |source| self.failed("read the pack of", source);
                let mut file = tokio::fs::File::open(pack).await.map_err(unread)?;
                let limit = self.options.max_fetch_bytes;
                if file.metadata().await.map_err(unread)?.len() > limit {
                    return Err(Error::TooMuch { remote: self.name.clone(), budget: Budget::Pack, limit });
                }
                let mut chunk = vec![0; 64 << 10];
                loop {
                    let read = file.read(&mut chunk).await.map_err(unread)?;
                    if read == 0 {
                        break;
                    }
                    sink.write_all(&chunk[..read]).await.map_err(broken)?;
                    bytes += read as u64;
                }
            }
            _ => {
                let source = std::io::Error::other("it left more than one pack");
                return Err(self.failed("understand", source));
            }
        }
        sink.flush().await.map_err(broken)?;
        Ok(bytes)
    }

    /// Runs the program to its end and returns its standard output. Dropping the future kills the program and all its
    /// descendants.
    async fn run(&mut self, args: &[String], dir: Option<&Path>) -> Result<String, Error> {
        let (files, _secrets) = self.configure().await?; // both must live until the program ends
        let failed = |source| self.failed("run", source);
        let ssh = self.ssh_command().await;
        let mut command = Command::new(&self.program.path);
        command
            .args(args)
            .env("GIT_CONFIG_GLOBAL", &files.config)
            .env("GIT_CONFIG_NOSYSTEM", "true")
            .env("GIT_TERMINAL_PROMPT", "0")
            // The scratch repository says that objects may be missing, but has no remote to fetch them from. Before 2.45
            // git does not know the variable; then the boundary alone keeps it from looking for them.
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_SSH_COMMAND", ssh)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        for name in REPOSITORY_VARIABLES {
            command.env_remove(name);
        }
        for (name, _) in std::env::vars_os().filter(|(name, value)| crate::secret::in_variable(name, value)) {
            command.env_remove(name);
        }
        match dir {
            Some(dir) => command.current_dir(dir).env("GIT_DIR", dir),
            // git searches parent directories for a repository, and would read its configuration.
            None => command.current_dir("/").env_remove("GIT_DIR"),
        };
        let mut all = Descendants::start(command).map_err(failed)?;
        let said = all.take_stderr().map(Stderr::collect).unwrap_or_default();
        let mut listing = Vec::new();
        if let Some(out) = all.take_stdout() {
            let limit = self.options.max_refs_bytes;
            out.take(limit.saturating_add(1)).read_to_end(&mut listing).await.map_err(failed)?;
            if listing.len() as u64 > limit {
                // In a listing that was cut, the followed ref would seem to be missing.
                return Err(Error::TooMuch { remote: self.name.clone(), budget: Budget::Refs, limit });
            }
        }
        let status = all.wait().await.map_err(failed)?;
        all.release();
        if status.success() {
            return Ok(String::from_utf8_lossy(&listing).into_owned());
        }
        // Its words do not tell whether the credential was rejected: one of a GitHub App would stay for an hour.
        if let Some(issuer) = &mut self.issuer {
            issuer.forget();
        }
        let said = String::from_utf8_lossy(&said.settled().await).trim().to_owned();
        let said = crate::secret::quoted(&said).replace(char::is_control, " ");
        Err(Error::Program { program: self.program.path.clone(), remote: self.name.clone(), status, said })
    }

    /// Writes the program's configuration and credentials to anonymous files. The secrets in them are returned, because
    /// they are redacted from messages only while they are held.
    async fn configure(&mut self) -> Result<(Files, Vec<Secret>), Error> {
        let mut files = Files::default();
        let mut secrets = Vec::new();
        let mut text = String::from(
            "[core]\n\taskPass = true\n[gc]\n\tauto = 0\n[fetch]\n\tunpackLimit = 1\n[transfer]\n\tunpackLimit = 1\n",
        );
        for (url, username, password) in self.credentials().await? {
            let answer = format!("username={username}\npassword={}\n", password.expose());
            let failed = |source| self.failed("prepare a credential for", source);
            let path = files.add(answer.as_bytes()).map_err(failed)?;
            let helper = format!("!f() {{ test \"$1\" = get && cat {path}; }}; f");
            // Writing to a `String` does not fail.
            let _ = write!(text, "[credential {}]\n\thelper = {}\n", quoted(&url), quoted(&helper));
            secrets.extend([crate::secret::basic(&username, &password), password]);
        }
        if let Some(file) = &self.options.cookie_file {
            let _ = write!(text, "[http]\n\tcookieFile = {}\n", quoted(&file.to_string_lossy()));
        }
        for (key, value) in &self.program.config {
            let Some((section, name)) = key.rsplit_once('.') else { continue };
            let header = match section.split_once('.') {
                Some((section, sub)) => format!("{section} {}", quoted(sub)),
                None => section.to_owned(),
            };
            let _ = write!(text, "[{header}]\n\t{name} = {}\n", quoted(value));
        }
        files.config = files
            .add(text.as_bytes())
            .map_err(|source| self.failed("write the configuration for", source))?;
        Ok((files, secrets))
    }

    /// All credentials: URL, user name and password.
    async fn credentials(&mut self) -> Result<Vec<(String, String, Secret)>, Error> {
        let mut all = Vec::new();
        let mut given = self.options.for_remote(&self.options.remote).credentials;
        // As in git, no helper precedes a password in the URL, which is the last of the list.
        if let Ok((Remote::Http(_), Some((_, password)))) = remote::parse(&self.options.remote)
            && !password.expose().is_empty()
        {
            given.rotate_right(1);
        }
        for credential in given {
            let unread = |source| Error::Credential { remote: self.name.clone(), source };
            let password = credential.password.now(self.options.timeouts.idle).await.map_err(unread)?;
            let url = credential.url.unwrap_or_else(|| self.url.clone());
            all.push((url, credential.username.unwrap_or_else(|| TOKEN_USER.to_owned()), password));
        }
        if let Some(issuer) = &mut self.issuer {
            let refused = |source| Error::Issuer { remote: self.name.clone(), source: Box::new(source) };
            let (username, password) = issuer.credential().await.map_err(refused)?;
            all.push((self.url.clone(), username, password));
        }
        Ok(all)
    }

    /// The key files that exist. If checking takes too long, as on a hung file system, all of them: ssh then reports
    /// the problem.
    async fn existing_keys(&self) -> Vec<PathBuf> {
        let all = self.options.ssh.keys.clone();
        let Some(first) = all.first().cloned() else { return all };
        let given = all.clone();
        let check = detached_io::run(&first, move || {
            given.into_iter().filter(|key| key.exists()).collect::<Vec<_>>()
        });
        let found = tokio::time::timeout(self.options.timeouts.idle, check).await;
        found.ok().flatten().unwrap_or(all)
    }

    /// The value of `GIT_SSH_COMMAND`: the operator's own, or `ssh`, with our keys and known hosts.
    async fn ssh_command(&self) -> String {
        let configured = std::env::var("GIT_SSH_COMMAND").unwrap_or_default();
        let mut command = if configured.is_empty() { "ssh".to_owned() } else { configured };
        for key in self.existing_keys().await {
            let _ = write!(command, " -i {}", quote(&key.to_string_lossy()));
        }
        match &self.options.ssh.known_hosts {
            KnownHosts::Strict(file) => {
                let file = quote(&format!("UserKnownHostsFile={}", file.display()));
                let _ = write!(command, " -o StrictHostKeyChecking=yes -o {file}");
            }
            KnownHosts::Off => {
                command.push_str(" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null");
            }
        }
        command
    }

    fn failed(&self, act: &'static str, source: std::io::Error) -> Error {
        Error::Start { act, program: self.program.path.clone(), source }
    }
}

/// Returns true if a URL may contain a secret: a password or a query string. A user name alone is not one; ssh needs it
/// as the account's name.
fn has_secret(url: &str) -> bool {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let location = match rest.split_once('@') {
        Some((user, location)) if !user.contains([':', '/', '?', '#', ';']) => location,
        _ => rest,
    };
    let location = format!("{scheme}://{location}");
    crate::secret::redact(&location) != location
}

/// Quotes a value or a subsection for git's configuration.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}

/// Anonymous files that the program reads; they exist until this is dropped.
#[derive(Default)]
struct Files {
    /// The path of the configuration file.
    config: String,
    open: Vec<std::fs::File>,
}

impl Files {
    /// Makes a file and returns the path by which the program opens it.
    fn add(&mut self, content: &[u8]) -> std::io::Result<String> {
        let mut file = std::fs::File::from(rustix::fs::memfd_create("treeswap", MemfdFlags::CLOEXEC)?);
        file.write_all(content)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        self.open.push(file);
        Ok(path)
    }
}

/// An empty repository with the mirror's objects as an alternate. Dropping it removes the directory.
struct ScratchRepo(PathBuf);

impl Drop for ScratchRepo {
    fn drop(&mut self) {
        let _ = fs_err::remove_dir_all(&self.0); // anything left is swept when the mirror is opened
    }
}

impl ScratchRepo {
    fn make(mirror: &Path, request: &Request) -> std::io::Result<Self> {
        let scratch = Self(mirror.join(fsx::unique(UNFINISHED)));
        let file = |name: &str, text: String| fs_err::write(scratch.0.join(name), text);
        for dir in ["objects/info", "objects/pack", "refs/held"] {
            fs_err::create_dir_all(scratch.0.join(dir))?;
        }
        file("HEAD", "ref: refs/heads/none\n".to_owned())?;
        // With a promisor remote git accepts that a filter left objects out; we check ourselves that none is missing.
        let promisor = "[remote \"origin\"]\n\tpromisor = true\n";
        // git would also claim the refs of the alternate as present, although the request may not: a server then leaves
        // out the objects that are wanted by id, because they belong to a commit that we seem to have.
        let core =
            "[core]\n\trepositoryFormatVersion = 0\n\tbare = true\n\talternateRefsPrefixes = refs/none/\n";
        file("config", format!("{core}{promisor}"))?;
        file("objects/info/alternates", format!("{}\n", mirror.join("objects").display()))?;
        if !request.shallow.is_empty() {
            file("shallow", request.shallow.iter().map(|id| format!("{id}\n")).collect())?;
        }
        // These refs become the `have` lines of git's negotiation.
        for (at, id) in request.haves.iter().enumerate() {
            file(&format!("refs/held/{at}"), format!("{id}\n"))?;
        }
        Ok(scratch)
    }

    /// The packs in the repository.
    fn packs(&self) -> std::io::Result<Vec<PathBuf>> {
        let all = fs_err::read_dir(self.0.join("objects/pack"))?.map(|entry| Ok(entry?.path()));
        let all: Vec<_> = all.collect::<std::io::Result<_>>()?;
        Ok(all.into_iter().filter(|path| path.extension().is_some_and(|end| end == "pack")).collect())
    }

    /// Ends when a pack in the repository, or one that git is writing, has more bytes than this.
    async fn outgrows(&self, limit: u64) {
        let mut ticks = tokio::time::interval(SIZE_CHECK);
        while self.largest_pack() <= limit {
            ticks.tick().await;
        }
    }

    /// The size of the largest pack. What cannot be read has none: git moves files meanwhile.
    fn largest_pack(&self) -> u64 {
        let Ok(entries) = fs_err::read_dir(self.0.join("objects/pack")) else { return 0 };
        let sizes = entries.filter_map(Result::ok).filter_map(|entry| {
            let name = entry.file_name();
            let name = name.as_encoded_bytes();
            let is_pack = name.starts_with(b"tmp_pack_") || name.ends_with(b".pack");
            entry.metadata().ok().filter(|_| is_pack).map(|about| about.len())
        });
        sizes.max().unwrap_or(0)
    }

    /// The repository's boundary.
    fn shallow(&self) -> std::io::Result<Vec<ObjectId>> {
        match fs_err::read_to_string(self.0.join("shallow")) {
            Ok(text) => Ok(text.lines().filter_map(ObjectId::from_hex).collect()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use crate::secret::SecretFrom;

    use super::super::{Credential, Issuance, Issued};
    use super::*;

    #[tokio::test]
    async fn the_outcome_of_a_request_for_a_credential_is_reported() {
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let reported = Arc::clone(&outcomes);
        let issued = Issued::to(move |is_issued| reported.lock().unwrap().push(is_issued));
        let refusing = "http://127.0.0.1:1/askpass".parse().unwrap();
        let options =
            Options { issuance: Some(Issuance::Askpass(refusing)), issued, ..Options::new("https://h/a") };
        let program = Program { path: "git".into(), config: Vec::new(), mirror: PathBuf::new() };
        let mut fetcher = Fetcher::new(program, options).unwrap();
        assert!(fetcher.credentials().await.is_err());
        assert_eq!(*outcomes.lock().unwrap(), [false]);
    }

    #[tokio::test]
    async fn a_credential_is_requested_again_after_the_program_failed() {
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let reported = Arc::clone(&outcomes);
        let issued = Issued::to(move |is_issued| reported.lock().unwrap().push(is_issued));
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let askpass = format!("http://{}/", server.local_addr().unwrap()).parse().unwrap();
        let serving = tokio::spawn(async move {
            while let Ok((mut client, _)) = server.accept().await {
                let _ = client.read(&mut [0; 1024]).await.unwrap();
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\nconnection: close\r\n\r\npassword=pw";
                client.write_all(answer).await.unwrap();
            }
        });
        let options =
            Options { issuance: Some(Issuance::Askpass(askpass)), issued, ..Options::new("https://h/a") };
        let program = Program { path: "false".into(), config: Vec::new(), mirror: PathBuf::new() };
        let mut fetcher = Fetcher::new(program, options).unwrap();
        for _ in 0..2 {
            let failed = fetcher.run(&[], None).await.unwrap_err();
            assert!(matches!(failed, Error::Program { .. }), "{failed:?}");
        }
        serving.abort();
        assert_eq!(*outcomes.lock().unwrap(), [true, true]);
    }

    #[tokio::test]
    async fn a_password_in_the_url_precedes_every_helper() {
        let program = Program { path: "git".into(), config: Vec::new(), mirror: PathBuf::new() };
        let given = |url: &str, username: &str| Credential {
            url: Some(url.to_owned()),
            username: Some(username.to_owned()),
            password: SecretFrom::Value(Secret::new("pw")),
        };
        let given = [given("https://h/a", "path"), given("https://h", "host")];
        for (remote, expected) in
            [("https://url:pw@h/a", ["url", "path", "host"]), ("https://url@h/a", ["path", "host", "url"])]
        {
            let options = Options { credentials: given.to_vec(), ..Options::new(remote) };
            let mut fetcher = Fetcher::new(program.clone(), options).unwrap();
            let all = fetcher.credentials().await.unwrap();
            let names: Vec<_> = all.iter().map(|(_, username, _)| username.as_str()).collect();
            assert_eq!(names, expected, "{remote}");
        }
    }

    #[test]
    fn the_empty_pack_is_one() {
        let (content, sum) = EMPTY_PACK.split_at(12);
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, content);
        assert_eq!(digest.as_ref(), sum);
    }

    #[test]
    fn values_cannot_leave_their_quotes() {
        assert_eq!(quoted("a\"]\n\\x"), r#""a\"]\n\\x""#);
    }
}
