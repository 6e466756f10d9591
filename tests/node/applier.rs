//! The applier, deployed as `deploy/apply` ships it, and what the API server has on record about it.

use std::path::{Path, PathBuf};

use serde::Deserialize as _;
use serde_json::{Value, json};

use super::common::Files;
use super::kube::{self, Kube, eventually};
use super::shop::{Shop, TREESWAP};

/// The namespace that the manifests are written for.
pub const SHIPPED: &str = "ci";
/// The ConfigMaps that the rules of [`commit`] ask for, and the file each is made of.
pub const MAPS: [(&str, &str); 3] = [("alpha", "a"), ("beta", "b"), ("gamma", "sub/c")];
/// Where the shipped arguments look for the rules.
pub const RULES: &str = "core-services/prow/_plugins.yaml";

/// A revision with rules for these ConfigMaps, in which each of them has changed; its commit.
pub fn commit(shop: &Shop, maps: &[(&str, &str)]) -> String {
    let maps = maps.iter().map(|(name, file)| ((*file).to_owned(), json!({ "name": name })));
    let rules = json!({ "config_updater": { "maps": maps.collect::<serde_json::Map<_, _>>() } });
    shop.commit_with(Files::new().file(RULES, rules.to_string()));
    shop.remote.tip("refs/heads/main").expect("there was a commit")
}

pub struct Applier {
    pub kube: Kube,
    /// The CronJob and the Role, as they were applied.
    pub cronjob: Value,
    pub role: Value,
    /// Who it is to the API server.
    account: String,
    audit: PathBuf,
}

impl Applier {
    /// Applies the manifests, with what a user has to say (the repository, what the image is called, another namespace)
    /// and this schedule.
    pub fn deploy(shop: &Shop, namespace: &str, schedule: &str) -> Self {
        let mut applier = Self {
            kube: shop.kube.in_new_namespace(namespace, "restricted"),
            cronjob: Value::Null,
            role: Value::Null,
            account: format!("system:serviceaccount:{namespace}:config-apply"),
            audit: shop.machine.dir.join("audit.log"),
        };
        for mut document in ["rbac.yaml", "cronjob.yaml"].iter().flat_map(|name| documents(name, namespace)) {
            match document["kind"].as_str() {
                Some("CronJob") => {
                    document["spec"]["schedule"] = schedule.into();
                    let pod = &mut document["spec"]["jobTemplate"]["spec"]["template"]["spec"];
                    pod["containers"][0]["image"] = TREESWAP.into();
                    let repo = pod["containers"][0]["args"].as_array_mut().unwrap().iter_mut();
                    let mut repo = repo.filter(|arg| arg.as_str().unwrap().starts_with("--repo="));
                    *repo.next().unwrap() = format!("--repo={}", shop.url()).into();
                    applier.cronjob = document;
                    continue; // once its rights are there
                }
                Some("Role") => applier.role = document.clone(),
                _ => {}
            }
            applier.kube.apply(&document.to_string());
        }
        applier.grant(&applier.role.clone());
        applier.kube.apply(&applier.cronjob.to_string());
        applier
    }

    /// Replaces the Role, and waits until the server goes by it. It must grant all of the shipped one's rights, or all
    /// but some.
    pub fn grant(&self, role: &Value) {
        self.kube.apply(&role.to_string());
        let granted = rights(role);
        for (resource, verb) in rights(&self.role) {
            let may = granted.contains(&(resource.clone(), verb.clone()));
            eventually("the Role is in force", || {
                let asked = ["auth", "can-i", &verb, &resource, &format!("--as={}", self.account)];
                (self.kube.try_run(&asked).ok() == may).then_some(())
            });
        }
    }

    /// Starts a Job of the CronJob's template, changed by `change`.
    pub fn start(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let mut spec = self.cronjob["spec"]["jobTemplate"]["spec"].clone();
        change(&mut spec);
        let job =
            json!({ "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name }, "spec": spec });
        self.kube.apply(&job.to_string());
    }

    /// Waits for the end of a Job.
    #[track_caller]
    pub fn ended(&self, name: &str) -> Ended {
        let (job, reason) = eventually(&format!("the Job {name} ends"), || {
            let job = self.kube.get(&format!("job/{name}"));
            let conditions = job["status"]["conditions"].as_array()?.iter();
            let mut ends = conditions.filter(|one| one["status"] == "True");
            let end = ends.find(|one| one["type"] == "Complete" || one["type"] == "Failed")?.clone();
            let reason = if end["type"] == "Complete" { "Complete" } else { end["reason"].as_str()? };
            Some((job, reason.to_owned()))
        });
        let pods = self.kube.pods(&format!("job-name={name}"));
        let ends = pods.iter().map(|pod| kube::container(pod, "treeswap")["state"]["terminated"].clone());
        let ends = ends.map(|end| {
            (end["exitCode"].as_i64().unwrap_or(-1), end["message"].as_str().unwrap_or_default().to_owned())
        });
        Ended { reason, succeeded: job["status"]["succeeded"].as_u64().unwrap_or(0), pods: ends.collect() }
    }

    /// A Job to its end.
    #[track_caller]
    pub fn run(&self, name: &str) -> Ended {
        self.start(name, |_| ());
        self.ended(name)
    }

    /// The names of the Jobs that a CronJob made, in the order in which it did.
    pub fn jobs_of(&self, cronjob: &str) -> Vec<String> {
        let list =
            self.kube.try_run(&["get", "jobs", "--sort-by=.metadata.creationTimestamp", "--output=json"]);
        let list: Value = serde_json::from_str(&list.stdout).unwrap_or_default();
        let jobs = list["items"].as_array().into_iter().flatten();
        let its = jobs.filter(|job| job["metadata"]["ownerReferences"][0]["name"] == cronjob);
        its.map(kube::name).collect()
    }

    /// The revision that a ConfigMap says it is of.
    pub fn revision(&self, map: &str) -> Option<String> {
        revision(&self.kube.get(&format!("configmap/{map}")))
    }

    /// The revision that is on record as complete.
    pub fn recorded(&self) -> Option<String> {
        let marker = self.kube.get("configmap/treeswap-set-platform-config");
        marker["data"]["_revision"].as_str().map(str::to_owned)
    }

    /// Everything that the applier asked the API server for, as the audit log has it.
    pub fn requests(&self) -> Vec<Value> {
        let log = std::fs::read(&self.audit).unwrap();
        let log = String::from_utf8_lossy(&log).into_owned();
        let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        let events = whole.map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["user"]["username"] == *self.account).collect()
    }

    /// The revisions that were written to each ConfigMap, in their order.
    pub fn history(&self, map: &str) -> Vec<String> {
        let mut writes = self.requests();
        writes.retain(|event| {
            let object = &event["objectRef"];
            let writes = event["verb"] == "create" || event["verb"] == "update";
            let taken =
                event["responseStatus"]["code"].as_u64().is_some_and(|code| (200..300).contains(&code));
            object["resource"] == "configmaps" && object["name"] == map && writes && taken
        });
        writes.sort_by_key(|event| event["requestReceivedTimestamp"].as_str().unwrap_or_default().to_owned());
        writes.iter().filter_map(|event| revision(&event["requestObject"])).collect()
    }

    /// Takes everything away again, the Pods included.
    pub fn remove(self) {
        let kinds = "cronjob,job,pod,configmap,lease,role,rolebinding";
        self.kube.run(&["delete", kinds, "--all", "--wait=true", "--cascade=foreground", "--timeout=120s"]);
    }
}

/// How a Job ended.
#[derive(Debug)]
pub struct Ended {
    /// `Complete`, or why it failed.
    pub reason: String,
    pub succeeded: u64,
    /// Of each of its Pods that are still there: exit code and termination message.
    pub pods: Vec<(i64, String)>,
}

impl Ended {
    #[track_caller]
    pub fn well(self) -> Self {
        assert_eq!(self.reason, "Complete", "{self:?}");
        self
    }
}

/// The documents of a manifest in `deploy/apply`, for this namespace.
fn documents(name: &str, namespace: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/apply").join(name);
    let mut text = std::fs::read_to_string(path).unwrap();
    for before in ["namespace: ", "--default-namespace="] {
        text = text.replace(&format!("{before}{SHIPPED}\n"), &format!("{before}{namespace}\n"));
    }
    serde_yaml::Deserializer::from_str(&text).map(|one| Value::deserialize(one).unwrap()).collect()
}

/// What a Role grants: resources with their groups, and verbs.
pub fn rights(role: &Value) -> Vec<(String, String)> {
    let rules = role["rules"].as_array().unwrap().iter();
    let pairs = |rule: &Value| {
        let verbs = rule["verbs"].as_array().unwrap().iter().map(|verb| verb.as_str().unwrap().to_owned());
        let verbs: Vec<String> = verbs.collect();
        let each = resources(rule).into_iter();
        each.flat_map(move |resource| verbs.clone().into_iter().map(move |verb| (resource.clone(), verb)))
    };
    rules.flat_map(pairs).collect()
}

/// The resources of a Role's rule, as `kubectl auth can-i` writes them.
pub fn resources(rule: &Value) -> Vec<String> {
    let group = rule["apiGroups"][0].as_str().unwrap();
    let each = rule["resources"].as_array().unwrap().iter();
    each.map(|resource| named(resource.as_str().unwrap(), group)).collect()
}

/// The right in the namespace that a request needs; for what is no object there, where it went.
pub fn right(request: &Value, namespace: &str) -> (String, String) {
    let object = &request["objectRef"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let resource = match object["namespace"].as_str() {
        Some(its) if its == namespace => named(&text(&object["resource"]), &text(&object["apiGroup"])),
        _ => text(&request["requestURI"]),
    };
    (resource, text(&request["verb"]))
}

fn named(resource: &str, group: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

/// The revision that a ConfigMap says it is of.
pub fn revision(object: &Value) -> Option<String> {
    object["metadata"]["annotations"]["treeswap.dev/revision"].as_str().map(str::to_owned)
}
