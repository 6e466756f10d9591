//! Hooks from outside: real programs, a real HTTP server, and what git-sync's own end-to-end tests expect of both.

#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod exec;
mod gate;
mod missing;
mod web;

use std::path::PathBuf;

use common::{Files, World};

pub fn files(text: &str) -> Files {
    Files::new().file("file", text).file("jobs/nightly.yaml", "at: 03:00\n")
}

/// A shell script that appends a line to its log for each run, then does as told.
pub struct Hook {
    pub program: PathBuf,
    log: PathBuf,
}

impl Hook {
    /// `line` is what the shell prints into the log; `then` runs afterwards.
    pub fn new(world: &World, name: &str, line: &str, then: &str) -> Self {
        let (program, log) = (world.dir().join(name), world.dir().join(format!("{name}.log")));
        let text = format!("#!/bin/sh\nset -u\nprintf '%s\\n' \"{line}\" >> {}\n{then}\n", log.display());
        common::run::executable(&program, &text);
        Self { program, log }
    }

    /// One line a run.
    pub fn runs(&self) -> Vec<String> {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    pub fn flag(&self, name: &str) -> String {
        format!("--{name}-command={}", self.program.display())
    }
}

/// What the link names.
pub fn current(world: &World) -> Option<PathBuf> {
    Some(world.root.join(std::fs::read_link(world.root.join("..data")).ok()?))
}
