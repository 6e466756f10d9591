//! Reads one complete generation, however slowly: pin ROOT
//!
//! ROOT is required, and has the files a, b and sub/c. They are read after a line has arrived on standard input.

use std::error::Error;
use std::time::Duration;
use std::{env, fs, io};

use treeswap::pin::{Options, Pin};

fn main() -> Result<(), Box<dyn Error>> {
    let root = env::args_os().nth(1).ok_or("usage: pin ROOT")?;
    // A writer that starts beside this program may take a while until it has published something.
    let config = Pin::take(&root, &Options { wait: Duration::from_secs(60) })?.locked()?;
    println!("pinned");
    io::stdin().read_line(&mut String::new())?;
    for name in ["a", "b", "sub/c"] {
        print!("{}", fs::read_to_string(config.path().join(name))?);
    }
    Ok(())
}
