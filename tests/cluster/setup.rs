//! Where clusters and credentials come from.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use treeswap::cluster::{Cluster, Clusters, ConfigError, DEFAULT, Failure, Options};

use crate::kubernetes::{Access, Kubernetes, kubeconfig, token_of};
use crate::whole;

fn access() -> Access {
    Kubernetes::shared().access("admin")
}

fn load(kubeconfigs: &[&Path]) -> Result<Clusters, ConfigError> {
    let kubeconfigs = kubeconfigs.iter().map(|path| (*path).to_owned()).collect();
    Clusters::load(&Options { kubeconfigs, ..Options::default() })
}

/// A cluster whose user has these credentials.
fn with_user(dir: &Path, user: &Value, timeout: Duration) -> Cluster {
    let path = kubeconfig(&dir.join("kubeconfig"), &[("test", access())]);
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["users"][0]["user"] = user.clone();
    std::fs::write(&path, config.to_string()).unwrap();
    let clusters = Clusters::load(&Options { kubeconfigs: vec![path], timeout, ..Options::default() });
    clusters.unwrap().get("test").unwrap().clone()
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn every_context_is_a_cluster_and_default_is_the_current_one() {
    let dir = tempfile::tempdir().unwrap();
    let one = kubeconfig(&dir.path().join("one"), &[("build01", access()), ("build02", access())]);
    let two = kubeconfig(&dir.path().join("two"), &[("app.ci", access()), (DEFAULT, access())]);
    let clusters = load(&[&one, &two]).unwrap();
    assert_eq!(clusters.names().collect::<Vec<_>>(), ["app.ci", "build01", "build02", DEFAULT]);
    // As Prow's programs do: the last file's current context, whatever else has that name.
    assert_eq!(clusters.get(DEFAULT).unwrap().name(), "app.ci");
    assert_eq!(clusters.get("build02").unwrap().name(), "build02");
    let error = clusters.get("build03").unwrap_err();
    assert_eq!(error.to_string(), "there is no cluster build03");
    assert!(error.hints()[0].contains("app.ci, build01, build02"), "{:?}", error.hints());

    let again = kubeconfig(&dir.path().join("three"), &[("build01", access())]);
    let error = load(&[&one, &again]).unwrap_err().to_string();
    assert!(error.contains("build01") && error.contains("/one") && error.contains("/three"), "{error}");
    assert!(matches!(load(&[]).unwrap_err(), ConfigError::None));
}

#[test]
fn a_directory_is_read_as_a_mounted_secret_is_and_one_bad_file_takes_nothing_else_down() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("..2026");
    std::fs::create_dir(&data).unwrap();
    std::fs::create_dir(dir.path().join("sub")).unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    kubeconfig(&data.join("a"), &[("a", access())]);
    std::fs::write(data.join("b"), "users:\n- name: x\n  user: {token: s3cret\n- oops: [").unwrap();
    for name in ["a", "b", "gone"] {
        std::os::unix::fs::symlink(format!("..2026/{name}"), dir.path().join(name)).unwrap();
    }
    let options = Options { kubeconfig_dir: Some(dir.path().to_owned()), ..Options::default() };
    let clusters = Clusters::load(&options).unwrap();
    assert_eq!(clusters.names().collect::<Vec<_>>(), ["a", DEFAULT]);
    let said: Vec<String> =
        clusters.problems.iter().map(|problem| format!("{problem} {problem:?}")).collect();
    assert!(said.len() == 4 && said[0].contains("/b is not a kubeconfig (line "), "{said:?}");
    assert!(said[1].contains("/gone"), "a link to nothing: {said:?}");
    for (line, name) in said[2..].iter().zip(["pipe", "sub"]) {
        let none = format!("/{name} is not a kubeconfig: it is not a regular file");
        assert!(line.contains(&none), "{said:?}");
    }
    assert!(!said[0].contains("s3cret"), "{said:?}");
    // A file that was named is another matter.
    assert!(matches!(load(&[&data.join("b")]).unwrap_err(), ConfigError::Malformed { line: Some(_), .. }));
    assert!(matches!(load(&[&data.join("c")]).unwrap_err(), ConfigError::Read { .. }));
}

/// Changes what a kubeconfig calls its current context.
fn choose(path: &Path, context: &str) {
    let mut config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    config["current-context"] = json!(context);
    std::fs::write(path, config.to_string()).unwrap();
}

#[test]
fn a_current_context_that_is_in_no_file_is_reported_and_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let one = kubeconfig(&dir.path().join("1"), &[("build01", access())]);
    let two = kubeconfig(&dir.path().join("2"), &[("build02", access())]);
    choose(&two, "gone");
    let options = Options { kubeconfig_dir: Some(dir.path().to_owned()), ..Options::default() };
    let clusters = Clusters::load(&options).unwrap();
    assert_eq!(clusters.names().collect::<Vec<_>>(), ["build01", "build02", DEFAULT]);
    assert_eq!(clusters.get(DEFAULT).unwrap().name(), "build01", "the current context of the first file");
    let said: Vec<String> = clusters.problems.iter().map(ToString::to_string).collect();
    assert_eq!(said, [format!("the current-context gone of {} is in no kubeconfig", two.display())]);

    // A file that was named is another matter.
    let error = load(&[&one, &two]).unwrap_err();
    assert!(matches!(error, ConfigError::CurrentContext { .. }), "{error:?}");
    std::fs::write(&one, r#"{"current-context": "gone", "contexts": []}"#).unwrap();
    let error = load(&[&one]).unwrap_err();
    assert!(matches!(error, ConfigError::CurrentContext { .. }), "{error:?}");

    // `kubectl config use-context` writes to the first file, wherever the context is.
    let one = kubeconfig(&one, &[("build01", access())]);
    choose(&one, "build02");
    choose(&two, "");
    assert_eq!(load(&[&one, &two]).unwrap().get(DEFAULT).unwrap().name(), "build02");
    choose(&two, "gone");

    // Where the process runs in a cluster, nothing depends on it.
    let options = Options { kubeconfigs: vec![two], in_cluster: true, ..Options::default() };
    let clusters = Clusters::load(&options).unwrap();
    assert_eq!(clusters.names().collect::<Vec<_>>(), ["build02", DEFAULT]);
    assert!(clusters.problems.is_empty(), "{:?}", clusters.problems);
}

#[tokio::test]
async fn the_token_in_a_file_comes_first_as_in_client_go() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    let with_token = |token: &str| with_user(dir.path(), &json!({ "token": token, "tokenFile": file }), LONG);
    std::fs::write(&file, "admin\n").unwrap();
    with_token("wrong").list("default").await.unwrap();

    // The other one stands in for a file that has none, or is gone.
    std::fs::write(&file, "\n").unwrap();
    with_token("admin").list("default").await.unwrap();
    let error = with_token("").list("default").await.unwrap_err();
    assert!(whole(&error).contains("is empty"), "{}", whole(&error));
    std::fs::remove_file(&file).unwrap();
    with_token("admin").list("default").await.unwrap();
    let error = with_token("").list("default").await.unwrap_err();
    assert!(whole(&error).contains("its token cannot be read from"), "{}", whole(&error));
}

#[tokio::test]
async fn a_token_file_that_hangs_is_named_and_the_server_is_not_blamed() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("token");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let cluster = with_user(dir.path(), &json!({ "tokenFile": fifo }), LONG);
    let error = cluster.list("default").await.unwrap_err();
    let line = whole(&error);
    assert!(line.ends_with(&format!("cannot read {}: no answer within 5s", fifo.display())), "{line}");
    assert!(error.is_transient() && error.hints()[0].contains("mount"), "{:?}", error.hints());
}

#[tokio::test]
async fn every_kind_of_credentials_is_understood() {
    let kubernetes = Kubernetes::shared();
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "admin").unwrap();
    let pem = |name: &str| kubernetes.dir().join(name).display().to_string();
    let print = |status: Value| {
        let answer = json!({ "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status });
        let path = dir.path().join("answer.json");
        std::fs::write(&path, answer.to_string()).unwrap();
        json!({ "exec": { "apiVersion": "client.authentication.k8s.io/v1", "command": "cat",
            "args": [path], "interactiveMode": "IfAvailable" } })
    };
    let read = |name: &str| std::fs::read_to_string(kubernetes.dir().join(name)).unwrap();
    let users = HashMap::from([
        ("token", json!({ "token": "admin" })),
        ("token file", json!({ "tokenFile": token })),
        ("certificate", json!({ "client-certificate": pem("client.pem"), "client-key": pem("client.key") })),
    ]);
    for (kind, user) in users {
        let cluster = with_user(dir.path(), &user, LONG);
        assert!(cluster.list("default").await.is_ok(), "{kind}");
    }
    let expires = "2100-01-01T00:00:00Z";
    for status in [
        json!({ "token": "admin" }),
        json!({ "token": "admin", "expirationTimestamp": expires }),
        json!({ "clientCertificateData": read("client.pem"), "clientKeyData": read("client.key") }),
    ] {
        let cluster = with_user(dir.path(), &print(status), LONG);
        cluster.list("default").await.unwrap();
    }
    // Each of these is named without what the program printed.
    for status in [json!({}), json!({ "clientKeyData": "s3cret" }), json!("s3cret")] {
        let error = with_user(dir.path(), &print(status), LONG).list("default").await.unwrap_err();
        let text = format!("{} {error:?}", whole(&error));
        assert!(text.contains("credential plugin cat") && !text.contains("s3cret"), "{text}");
        assert!(!error.is_transient());
    }
}

#[tokio::test]
async fn a_plugin_is_run_again_when_its_credentials_run_out_or_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (token, count) = (dir.path().join("token"), dir.path().join("count"));
    let script = format!(
        r#"echo "$KUBERNETES_EXEC_INFO" >> {}; printf '{{"kind":"ExecCredential","status":{{"token":"%s"%s}}}}' $(cat {}) "$MORE""#,
        count.display(),
        token.display()
    );
    let user = |more: &str| {
        json!({ "exec": { "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
            "env": [{ "name": "MORE", "value": more }], "provideClusterInfo": true } })
    };
    let runs = || std::fs::read_to_string(&count).unwrap().lines().count();
    std::fs::write(&token, "admin").unwrap();
    let cluster = with_user(dir.path(), &user(""), LONG);
    for _ in 0..3 {
        cluster.list("default").await.unwrap();
    }
    assert_eq!(runs(), 1, "it is kept as long as it holds");
    let told: Value = serde_json::from_str(std::fs::read_to_string(&count).unwrap().trim()).unwrap();
    assert_eq!((&told["kind"], &told["spec"]["interactive"]), (&json!("ExecCredential"), &json!(false)));
    assert_eq!(told["spec"]["cluster"]["server"], access().server);

    // Refused: asked once more in the same request, then it is an error; the next request asks again.
    std::fs::write(&token, "wrong").unwrap();
    let soon = format!(r#","expirationTimestamp":"{}""#, jiff::Timestamp::now());
    let cluster = with_user(dir.path(), &user(&soon), LONG);
    let error = cluster.list("default").await.unwrap_err();
    assert!(matches!(error.why, Failure::Unauthorized), "{error:?}");
    assert_eq!(runs(), 3);
    std::fs::write(&token, "admin").unwrap();
    cluster.list("default").await.unwrap();
    cluster.list("default").await.unwrap();
    assert_eq!(runs(), 5, "what has run out is not used");
}

#[tokio::test]
async fn a_rotated_token_is_used_within_the_same_request() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = with_user(dir.path(), &json!({ "token": token_of("stranger") }), LONG);
    assert!(matches!(cluster.list("default").await.unwrap_err().why, Failure::Forbidden { .. }));
    // The kubeconfig is replaced, as a mounted Secret is; the old token stops working on its side meanwhile.
    let cluster = with_user(dir.path(), &json!({ "token": "revoked" }), LONG);
    assert!(matches!(cluster.list("default").await.unwrap_err().why, Failure::Unauthorized));
    with_user(dir.path(), &json!({ "token": "admin" }), LONG);
    cluster.list("default").await.unwrap();
}

#[tokio::test]
async fn a_plugin_that_hangs_fails_or_is_absent_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let exec = |command: &str, args: &[&str]| json!({ "exec": { "apiVersion": "client.authentication.k8s.io/v1", "command": command, "args": args } });
    let cluster = with_user(dir.path(), &exec("sleep", &["1000"]), Duration::from_secs(2));
    let error = cluster.list("default").await.unwrap_err();
    assert!(matches!(&error.why, Failure::Config(ConfigError::PluginSilent { .. })), "{error:?}");
    assert!(
        error.is_transient() && whole(&error).contains("credential plugin sleep gave no answer within 1s")
    );

    // And nothing that it started outlives it.
    let child = dir.path().join("child");
    let script = format!("sleep 1000 & echo $! > {}; wait", child.display());
    let cluster = with_user(dir.path(), &exec("sh", &["-c", &script]), Duration::from_secs(8));
    cluster.list("default").await.unwrap_err();
    let stat = format!("/proc/{}/stat", std::fs::read_to_string(&child).unwrap().trim());
    let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
    for _ in 0..100 {
        if runs() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    assert!(!runs(), "what the plugin started runs on");

    let cluster = with_user(dir.path(), &exec("sh", &["-c", "echo s3cret; exit 3"]), LONG);
    let error = cluster.list("default").await.unwrap_err();
    let text = format!("{} {error:?}", whole(&error));
    assert!(text.contains("ended with exit status: 3") && !text.contains("s3cret"), "{text}");

    let cluster = with_user(dir.path(), &exec("no-such-plugin", &[]), LONG);
    let error = cluster.list("default").await.unwrap_err();
    assert!(whole(&error).contains("cannot run the credential plugin no-such-plugin"), "{}", whole(&error));
    assert!(error.hints()[0].contains("PATH"), "{:?}", error.hints());

    let provider = json!({ "auth-provider": { "name": "gcp", "config": { "cmd-path": "echo" } } });
    let error = with_user(dir.path(), &provider, LONG).list("default").await.unwrap_err();
    assert!(whole(&error).contains("use `exec`"), "{}", whole(&error));
}
