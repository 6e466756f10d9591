//! What the configuration names and is not there: said at the start, not only at the first publication or webhook. It
//! may come yet, so it is no error.

use crate::admin;
use crate::config::Settings;

/// A line for each. Blocking, within seconds even where a file system hangs.
pub fn missing(settings: &Settings) -> Vec<String> {
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
