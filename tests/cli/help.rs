//! Help, manual, version and completions, and what a terminal shows.

use std::net::TcpListener;

use super::common::World;
use super::treeswap;

#[test]
fn help_version_completions_and_manual_come_from_one_tree() {
    let world = World::new();
    let help = treeswap(&world, &["sync", "--help=all"], &[]).expect_ok("--help=all").stdout;
    let headings = ["Source", "Credentials", "Root", "Retention", "Pace", "Server", "Logging", "Limits"];
    for heading in headings {
        assert!(help.contains(&format!("\n{heading}:\n")), "no heading {heading}");
    }
    for part in ["[env: TREESWAP_MAX_PIN]", "[default: 10m]", "--stale-worktree-timeout"] {
        assert!(help.contains(part), "{part}");
    }
    let version = treeswap(&world, &["--version"], &[]).expect_ok("--version").stdout;
    assert!(version.starts_with(&format!("treeswap {}", env!("CARGO_PKG_VERSION"))), "{version}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = treeswap(&world, &["completions", shell], &[]).expect_ok(shell).stdout;
        assert!(script.contains("min-interval"), "{shell}");
    }
    let manual = treeswap(&world, &["man", "sync"], &[]).expect_ok("man sync").stdout;
    // Every flag that the help shows is in the manual.
    for flag in help.lines().filter_map(|line| line.trim_start().strip_prefix("--")) {
        let flag = flag.split([' ', '[', '=']).next().unwrap().replace('-', "\\-");
        assert!(manual.contains(&flag), "--{flag} is not in the manual");
    }
}

/// The options that a help shows, besides `--help`.
fn options(help: &str) -> Vec<&str> {
    let lines = help.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    lines.map(|flag| flag.split([' ', '[', '=']).next().unwrap()).collect()
}

#[test]
fn the_help_of_sync_has_what_people_need_and_all_of_it_where_that_is_asked_for() {
    let world = World::new();
    let help = |word: &str| treeswap(&world, &["sync", word], &[]).expect_ok(word).stdout;
    let (short, usual, all) = (help("-h"), help("--help"), help("--help=all"));
    assert_eq!(options(&short), options(&usual));
    // `-h` fits a screen of 50 lines (a test in `src/cli/mod.rs`), on which about twenty options have room.
    assert!(options(&usual).len() <= 22, "{usual}");
    for needed in ["repo", "ref", "password-file", "ssh-key-file", "root", "grace", "one-time", "period"] {
        assert!(options(&usual).contains(&needed), "--{needed} is not in {usual}");
    }
    assert!(usual.contains("--help=all") && usual.contains("[env: TREESWAP_MAX_PIN]"), "{usual}");
    let all = options(&all);
    assert!(all.len() > 80 && options(&usual).iter().all(|flag| all.contains(flag)), "{all:?}");
    // What belongs to another program is passed on.
    let passed = treeswap(&world, &["pin", "/nonexistent", "--", "x", "--help=all"], &[]);
    assert!(!passed.stdout.contains("Usage"), "{}", passed.stdout);
}

#[test]
fn the_manual_has_a_page_for_each_command_with_the_customary_sections() {
    let world = World::new();
    let dir = world.dir().join("man1");
    treeswap(&world, &["man", "--dir", dir.to_str().unwrap()], &[]).expect_ok("man --dir");
    let help = treeswap(&world, &["--help"], &[]).expect_ok("--help").stdout;
    let list = help.split("Commands:").nth(1).unwrap().split("Options:").next().unwrap();
    let commands: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), commands.len() + 1);
    for name in std::iter::once("").chain(commands) {
        let (file, page) = if name.is_empty() {
            ("treeswap.1".to_owned(), vec!["man"])
        } else {
            (format!("treeswap-{name}.1"), vec!["man", name])
        };
        let text = std::fs::read_to_string(dir.join(&file)).unwrap();
        assert_eq!(treeswap(&world, &page, &[]).expect_ok("man").stdout, text);
        let sections: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(".SH ")).collect();
        let sections: Vec<&str> = sections.iter().map(|section| section.trim_matches('"')).collect();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"] {
            assert!(sections.contains(&section), "{file} has no {section}: {sections:?}");
        }
        if ["", "sync", "apply", "git-sync"].contains(&name) {
            for section in ["OPTIONS", "ENVIRONMENT", "FILES"] {
                assert!(sections.contains(&section), "{file} has no {section}: {sections:?}");
            }
        }
        let title = text.lines().find(|line| line.starts_with(".TH ")).unwrap_or_default();
        assert!(title.contains("treeswap") && title.contains(env!("CARGO_PKG_VERSION")), "{file}: {title}");
        assert_eq!(sections.first(), Some(&"NAME"));
        assert_eq!(sections.last(), Some(&"SEE ALSO"));
    }
    let unknown = treeswap(&world, &["man", "nope"], &[]);
    assert!(unknown.complaint().contains("there is no command nope"), "{}", unknown.stderr);
}

/// A terminal of 70 columns.
struct Terminal {
    /// What programs have as their output.
    program: std::fs::File,
    /// What a person sees.
    seen: std::sync::mpsc::Receiver<String>,
}

impl Terminal {
    #[expect(unsafe_code, reason = "openpty(3) has no safe form")]
    fn open() -> Self {
        use std::io::Read as _;
        use std::os::fd::FromRawFd as _;
        let (mut person, mut program) = (-1, -1);
        let (no_name, as_it_is) = (std::ptr::null_mut(), std::ptr::null());
        // SAFETY: both descriptors are written, and then owned by one file each.
        let (mut person, program) = unsafe {
            let size = libc::winsize { ws_row: 40, ws_col: 70, ws_xpixel: 0, ws_ypixel: 0 };
            assert_eq!(libc::openpty(&mut person, &mut program, no_name, as_it_is, &size), 0);
            (std::fs::File::from_raw_fd(person), std::fs::File::from_raw_fd(program))
        };
        let (send, seen) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = person.read(&mut piece) {
                let _ = send.send(String::from_utf8_lossy(&piece[..length]).into_owned());
            }
        });
        Self { program, seen }
    }

    fn output(&self) -> std::fs::File {
        self.program.try_clone().unwrap()
    }

    /// Waits until it shows all of these words, and returns what it shows.
    fn shows(&self, words: &[&str]) -> String {
        let (mut text, limit) = (String::new(), std::time::Duration::from_secs(30));
        while !words.iter().all(|word| text.contains(word)) {
            let more = self.seen.recv_timeout(limit);
            text += &more.unwrap_or_else(|_| panic!("{words:?} are not in {text:?}"));
        }
        text
    }
}

#[test]
fn on_a_terminal_a_line_says_what_a_sync_waits_for_and_for_how_long() {
    let world = World::new();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let terminal = Terminal::open();
    let repo = format!("--repo=git://{}/x", silent.local_addr().unwrap());
    let mut command = world.treeswap(&["sync", &repo, "--root"]);
    command.arg(&world.root).env("TERM", "xterm").stderr(terminal.output());
    let mut child = command.spawn().unwrap();
    terminal.shows(&["resolving the ref at the remote", "(3s)"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn on_a_terminal_git_syncs_help_is_as_wide_as_it() {
    let world = World::new();
    let terminal = Terminal::open();
    let mut command = world.treeswap(&["git-sync", "--help"]);
    command.stdout(terminal.output()).spawn().unwrap().wait().unwrap();
    let text = terminal.shows(&["Usage: treeswap git-sync", "$TREESWAP_MAX_PIN."]);
    let (_, usage) = text.split_once("Usage: ").unwrap();
    for line in usage.lines() {
        assert!(line.trim_end().chars().count() <= 70, "{line:?}");
    }
}

#[test]
fn the_manual_of_a_command_has_the_commands_own_exit_codes() {
    let world = World::new();
    let status = |command: &str| {
        let page = treeswap(&world, &["man", command], &[]).expect_ok("man").stdout;
        let rest = page.split(".SH \"EXIT STATUS\"").nth(1).expect("a section").to_owned();
        rest.split(".SH ").next().unwrap().replace("\\-", "-")
    };
    for (command, has, lacks) in [
        ("pin", &["126", "127", "the command's own"][..], "differences"),
        ("watch", &["SIGTERM", "--exit-on-failure"], "targets"),
        ("status", &["a generation is published", "--max-age"], "targets"),
        ("sync", &["some targets or sources are not done", "128+N"], "differences"),
        ("git-sync", &["an argument cannot be read", "128+N"], "targets"),
        ("apply", &["some targets or sources are not done", "differences found"], "126"),
        ("render", &["usage or configuration"], "targets"),
    ] {
        let text = status(command).replace("\\*(Aq", "'").replace("\\(aq", "'");
        for words in has {
            assert!(text.contains(words), "{command}: {words} is not in {text}");
        }
        assert!(!text.contains(lacks), "{command}: {lacks} is in {text}");
    }
}

#[test]
fn the_manual_of_a_command_names_the_secrets_that_it_reads_from_variables() {
    let world = World::new();
    for command in ["sync", "apply", "render"] {
        let page = treeswap(&world, &["man", command], &[]).expect_ok("man").stdout;
        let rest = page.split(".SH ENVIRONMENT").nth(1).expect("a section");
        let variables = rest.split(".SH ").next().unwrap();
        for name in ["PASSWORD", "CREDENTIAL", "GITHUB_APP_PRIVATE_KEY"] {
            assert!(variables.contains(&format!("TREESWAP_{name}\\fR")), "{command}: {name}: {variables}");
        }
    }
}
