//! libFuzzer's driver. The target is what `TREESWAP_FUZZ_TARGET` names: one program for all of them is linked once.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use treeswap::fuzz::{Target, targets};

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn choose() {
    let name = std::env::var("TREESWAP_FUZZ_TARGET").unwrap_or_default();
    let Some(target) = targets().find(|target| target.name == name) else {
        for target in targets() {
            println!("{}", target.name);
        }
        std::process::exit(if name.is_empty() { 0 } else { 2 });
    };
    let _ = TARGET.set(target);
}

fuzz_target!(init: choose(), |data: &[u8]| TARGET.get().expect("chosen at the start").try_on(data));
