//! Finds hook programs and webhook secret files that cannot be used, so that the start warns about them and not only
//! the first publication or webhook. They may be created later, so this is no error.

use crate::admin;
use crate::config::Settings;

/// Returns a warning for each hook program that is missing or not executable, and for each secret file that is missing,
/// unreadable or empty. Blocks, but only for seconds even if a file system hangs.
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
    hooks.chain(secrets).collect()
}
