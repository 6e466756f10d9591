//! Finds programs and files that cannot be used, and a gate that may outlast its attempt, so that the start
//! warns about them and not only the first publication or webhook. They may be created later, or nothing that is
//! published depends on them, so this is no error.

use std::path::Path;
use std::time::Duration;

use crate::config::Settings;
use crate::human::go_duration;
use crate::{admin, detached_io, hooks};

/// How long a file system may take to open a file.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns a warning for each program that is missing or not executable, for each file that is missing, unreadable or
/// empty, for each that would be written into what treeswap publishes or keeps, and for a gate that may outlast
/// its attempt. Blocks, but only for seconds even if a file system hangs.
pub fn startup_warnings(settings: &Settings) -> Vec<String> {
    let hooks = [
        ("exechook-command", &settings.hooks.exec),
        ("pre-publish-exechook-command", &settings.hooks.pre_publish),
    ];
    let hooks = hooks.into_iter().filter_map(|(flag, hook)| {
        let why = hook.as_ref()?.missing()?;
        Some(format!("--{flag}: {why}; the hook will fail"))
    });
    let secrets = settings.admin.iter().flat_map(|admin| &admin.webhook_secrets);
    let secrets = secrets.filter_map(|file| {
        let why = admin::no_secret_in(file)?;
        Some(format!("--webhook-secret-file: {why}; without a secret no webhook is accepted"))
    });
    let wire = &settings.mirror.wire;
    let git = wire.program.as_ref().and_then(|program| hooks::missing_program(&program.path));
    let git = git.map(|why| format!("--git: {why}; every attempt will fail"));
    let cookies = wire.cookie_file.as_deref().and_then(unreadable);
    let cookies = cookies.map(|why| format!("--cookie-file: {why}; every attempt will fail"));
    let misplaced = settings.misplaced_files().into_iter().map(|(flag, file, why)| {
        format!("--{flag}: {}: {why}; it will not be written", file.path().display())
    });
    hooks.chain(secrets).chain(git).chain(cookies).chain(misplaced).chain(slow_gate(settings)).collect()
}

/// The warning about a gate that may outlast its attempt: the end of the attempt kills it.
fn slow_gate(settings: &Settings) -> Option<String> {
    let gate = settings.hooks.pre_publish.as_ref().filter(|_| settings.hooks.gate)?;
    let limit = settings.sync.sync_timeout;
    (gate.timeout >= limit).then(|| {
        format!(
            "--pre-publish-exechook-timeout: {} is not below --sync-timeout={}: lower it, or raise \
             --sync-timeout; the gate is killed when its attempt ends",
            go_duration(gate.timeout),
            go_duration(limit)
        )
    })
}

/// Returns why a file cannot be opened; `None` if it can, or if that takes too long.
fn unreadable(file: &Path) -> Option<String> {
    let own = file.to_owned();
    let opened = detached_io::wait(file, OPEN_TIMEOUT, move || std::fs::File::open(own).map(drop))?;
    opened.err().map(|error| format!("{} cannot be read: {error}", file.display()))
}
