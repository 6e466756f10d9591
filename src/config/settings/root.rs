//! The root and its layout, and paths that the operator names.

use std::num::NonZero;
use std::path::{Path, PathBuf};

use super::{absolute, cleaned, link_name};
use crate::config::args::Args;
use crate::config::check::Check;
use crate::config::error::Error;
use crate::config::values::path;
use crate::retention;
use crate::store::{self, OwnFile};

impl Check<'_> {
    pub(super) fn root(&self) -> Result<PathBuf, Error> {
        let text = &self.args.root.root;
        if text.is_empty() { Err(self.wrong("root", text, "it is empty")) } else { Ok(absolute(text)) }
    }

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
        match cleaned(&root.join(link)) {
            clean if link.is_empty() || clean == root || root.starts_with(&clean) => {
                Err(self.wrong("link", link, "it is the name of a link in the root, or an absolute path"))
            }
            clean => Ok(store::Style::GitSync { link: clean }),
        }
    }

    /// As in git-sync, relative to the root; an absolute path replaces it.
    pub(super) fn own(
        &self,
        flag: &str,
        text: &str,
        root: &Path,
        style: &store::Style,
    ) -> Result<Option<OwnFile>, Error> {
        let file = path(text).map(|path| OwnFile::new(root, style, &path)).transpose();
        file.map_err(|why| self.misplaced(flag, text, why, style))
    }

    pub(super) fn misplaced(&self, flag: &str, text: &str, why: String, style: &store::Style) -> Error {
        let hint = match style {
            store::Style::Kubelet => "name a path outside of the root, or one in it that begins with \"..\"",
            store::Style::GitSync { .. } => {
                "name a path outside of the root, or one in it beside the link, .git and .worktrees"
            }
        };
        Error::Place { name: self.origins.name(flag), value: text.to_owned(), why, hint }
    }

    /// A path that is opened by name leads through nothing that a commit can shape, by its text and by what it resolves
    /// to.
    pub(super) fn place(
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
            .map_err(|why| self.misplaced(flag, text, why, style))
    }

    /// The same for a file that is never written in the root.
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
        self.place(flag, text, root, style, &[])
    }

    /// The places in the root that are made for a mirror are ours anyway.
    pub(super) fn mirror_dir(&self, text: &str, root: &Path, style: &store::Style) -> Result<PathBuf, Error> {
        let dir = absolute(text);
        let made_for_it = |place| cleaned(&dir).starts_with(root.join(place));
        // With rules and without a root the mirror's directory is the root, which is not opened.
        if [".git", "..treeswap"].into_iter().any(made_for_it) || dir == root {
            Ok(dir)
        } else {
            self.place("mirror", text, root, style, &[".git", "..treeswap"])
        }
    }

    pub(super) fn store(&self, root: PathBuf, style: store::Style) -> Result<store::Options, Error> {
        let Args { root: given, retention, logging, .. } = self.args;
        let in_root = |text: &String| {
            let path = path(text).map(|path| cleaned(&root.join(path)))?;
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
                // What a gate looks at may stay open there, and be changed.
                _ if self.args.hooks.pre_publish_gate => store::Spare::Copy,
                "recycle" => store::Spare::Recycle,
                _ => store::Spare::Link,
            },
            group_write: given.group_write,
            // Beyond eight threads the file system's own locks are what they wait for.
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
