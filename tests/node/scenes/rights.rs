//! What the applier may do.

use std::collections::BTreeSet;

use serde_json::json;

use super::cronjob::SELDOM;
use crate::applier::{Applier, MAPS, commit, rights};
use crate::common::eventually;
use crate::shop::Shop;

/// With the shipped Role a run is refused nothing, and asks for each right that the Role grants and for no other. Without
/// one of them a run that needs it fails, is not begun again, and says which one it is; what can be done without `list`
/// is done.
pub fn narrow(shop: &mut Shop) {
    shop.serve();
    let alpha = MAPS[0];
    commit(shop, &[alpha]);
    let applier = Applier::deploy(shop, SELDOM);
    applier.run("creates").well();
    commit(shop, &[alpha]);
    applier.run("updates").well();

    let granted: BTreeSet<_> = rights(&applier.role).into_iter().collect();
    let asked = eventually(30, "the audit log is complete", || {
        let requests = applier.requests();
        let asked: BTreeSet<_> = requests.iter().map(crate::applier::right).collect();
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
        // Something to write over, and something to make.
        let made = format!("made-{number}");
        let revision = commit(shop, &[alpha, (&made, "b")]);
        let ended = applier.run(&format!("without-{number}"));
        if verb == "list" || resource != "configmaps" {
            assert_eq!(ended.well().succeeded, 1);
            assert_eq!(applier.revision(alpha.0), Some(revision));
            continue;
        }
        assert_eq!(
            (&*ended.reason, ended.pods.len(), ended.pods[0].0),
            ("PodFailurePolicy", 1, 3),
            "{ended:?}"
        );
        let missing = format!("the right to {verb} {resource} in namespace ci is missing");
        assert!(ended.pods[0].1.contains(&missing), "{verb}: {ended:?}");
        let hint = format!("hint: grant our user {verb} on {resource} with a Role in ci");
        assert!(ended.pods[0].1.contains(&hint), "{verb}: {ended:?}");
    }
    applier.grant(&json!(applier.role));
    applier.run("again").well();
    applier.remove();
}
