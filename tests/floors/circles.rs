//! Which file needs which: no files of `src` need each other in a circle, so that each can be read after those below it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{code, sources, top_level_items};

/// The files of `src` as modules: `["mirror", "wire", "http"]` is `src/mirror/wire/http.rs`; a `mod.rs`, or the file
/// beside a folder of its name, is the folder's own.
struct Modules {
    files: BTreeMap<Vec<String>, String>,
}

impl Modules {
    fn read() -> Self {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut paths = Vec::new();
        sources(&src, &mut paths);
        let name = |path: &PathBuf| {
            let inner = path.strip_prefix(&src).unwrap().with_extension("");
            let mut parts: Vec<String> = inner.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
            if parts.last().is_some_and(|last| last == "mod") {
                parts.pop();
            }
            parts
        };
        let of_tests =
            |parts: &[String]| parts.iter().any(|part| matches!(part.as_str(), "tests" | "testing" | "lib"));
        let files = paths.iter().map(|path| (name(path), outside_of_tests(&code(path))));
        Self { files: files.filter(|(parts, _)| !of_tests(parts)).collect() }
    }

    /// The file that a path of names leads to, as seen from `from`: a re-export is followed to where it comes from.
    fn resolve(&self, from: &[String], names: &[String]) -> Option<Vec<String>> {
        let mut at: Vec<String> = match names.first()?.as_str() {
            "crate" => Vec::new(),
            "self" => from.to_vec(),
            "super" => from[..from.len().checked_sub(1)?].to_vec(),
            _ => return None,
        };
        let mut rest = &names[1..];
        while rest.first().is_some_and(|name| name == "super") {
            at.pop()?;
            rest = &rest[1..];
        }
        for name in rest {
            let inner: Vec<String> = at.iter().cloned().chain([name.clone()]).collect();
            if self.files.contains_key(&inner) {
                at = inner;
            } else if let Some(elsewhere) = self.exported(&at, name) {
                return Some(elsewhere);
            } else {
                break;
            }
        }
        self.files.contains_key(&at).then_some(at)
    }

    /// Where a `pub use` of the module's own file takes a name from.
    fn exported(&self, module: &[String], name: &str) -> Option<Vec<String>> {
        let text = self.files.get(module)?;
        paths_of_uses(text).into_iter().filter(|(public, _)| *public).find_map(|(_, path)| {
            let last = path.last()?;
            (last == name).then_some(())?;
            let child: Vec<String> = module.iter().cloned().chain([path[0].clone()]).collect();
            match path[0].as_str() {
                "self" | "crate" | "super" => self.resolve(module, &path),
                _ if self.files.contains_key(&child) => {
                    let inner: Vec<String> = ["self".to_owned()].into_iter().chain(path).collect();
                    self.resolve(module, &inner)
                }
                _ => None,
            }
        })
    }

    /// What each file takes from others. Between a folder's own file and those in the folder there are no arrows: it
    /// declares the type that they implement, and says what of them is seen outside.
    fn arrows(&self) -> BTreeMap<Vec<String>, BTreeSet<Vec<String>>> {
        let inside = |one: &[String], other: &[String]| one.starts_with(other) || other.starts_with(one);
        let of = |(file, text): (&Vec<String>, &String)| {
            let used = paths_of_uses(text).into_iter().map(|(_, path)| path).chain(paths_in_code(text));
            let targets = used.filter_map(|path| self.resolve(file, &path)).filter(|to| !inside(to, file));
            (file.clone(), targets.collect())
        };
        self.files.iter().map(of).collect()
    }
}

/// Without its `#[cfg(test)]` modules, which may look at anything.
pub(super) fn outside_of_tests(text: &str) -> String {
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text).to_owned()
}

/// Each path that a `use` names, with whether it is a re-export.
fn paths_of_uses(text: &str) -> Vec<(bool, Vec<String>)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let line = &text[text[..at].rfind('\n').map_or(0, |end| end + 1)..at];
        let public = match line.trim() {
            "" => false,
            visibility if visibility.starts_with("pub") => true,
            _ => continue,
        };
        let Some((statement, _)) = text[at + 4..].split_once(';') else { continue };
        expand(&[], statement, &mut |path| found.push((public, path)));
    }
    found
}

/// `a::{b, c::d}` as its paths.
fn expand(prefix: &[String], text: &str, found: &mut dyn FnMut(Vec<String>)) {
    let text = text.trim();
    match text.split_once("::{").filter(|(head, _)| !head.contains([',', '{'])) {
        Some((head, group)) => {
            let prefix: Vec<String> = prefix.iter().cloned().chain(head.split("::").map(clean)).collect();
            for item in top_level_items(group.strip_suffix('}').unwrap_or(group)) {
                expand(&prefix, item, found);
            }
        }
        None if text.is_empty() => {}
        None if text == "self" => found(prefix.to_vec()),
        None => {
            let (path, _) = text.split_once(" as ").unwrap_or((text, ""));
            found(prefix.iter().cloned().chain(path.split("::").map(clean)).collect());
        }
    }
}

fn clean(name: &str) -> String {
    name.trim().to_owned()
}

/// Paths in expressions and types that begin with `crate::` or `super::`.
fn paths_in_code(text: &str) -> Vec<Vec<String>> {
    let begins = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
    let all = text.match_indices("crate::").chain(text.match_indices("super::"));
    all.filter(|(at, _)| begins(*at))
        .map(|(at, _)| {
            let end = |c: char| !(c.is_alphanumeric() || c == '_' || c == ':');
            let path = &text[at..];
            let path = &path[..path.find(end).unwrap_or(path.len())];
            path.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
        })
        .collect()
}

/// The files that can be reached from themselves, in groups.
fn circles(arrows: &BTreeMap<Vec<String>, BTreeSet<Vec<String>>>) -> Vec<BTreeSet<Vec<String>>> {
    let reach = |from: &Vec<String>| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            next.extend(arrows.get(file).into_iter().flatten().filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let reached: BTreeMap<_, _> = arrows.keys().map(|file| (file, reach(file))).collect();
    let circle = |file: &Vec<String>| -> BTreeSet<Vec<String>> {
        reached[file].iter().filter(|other| reached[*other].contains(file)).cloned().collect()
    };
    let found: BTreeSet<_> = arrows.keys().map(circle).filter(|circle| circle.len() > 1).collect();
    found.into_iter().collect()
}

#[test]
fn no_files_need_each_other_in_a_circle() {
    let modules = Modules::read();
    let arrows = modules.arrows();
    assert!(arrows.values().map(BTreeSet::len).sum::<usize>() > 300, "the arrows were not found");
    let mut text = String::new();
    for circle in circles(&arrows) {
        for file in &circle {
            let inner = arrows[file].iter().filter(|to| circle.contains(*to));
            let to: Vec<String> = inner.map(|to| to.join("/")).collect();
            text += &format!("{} -> {}\n", file.join("/"), to.join(", "));
        }
        text.push('\n');
    }
    assert!(text.is_empty(), "files that need each other:\n{text}");
}

#[test]
fn the_reader_of_arrows_sees_circles_through_re_exports() {
    let file =
        |name: &str, text: &str| (name.split('/').map(str::to_owned).collect::<Vec<_>>(), text.to_owned());
    let files = [
        file("m", "mod a;\nmod b;\npub use b::B;\nuse a::A;"),
        file("m/a", "use super::B;"),
        file("m/b", "fn f() { crate::m::a::g() }"),
        file("n", "use crate::m::{a::A, b};"),
    ];
    let arrows = Modules { files: files.into() }.arrows();
    let found = circles(&arrows);
    assert_eq!(found.len(), 1, "{arrows:?}");
    assert_eq!(found[0].iter().map(|file| file.join("/")).collect::<Vec<_>>(), ["m/a", "m/b"]);
}
