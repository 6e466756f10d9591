//! Names, modes, and names that come twice.

use git2::Oid;

use super::super::common::Raw;
use super::super::common::tree::Node;
use super::contents::inner;
use super::{Table, executable, file, link};

pub(super) fn names(table: &mut Table) {
    table.refused_name("the name `.`", b".");
    table.refused_name("the name `..`", b"..");
    table.refused_name("a name that is an absolute path", b"/abs");
    table.refused_name("a name that is `/`", b"/");
    table.refused_name("a name with a slash", b"a/b");
    table.refused_name("a name that climbs out", b"a/../../evil");
    table.refused_name("a name that ends in a slash", b"a/");
    table.broken("an empty name", Some(""), |raw| {
        let blob = raw.blob("x");
        raw.commit(raw.tree(&[("100644", "", blob)]))
    });
    table.refused("a directory called `..`", &[".."], |raw| {
        let inner = raw.tree(&[("100644", "evil", raw.blob("x"))]);
        raw.commit(raw.tree(&[("40000", "..", inner)]))
    });
    table.refused("a directory called `.`", &["."], |raw| {
        let inner = raw.tree(&[("100644", "evil", raw.blob("x"))]);
        raw.commit(raw.tree(&[("40000", ".", inner)]))
    });
    table.refused("`..` below a directory", &["d/.."], |raw| {
        let inner = raw.tree(&[("100644", "evil", raw.blob("x"))]);
        let dir = raw.tree(&[("40000", "..", inner)]);
        raw.commit(raw.tree(&[("40000", "d", dir)]))
    });
    table.refused("a directory with a slash in its name", &["d/../../other"], |raw| {
        let inner = raw.tree(&[("100644", "canary", raw.blob("x"))]);
        raw.commit(raw.tree(&[("40000", "d/../../other", inner)]))
    });
    table.refused("a submodule called `..`", &[".."], |raw| {
        raw.commit(raw.tree(&[("160000", "..", Oid::from_bytes(&[7; 20]).unwrap())]))
    });
}

pub(super) fn dot_git(table: &mut Table) {
    for name in [
        &b".git"[..],
        b".GIT",
        b".Git",
        b"git~1",
        b"GIT~1",
        b".git ",
        b".git.",
        b".git . ..",
        b".git::$INDEX_ALLOCATION",
        b".git:stream",
        b".git\\hooks",
        b"a\\.git",
        b".git\xff",
        ".g\u{200c}it".as_bytes(),
        "\u{feff}.gIt".as_bytes(),
    ] {
        table.refused_name(&format!("a file that git takes for .git: {}", name.escape_ascii()), name);
    }
    table.refused("a .git directory with hooks", &[".git"], |raw| {
        let hooks = raw.tree(&[("100755", "post-checkout", raw.blob("#!/bin/sh\ntouch evil\n"))]);
        let git = raw.tree(&[("100644", "config", raw.blob("[core]\n")), ("40000", "hooks", hooks)]);
        raw.commit(raw.tree(&[("40000", ".git", git)]))
    });
    table.refused("a .git link below a directory", &["d/.git"], |raw| {
        let dir = raw.tree(&[("120000", ".git", raw.blob("../elsewhere"))]);
        raw.commit(raw.tree(&[("40000", "d", dir)]))
    });
    table.refused("a .gitmodules that is a link", &[".gitmodules"], |raw| {
        raw.commit(raw.tree(&[("120000", ".gitmodules", raw.blob("x"))]))
    });
}

pub(super) fn reserved(table: &mut Table) {
    for name in ["..data", "..data_tmp", "..2026_11_20_15_04_05.123456789", "..treeswap", "...", "..x"] {
        table.refused_name(&format!("a top-level {name}"), name.as_bytes());
    }
    table.refused("a top-level ..data that is a link", &["..data"], |raw| {
        raw.commit(raw.tree(&[("120000", "..data", raw.blob("x"))]))
    });
    table.refused("a top-level ..treeswap that is a directory", &["..treeswap"], |raw| {
        let inner = raw.tree(&[("100644", "lock", raw.blob("x"))]);
        raw.commit(raw.tree(&[("40000", "..treeswap", inner)]))
    });
    let entries = vec![("d", Node::Directory), ("d/..data", file("x")), ("d/...", file("x"))];
    table.written("reserved names below a directory", entries, |raw| {
        let blob = raw.blob("x");
        let dir = raw.tree(&[("100644", "...", blob), ("100644", "..data", blob)]);
        raw.commit(raw.tree(&[("40000", "d", dir)]))
    });
}

pub(super) fn odd_names(table: &mut Table) {
    for (what, name) in [
        ("backslashes that climb", &b"..\\evil"[..]),
        ("a backslash", b"a\\b"),
        ("a DOS device", b"con"),
        ("a trailing space", b"trailing "),
        ("a trailing dot", b"trailing."),
        ("bytes that are no UTF-8", b"\xff\xfe\x80"),
        ("a newline", b"new\nline"),
        ("an escape sequence", b"\x1b[2J\x1b]0;owned\x07"),
        ("an option", b"-rf"),
        ("a glob", b"*"),
        ("a tilde", b"~root"),
        ("a shell command", b"$(touch evil)"),
        ("a text that goes right to left", "\u{202e}fdp.exe".as_bytes()),
        ("255 bytes", &[b'n'; 255]),
    ] {
        // `..\evil` begins with two dots, which the top level reserves.
        if !name.starts_with(b"..") {
            table.written_name(&format!("a name of {what}"), name);
        }
    }
    let entries = vec![(&b"d"[..], Node::Directory), (b"d/..\\evil", file("x"))];
    table.written("a name of backslashes that climb", entries, |raw| {
        let dir = raw.tree(&[("100644", "..\\evil", raw.blob("x"))]);
        raw.commit(raw.tree(&[("40000", "d", dir)]))
    });
    let pair = vec![("README", file("1")), ("readme", file("2"))];
    table.written("two names that differ by case", pair, |raw| {
        raw.commit(raw.tree(&[("100644", "README", raw.blob("1")), ("100644", "readme", raw.blob("2"))]))
    });
    let pair = vec![("e\u{301}", file("1")), ("\u{e9}", file("2"))];
    table.written("two names that differ by normalization", pair, |raw| {
        raw.commit(raw.tree(&[("100644", "e\u{301}", raw.blob("1")), ("100644", "\u{e9}", raw.blob("2"))]))
    });
}

pub(super) fn modes(table: &mut Table) {
    for (mode, node) in [
        ("100644", file("x")),
        ("100664", file("x")),
        ("100600", file("x")),
        ("100000", file("x")),
        ("100666", file("x")),
        ("104644", file("x")),
        ("100777", executable("x")),
        ("104755", executable("x")),
        ("106755", executable("x")),
        ("102755", executable("x")),
        ("101777", executable("x")),
        ("0100644", file("x")),
        ("120777", link("x")),
    ] {
        table.written(&format!("mode {mode}"), vec![("entry", node)], move |raw| {
            raw.commit(raw.tree(&[(mode, "entry", raw.blob("x"))]))
        });
    }
    for mode in ["140000", "060000", "020000", "010644", "0", "644", "110644", "70000", "150000"] {
        table.refused(&format!("mode {mode}"), &["entry"], move |raw| {
            raw.commit(raw.tree(&[(mode, "entry", raw.blob("x"))]))
        });
    }
    for mode in ["40755", "040000", "40777", "47777"] {
        let entries = vec![("dir", Node::Directory), ("dir/f", file("x"))];
        table.written(&format!("a directory of mode {mode}"), entries, move |raw| {
            let inner = raw.tree(&[("100644", "f", raw.blob("x"))]);
            raw.commit(raw.tree(&[(mode, "dir", inner)]))
        });
    }
    for (mode, what) in
        [("10064x", "a letter"), ("-100644", "a sign"), ("", "nothing"), ("7777777777777", "too much")]
    {
        table.broken(&format!("a mode with {what}"), Some("entry"), move |raw| {
            raw.commit(raw.tree(&[(mode, "entry", raw.blob("x"))]))
        });
    }
    let entries = vec![("module", Node::Directory), ("x", file("x"))];
    table.written("a submodule without .gitmodules", entries.clone(), |raw| {
        let nowhere = Oid::from_bytes(&[9; 20]).unwrap();
        raw.commit(raw.tree(&[("160000", "module", nowhere), ("100644", "x", raw.blob("x"))]))
    });
    let modules = "[submodule \"module\"]\n\tpath = ../../evil\n\turl = ext::sh -c touch% evil\n";
    let mut entries = entries;
    entries.push((".gitmodules", file(modules)));
    table.written("a submodule with a .gitmodules that would run a command", entries, move |raw| {
        let nowhere = Oid::from_bytes(&[9; 20]).unwrap();
        raw.commit(raw.tree(&[
            ("100644", ".gitmodules", raw.blob(modules)),
            ("160000", "module", nowhere),
            ("100644", "x", raw.blob("x")),
        ]))
    });
}

pub(super) fn twice(table: &mut Table) {
    type Entries = fn(&Raw) -> Vec<(&'static str, &'static str, Oid)>;
    let cases: [(&str, Entries); 8] = [
        ("two files", |raw| vec![("100644", "n", raw.blob("1")), ("100644", "n", raw.blob("2"))]),
        ("a file twice", |raw| vec![("100644", "n", raw.blob("1")), ("100644", "n", raw.blob("1"))]),
        ("a file and a directory", |raw| vec![("100644", "n", raw.blob("1")), ("40000", "n", inner(raw))]),
        ("a directory and a file", |raw| vec![("40000", "n", inner(raw)), ("100644", "n", raw.blob("1"))]),
        ("a link and a directory", |raw| {
            vec![("120000", "n", raw.blob("../other")), ("40000", "n", inner(raw))]
        }),
        ("a directory and a link", |raw| vec![("40000", "n", inner(raw)), ("120000", "n", raw.blob("x"))]),
        ("two directories", |raw| vec![("40000", "n", inner(raw)), ("40000", "n", inner(raw))]),
        ("a submodule and a directory", |raw| {
            vec![("160000", "n", Oid::from_bytes(&[9; 20]).unwrap()), ("40000", "n", inner(raw))]
        }),
    ];
    for (what, entries) in cases {
        table
            .refused(&format!("one name for {what}"), &["n"], move |raw| raw.commit(raw.tree(&entries(raw))));
    }
    table.refused("one name twice, with others between", &["n"], |raw| {
        let blob = raw.blob("x");
        raw.commit(raw.tree(&[("100644", "n", blob), ("100644", "n.x", blob), ("40000", "n", inner(raw))]))
    });
    table.refused("one name twice below a directory", &["d/n"], |raw| {
        let (one, two) = (raw.blob("1"), raw.blob("2"));
        let dir = raw.tree(&[("100644", "n", one), ("100644", "n", two)]);
        raw.commit(raw.tree(&[("40000", "d", dir)]))
    });
}
