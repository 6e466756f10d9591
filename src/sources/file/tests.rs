use super::*;

const EXAMPLE: &str = r#"version: 1
on-failure: hold
unique-base-names: ["jobs/**/*.yaml", "steps/**"]
sources:
  - {name: jobs, repo: https://git.example.com/release.git, ref: main, path: ci-operator/jobs/, to: jobs}
  - {name: steps, repo: https://git.example.com/release.git, to: steps, sparse: ["/a/", "!b"]}
  - {name: team-a, repo: git@git.example.com:a.git, to: teams/a, optional: true, credentials: {ssh-key-file: /etc/a/key}}
end: true
"#;

#[test]
fn the_password_of_a_repository_is_not_in_the_debug_output() {
    let text = EXAMPLE.replace("https://git", "https://bob:s3cret@git");
    let shown = format!("{:?}", SourcesFile::parse(&text).unwrap());
    assert!(shown.contains("git.example.com/release.git") && !shown.contains("s3cret"), "{shown}");
}

#[test]
fn a_file_is_read_as_it_is_written() {
    let list = SourcesFile::parse(EXAMPLE).unwrap();
    assert_eq!(list.on_failure, OnFailure::Hold);
    assert_eq!(list.unique.globs(), ["jobs/**/*.yaml", "steps/**"]);
    let jobs = &list.sources[0];
    assert_eq!(
        (jobs.path.as_str(), jobs.to.as_str(), jobs.ref_text.as_str()),
        ("ci-operator/jobs", "jobs", "main")
    );
    assert_eq!((list.sources[1].ref_text.as_str(), list.sources[1].sparse.len()), ("HEAD", 2));
    assert_eq!([&jobs.reference, &list.sources[1].reference], [&Ref::Named("main".into()), &Ref::Head]);
    assert!(list.sources[2].optional && !list.sources[1].optional);
    assert_eq!(list.sources[2].credentials.ssh_key_file, PathBuf::from("/etc/a/key"));
}

#[test]
fn a_byte_order_mark_before_the_text_is_nothing() {
    assert_eq!(SourcesFile::parse(&format!("\u{feff}{EXAMPLE}")).unwrap().sources.len(), 3);
}

#[test]
fn no_file_that_was_cut_short_is_read() {
    for end in 0..EXAMPLE.len() {
        assert!(SourcesFile::parse(&EXAMPLE[..end]).is_err(), "cut at {end}");
    }
}

#[test]
fn a_file_that_is_too_large_is_said_to_be_wherever_the_limit_falls() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for start in ["# ", "#"] {
        // With one of the two the limit is inside a character.
        let text = format!("{start}{}", "ü".repeat(MAX_BYTES as usize / 2));
        std::fs::write(file.path(), text).unwrap();
        let error = SourcesFile::read(file.path()).unwrap_err().to_string();
        assert!(error.ends_with("it has more than 1 MiB"), "{error}");
    }
}

#[test]
fn below_the_last_line_may_be_what_means_nothing() {
    for more in ["", "\n", "# the end\n", "...\n", "\n# one\n\n# two\n...\n"] {
        let text = format!("{EXAMPLE}{more}");
        assert_eq!(SourcesFile::parse(&text), SourcesFile::parse(EXAMPLE), "{more:?}");
    }
    assert!(SourcesFile::parse(&format!("{EXAMPLE}on-failure: keep\n")).is_err());
    assert!(SourcesFile::parse(&format!("{EXAMPLE}# unfinished")).is_err());
}

#[test]
fn what_is_wrong_is_said_with_the_sources_name() {
    let one = |source: &str| format!("version: 1\nsources:\n  - {{{source}}}\nend: true\n");
    let version = |text: &str| format!("version: {text}\nsources: []\nend: true\n");
    let with = |top: &str| format!("version: 1\n{top}\nsources:\n  - {{name: a, repo: x}}\nend: true\n");
    for (text, words) in [
        (one("name: A, repo: x"), "source \"A\": a name has 1 to 63 lower-case letters"),
        (one("name: a, repo: ''"), "source \"a\": it has no repo"),
        (one("name: a, repo: x, ref: 'a b'"), "ref \"a b\": only a branch"),
        (one("name: a, repo: x, to: /y"), "to: write a path below the top"),
        (one("name: a, repo: x, to: a/../b"), "to: write a path below the top"),
        (one("name: a, repo: x, path: /"), "path: write a path below the top"),
        (one("name: a, repo: x, to: a/.GIT"), "no part of it may be `.git`"),
        (one("name: a, repo: x, to: ..data"), "begin with `..`"),
        (one("name: a, repo: x, to: \"a\\nb\""), "control character"),
        (one(&format!("name: a, repo: x, to: {}", "x".repeat(256))), "more than 255 bytes"),
        (one("name: a, repo: x, branch: y"), "source \"a\": there is no key \"branch\"; did you mean `ref`?"),
        (one("name: a, repo: x, spare: []"), "there is no key \"spare\"; did you mean `sparse`?"),
        (one("name: a, repo: x, colour: y"), "there is no key \"colour\"; there are name, repo, ref, "),
        (one("name: a, repo: x, to: conf/"), "to: remove the `/` at the end: `to` is the new name"),
        (one("name: a, repo: x, to: "), "source \"a\": to has no value"),
        (one("name: a, repo: x, ref: 1.4"), "ref: put it in quotes"),
        (one("name: a, repo: x, optional: yes please"), "source \"a\": optional: write true or false"),
        (one("name: a, repo: x, sparse: y"), "source \"a\": sparse: write a list"),
        (one("name: a, repo: [x]"), "source \"a\": repo must be a string, not a list"),
        (one("repo: x"), "source 1 of the list: it has no name"),
        (one("name: a, repo: x, credentials: {user: y}"), "credentials: there is no key \"user\""),
        (one("name: a, repo: x, credentials: y"), "source \"a\": credentials: write `key: value`"),
        (one("name: a, repo: x}\n\t- {name: b, repo: y"), "line 4 is indented with a tab; YAML indents with"),
        (one("name: a, repo: x}\n  - just words #{"), "source 2 of the list: write `key: value`"),
        (with(&format!("x: {}", "[".repeat(300_000))), "brackets are more than 250 deep in each other"),
        (with("on-failure: stop"), "on-failure: write keep or hold"),
        (with("onfailure: hold"), "there is no key \"onfailure\"; did you mean `on-failure`?"),
        ("sources: []\nend: true\n".to_owned(), "add `version: 1` at its top"),
        ("version: 1\nend: true\n".to_owned(), "add `sources:`, a list"),
        ("version: 1\nsources: a\nend: true\n".to_owned(), "sources: write a list"),
        (version("one"), "version: write 1, without quotes or decimals"),
        (version("1.0"), "version: write 1, without quotes or decimals"),
        (version("\"1\""), "version: write 1, without quotes or decimals"),
        (version(""), "version: write 1, without quotes or decimals"),
        (version("-1"), "version -1 is not known"),
        (one("name: a, repo: x, sparse: [\"a\\nb\"]"), "sparse: each entry must be one pattern"),
        ("version: 1\nsources: []\nend: true # all\n".to_owned(), "with a line break and nothing else"),
        ("version: 1\nsources: []\nend: true".to_owned(), "with a line break and nothing else"),
        (one("name: a, repo: x, sparse: [ok, '[a-z']"), "source \"a\": sparse pattern \"[a-z\": "),
        (with("unique-base-names: 'a/[z-a]'"), "unique-base-names: \"a/[z-a]\": invalid range"),
        (with("unique-base-names: {a: b}"), "unique-base-names: write one glob, or a list of globs"),
        (with("unique-base-names: ['']"), "unique-base-names: a glob has 1 to 4096 bytes"),
        (one("name: a, repo: x, credentials: {username: y}"), "username and password-file need each other"),
        (one("name: a, repo: x}\n  - {name: a, repo: y"), "two sources are called \"a\""),
        (version("2"), "version 2 is not known: this treeswap reads version 1"),
        ("version: 1\nsources: []\nend: true\n".to_owned(), "it lists 0 sources; 1 to 64"),
        ("version: 1\nend: true\nsources: []\n".to_owned(), "its last line must be `end: true`"),
    ] {
        let why = SourcesFile::parse(&text).unwrap_err();
        assert!(why.contains(words), "{text}: {why}");
    }
}

#[test]
fn how_many_sources_there_are_and_what_they_name_is_limited() {
    let listed = |count: usize, repo: &str, more: &str| {
        let source = |n| format!("  - {{name: s{n}, repo: {repo}}}\n");
        let rest: String = (1..count).map(source).collect();
        SourcesFile::parse(&format!(
            "version: 1\nsources:\n  - {{name: s0, repo: {more}}}\n{rest}end: true\n"
        ))
    };
    assert_eq!(listed(64, "x", "x").map(|list| list.sources.len()), Ok(64));
    let why = listed(65, "x", "x").unwrap_err();
    assert!(why.contains("it lists 65 sources; 1 to 64"), "{why}");
    // A file of 10 KiB: each alias is the whole value.
    let why = listed(64, "*long", &format!("&long {}", "x".repeat(9 << 10))).unwrap_err();
    assert_eq!(why, "repo, ref, path and to of all sources together exceed 512 KiB");
    assert!(listed(64, "*long", &format!("&long {}", "x".repeat(7 << 10))).is_ok());
}

#[test]
fn why_a_file_could_not_be_read_is_known_whichever_time_it_was() {
    let refused = || -> io::Result<String> { Err(io::ErrorKind::PermissionDenied.into()) };
    let text = |text: &str| -> io::Result<String> { Ok(text.to_owned()) };
    for (reads, expected) in [
        ([text("a"), text("a")], Ok("a")),
        ([text("a"), text("b")], Err(io::ErrorKind::ResourceBusy)),
        ([refused(), text("a")], Err(io::ErrorKind::PermissionDenied)),
        ([text("a"), refused()], Err(io::ErrorKind::PermissionDenied)),
    ] {
        let mut reads = reads.into_iter();
        let read = read_twice(|| reads.next().unwrap());
        assert_eq!(read.map_err(|error| error.kind()), expected.map(str::to_owned));
    }
}
