//! Every rule of what the file may say and of what may lie beside each other, with its refusal: one line each. What
//! serves stays what it was.

use super::*;

const SERVES: [(&str, &str); 2] = [("one/f", "1"), ("two/g", "1")];

/// Something that is refused.
struct Case<'a> {
    rule: &'a str,
    /// What the repositories `one` and `two` hold then.
    files: [Files; 2],
    /// The file, without its first and last line.
    list: String,
    /// 1: nothing moves. 3: a source stays where it was, and the others would go on.
    ends: i32,
    /// What is said, in one line.
    words: Vec<&'a str>,
}

fn file(path: &str) -> Files {
    Files::new().file(path, "new")
}

/// Two sources of two repositories, both at what follows their names.
struct Two {
    many: SourcesWorld,
    remotes: [Remote; 2],
}

impl Two {
    fn new() -> Self {
        let many = SourcesWorld::new();
        let remotes = [many.remote("one"), many.remote("two")];
        Self { many, remotes }
    }

    fn line(&self, number: usize, more: &str) -> String {
        format!("  - {{{}}}\n", source(["one", "two"][number], &self.remotes[number], more))
    }

    fn both(&self, one: &str, two: &str) -> String {
        format!("sources:\n{}{}", self.line(0, one), self.line(1, two))
    }

    fn is(&self, files: &[Files; 2], list: &str) {
        for (remote, files) in self.remotes.iter().zip(files) {
            remote.commit(files);
        }
        self.many.write(&format!("version: 1\n{list}end: true\n"));
    }

    fn serving(&self) {
        let files = [Files::new().file("f", "1"), Files::new().file("g", "1")];
        self.is(&files, &self.both(", to: one", ", to: two"));
        self.many.once().expect_ok("what serves");
    }

    /// Two that cannot lie beside each other.
    fn hold<'a>(&self, rule: &'a str, files: [Files; 2], to: [&str; 2], words: &'a str) -> Case<'a> {
        Case { rule, files, list: self.both(to[0], to[1]), ends: 1, words: vec![words, "one", "two"] }
    }

    /// What is wrong with `one` alone.
    fn alone<'a>(&self, rule: &'a str, one: Files, at: &str, words: [&'a str; 2]) -> Case<'a> {
        let list = self.both(at, ", to: two");
        Case {
            rule,
            files: [one, Files::new().file("g", "1")],
            list,
            ends: 3,
            words: [&words[..], &["one"]].concat(),
        }
    }

    /// What the file says and is not read.
    fn unread<'a>(&self, rule: &'a str, list: String, words: Vec<&'a str>) -> Case<'a> {
        Case {
            rule,
            files: [file("f"), file("g")],
            list,
            ends: 1,
            words: [&["sources.yaml: "], &words[..]].concat(),
        }
    }

    fn cases(&self) -> Vec<Case<'static>> {
        let both = "sources one and two both have `z/b`";
        let of_one = "source one is not at the newest commit of its ref";
        let plain = |two: &str| self.both(", to: one", two);
        let many = format!("sources:\n{}", self.line(0, "").replace("name: one", "name: NAME"));
        let many: String =
            (0..65).map(|n| many.replace("NAME", &format!("s{n}")).replace("sources:\n", "")).collect();
        let with = |top: &str| format!("{top}\n{}", plain(", to: two"));
        vec![
            self.hold("a file and a directory", [file("b"), file("b/h")], [", to: z", ", to: z"], both),
            self.hold("a directory and a file", [file("b/h"), file("b")], [", to: z", ", to: z"], "sources two and one both have `z/b`"),
            self.hold("two files of one place", [file("b"), file("b")], [", to: z", ", to: z"], both),
            self.hold("two files deep in one place", [file("b"), file("z/b")], [", to: z", ""], "source two has `z`, where source one is placed"),
            self.hold("two files that are sources", [file("b"), file("b")], [", path: b, to: z", ", path: b, to: z"], "sources one and two both have `z`"),
            self.hold("a file and a directory that are sources", [file("b"), file("b")], [", path: b, to: z", ", to: z"], "sources one and two both have `z`"),
            self.hold("a link and a directory", [Files::new().link("b", "c").file("c", "x"), file("b/h")], [", to: z", ", to: z"], both),
            self.hold("files in another one's place", [file("b/x"), file("g")], [", to: z", ", to: z/b"], "source one has `z/b`, where source two is placed"),
            self.hold("a place below a file", [file("b"), file("g")], [", to: z", ", to: z/b/deep"], "source one has `z/b`, below which source two is placed"),
            self.hold("a place at the top's file", [file("b"), file("g")], ["", ", to: b/deep"], "source one has `b`, below which source two is placed"),
            Case {
                rule: "two of one base name",
                files: [file("a/x.yaml"), file("b/x.yaml")],
                list: format!("unique-base-names: \"**/*.yaml\"\n{}", plain(", to: two")),
                ends: 1,
                words: vec![
                    "`one/a/x.yaml` of source one and `two/b/x.yaml` of source two have one base name, which `unique-base-names` forbids",
                ],
            },
            self.alone("a link out of its part", Files::new().file("f", "1").link("out", "../two/g"), ", to: one",
                [of_one, "`one/out`: it is a symbolic link to `../two/g`, which is not inside what its own source has placed"]),
            self.alone("a link out of the root", Files::new().file("f", "1").link("out", "/etc/passwd"), ", to: one",
                [of_one, "`one/out`: it is a symbolic link to `/etc/passwd`, which is not inside the tree"]),
            self.alone("an absent path", file("f"), ", path: nowhere, to: one",
                [of_one, "`nowhere`: it is the `path` of the source, and the revision does not have it"]),
            self.alone("a path below a file", file("f"), ", path: f/g, to: one",
                [of_one, "`f/g`: it is the `path` of the source, and the revision does not have it"]),
            self.alone("a file without a place", file("f"), ", path: f",
                [of_one, "`f`: it is the `path` of the source and no directory, so that it needs a `to`"]),
            self.alone("an absent ref", file("f"), "-none, to: one", [of_one, "couldn't find remote ref main-none"]),
            self.unread("65 sources", format!("sources:\n{many}"), vec!["it lists 65 sources; 1 to 64 make a root"]),
            self.unread("no source", "sources: []\n".into(), vec!["it lists 0 sources; 1 to 64 make a root"]),
            self.unread("a name twice", self.both(", to: a", ", to: b").replace("name: two", "name: one"), vec!["two sources are called \"one\""]),
            self.unread("a place above", plain(", to: ../x"), vec!["source \"two\": to: write a path below the top"]),
            self.unread("a place from the top", plain(", to: /x"), vec!["source \"two\": to: write a path below the top"]),
            self.unread("git's own place", plain(", to: a/.git/b"), vec!["source \"two\": to: no part of it may be `.git`"]),
            self.unread("the root's own names", plain(", to: ..data"), vec!["source \"two\": to: no part of it may be `.git` or begin with `..`"]),
            self.unread("a path above", plain(", path: a/../.."), vec!["source \"two\": path: write a path below the top"]),
            self.unread("a bad pattern", plain(", to: two, sparse: [\"/ok\", \"[a-z\"]"), vec!["source \"two\": sparse pattern \"[a-z\": "]),
            self.unread("a bad glob", with("unique-base-names: [\"ok/*\", \"{a,b\"]"), vec!["unique-base-names: \"{a,b\": unclosed alternate group"]),
            self.unread("65 globs", with(&format!("unique-base-names: [{}]", ["a"; 65].join(", "))), vec!["unique-base-names: 65 globs; at most 64 are read"]),
            self.unread("an unknown key", plain(", too: two"), vec!["source \"two\": there is no key \"too\"; did you mean `to`?"]),
        ]
    }
}

#[test]
fn every_rule_has_its_refusal_and_what_serves_stays() {
    let two = Two::new();
    two.serving();
    let link = || std::fs::read_link(two.many.world.root.join("..data")).unwrap();
    let before = link();
    let mut wrong = Vec::new();
    for Case { rule, files, list, ends, words } in two.cases() {
        two.is(&files, &list);
        let ran = two.many.once();
        let has_all = |line: &str| words.iter().all(|word| line.contains(word));
        if ran.status.code() != Some(ends) || !ran.stderr.lines().any(has_all) {
            wrong.push(format!(
                "{rule}: {} and not {ends}, or no line says {words:?}:\n{}",
                ran.status, ran.stderr
            ));
        }
        assert_eq!(link(), before, "{rule}: {}", ran.stderr);
        two.many.assert_shows(&SERVES);
        two.serving();
        assert_eq!(link(), before, "{rule}: what serves is what it was");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// One that is read while it is written would mean something else: fewer sources, say.
#[test]
fn a_file_that_was_cut_at_any_byte_is_refused() {
    let two = Two::new();
    two.serving();
    let whole = std::fs::read(two.many.file()).unwrap();
    let link = || std::fs::read_link(two.many.world.root.join("..data")).unwrap();
    let before = link();
    for end in 0..whole.len() {
        std::fs::write(two.many.file(), &whole[..end]).unwrap();
        let mut check = two.many.world.treeswap(&["check", "--sources"]);
        let ran = to_end(check.arg(two.many.file()).arg("--root").arg(&two.many.world.root));
        let ran = ran.expect_failure(&format!("cut at {end}"));
        assert!(
            ran.complaint().contains("sources.yaml: its last line must be `end: true`"),
            "{end}: {}",
            ran.stderr
        );
    }
    // The loop that reads it says the same, and keeps what serves.
    for end in (0..whole.len()).step_by(whole.len() / 8) {
        std::fs::write(two.many.file(), &whole[..end]).unwrap();
        let ran = two.many.once().expect_failure("a cut file");
        assert!(ran.complaint().contains("its last line must be `end: true`"), "{end}: {}", ran.stderr);
        assert_eq!(link(), before);
        two.many.assert_shows(&SERVES);
    }
}
