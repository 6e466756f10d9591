//! Runs the credential plugin that a kubeconfig names (`exec`), like client-go, with a deadline and without our
//! secrets. Its standard output goes only into the connection's credentials; it inherits our standard error, as with
//! other clients.

use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kube::config::{AuthInfo, ExecConfig, ExecInteractiveMode};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncReadExt as _;

use crate::descendants::Descendants;
use crate::secret;

use super::ConfigError;

/// The most bytes that a plugin may print: a token and a certificate with its key are far below. Of more, the pipe is
/// closed.
const OUTPUT_MAX: u64 = 1 << 20;

/// The credential that the plugin prints (`client.authentication.k8s.io`).
#[derive(Deserialize)]
struct ExecCredential {
    kind: String,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    expiration_timestamp: Option<Timestamp>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

/// Runs the plugin if the user entry has one and no other credentials, and sets the credentials that it prints. Returns
/// when those expire; `None` if there is no plugin or it does not say.
pub(super) async fn resolve(user: &mut AuthInfo, limit: Duration) -> Result<Option<Timestamp>, ConfigError> {
    let inline = user.token.is_some() || user.token_file.is_some() || user.username.is_some();
    // Taken in any case, so that kube never runs it: it would do so without a deadline and with our secrets.
    let Some(exec) = user.exec.take().filter(|_| !inline) else { return Ok(None) };
    let command = exec.command.clone().unwrap_or_default();
    let unusable = |why| ConfigError::PluginAnswer { command: command.clone(), why };
    let answer: ExecCredential = serde_json::from_slice(&run(&exec, &command, limit).await?)
        .map_err(|_| unusable("it is not JSON of that kind"))?;
    if answer.kind != "ExecCredential" {
        return Err(unusable("its `kind` is not ExecCredential"));
    }
    let status = answer.status.ok_or_else(|| unusable("it has no `status`"))?;
    let given = |text: Option<String>| text.filter(|text| !text.is_empty()); // as in client-go
    let token = given(status.token);
    match (given(status.client_certificate_data), given(status.client_key_data)) {
        (Some(certificate), Some(key)) => {
            user.client_certificate_data = Some(STANDARD.encode(certificate));
            user.client_key_data = Some(SecretString::from(STANDARD.encode(key)));
        }
        (None, None) if token.is_some() => {}
        (None, None) => return Err(unusable("it has neither a token nor a certificate")),
        _ => return Err(unusable("it has a certificate without its key, or a key without its certificate")),
    }
    user.token = token.map(SecretString::from);
    Ok(status.expiration_timestamp)
}

async fn run(exec: &ExecConfig, command: &str, limit: Duration) -> Result<Vec<u8>, ConfigError> {
    let failed = |source| ConfigError::PluginStart { command: command.to_owned(), source };
    if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
        return Err(failed(std::io::Error::other("it needs a terminal (`interactiveMode: Always`)")));
    }
    let mut spec = json!({ "interactive": false });
    if let Some(cluster) = &exec.cluster {
        spec["cluster"] = json!(cluster);
    }
    let info = json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec });
    let mut program = tokio::process::Command::new(command);
    secret::withhold_from(program.as_std_mut()); // first, so that the kubeconfig can set a variable of the same name
    program.args(exec.args.iter().flatten()).env("KUBERNETES_EXEC_INFO", info.to_string());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            program.env(name, value);
        }
    }
    program.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut processes = Descendants::start(program).map_err(failed)?;
    let mut output = Vec::new();
    let run = async {
        if let Some(stdout) = processes.take_stdout() {
            stdout.take(OUTPUT_MAX).read_to_end(&mut output).await?;
        }
        processes.wait().await
    };
    let status = tokio::time::timeout(limit, run)
        .await
        .map_err(|_| ConfigError::PluginSilent { command: command.to_owned(), after: limit })?
        .map_err(failed)?;
    processes.release();
    if !status.success() {
        return Err(ConfigError::PluginEnded { command: command.to_owned(), status });
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;
    use serde_json::Value;

    use super::*;

    /// The credentials of a user entry whose plugin prints this: the token, and whether there is a certificate.
    async fn resolved(status: Value) -> Result<(Option<String>, bool), ConfigError> {
        let answer = json!({ "kind": "ExecCredential", "status": status }).to_string();
        let exec =
            json!({ "apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [answer] });
        let mut user: AuthInfo = serde_json::from_value(json!({ "exec": exec })).unwrap();
        resolve(&mut user, Duration::from_secs(60)).await?;
        let token = user.token.map(|token| token.expose_secret().to_owned());
        Ok((token, user.client_certificate_data.is_some() && user.client_key_data.is_some()))
    }

    #[tokio::test]
    async fn what_a_plugin_gives_as_empty_is_not_given() {
        let certificate = "clientCertificateData";
        let key = "clientKeyData";
        let token = Some("t0ken-of-the-test".to_owned());
        let given = resolved(json!({ "token": token, certificate: "", key: "" })).await.unwrap();
        assert_eq!(given, (token, false));
        let given = resolved(json!({ "token": "", certificate: "c", key: "k" })).await.unwrap();
        assert_eq!(given, (None, true));
        for status in [
            json!({ "token": "" }),
            json!({ "token": "", certificate: "", key: "" }),
            json!({ "token": "t0ken-of-the-test", certificate: "c", key: "" }),
        ] {
            let error = resolved(status).await.unwrap_err();
            assert!(matches!(error, ConfigError::PluginAnswer { .. }), "{error:?}");
        }
    }
}
