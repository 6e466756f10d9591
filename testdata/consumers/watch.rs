//! Loads at the start and at every swap, with the generation pinned: watch ROOT

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{env, fs};

use treeswap::pin::{self, Pin};
use treeswap::watch::{self, Watcher};

/// It may take a while until a writer that starts beside this program has published something, or until whoever keeps
/// the lock for itself has let it go.
const WAIT: Duration = Duration::from_secs(60);

/// The pin ends with the load: it is for as long as something is read, not for a process' life.
fn load(root: &Path) -> Result<(), Box<dyn Error>> {
    let config = Pin::take_locked(root, &pin::Options { wait: WAIT })?;
    let mut line = "loaded".to_owned();
    for name in ["a", "b", "sub/c"] {
        let text = fs::read_to_string(config.path().join(name))?;
        line = line + " " + text.trim();
    }
    println!("{line}");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::args_os().nth(1).ok_or("usage: watch ROOT")?);
    // The watch first: what is published between the two is loaded twice, not missed.
    let swaps = Watcher::new(root.join("..data"), &watch::Options::default());
    load(&root)?;
    for _ in swaps {
        if let Err(error) = load(&root) {
            eprintln!("{error}"); // what was loaded before still serves
        }
    }
    Ok(())
}
