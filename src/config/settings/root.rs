//! Validates the root, its layout, and the paths that the operator names beside or inside it.

use std::io;
use std::num::NonZero;
use std::path::{Path, PathBuf};

use super::{Settings, absolute, link_name};
use crate::config::args::Args;
use crate::config::check::Check;
use crate::config::env::Origins;
use crate::config::error::Error;
use crate::config::origin::Origin;
use crate::config::personality::Personality;
use crate::config::values::path;
use crate::detached_io;
use crate::fsx;
use crate::retention;
use crate::store::{self, OperatorFile};

impl Check<'_> {
    /// The root as an absolute path.
    pub(super) fn root(&self) -> Result<PathBuf, Error> {
        let text = &self.args.root.root;
        if text.is_empty() { Err(self.invalid("root", text, "it is empty")) } else { Ok(absolute(text)) }
    }

    /// The layout of the root.
    pub(super) fn layout(&self, root: &Path) -> Result<store::Layout, Error> {
        let Args { root: given, source, .. } = self.args;
        if given.layout != "git-sync" {
            if !given.link.is_empty() {
                let one = self.origins.name("link");
                return Err(Error::Needs { one, other: "--layout=git-sync".into() });
            }
            return Ok(store::Layout::Kubelet);
        }
        let link = link_name(&given.link, &source.repo);
        match store::clean(&root.join(link)) {
            _ if link.is_empty() => Err(self.invalid("link", link, "it is empty")),
            clean if root.starts_with(&clean) => {
                let why = "that is the root itself, or a directory above it; name a link in the root, or give an absolute path";
                Err(self.invalid("link", link, why))
            }
            clean => match store::check_link(root, &clean) {
                Ok(()) => Ok(store::Layout::GitSync { link: clean }),
                Err(why) => Err(self.invalid("link", link, why)),
            },
        }
    }

    /// The warnings about links to worktrees that are not the link of the layout: nothing updates them, and their readers
    /// would not notice. git-sync itself says nothing of them.
    pub(super) fn abandoned_links(&self, root: &Path, layout: &store::Layout) -> Vec<String> {
        let store::Layout::GitSync { link } = layout else { return Vec::new() };
        if self.origins.personality() == Personality::GitSync {
            return Vec::new();
        }
        let own = root.to_owned();
        let find = move || store::links_to_worktrees(&own);
        let names = detached_io::wait(root, detached_io::DEFAULT_TIMEOUT, find).unwrap_or_default();
        let others = names.iter().filter(|name| store::clean(&root.join(name)) != *link);
        let warning = |name: &String| {
            let path = root.join(name);
            format!("{} is a link to a generation, and is not updated: add --link={name}", path.display())
        };
        others.map(warning).collect()
    }

    /// A file that we write for the operator, such as `--touch-file`. As in git-sync, a relative path is relative to
    /// the root. Of a file in the root only the text is checked here: see [`Settings::misplaced_files`].
    pub(super) fn operator_file(
        &self,
        flag: &str,
        text: &str,
        root: &Path,
        layout: &store::Layout,
    ) -> Result<Option<OperatorFile>, Error> {
        let Some(path) = path(text) else { return Ok(None) };
        let file = OperatorFile::new(root, layout, &path);
        let file = file.map_err(|why| self.misplaced(flag, text, why, other_place(layout)))?;
        if !file.path().starts_with(root) {
            let (own, path) = (root.to_owned(), file.path().to_owned());
            let check = move || store::check_nested_entry(&own, &path);
            let checked = detached_io::wait(file.path(), detached_io::DEFAULT_TIMEOUT, check);
            checked.unwrap_or(Ok(())).map_err(|why| self.misplaced(flag, text, why, NOT_NESTED))?;
        }
        Ok(Some(file))
    }

    /// The error for a path that may not be where it is; `hint` says which paths may be given.
    fn misplaced(&self, flag: &str, text: &str, why: String, hint: &'static str) -> Error {
        Error::Place { name: self.origins.name(flag), value: text.to_owned(), why, hint }
    }

    /// The error for a path that was refused by what it resolves to, or could not be resolved.
    fn unresolved(&self, flag: &str, text: &str, error: io::Error, hint: &'static str) -> Error {
        // The store's own refusals have the kind `Other`.
        if error.kind() == io::ErrorKind::Other || fsx::is_misnamed(error.kind()) {
            return self.misplaced(flag, text, error.to_string(), hint);
        }
        let (name, value) = (self.origins.name(flag), text.to_owned());
        Error::Unread { act: "resolve", name, value, source: error }
    }

    /// A path that is opened by name. Neither its text nor what it resolves to may lead through names in the root that
    /// a commit controls. `made_for` are the names in the root that are meant for it.
    pub(super) fn safe_path(
        &self,
        flag: &str,
        text: &str,
        root: &Path,
        layout: &store::Layout,
        made_for: &[&str],
    ) -> Result<PathBuf, Error> {
        let path = absolute(text);
        let hint = other_place(layout);
        store::check_place(root, layout, &path).map_err(|why| self.misplaced(flag, text, why, hint))?;
        store::check_nested(root, &path).map_err(|why| self.misplaced(flag, text, why, NOT_NESTED))?;
        let resolved = store::check_resolved(root, &path, layout, made_for);
        resolved.map_err(|error| self.unresolved(flag, text, error, hint))?;
        Ok(path)
    }

    /// The same for a file that must not be inside the root.
    pub(super) fn outside(
        &self,
        flag: &str,
        text: &str,
        root: &Path,
        layout: &store::Layout,
    ) -> Result<PathBuf, Error> {
        let outside = store::check_outside(root, &absolute(text));
        outside.map_err(|error| self.unresolved(flag, text, error, OUTSIDE))?;
        self.safe_path(flag, text, root, layout, &[])
    }

    /// The file for the error that ends the process. The default, which is the kubelet's, is taken as it is.
    pub(super) fn termination_log(
        &self,
        root: &Path,
        layout: &store::Layout,
    ) -> Result<Option<PathBuf>, Error> {
        match self.args.logging.termination_log.as_str() {
            "" => Ok(None),
            text if *self.origins.get("termination-log") == Origin::Default => Ok(Some(PathBuf::from(text))),
            text => self.outside("termination-log", text, root, layout).map(Some),
        }
    }

    /// The mirror's directory. In `.git` and `..treeswap`, which no commit controls, it may be inside the root, and is
    /// by default.
    pub(super) fn mirror_dir(&self, root: &Path, layout: &store::Layout) -> Result<PathBuf, Error> {
        let text = match (self.args.root.mirror.as_str(), layout) {
            ("", store::Layout::Kubelet) => return Ok(root.join("..treeswap/mirror")),
            ("", store::Layout::GitSync { .. }) => return Ok(root.join(".git")),
            (text, _) => text,
        };
        let dir = absolute(text);
        let refused = |why: &str, hint| {
            let (name, value) = (self.origins.name("mirror"), text.to_owned());
            Err(Error::Place { name, value, why: why.to_owned(), hint })
        };
        if let Some(why) = obstacle(&dir) {
            return refused(why, "give --mirror an empty directory, or one that does not exist yet");
        }
        let is_git_sync = matches!(layout, store::Layout::GitSync { .. });
        if is_git_sync && store::clean(&dir) != store::clean(&root.join(".git")) {
            let why = "in git-sync's layout it is ROOT/.git, where git finds it from the published tree";
            return refused(why, "leave --mirror out");
        }
        let made_for_it = |place| store::clean(&dir).starts_with(root.join(place));
        // With rules and without a root, the root's path is set to the mirror's directory, and never opened as a root.
        // Unless it was given, it is temporary or stands for a temporary one.
        if dir == root
            && *self.origins.get("mirror") != Origin::Default
            && let Err(why) = store::check_nested(root, &dir)
        {
            return refused(&why, NOT_NESTED);
        }
        if [".git", "..treeswap"].into_iter().any(made_for_it) || dir == root {
            Ok(dir)
        } else {
            self.safe_path("mirror", text, root, layout, &[".git", "..treeswap"])
        }
    }

    /// Whether the root, and the mirror, survive a power cut.
    pub(super) fn durability(&self) -> store::Durability {
        match self.args.root.durability.as_str() {
            "none" => store::Durability::None,
            _ => store::Durability::Syncfs,
        }
    }

    /// The options of the store.
    pub(super) fn store(&self, root: PathBuf, layout: store::Layout) -> Result<store::Options, Error> {
        let Args { root: given, retention, logging, .. } = self.args;
        let in_root = |text: &String| {
            let path = path(text).map(|path| store::clean(&root.join(path)))?;
            Some(path.strip_prefix(&root).ok()?.components().next()?.as_os_str().to_owned())
        };
        let operator_names =
            [&given.touch_file, &logging.error_file, &given.mirror].into_iter().filter_map(in_root);
        let operator_names = operator_names.collect();
        Ok(store::Options {
            root,
            layout,
            operator_names,
            durability: self.durability(),
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

impl Settings {
    /// The operator's files whose paths lead into what treeswap publishes or keeps, through a symbolic link or another
    /// mount: the flag of each, the file, and the reason in words that follow its path. Blocks, but only for seconds
    /// even if a file system hangs: what is not known by then is left to the checks at every use.
    pub fn misplaced_files(&self) -> Vec<(&'static str, &OperatorFile, String)> {
        let files = [("touch-file", &self.sync.touch_file), ("error-file", &self.sync.error_file)];
        let misplaced = files.into_iter().filter_map(|(flag, file)| {
            let file = file.as_ref()?;
            let own = file.clone();
            let checked =
                detached_io::wait(file.path(), detached_io::DEFAULT_TIMEOUT, move || own.check_now())?;
            Some((flag, file, checked.err()?))
        });
        misplaced.collect()
    }

    /// Refuses [`Settings::misplaced_files`], as `treeswap check` does. `sync` warns about them instead: what it
    /// publishes does not depend on them, and an installation that works must not end for a file that it never wrote.
    pub fn refuse_misplaced_files(&self, args: &Args, origins: &Origins) -> Result<(), Error> {
        match self.misplaced_files().into_iter().next() {
            Some((flag, _, why)) => {
                let is_touched = flag == "touch-file";
                let text = if is_touched { &args.root.touch_file } else { &args.logging.error_file };
                let hint = other_place(&self.store.layout);
                Err(Check { args, origins }.misplaced(flag, text, why, hint))
            }
            None => Ok(()),
        }
    }
}

/// The hint for a path in what the writer of another root keeps.
const NOT_NESTED: &str = "name a path outside of that root";

/// The hint for a file that must not be in the root. One that has to be there before the first start cannot: a root
/// that is not ours has to be empty then.
pub(super) const OUTSIDE: &str = "name a path outside of the root";

/// The hint for a file that is written, and may not be where it is.
fn other_place(layout: &store::Layout) -> &'static str {
    match layout {
        store::Layout::Kubelet => {
            "name a path outside of the root, or a name of your own in it that begins with \"..\""
        }
        store::Layout::GitSync { .. } => {
            "name a path outside of the root, or one in it beside the link, .git and .worktrees"
        }
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
