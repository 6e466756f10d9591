//! A real etcd and a real kube-apiserver on the loopback, as the programs that `tests/cluster/build` made: access rules
//! on, every request in an audit log. They end with the test process, however it ends.
#![allow(dead_code, unreachable_pub, missing_docs)] // each test binary uses its part

mod programs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::common::{eventually, scratch};

use programs::{Process, certificates, program, tail};

/// Users without any right of their own. `admin` may do everything.
pub const USERS: [&str; 5] = ["narrow", "reader", "writer", "pruner", "stranger"];

/// A user's token: the name backwards, for a message must name the user and never the token. What is no user's name is a
/// token already.
pub fn token_of(user: &str) -> String {
    if USERS.contains(&user) { user.chars().rev().collect() } else { user.to_owned() }
}

/// How long a server may take to be ready, in seconds: 4 on an idle machine.
const READY: u64 = 180;

/// One cluster.
pub struct Kubernetes {
    /// Bound, never listening: nobody else gets the port while the server is down.
    _port: Socket,
    pub port: u16,
    etcd: Process,
    server: Mutex<Option<Process>>,
    /// How much of the audit log is from servers that were killed: requests in it may have no end.
    killed: Mutex<usize>,
    flags: Vec<String>,
    ca: String,
    client: reqwest::Client,
    runtime: Option<tokio::runtime::Runtime>,
    /// Removed when the process ends without dropping it, as a shared one does, when this pipe closes.
    _cleaner: Child,
    dir: tempfile::TempDir, // the last to be dropped: the programs write into it
}

/// How to reach a cluster as somebody.
#[derive(Clone, Debug)]
pub struct Access {
    pub server: String,
    /// PEM, for https.
    pub ca: Option<String>,
    pub token: String,
}

impl Kubernetes {
    /// The one that the tests of this binary share. Each has namespaces of its own.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Kubernetes> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&[]))
    }

    /// A new one, with these flags more for its API server; ready.
    pub fn start(flags: &[&str]) -> Self {
        let dir = tempfile::Builder::new().prefix("treeswap-kubernetes-").tempdir_in(scratch()).unwrap();
        let path = dir.path();
        let clean = "cat; until rm -rf \"$0\"; do sleep 0.1; done"; // their last writes may come in between
        let mut cleaner = Command::new("sh");
        cleaner
            .args(["-c", clean])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let cleaner = cleaner.spawn().unwrap();
        let ca = certificates(path);
        let tokens: String = USERS.iter().map(|user| format!("{},{user},{user}\n", token_of(user))).collect();
        std::fs::write(path.join("tokens.csv"), format!("admin,admin,admin,system:masters\n{tokens}"))
            .unwrap();
        let policy =
            json!({ "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{ "level": "Metadata" }] });
        std::fs::write(path.join("audit.json"), policy.to_string()).unwrap();
        let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        held.set_reuse_port(true).unwrap();
        held.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let port = held.local_addr().unwrap().as_socket().unwrap().port();
        // Unix sockets, named host:port as etcd wants them; what it tells others is never used.
        let url = "http://127.0.0.1:1";
        let etcd = Process::start(
            Command::new(program("etcd")).current_dir(path).args([
                "--data-dir=etcd",
                "--unsafe-no-fsync",
                "--listen-client-urls=unix://client:1",
                "--listen-peer-urls=unix://peer:1",
                &format!("--advertise-client-urls={url}"),
                &format!("--initial-advertise-peer-urls={url}"),
                &format!("--initial-cluster=default={url}"),
            ]),
            &path.join("etcd.log"),
        );
        let authority = reqwest::Certificate::from_pem(ca.as_bytes()).unwrap();
        let client = reqwest::Client::builder().tls_certs_only([authority]).no_proxy().build().unwrap();
        let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let server = Mutex::default();
        let this = Self {
            _port: held,
            port,
            etcd,
            server,
            killed: Mutex::default(),
            flags,
            ca,
            client,
            runtime: Some(runtime),
            _cleaner: cleaner,
            dir,
        };
        this.resume();
        this
    }

    /// Starts the API server, after [`Kubernetes::kill`] with everything it had stored; returns when it is ready.
    pub fn resume(&self) {
        let path = self.dir.path();
        let at = |name: &str| path.join(name).display().to_string();
        let mut command = Command::new(program("kube-apiserver"));
        command.current_dir(path).args([
            &format!("--etcd-servers=unix://{}", at("client:1")),
            &format!("--secure-port={}", self.port),
            "--permit-port-sharing",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--tls-cert-file=server.pem",
            "--tls-private-key-file=server.key",
            "--client-ca-file=ca.pem",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=account.pub",
            "--service-account-signing-key-file=account.key",
            "--authorization-mode=RBAC",
            "--token-auth-file=tokens.csv",
            "--disable-admission-plugins=ServiceAccount",
            "--audit-policy-file=audit.json",
            &format!("--audit-log-path={}", at("audit.log")),
            &format!("--cert-dir={}", at("generated")),
        ]);
        let mut server = self.server.lock().unwrap();
        assert!(server.is_none(), "the API server is running");
        *server = Some(Process::start(command.args(&self.flags), &path.join("server.log")));
        eventually(READY, "the API server is ready", || {
            let process = server.as_mut().unwrap();
            assert!(!process.ended(), "the API server ended:\n{}", tail(&path.join("server.log")));
            assert!(!self.etcd.ended(), "etcd ended:\n{}", tail(&path.join("etcd.log")));
            self.try_ask("GET", "/readyz", None).filter(|(status, _)| *status == 200)
        });
    }

    /// Kills the API server as a crash would. What it acknowledged is stored.
    pub fn kill(&self) {
        drop(self.server.lock().unwrap().take().expect("the API server is not running"));
        *self.killed.lock().unwrap() = std::fs::read(self.dir.path().join("audit.log")).unwrap().len();
    }

    /// A place for a test's files.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// How a user reaches it.
    pub fn access(&self, user: &str) -> Access {
        let server = format!("https://127.0.0.1:{}", self.port);
        Access { server, ca: Some(self.ca.clone()), token: token_of(user) }
    }

    /// A request as `admin`; none if there was no answer.
    fn try_ask(&self, method: &str, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
        let url = format!("https://127.0.0.1:{}{path}", self.port);
        let mut request = self.client.request(method.parse().unwrap(), url).bearer_auth("admin");
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let exchange = async {
            let answer = request.timeout(std::time::Duration::from_secs(60)).send().await.ok()?;
            let status = answer.status().as_u16();
            let body = answer.bytes().await.ok()?;
            Some((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
        };
        // From a thread of its own: the caller may be inside another runtime.
        let runtime = self.runtime.as_ref().unwrap();
        std::thread::scope(|scope| scope.spawn(|| runtime.block_on(exchange)).join().unwrap())
    }

    /// A request as `admin`: its status and answer.
    #[track_caller]
    pub fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.try_ask(method, path, body).unwrap_or_else(|| panic!("no answer to {method} {path}"))
    }

    /// A request as `admin` that must succeed.
    #[track_caller]
    pub fn must(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let (status, answer) = self.ask(method, path, body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    /// Makes a namespace whose name begins with this.
    #[track_caller]
    pub fn namespace(&self, prefix: &str) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("{prefix}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.must("POST", "/api/v1/namespaces", Some(&json!({ "metadata": { "name": name } })));
        name
    }

    /// Writes a ConfigMap as somebody else would: whatever was there is gone.
    #[track_caller]
    pub fn put(&self, namespace: &str, name: &str, object: Value) -> Value {
        let mut object = object;
        object["metadata"]["name"] = json!(name);
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        match self.ask("PUT", &format!("{path}/{name}"), Some(&object)) {
            (200 | 201, answer) => answer,
            _ => self.must("POST", &path, Some(&object)),
        }
    }

    /// A ConfigMap as it is; null if there is none.
    #[track_caller]
    pub fn configmap(&self, namespace: &str, name: &str) -> Value {
        match self.ask("GET", &format!("/api/v1/namespaces/{namespace}/configmaps/{name}"), None) {
            (200, object) => object,
            (404, _) => Value::Null,
            (status, answer) => panic!("{status} {answer}"),
        }
    }

    /// Every ConfigMap of a namespace, but for the one the server puts there, by name.
    #[track_caller]
    pub fn configmaps(&self, namespace: &str) -> BTreeMap<String, Value> {
        let list = self.must("GET", &format!("/api/v1/namespaces/{namespace}/configmaps"), None);
        let named = |object: &Value| (text(&object["metadata"]["name"]), object.clone());
        let all = list["items"].as_array().unwrap().iter().map(named);
        all.filter(|(name, _)| name != "kube-root-ca.crt").collect()
    }

    /// The resourceVersion of every ConfigMap of a namespace: it changes with each write that had an effect.
    #[track_caller]
    pub fn versions(&self, namespace: &str) -> BTreeMap<String, String> {
        let version = |object: Value| text(&object["metadata"]["resourceVersion"]);
        self.configmaps(namespace).into_iter().map(|(name, object)| (name, version(object))).collect()
    }

    /// Grants a user these rules in a namespace and returns when the server acts on it.
    #[track_caller]
    pub fn grant(&self, namespace: &str, user: &str, rules: &Value) {
        self.grant_as(&format!("{namespace}-{user}"), namespace, user, rules);
    }

    /// Grants them beside those granted before.
    #[track_caller]
    pub fn grant_more(&self, namespace: &str, user: &str, rules: &Value) {
        self.grant_as(&format!("{namespace}-{user}-more"), namespace, user, rules);
    }

    #[track_caller]
    fn grant_as(&self, name: &str, namespace: &str, user: &str, rules: &Value) {
        let group = "rbac.authorization.k8s.io";
        let path = format!("/apis/{group}/v1/namespaces/{namespace}");
        let metadata = json!({ "name": name });
        self.must("POST", &format!("{path}/roles"), Some(&json!({ "metadata": metadata, "rules": rules })));
        let binding = json!({
            "metadata": metadata,
            "roleRef": { "apiGroup": group, "kind": "Role", "name": name },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": user }],
        });
        self.must("POST", &format!("{path}/rolebindings"), Some(&binding));
        for rule in rules.as_array().unwrap() {
            let first = |key: &str| rule[key][0].as_str().unwrap_or_default();
            let (resource, group, name) = (first("resources"), first("apiGroups"), first("resourceNames"));
            for verb in rule["verbs"].as_array().unwrap() {
                let verb = verb.as_str().unwrap();
                eventually(60, "the grant is in force", || {
                    self.may(user, namespace, verb, group, resource, name).then_some(())
                });
            }
        }
    }

    /// Whether a user has a right, by the server's own judgement.
    #[track_caller]
    pub fn may(
        &self,
        user: &str,
        namespace: &str,
        verb: &str,
        group: &str,
        resource: &str,
        name: &str,
    ) -> bool {
        let what = json!({ "namespace": namespace, "verb": verb, "group": group, "resource": resource, "name": name });
        let review = json!({ "spec": { "user": user, "resourceAttributes": what } });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        self.must("POST", path, Some(&review))["status"]["allowed"] == true
    }

    /// Every request to a namespace that has ended, in the order of their arrival. Waits until those under way have; of
    /// those that [`Kubernetes::kill`] cut off some are missing, whatever became of them.
    pub fn requests(&self, namespace: &str) -> Vec<Audited> {
        eventually(60, "the audit log is complete", || {
            let log = std::fs::read_to_string(self.dir.path().join("audit.log")).unwrap();
            let killed = *self.killed.lock().unwrap();
            let (mut begun, mut ended, mut at) = (BTreeSet::new(), BTreeMap::new(), 0);
            for line in log.lines() {
                at += line.len() + 1;
                let event: Value = match serde_json::from_str(line) {
                    Ok(event) => event,
                    Err(_) if at < log.len() => continue, // cut off by a kill
                    Err(_) => return None,                // not yet whole
                };
                if event["objectRef"]["namespace"] != namespace {
                    continue;
                }
                let id = text(&event["auditID"]);
                if event["stage"] != "RequestReceived" {
                    ended.insert(id, event);
                } else if at > killed {
                    begun.insert(id);
                }
            }
            let mut events: Vec<Audited> = ended.values().map(Audited::read).collect();
            events.sort_by(|a, b| a.received.cmp(&b.received));
            begun.iter().all(|id| ended.contains_key(id)).then_some(events)
        })
    }

    /// How often somebody other than `admin` wrote each ConfigMap of a namespace, successfully and not as a dry run.
    pub fn writes(&self, namespace: &str) -> BTreeMap<String, usize> {
        let mut count = BTreeMap::new();
        for request in self.requests(namespace) {
            if request.is_write() && request.resource == "configmaps" && request.user != "admin" {
                *count.entry(request.name).or_default() += 1;
            }
        }
        count
    }
}

impl Drop for Kubernetes {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background(); // it may be dropped inside another runtime
        }
    }
}

/// One request, from the server's audit log.
#[derive(Clone, Debug)]
pub struct Audited {
    pub verb: String,
    pub resource: String,
    pub name: String,
    pub user: String,
    pub agent: String,
    pub uri: String,
    pub status: u64,
    /// When it arrived; the texts of two are in the order of their moments.
    pub received: String,
}

impl Audited {
    fn read(event: &Value) -> Self {
        Self {
            verb: text(&event["verb"]),
            resource: text(&event["objectRef"]["resource"]),
            name: text(&event["objectRef"]["name"]),
            user: text(&event["user"]["username"]),
            agent: text(&event["userAgent"]),
            uri: text(&event["requestURI"]),
            status: event["responseStatus"]["code"].as_u64().unwrap_or(0),
            received: text(&event["requestReceivedTimestamp"]),
        }
    }

    /// Whether it changed something, as far as the server says.
    pub fn is_write(&self) -> bool {
        let writes = ["create", "update", "patch", "delete", "deletecollection"];
        writes.contains(&self.verb.as_str())
            && (200..300).contains(&self.status)
            && !self.uri.contains("dryRun=All")
    }
}

impl Access {
    /// The same as somebody else.
    pub fn as_user(&self, user: &str) -> Self {
        Self { token: token_of(user), ..self.clone() }
    }
}

/// Writes a kubeconfig with these contexts; the first one is the current one.
pub fn kubeconfig(path: &Path, contexts: &[(&str, Access)]) -> PathBuf {
    let cluster = |(name, access): &(&str, Access)| {
        let mut cluster = json!({ "server": access.server });
        if let Some(ca) = &access.ca {
            use base64::Engine as _;
            cluster["certificate-authority-data"] =
                json!(base64::engine::general_purpose::STANDARD.encode(ca));
        }
        json!({ "name": name, "cluster": cluster })
    };
    let user = |(name, access): &(&str, Access)| json!({ "name": name, "user": { "token": access.token } });
    let context =
        |(name, _): &(&str, Access)| json!({ "name": name, "context": { "cluster": name, "user": name } });
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": contexts.iter().map(cluster).collect::<Vec<_>>(),
        "users": contexts.iter().map(user).collect::<Vec<_>>(),
        "contexts": contexts.iter().map(context).collect::<Vec<_>>(),
        "current-context": contexts[0].0,
    });
    std::fs::write(path, config.to_string()).unwrap();
    path.to_owned()
}

/// A string of an answer; empty if it is something else.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
