use super::*;
use crate::human::assert_message_style;

#[test]
fn every_failure_is_one_line_and_says_what_to_do() {
    let text = || "x".to_owned();
    let forbidden = |namespace: &str| Failure::Forbidden {
        user: text(),
        verb: "get",
        resource: "configmaps",
        namespace: namespace.into(),
    };
    let unreachable = |transient| Failure::Unreachable { server: text(), why: "refused".into(), transient };
    let after = Duration::from_secs(30);
    let each = || {
        [
            Failure::Conflict,
            Failure::AlreadyExists,
            Failure::NotFound,
            Failure::NamespaceNotFound { namespace: text() },
            Failure::NamespaceTerminating { namespace: text() },
            Failure::QuotaExceeded { message: text() },
            forbidden(""),
            forbidden("prod"),
            Failure::AdmissionDenied { message: text() },
            Failure::Unauthorized,
            Failure::TooLarge { message: text() },
            Failure::Immutable,
            Failure::Invalid { message: text() },
            Failure::Busy { status: 429, pause: None },
            Failure::Expired,
            Failure::Timeout { after },
            Failure::ConnectionLost { why: text() },
            Failure::Server { status: 500, message: text() },
            Failure::UnexpectedResponse { expected: "ConfigMap" },
            Failure::LongAnswer { most: 10 << 20 },
            Failure::EndlessList,
            Failure::Status { status: 418, message: text() },
            unreachable(true),
            unreachable(false),
            Failure::Config(ConfigError::None),
        ]
    };
    for kind in [Kind::ConfigMap, Kind::Lease] {
        for why in each() {
            match &why {
                Failure::Conflict
                | Failure::AlreadyExists
                | Failure::NotFound
                | Failure::NamespaceNotFound { .. }
                | Failure::NamespaceTerminating { .. }
                | Failure::QuotaExceeded { .. }
                | Failure::Forbidden { .. }
                | Failure::AdmissionDenied { .. }
                | Failure::Unauthorized
                | Failure::TooLarge { .. }
                | Failure::Immutable
                | Failure::Invalid { .. }
                | Failure::Busy { .. }
                | Failure::Expired
                | Failure::Timeout { .. }
                | Failure::ConnectionLost { .. }
                | Failure::Server { .. }
                | Failure::UnexpectedResponse { .. }
                | Failure::LongAnswer { .. }
                | Failure::EndlessList
                | Failure::Status { .. }
                | Failure::Unreachable { .. }
                | Failure::Config(_) => {}
            }
            let operation = Box::new(Operation::of(Verb::Update, kind, "prod", "plugins"));
            let error = Error { cluster: "build01".into(), operation, why };
            assert_message_style(&error, &error.hints());
        }
    }
}

#[test]
fn everything_wrong_with_a_kubeconfig_is_one_line_and_says_what_to_do() {
    let path = || PathBuf::from("/kubeconfig");
    let text = || "x".to_owned();
    let start = |kind: io::ErrorKind| ConfigError::PluginStart { command: text(), source: kind.into() };
    let status: ExitStatus = std::os::unix::process::ExitStatusExt::from_raw(0x100);
    let each = [
        ConfigError::Read { path: path(), source: io::ErrorKind::NotFound.into() },
        ConfigError::Read { path: path(), source: io::ErrorKind::IsADirectory.into() },
        ConfigError::Read { path: path(), source: io::ErrorKind::PermissionDenied.into() },
        ConfigError::Read { path: path(), source: io::ErrorKind::InvalidData.into() },
        ConfigError::Read { path: path(), source: io::ErrorKind::TimedOut.into() },
        ConfigError::Read { path: path(), source: io::Error::other("it has more than 64 MiB") },
        ConfigError::Malformed { path: path(), line: Some(3) },
        ConfigError::NotAFile { path: path() },
        ConfigError::Twice { name: text(), first: path(), second: path() },
        ConfigError::CurrentContext { name: text(), path: path() },
        ConfigError::Unknown { name: text(), known: Vec::new() },
        ConfigError::Unknown { name: text(), known: vec![text()] },
        ConfigError::Unknown { name: "default".into(), known: vec![text()] },
        ConfigError::None,
        ConfigError::NoContext { paths: vec![path(), path()] },
        ConfigError::Context { name: text(), path: path(), why: text() },
        ConfigError::InCluster { why: text() },
        start(io::ErrorKind::NotFound),
        start(io::ErrorKind::PermissionDenied),
        ConfigError::PluginEnded { command: text(), status },
        ConfigError::PluginSilent { command: text(), after: Duration::from_secs(3) },
        ConfigError::PluginAnswer { command: text(), why: "it has no token" },
    ];
    for error in each {
        match error {
            ConfigError::Read { .. }
            | ConfigError::Malformed { .. }
            | ConfigError::NotAFile { .. }
            | ConfigError::Twice { .. }
            | ConfigError::CurrentContext { .. }
            | ConfigError::Unknown { .. }
            | ConfigError::None
            | ConfigError::NoContext { .. }
            | ConfigError::Context { .. }
            | ConfigError::InCluster { .. }
            | ConfigError::PluginStart { .. }
            | ConfigError::PluginEnded { .. }
            | ConfigError::PluginSilent { .. }
            | ConfigError::PluginAnswer { .. } => {}
        }
        assert_message_style(&error, &error.hints());
    }
}

#[test]
fn an_unknown_default_cluster_is_explained_by_the_lack_of_a_current_context() {
    let hint = |name: &str| {
        let known = vec!["kube-a".to_owned()];
        ConfigError::Unknown { name: name.to_owned(), known }.hints().concat()
    };
    let asked = hint("default");
    assert!(asked.contains("current-context that exists") && asked.ends_with(": kube-a"), "{asked}");
    assert!(asked.contains("start again"), "{asked}");
    let asked = hint("kube-b");
    let name = "a cluster has the name of its context";
    assert_eq!(asked, format!("there are: kube-a; {name}, and contexts are read only at the start"));
}
