//! Validates the root, its layout, and the paths that the operator names beside or inside it.

use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use super::{absolute, link_name};
use crate::config::args::Args;
use crate::config::check::Check;
use crate::config::error::Error;
use crate::config::values::path;
use crate::detached_io;
use crate::retention;
use crate::store::{self, OperatorFile};

impl Check<'_> {
    /// The root as an absolute path.
    pub(super) fn root(&self) -> Result<PathBuf, Error> {
        let text = &self.args.root.root;
        if text.is_empty() { Err(self.invalid("root", text, "it is empty")) } else { Ok(absolute(text)) }
    }

    /// The layout of the root.
    pub(super) fn style(&self, root: &Path) -> Result<store::Style, Error> {
        let Args { root: given, source, .. } = self.args;
        if given.layout != "git-sync" {
            if !given.link.is_empty() {
                let one = self.origins.name("link");
                return Err(Error::Needs { one, other: "--layout=git-sync".into() });
            }
            return Ok(store::Style::Kubelet);
        }
        let link = link_name(&given.link, &source.repo);
        match store::clean(&root.join(link)) {
            _ if link.is_empty() => Err(self.invalid("link", link, "it is empty")),
            clean if root.starts_with(&clean) => {
                let why = "that is the root itself, or a directory above it; name a link in the root, or give an absolute path";
                Err(self.invalid("link", link, why))
            }
            clean => match store::check_link(root, &clean) {
                Ok(()) => Ok(store::Style::GitSync { link: clean }),
                Err(why) => Err(self.invalid("link", link, why)),
            },
        }
    }

    /// A file that we write for the operator, such as `--touch-file`. As in git-sync, a relative path is relative to
    /// the root. A file system that hangs does not refuse the start: every use checks the path again.
    pub(super) fn operator_file(
        &self,
        flag: &str,
        text: &str,
        root: &Path,
        style: &store::Style,
    ) -> Result<Option<OperatorFile>, Error> {
        let Some(path) = path(text) else { return Ok(None) };
        let file = OperatorFile::new(root, style, &path).and_then(|file| {
            let own = file.clone();
            let checked =
                detached_io::wait(file.path(), detached_io::DEFAULT_TIMEOUT, move || own.check_now());
            checked.unwrap_or(Ok(())).map(|()| file)
        });
        file.map(Some).map_err(|why| self.misplaced_file(flag, text, why, style))
    }

    /// The error for a path that may not be where it is.
    pub(super) fn misplaced_file(&self, flag: &str, text: &str, why: String, style: &store::Style) -> Error {
        let hint = match style {
            store::Style::Kubelet => "name a path outside of the root, or one in it that begins with \"..\"",
            store::Style::GitSync { .. } => {
                "name a path outside of the root, or one in it beside the link, .git and .worktrees"
            }
        };
        Error::Place { name: self.origins.name(flag), value: text.to_owned(), why, hint }
    }

    /// A path that is opened by name. Neither its text nor what it resolves to may lead through names in the root that
    /// a commit controls. `made_for` are the names in the root that are meant for it.
    pub(super) fn safe_path(
        &self,
        flag: &str,
        text: &str,
        root: &Path,
        style: &store::Style,
        made_for: &[&str],
    ) -> Result<PathBuf, Error> {
        let path = absolute(text);
        store::check_place(root, style, &path)
            .and_then(|()| store::check_resolved(root, &path, style, made_for))
            .map(|()| path)
            .map_err(|why| self.misplaced_file(flag, text, why, style))
    }

    /// The same for a file that must not be inside the root.
    pub(super) fn outside(
        &self,
        flag: &str,
        text: &str,
        root: &Path,
        style: &store::Style,
    ) -> Result<PathBuf, Error> {
        let hint = "name a path outside of the root";
        store::check_outside(root, &absolute(text)).map_err(|why| Error::Place {
            name: self.origins.name(flag),
            value: text.to_owned(),
            why,
            hint,
        })?;
        self.safe_path(flag, text, root, style, &[])
    }

    /// The mirror's directory. In `.git` and `..treeswap`, which no commit controls, it may be inside the root.
    pub(super) fn mirror_dir(&self, text: &str, root: &Path, style: &store::Style) -> Result<PathBuf, Error> {
        let dir = absolute(text);
        if let Some(why) = obstacle(&dir) {
            let (name, value) = (self.origins.name("mirror"), text.to_owned());
            let hint = "give --mirror an empty directory, or one that does not exist yet";
            return Err(Error::Place { name, value, why: why.to_owned(), hint });
        }
        let made_for_it = |place| store::clean(&dir).starts_with(root.join(place));
        // With rules and without a root, the root's path is set to the mirror's directory, and never opened as a root.
        if [".git", "..treeswap"].into_iter().any(made_for_it) || dir == root {
            Ok(dir)
        } else {
            self.safe_path("mirror", text, root, style, &[".git", "..treeswap"])
        }
    }

    /// The options of the store.
    pub(super) fn store(&self, root: PathBuf, style: store::Style) -> Result<store::Options, Error> {
        let Args { root: given, retention, logging, .. } = self.args;
        let in_root = |text: &String| {
            let path = path(text).map(|path| store::clean(&root.join(path)))?;
            Some(path.strip_prefix(&root).ok()?.components().next()?.as_os_str().to_owned())
        };
        let own = [&given.touch_file, &logging.error_file, &given.mirror].into_iter().filter_map(in_root);
        let own = own.collect();
        Ok(store::Options {
            root,
            style,
            own,
            durability: match given.durability.as_str() {
                "none" => store::Durability::None,
                _ => store::Durability::Syncfs,
            },
            spare: match given.spare.as_str() {
                "off" => store::Spare::Off,
                "copy" => store::Spare::Copy,
                // A gate runs inside the staged generation: it may change files or keep them open, so they are not
                // shared with other generations.
                _ if self.args.hooks.pre_publish_gate => store::Spare::Copy,
                "recycle" => store::Spare::Recycle,
                _ => store::Spare::Link,
            },
            group_write: given.group_write,
            // More than eight threads only wait for the file system's locks.
            writers: std::thread::available_parallelism().map_or(2, NonZero::get).clamp(2, 8),
            retention: retention::Options {
                grace: retention.grace,
                max_pin: retention.max_pin,
                max_generations: self.count("max-generations", retention.max_generations, 1)?,
                max_bytes: (retention.max_bytes != 0).then_some(retention.max_bytes),
            },
        })
    }
}

/// Why no directory can be at this path, or be made there; `None` if nothing is in its place.
fn obstacle(path: &Path) -> Option<&'static str> {
    match std::fs::metadata(path) {
        Ok(found) => (!found.is_dir()).then_some("it is not a directory"),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Some("one of its parents is not a directory")
        }
        Err(_) => None, // most likely it does not exist yet; opening the mirror reports the rest
    }
}
