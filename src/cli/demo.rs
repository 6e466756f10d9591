//! `treeswap demo`: a narrated demonstration on a bundled example. Every claim that it prints was checked just before.
//!
//! It runs this binary as a sidecar on a temporary root, commits the example's releases to a local repository, and
//! reads the directory as a consumer would. On a terminal it narrates each step; otherwise it prints only a summary
//! line.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal};

use super::temporary::TempDir;
use crate::mirror::author::{Author, Content};
use crate::pin::{self, Pin};

/// The path and the content of a file of the example.
type File = (&'static str, Content<'static>);

macro_rules! release {
    ($number:literal: $($path:literal),+) => {
        &[$(($path, Content::File(include_bytes!(concat!("../../testdata/example/", $number, "/", $path)))),)+
          ("bin/check",
           Content::Executable(include_bytes!(concat!("../../testdata/example/", $number, "/bin/check"))))]
    };
}

/// The example's releases, as `testdata/example` holds them.
const RELEASES: [&[File]; 3] = [
    release!("1": "RELEASE", "gateway/routes.yaml", "gateway/limits.yaml", "scheduler/jobs/nightly.yaml",
             "scheduler/jobs/hourly.yaml", "ci/acme/shop/acme-shop-main.yaml"),
    release!("2": "RELEASE", "gateway/routes.yaml", "gateway/limits.yaml", "scheduler/jobs/nightly.yaml",
             "scheduler/jobs/weekly.yaml", "ci/acme/shop/acme-shop-main.yaml"),
    release!("3": "RELEASE", "gateway/routes.yaml", "gateway/limits.yaml", "scheduler/jobs/nightly.yaml",
             "scheduler/jobs/weekly.yaml", "ci/acme/shop/acme-shop-main.yaml"),
];

/// Time limit for each expected event. Generous, because a loaded machine is slow and not broken.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// The grace period; short, so that a generation is reaped within the demonstration.
const GRACE: Duration = Duration::from_secs(1);
/// Where the file of the second source is published.
const TEAM_FILE: &str = "scheduler/team/backup.yaml";

/// Options of `treeswap demo`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Keep the repository and the root, and print the path of their directory
    #[arg(long)]
    keep: bool,
}

/// Runs the demonstration.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let temporary = TempDir::new("treeswap-demo-").context("make a temporary directory")?;
    let mut stage = Stage::new(temporary.path())?;
    let began = Instant::now();
    let played = stage.play();
    drop(stage);
    // Before anything is printed, and if a step failed, too: its repository and root show why.
    let kept = args.keep.then(|| temporary.keep());
    if let Ok(swaps) = &played {
        print(&format!(
            "demo: {swaps} releases published and read whole, 1 hostile commit refused, 1 pin kept and released, \
             1 second source joined, {:.1}s",
            began.elapsed().as_secs_f64()
        ));
    }
    if let Some(kept) = kept {
        print(&format!("demo: kept {}", kept.display()));
    }
    played.map(drop)
}

/// Prints a line on stdout, whether or not anybody reads it.
fn print(line: &str) {
    super::print(format!("{line}\n").as_bytes());
}

/// The repository, the root, and a sidecar running between them.
struct Stage {
    repository: PathBuf,
    root: PathBuf,
    log: PathBuf,
    author: Author,
    sidecar: Option<Child>,
    /// Whether stdout is a terminal, on which the steps are narrated.
    narrated: bool,
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(mut sidecar) = self.sidecar.take() {
            let _ = sidecar.kill();
            let _ = sidecar.wait();
        }
    }
}

impl Stage {
    /// Makes an empty repository in the directory `at`.
    fn new(at: &Path) -> anyhow::Result<Self> {
        let repository = at.join("config.git");
        let author = Author::init(&repository)?;
        Ok(Self {
            repository,
            root: at.join("config"),
            log: at.join("treeswap.log"),
            author,
            sidecar: None,
            narrated: std::io::stdout().is_terminal(),
        })
    }

    /// Runs all steps; returns how many releases were published.
    fn play(&mut self) -> anyhow::Result<usize> {
        self.say("A git repository with release 1 of a small configuration, and treeswap following it:");
        self.commit(1, &[])?;
        let repository = self.repository.clone();
        self.start(&["--repo".as_ref(), repository.as_os_str(), "--ref=main".as_ref()])?;
        self.wait("release 1 to be published", |stage| stage.published("1"))?;
        self.show_root()?;

        self.say("A slow reader pins the generation it reads. Meanwhile release 2 arrives: two files change together, one goes, one comes:");
        let pin = Pin::take(&self.root, &pin::Options::default()).context("pin the published generation")?;
        let pinned = fs_err::read_link(self.root.join("..data"))?;
        self.commit(2, &[])?;
        self.wait("release 2 to be published", |stage| stage.published("2"))?;
        ensure!(!self.root.join("scheduler/jobs/hourly.yaml").exists(), "a removed file is still there");
        self.show_root()?;

        self.say("The grace period of release 1 is over, but the slow reader still has all of it, through its pin:");
        std::thread::sleep(2 * GRACE);
        let status = self.status()?;
        ensure!(status.contains("pinned"), "the pin is not seen: {status}");
        ensure!(is_complete(&pin.path(), "1", &[])?, "the pinned generation changed");

        self.say("Somebody commits a link to /etc/passwd. The revision is refused by name; release 2 keeps serving:");
        self.commit(2, &[("gateway/passwd", Content::Symlink("/etc/passwd"))])?;
        self.wait("the commit to be refused", |stage| stage.logged("gateway/passwd"))?;
        let log = fs_err::read_to_string(&self.log)?;
        let refusal = log.lines().find(|line| line.contains("gateway/passwd")).unwrap_or_default();
        self.show(refusal.split_once(' ').map_or(refusal, |(_, words)| words.trim()));
        ensure!(self.published("2")?, "a refused commit changed what is published");

        self.say("Release 3 takes the link away again, and is published:");
        self.commit(3, &[])?;
        self.wait("release 3 to be published", |stage| stage.published("3"))?;

        self.say("The slow reader is done. Nobody needs release 1 any more, so it is reaped:");
        drop(pin);
        let gone = self.root.join(&pinned);
        self.wait("release 1 to be reaped", |_| Ok(!gone.exists()))?;
        self.show_root()?;
        self.stop()?;
        self.add_second_source()?;
        Ok(RELEASES.len())
    }

    /// Adds a second repository, whose files are published together with those of the first.
    fn add_second_source(&mut self) -> anyhow::Result<()> {
        self.say("A team has its jobs in a repository of its own. A file lists both, and treeswap goes on with it, on the same root:");
        let team = self.root.with_file_name("team.git");
        let jobs = Author::init(&team)?;
        let commit = |number: &str| jobs.commit(&[("backup.yaml", Content::File(number.as_bytes()))], number);
        commit("1")?;
        let list = self.root.with_file_name("sources.yaml");
        let lines = [
            "version: 1".to_owned(),
            "sources:".to_owned(),
            format!("  - {{name: config, repo: {}, ref: main}}", self.repository.display()),
            format!("  - {{name: team, repo: {}, ref: main, to: scheduler/team}}", team.display()),
            "end: true".to_owned(),
        ];
        fs_err::write(&list, lines.join("\n") + "\n")?;
        lines.iter().for_each(|line| self.show(line));
        self.start(&["--sources".as_ref(), list.as_os_str()])?;
        let has = |stage: &Self, number: &str| -> anyhow::Result<bool> {
            let pin =
                Pin::take(&stage.root, &pin::Options::default()).context("pin the published generation")?;
            match fs_err::read_to_string(pin.path().join(TEAM_FILE)) {
                Ok(text) if text == number => {}
                _ => return Ok(false),
            }
            ensure!(
                is_complete(&pin.path(), "3", &[TEAM_FILE])?,
                "the first source's files are not release 3"
            );
            Ok(true)
        };
        self.wait("both to be published", |stage| has(stage, "1"))?;
        self.say("A commit in either makes the next generation of both:");
        commit("2")?;
        self.wait("the team's commit to be published", |stage| has(stage, "2"))?;
        self.status()?;
        self.stop()
    }

    /// Commits a release of the example and the extra paths.
    fn commit(&self, release: usize, extra: &[(&str, Content<'_>)]) -> anyhow::Result<()> {
        let mut paths: Vec<(&str, Content<'_>)> = RELEASES[release - 1].to_vec();
        paths.extend_from_slice(extra);
        let revision = self.author.commit(&paths, &format!("release {release}"))?;
        self.show(&format!("git commit {} on main", revision.short()));
        Ok(())
    }

    /// Starts this binary as the sidecar.
    fn start(&mut self, follow: &[&OsStr]) -> anyhow::Result<()> {
        let log = fs_err::File::create(&self.log)?.into_parts().0;
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.arg("sync").args(follow).arg("--root").arg(&self.root);
        command.args(["--period=200ms", "--min-interval=0s", "--log-format=plain"]);
        command.arg(format!("--grace={}ms", GRACE.as_millis()));
        end_with_this_process(&mut command);
        self.sidecar = Some(command.spawn().context("start the sidecar")?);
        Ok(())
    }

    /// Ends the sidecar with SIGTERM, as a kubelet does, and checks its exit code.
    fn stop(&mut self) -> anyhow::Result<()> {
        let Some(mut sidecar) = self.sidecar.take() else { return Ok(()) };
        let pid = Pid::from_child(&sidecar);
        rustix::process::kill_process(pid, Signal::TERM).context("end the sidecar")?;
        let status = sidecar.wait().context("wait for the sidecar")?;
        ensure!(status.success(), "the sidecar ended with {status}");
        Ok(())
    }

    /// Whether the published generation is this release. Fails if it is and is not complete.
    fn published(&self, release: &str) -> anyhow::Result<bool> {
        let pin = match Pin::take(&self.root, &pin::Options::default()) {
            Err(pin::Error::NoGeneration { .. }) => return Ok(false),
            other => other.context("pin the published generation")?,
        };
        if fs_err::read_to_string(pin.path().join("RELEASE"))?.trim() != release {
            return Ok(false);
        }
        ensure!(is_complete(&pin.path(), release, &[])?, "release {release} was published incomplete");
        Ok(true)
    }

    /// Whether the sidecar's log contains these words yet.
    fn logged(&self, words: &str) -> anyhow::Result<bool> {
        Ok(fs_err::read_to_string(&self.log)?.contains(words))
    }

    /// Shows and returns the output of `treeswap status`.
    fn status(&self) -> anyhow::Result<String> {
        let this = std::env::current_exe().context("find this program")?;
        let output = Command::new(this).env_clear().arg("status").arg(&self.root).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().for_each(|line| self.show(line));
        Ok(text)
    }

    /// Waits until a condition holds, with a spinner on a terminal. `what` names it.
    fn wait(&mut self, what: &str, holds: impl Fn(&Self) -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let spinner = if self.narrated {
            indicatif::ProgressBar::new_spinner()
        } else {
            indicatif::ProgressBar::hidden()
        };
        spinner.set_message(format!("waiting for {what}"));
        spinner.enable_steady_tick(Duration::from_millis(80));
        let began = Instant::now();
        while !holds(self)? {
            if let Some(status) = self.sidecar.as_mut().and_then(|sidecar| sidecar.try_wait().ok().flatten())
            {
                bail!("the sidecar ended with {status}; its output:\n{}", fs_err::read_to_string(&self.log)?);
            }
            if began.elapsed() > WAIT_LIMIT {
                bail!(
                    "waited {WAIT_LIMIT:?} for {what}; the sidecar's output:\n{}",
                    fs_err::read_to_string(&self.log)?
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        spinner.finish_and_clear();
        Ok(())
    }

    /// Lists the root as `ls` would.
    fn show_root(&self) -> anyhow::Result<()> {
        let mut names: Vec<_> =
            fs_err::read_dir(&self.root)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
        names.sort();
        for path in names {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            match fs_err::read_link(&path) {
                Ok(target) => self.show(&format!("{name} -> {}", target.display())),
                Err(_) => self.show(&format!("{name}/")),
            }
        }
        Ok(())
    }

    /// Narrates a step, on a terminal.
    fn say(&self, words: &str) {
        if self.narrated {
            print(&format!("\n{words}"));
            std::thread::sleep(Duration::from_millis(700)); // time to read it
        }
    }

    /// Shows a line of output, on a terminal.
    fn show(&self, line: &str) {
        if self.narrated {
            print(&format!("    {line}"));
        }
    }
}

/// Lets the kernel kill the program when this process ends, even by SIGKILL.
#[expect(unsafe_code, reason = "there is no safe form of what is done between fork and exec")]
fn end_with_this_process(command: &mut Command) {
    use std::os::unix::process::CommandExt as _;
    let set = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: the closure makes one system call; it neither allocates nor takes a lock.
    unsafe { command.pre_exec(set) };
}

/// Whether a directory has exactly the files of a release and the files `more`.
fn is_complete(directory: &Path, release: &str, more: &[&str]) -> anyhow::Result<bool> {
    let number: usize = release.parse().context("a release's number")?;
    let files = RELEASES[number - 1];
    for (path, content) in files {
        let (Content::File(bytes) | Content::Executable(bytes)) = content else { continue };
        if fs_err::read(directory.join(path))? != *bytes {
            return Ok(false);
        }
    }
    Ok(count_files(directory)? == files.len() + more.len())
}

fn count_files(directory: &Path) -> std::io::Result<usize> {
    let mut files = 0;
    for entry in fs_err::read_dir(directory)? {
        let entry = entry?;
        files += if entry.file_type()?.is_dir() { count_files(&entry.path())? } else { 1 };
    }
    Ok(files)
}
