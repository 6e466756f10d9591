//! What the applier may do.

use std::collections::BTreeSet;

use serde_json::json;

use super::cronjob::SELDOM;
use crate::applier::{Applier, MAPS, commit, rights};
use crate::kube::eventually;
use crate::shop::Shop;

const NAMESPACE: &str = "rights";
/// What turns are taken by.
const LEASE: &str = "treeswap-platform-config";

/// With the shipped Role a run is refused nothing, and asks for each right that the Role grants and for no other. Without
/// one of them a run that needs it fails, is not begun again, and says which one it is; without `list` everything is
/// done, and without a right to Leases too, which is only said, once.
pub fn narrow(shop: &Shop) {
    shop.serve();
    let alpha = MAPS[0];
    commit(shop, &[alpha]);
    let applier = Applier::deploy(shop, NAMESPACE, SELDOM);
    applier.run("creates").well();
    commit(shop, &[alpha]);
    applier.run("updates").well();

    let granted: BTreeSet<_> = rights(&applier.role).into_iter().collect();
    let asked = eventually("the audit log is complete", || {
        let requests = applier.requests();
        let asked: BTreeSet<_> =
            requests.iter().map(|request| crate::applier::right(request, NAMESPACE)).collect();
        let refused = requests.iter().find(|request| request["responseStatus"]["code"] == 403);
        assert!(refused.is_none(), "{refused:?}");
        (asked.len() >= granted.len()).then_some(asked)
    });
    assert_eq!(asked, granted);

    for (number, (resource, verb)) in granted.iter().enumerate() {
        let mut role = applier.role.clone();
        for rule in role["rules"].as_array_mut().unwrap() {
            if crate::applier::resources(rule).contains(resource) {
                rule["verbs"].as_array_mut().unwrap().retain(|one| one != verb);
            }
        }
        applier.grant(&role);
        let turns = resource != "configmaps";
        if turns {
            // None to read; none, so that one is made; or one to take, as somebody may have made it beforehand.
            applier.kube.run(&["delete", "lease", LEASE, "--ignore-not-found"]);
            if verb == "update" {
                let made = format!(
                    "{{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {{name: {LEASE}}}}}"
                );
                applier.kube.apply(&made);
            }
        }
        // ConfigMaps to write over, and one to make.
        let made = format!("made-{number}");
        let revision = commit(shop, &[alpha, (&made, "b")]);
        let job = format!("without-{number}");
        let ended = applier.run(&job);
        let missing = format!("the right to {verb} {resource} in namespace {NAMESPACE} is missing");
        if turns || verb == "list" {
            assert_eq!(ended.well().succeeded, 1);
            for map in [alpha.0, &made] {
                assert_eq!(applier.revision(map).as_ref(), Some(&revision), "{verb} {resource}: {map}");
            }
            let said = alone(&applier, &job);
            assert_eq!(said.len(), usize::from(turns), "{verb} {resource}: {said:?}");
            assert!(said.iter().all(|line| line.contains(&missing)), "{verb} {resource}: {said:?}");
            continue;
        }
        assert_eq!(
            (&*ended.reason, ended.pods.len(), ended.pods[0].0),
            ("PodFailurePolicy", 1, 3),
            "{ended:?}"
        );
        assert!(ended.pods[0].1.contains(&missing), "{verb}: {ended:?}");
        let hint = format!(
            "hint: grant system:serviceaccount:{NAMESPACE}:config-apply get, list, create and update on {resource} with a \
             Role and a RoleBinding in {NAMESPACE}"
        );
        assert!(ended.pods[0].1.contains(&hint), "{verb}: {ended:?}");
    }
    applier.grant(&json!(applier.role));
    commit(shop, &[alpha]);
    applier.run("again").well();
    assert_eq!(alone(&applier, "again"), [""; 0]);
    applier.remove();
}

/// What a Job that ended says about taking no turns.
fn alone(applier: &Applier, job: &str) -> Vec<String> {
    let log = applier.kube.run(&["logs", &format!("job/{job}")]);
    let lines = log.lines().filter(|line| line.contains("cannot use Leases to take turns"));
    lines.map(str::to_owned).collect()
}
