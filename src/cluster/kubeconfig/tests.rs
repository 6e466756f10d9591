use serde_json::{Value, json};

use super::*;

/// Reads a context with these entries; each file may take a second.
async fn read_with(dir: &Path, cluster: Value, user: Value) -> Result<Config, ConfigError> {
    let path = dir.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{ "name": "x", "cluster": cluster }],
        "users": [{ "name": "x", "user": user }],
        "contexts": [{ "name": "x", "context": { "cluster": "x", "user": "x" } }],
    });
    std::fs::write(&path, config.to_string()).unwrap();
    Origin::Context { path, name: "x".to_owned() }.config_within(Duration::from_secs(4)).await
}

#[tokio::test]
async fn a_file_that_hangs_is_named_whichever_entry_names_it() {
    let dir = tempfile::tempdir().unwrap();
    // Nothing ever writes into it, so that a reader hangs as on a file system that is gone.
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let plain = || json!({ "server": "https://127.0.0.1:1" });
    let authority = json!({ "server": "https://127.0.0.1:1", "certificate-authority": fifo });
    for (cluster, user) in [
        (plain(), json!({ "tokenFile": fifo })),
        (plain(), json!({ "client-certificate": fifo })),
        (authority, json!({ "token": "t0ken-of-the-test" })),
    ] {
        let error = read_with(dir.path(), cluster, user).await.unwrap_err();
        let line = crate::human::one_line(&error);
        assert_eq!(line, format!("cannot read {}: no answer within 1s", fifo.display()));
        assert!(error.is_transient() && error.hints()[0].contains("mount"), "{error:?}");
    }
    // `token` stands in for a file that hangs as well.
    let user = json!({ "token": "t0ken-of-the-test", "tokenFile": fifo });
    let config = read_with(dir.path(), plain(), user).await.unwrap();
    assert_eq!(config.auth_info.token.unwrap().expose_secret(), "t0ken-of-the-test");
}

/// The file has an absolute path, so an empty path in it is resolved to its directory.
#[tokio::test]
async fn what_is_given_as_empty_is_not_given_as_for_kubectl() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = json!({
        "server": "https://127.0.0.1:1", "certificate-authority": "", "certificate-authority-data": "",
        "proxy-url": "", "tls-server-name": "",
    });
    let user = json!({
        "username": "", "password": "", "token": "", "tokenFile": "", "as": "", "as-uid": "",
        "client-certificate": "", "client-certificate-data": "", "client-key": "", "client-key-data": "",
        "exec": { "apiVersion": "client.authentication.k8s.io/v1", "command": "aws" },
    });
    let config = read_with(dir.path(), cluster, user).await.unwrap();
    assert!(config.root_cert.is_none() && config.tls_server_name.is_none(), "{config:?}");
    let user = config.auth_info;
    assert!(user.exec.is_some());
    let secrets = [user.password, user.token, user.client_key_data];
    assert!(secrets.iter().all(Option::is_none), "{secrets:?}");
    let files = [user.token_file, user.client_certificate, user.client_key];
    assert!(files.iter().all(Option::is_none), "{files:?}");
    let texts = [user.username, user.client_certificate_data, user.impersonate, user.impersonate_uid];
    assert!(texts.iter().all(Option::is_none), "{texts:?}");
    // A password may be empty, and what is given beside it stays.
    let user = json!({ "username": "ci", "password": "", "token": "t0ken-of-the-test" });
    let config = read_with(dir.path(), json!({ "server": "https://127.0.0.1:1" }), user).await.unwrap();
    assert!(config.auth_info.password.is_some() && config.auth_info.token.is_some());
}

#[tokio::test]
async fn a_proxy_of_the_kubeconfig_is_also_for_a_server_on_this_machine() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = json!({ "server": "https://127.0.0.1:1", "proxy-url": "http://proxy.example:3128" });
    let config = read_with(dir.path(), cluster, json!({})).await.unwrap();
    assert_eq!(config.proxy_url.unwrap().host(), Some("proxy.example"));
}

#[test]
fn the_environments_proxy_is_for_servers_elsewhere() {
    let environment = Matcher::builder().all("http://proxy.example:3128").no("excepted.example").build();
    for (server, expected) in [
        ("https://kubernetes.example:6443", false),
        ("https://excepted.example:6443", true),
        ("https://127.0.0.1:6443", true),
        ("https://[::1]:6443", true),
        ("https://localhost:6443", true),
    ] {
        let config = Config::new(server.parse().unwrap());
        assert_eq!(is_direct(&config, &environment), expected, "{server}");
    }
}

#[test]
fn a_file_that_is_no_text_or_has_no_end_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kubeconfig");
    for half in [b"\xff\xfe\0", b"\xfe\xff\0"] {
        std::fs::write(&path, half).unwrap();
        assert!(matches!(read(&path), Err(ConfigError::Malformed { .. })));
    }
    let error = read(Path::new("/dev/zero")).unwrap_err();
    let line = crate::human::one_line(&error);
    assert_eq!(line, "cannot read /dev/zero: it has more than 64 MiB");
    assert!(!error.may_pass() && error.hints()[0].starts_with("split it"), "{error:?}");
}
