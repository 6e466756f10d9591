//! Links, depths, sizes, filters, broken objects, and what a branch may name.

use git2::{ObjectType, Oid};

use super::super::common::Raw;
use super::super::common::tree::Node;
use super::{MISSING, Table, file, link};

/// A commit with one link at this path.
fn linked(raw: &Raw, path: &str, target: &[u8]) -> Oid {
    let mut components = path.rsplit('/');
    let mut id = raw.tree(&[("120000", components.next().unwrap(), raw.blob(target))]);
    for component in components {
        id = raw.tree(&[("40000", component, id)]);
    }
    raw.commit(id)
}

pub(super) fn links(table: &mut Table) {
    for (path, target) in [
        ("l", "/etc/passwd"),
        ("l", "/var/run/secrets/kubernetes.io/serviceaccount/token"),
        ("l", "//etc/passwd"),
        ("l", "/"),
        ("l", ".."),
        ("l", "../canary"),
        ("l", "../..data/honest"),
        ("l", "./../canary"),
        ("l", "./././../canary"),
        ("d/l", "../../canary"),
        ("d/e/f/l", "../../../../etc/passwd"),
        ("d/l", "../../g/d/x"),
        ("l", "d/../../canary"),
        ("l", "d/.."),
        ("a/b/c/l", "up/../../canary"),
        ("a/b/c/l", "../x/../../../../canary"),
    ] {
        table.refused(&format!("the link {path} -> {target}"), &[path, target], move |raw| {
            linked(raw, path, target.as_bytes())
        });
    }
    table.refused("two links that leave together", &["a/l"], |raw| {
        let a = raw.tree(&[("120000", "l", raw.blob("up/../canary")), ("120000", "up", raw.blob(".."))]);
        raw.commit(raw.tree(&[("40000", "a", a)]))
    });
    table.refused("a link without a target", &["`l`"], |raw| linked(raw, "l", b""));
    table.refused("a link with a NUL in its target", &["`l`", "NUL"], |raw| {
        linked(raw, "l", b"honest\0/../x")
    });
    table.refused("a link of 5,000 bytes", &["`l`", "5000"], |raw| linked(raw, "l", &[b'x'; 5_000]));
    table.refused("a link of 4,096 bytes", &["`l`", "4096"], |raw| linked(raw, "l", &[b'x'; 4_096]));
    let long = "x/".repeat(2_047) + "x";
    let target = long.clone();
    table.written("a link of 4,095 bytes", vec![("l", link(long))], move |raw| {
        linked(raw, "l", target.as_bytes())
    });
    for (path, target) in [("l", "l"), ("l", "missing"), ("l", "."), ("l", "a\nb"), ("l", "-rf")] {
        table.written(&format!("the link {path} -> {target:?}"), vec![(path, link(target))], move |raw| {
            linked(raw, path, target.as_bytes())
        });
    }
    table.written("two links in a loop", vec![("a", link("b")), ("b", link("a"))], |raw| {
        raw.commit(raw.tree(&[("120000", "a", raw.blob("b")), ("120000", "b", raw.blob("a"))]))
    });
    table.written("a link up to the top", vec![("d", Node::Directory), ("d/l", link(".."))], |raw| {
        linked(raw, "d/l", b"..")
    });
    table
        .written("a link out, kept by flag", vec![("l", link("/etc/passwd"))], |raw| {
            linked(raw, "l", b"/etc/passwd")
        })
        .flags = &["--symlinks=keep"];
    let entries = vec![("l", link("../canary")), ("z", file("x"))];
    table
        .written("a link to a sibling of the root, kept by flag, is not followed", entries, |raw| {
            raw.commit(raw.tree(&[("120000", "l", raw.blob("../canary")), ("100644", "z", raw.blob("x"))]))
        })
        .flags = &["--symlinks=keep"];
}

/// A directory with one file.
pub(super) fn inner(raw: &Raw) -> Oid {
    raw.tree(&[("100644", "canary", raw.blob("x"))])
}

/// A commit with one file below so many directories.
fn deep(raw: &Raw, levels: usize, name: &str) -> Oid {
    let mut id = raw.tree(&[("100644", "f", raw.blob("x"))]);
    for _ in 0..levels {
        id = raw.tree(&[("40000", name, id)]);
    }
    raw.commit(id)
}

/// What [`deep`] is, written.
fn deep_snapshot(levels: usize, name: &str) -> Vec<(String, Node)> {
    let dirs = (1..=levels).map(|depth| (vec![name; depth].join("/"), Node::Directory));
    let path = vec![name; levels].join("/") + "/f";
    dirs.chain([(path, file("x"))]).collect()
}

pub(super) fn depth_and_length(table: &mut Table) {
    table.written("128 components", deep_snapshot(127, "d"), |raw| deep(raw, 127, "d"));
    for levels in [128, 129, 1_000, 5_000] {
        table.refused(&format!("{} components", levels + 1), &["d/d/d", "128"], move |raw| {
            deep(raw, levels, "d")
        });
    }
    table.refused("a lower limit by flag", &["`d/d/f`", "2 levels"], |raw| deep(raw, 2, "d")).flags =
        &["--max-path-depth=2"];
    let (fits, beyond) = ("p".repeat(250), "p".repeat(255));
    let name = fits.clone();
    table.written("a path of 3,766 bytes", deep_snapshot(15, &fits), move |raw| deep(raw, 15, &name));
    table.refused("a path of 4,097 bytes", &["ppp", "3800"], move |raw| deep(raw, 16, &beyond));
    for bytes in [256, 4_095, 70_000] {
        table.refused(&format!("a name of {bytes} bytes"), &["nnn"], move |raw| {
            raw.commit(raw.tree(&[("100644", "n".repeat(bytes), raw.blob("x"))]))
        });
    }
    table.refused("a tree that spells 10,000,000,000 files", &["files and directories"], |raw| {
        let mut id = raw.blob("x");
        let mut mode = "100644";
        for _ in 0..10 {
            let names: Vec<String> = (0..10).map(|n| n.to_string()).collect();
            let entries: Vec<_> = names.iter().map(|name| (mode, name, id)).collect();
            id = raw.tree(&entries);
            mode = "40000";
        }
        raw.commit(id)
    });
    table
        .refused("a tree that spells 640 MB of paths", &["more than 20000 files"], |raw| {
            let names: Vec<String> = (0..450).map(|n| format!("{n:0>200}")).collect();
            let leaf = raw.tree(&[("100644", "f", raw.blob("x"))]);
            let entries: Vec<_> = names.iter().map(|name| ("40000", name, leaf)).collect();
            let wide = raw.tree(&entries);
            let entries: Vec<_> = names.iter().map(|name| ("40000", name, wide)).collect();
            let mut id = raw.tree(&entries);
            for _ in 0..10 {
                id = raw.tree(&[("40000", "p".repeat(255), id)]);
            }
            raw.commit(id)
        })
        .flags = &["--max-tree-entries=20000"];
}

pub(super) fn sizes(table: &mut Table) {
    let two = |raw: &Raw| {
        raw.commit(
            raw.tree(&[("100644", "one", raw.blob([b'1'; 60])), ("100644", "two", raw.blob([b'2'; 40]))]),
        )
    };
    let entries = || vec![("one", file([b'1'; 60])), ("two", file([b'2'; 40]))];
    table.written("as many bytes as a file may have", entries(), two).flags = &["--max-file-bytes=60"];
    table.refused("a byte more than a file may have", &["`one`", "59"], two).flags = &["--max-file-bytes=59"];
    table.written("as many bytes as a tree may have", entries(), two).flags = &["--max-tree-bytes=100"];
    table.refused("a byte more than a tree may have", &["more than 99 B"], two).flags =
        &["--max-tree-bytes=99"];
    table.written("as many entries as a tree may have", entries(), two).flags = &["--max-tree-entries=2"];
    table.refused("an entry more than a tree may have", &["more than 1 file or directory"], two).flags =
        &["--max-tree-entries=1"];
    // More than the child that indexes it may have of memory.
    table
        .refused("a small pack that holds 100 MiB of zeros", &["zeros"], |raw| {
            raw.commit(raw.tree(&[("100644", "zeros", raw.blob(vec![0; 100 << 20]))]))
        })
        .flags = &["--max-file-bytes=50000000"];
    let names: Vec<String> = (0..10_000).map(|n| format!("{n:05}")).collect();
    let many = names.iter().map(|name| (name.clone(), file(""))).collect();
    table.written("10,000 files in one directory", many, move |raw| {
        let blob = raw.blob("");
        raw.commit(raw.tree(&names.iter().map(|name| ("100644", name, blob)).collect::<Vec<_>>()))
    });
}

pub(super) fn filters(table: &mut Table) {
    let attributes = "* text=auto eol=crlf ident export-subst working-tree-encoding=UTF-16 filter=evil\n";
    for (what, content) in [
        ("line ends", &b"a\nb\r\nc\n"[..]),
        ("an ident", b"$Id$ and $Format:%H$\n"),
        ("an LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"),
        ("NUL bytes", b"\0\x01\x02\0"),
    ] {
        let entries = vec![(".gitattributes", file(attributes)), ("f", file(content))];
        table.written(&format!("attributes that would change {what}"), entries, move |raw| {
            raw.commit(raw.tree(&[
                ("100644", ".gitattributes", raw.blob(attributes)),
                ("100644", "f", raw.blob(content)),
            ]))
        });
    }
    table.written("a file called .gitmodules with nonsense", vec![(".gitmodules", file(b"\0\xff"))], |raw| {
        raw.commit(raw.tree(&[("100644", ".gitmodules", raw.blob(b"\0\xff"))]))
    });
}

pub(super) fn broken_objects(table: &mut Table) {
    fn nowhere() -> Oid {
        Oid::from_str(MISSING).unwrap()
    }
    table.broken("a blob that is missing", Some("f"), move |raw| {
        raw.commit(raw.tree(&[("100644", "f", nowhere())]))
    });
    table.broken("a tree that is missing", Some("d"), move |raw| {
        raw.commit(raw.tree(&[("40000", "d", nowhere())]))
    });
    table.broken("a commit whose tree is missing", None, move |raw| raw.commit(nowhere()));
    table.broken("a blob where a tree should be", Some("d"), |raw| {
        raw.commit(raw.tree(&[("40000", "d", raw.blob("x"))]))
    });
    table.broken("a tree where a blob should be", Some("f"), |raw| {
        raw.commit(raw.tree(&[("100644", "f", inner(raw))]))
    });
    table.broken("a commit where a blob should be", Some("f"), |raw| {
        raw.commit(raw.tree(&[("100644", "f", raw.commit(inner(raw)))]))
    });
    table.broken("a blob as a commit's tree", None, |raw| raw.commit(raw.blob("x")));
    table.broken("a tree that is cut in an id", Some("f"), |raw| {
        let id = raw.object(ObjectType::Tree, b"100644 f\0\x01\x02\x03");
        raw.commit(id)
    });
    table.broken("a tree that is text", None, |raw| {
        raw.commit(raw.object(ObjectType::Tree, b"not a tree at all"))
    });
    table.broken("a commit that is text", None, |raw| raw.object(ObjectType::Commit, b"not a commit at all"));
    let unsorted = vec![("a", file("1")), ("b", file("2")), ("c", file("3"))];
    table.written("a tree out of order", unsorted, |raw| {
        let (one, two, three) = (raw.blob("1"), raw.blob("2"), raw.blob("3"));
        raw.commit(raw.tree(&[("100644", "c", three), ("100644", "a", one), ("100644", "b", two)]))
    });
    let none: Vec<(&str, Node)> = Vec::new();
    table.written("an empty tree", none.clone(), |raw| raw.commit(raw.tree::<&str>(&[])));
    table.written("an empty directory", vec![("f", file("x"))], |raw| {
        let empty = raw.tree::<&str>(&[]);
        raw.commit(raw.tree(&[("40000", "empty", empty), ("100644", "f", raw.blob("x"))]))
    });
    table.written("nothing but empty directories", none, |raw| {
        let empty = raw.tree::<&str>(&[]);
        let outer = raw.tree(&[("40000", "inner", empty)]);
        raw.commit(raw.tree(&[("40000", "outer", outer)]))
    });
}

pub(super) fn tips(table: &mut Table) {
    fn tag(raw: &Raw, id: Oid, kind: &str) -> Oid {
        let text =
            format!("object {id}\ntype {kind}\ntag t\ntagger T <t@example.com> 1700000000 +0000\n\nt\n");
        raw.object(ObjectType::Tag, text.as_bytes())
    }
    table.written("a tag of a tag of a commit", vec![("canary", file("x"))], |raw| {
        let first = tag(raw, raw.commit(inner(raw)), "commit");
        tag(raw, first, "tag")
    });
    table.broken("a tag of a tree", None, |raw| tag(raw, inner(raw), "tree"));
    table.broken("a tag of a blob", None, |raw| tag(raw, raw.blob("x"), "blob"));
    table.broken("a branch that names a tree", None, inner);
    table.broken("a branch that names a blob", None, |raw| raw.blob("x"));
}
