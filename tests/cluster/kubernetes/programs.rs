//! The programs that a cluster is made of, and the certificates that they show.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};

/// The directory of the programs: `KUBEBUILDER_ASSETS`, or where `tests/cluster/build` puts them.
fn programs() -> PathBuf {
    if let Some(dir) = std::env::var_os("KUBEBUILDER_ASSETS").filter(|dir| !dir.is_empty()) {
        return dir.into();
    }
    let modules = include_str!("../go.mod");
    let line = modules.lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v"));
    let version = line.and_then(|rest| rest.split_whitespace().next()).expect("go.mod names the version");
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let cache =
        cache.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").expect("HOME is set")).join(".cache"));
    cache.join("treeswap").join(format!("kubernetes-{version}"))
}

#[track_caller]
pub(super) fn program(name: &str) -> PathBuf {
    let path = programs().join(name);
    assert!(path.is_file(), "{} is missing: run tests/cluster/build (6 minutes, once)", path.display());
    path
}

/// An authority, a certificate for the loopback, and the key that signs tokens. The authority's PEM.
pub(super) fn certificates(dir: &Path) -> String {
    let authority_key = rcgen::KeyPair::generate().unwrap();
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    authority.distinguished_name.push(rcgen::DnType::CommonName, "a test's cluster");
    let pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(authority, authority_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    std::fs::write(dir.join("ca.pem"), &pem).unwrap();
    std::fs::write(dir.join("server.pem"), certificate.pem()).unwrap();
    std::fs::write(dir.join("server.key"), key.serialize_pem()).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(dir.join("account.key"), key.serialize_pem()).unwrap();
    std::fs::write(dir.join("account.pub"), key.public_key_pem()).unwrap();

    // Who shows this one is admin: the name is the user, the organisation the group.
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "certified");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &issuer).unwrap();
    std::fs::write(dir.join("client.pem"), certificate.pem()).unwrap();
    std::fs::write(dir.join("client.key"), key.serialize_pem()).unwrap();
    pem
}

/// A program that dies with us: killed when dropped, and by the kernel when the thread that started it is gone. A test's
/// thread ends before the process does, so another one starts it.
pub(super) struct Process {
    child: Mutex<Child>,
}

impl Process {
    pub(super) fn start(command: &mut Command, log: &Path) -> Self {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        let mut wrapped = Command::new("setpriv");
        wrapped.args(["--pdeathsig", "KILL", "--"]).arg(command.get_program()).args(command.get_args());
        wrapped.current_dir(command.get_current_dir().unwrap());
        wrapped.env_clear().env("HOME", command.get_current_dir().unwrap());
        wrapped.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = keeper(move || wrapped.spawn().expect("setpriv (util-linux) is installed"));
        Self { child: Mutex::new(child) }
    }

    pub(super) fn ended(&self) -> bool {
        self.child.lock().unwrap().try_wait().unwrap().is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap();
        drop(child.kill()); // it may have ended
        child.wait().unwrap();
    }
}

/// Runs a task on the thread that lives as long as the process.
fn keeper<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> T {
    type Task = Box<dyn FnOnce() + Send>;
    static TASKS: OnceLock<Mutex<std::sync::mpsc::Sender<Task>>> = OnceLock::new();
    let tasks = TASKS.get_or_init(|| {
        let (send, receive) = std::sync::mpsc::channel::<Task>();
        std::thread::spawn(move || receive.into_iter().for_each(|task| task()));
        Mutex::new(send)
    });
    let (answer, answered) = std::sync::mpsc::channel();
    let task: Task = Box::new(move || drop(answer.send(task())));
    tasks.lock().unwrap().send(task).unwrap();
    answered.recv().unwrap()
}

pub(super) fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().rev().take(15).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
}
