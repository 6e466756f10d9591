//! The periodic applier.

use std::time::Duration;

use serde_json::{Value, json};

use crate::applier::{Applier, MAPS, SHIPPED, commit};
use crate::kube::eventually;
use crate::shop::Shop;

/// A schedule for CronJobs whose runs a scene starts itself.
pub const SELDOM: &str = "0 0 1 1 *";

/// Each revision is written once to each ConfigMap, whatever happens to the runs.
pub fn writes_each_revision_once(shop: &Shop) {
    shop.serve();
    let first = commit(shop, &MAPS);
    let applier = Applier::deploy(shop, SHIPPED, "@every 10s");
    runs_by_its_schedule(&applier, &first);
    let second = loses_its_node_before_the_record(shop, &applier, &first);
    let third = two_runs_at_once(shop, &applier);
    let revisions = [first, second, third];
    for (map, _) in MAPS {
        eventually("the audit log is complete", || (applier.history(map).len() >= 3).then_some(()));
        assert_eq!(applier.history(map), revisions, "{map}");
    }
    applier.remove();
}

fn runs_by_its_schedule(applier: &Applier, first: &str) {
    eventually("its time has come", || applier.jobs_of("config-apply").first().cloned());
    patch(applier, "config-apply", &json!({ "suspend": true }));
    for job in applier.jobs_of("config-apply") {
        applier.ended(&job).well();
    }
    assert_eq!(applier.recorded().as_deref(), Some(first));
}

/// A run whose node loses its power between the last write and the record. Returns the revision.
fn loses_its_node_before_the_record(shop: &Shop, applier: &Applier, before: &str) -> String {
    let second = commit(shop, &MAPS);
    let (kube, written) = (applier.kube.clone(), second.clone());
    shop.hold(move || crate::applier::revision(&kube.get("configmap/alpha")).as_ref() == Some(&written));
    applier.start("second", |_| ());
    eventually("it has written, and asks the remote once more", || (shop.held() > 0).then_some(()));
    for (map, _) in MAPS {
        assert_eq!(applier.revision(map), Some(second.clone()), "{map}");
    }
    assert_eq!(applier.recorded().as_deref(), Some(before), "the record comes last");
    shop.machine.cut_power();
    shop.release();
    shop.machine.boot();
    let ended = applier.ended("second").well();
    assert_eq!(
        (ended.pods.len(), ended.succeeded),
        (2, 1),
        "one lost its node, the next one ended it: {ended:?}"
    );
    assert_eq!(applier.recorded(), Some(second.clone()));
    second
}

/// Two runs that begin at the same moment. Returns the revision.
fn two_runs_at_once(shop: &Shop, applier: &Applier) -> String {
    let third = commit(shop, &MAPS);
    shop.hold(|| true);
    applier.start("third", |_| ());
    applier.start("beside", |_| ());
    eventually("both ask the remote", || (shop.held() >= 2).then_some(()));
    shop.release();
    applier.ended("third").well();
    applier.ended("beside").well();
    assert_eq!(applier.recorded(), Some(third.clone()));
    third
}

/// The fields of the CronJob that end or drop a run. Beside each run is a control: the same without the field.
pub fn job_limits_take_effect(shop: &Shop) {
    shop.serve();
    commit(shop, &MAPS);
    let applier = Applier::deploy(shop, "ends", SELDOM);
    // A machine that is so busy that the minute begins meanwhile takes the next one.
    let mut minutes = std::iter::repeat_with(|| suspended_cronjobs(&applier));
    let due = minutes.find(|due| jiff::Timestamp::now() < *due).unwrap();
    pod_failure_policy(&applier);
    active_deadline(shop, &applier);
    starting_deadline(&applier, due);
    applier.remove();
}

/// `podFailurePolicy`: a run that somebody has to look at is not begun again. Somebody else's ConfigMap is in the way.
fn pod_failure_policy(applier: &Applier) {
    applier.kube.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: beta}, data: {theirs: '1'}}");
    applier.start("refused", |_| ());
    applier.start("blind", |job| job["podFailurePolicy"] = Value::Null);
    let refused = applier.ended("refused");
    assert_eq!(
        (&*refused.reason, refused.pods.len(), refused.pods[0].0),
        ("PodFailurePolicy", 1, 3),
        "{refused:?}"
    );
    assert!(refused.pods[0].1.contains("hint: --adopt"), "{refused:?}");
    let blind = applier.ended("blind");
    assert_eq!((&*blind.reason, blind.pods.len()), ("BackoffLimitExceeded", 2), "{blind:?}");
    applier.kube.run(&["delete", "configmap", "beta"]);
}

/// `activeDeadlineSeconds`: a run is ended whose remote takes the connection and says nothing.
fn active_deadline(shop: &Shop, applier: &Applier) {
    shop.hold(|| true);
    assert!(
        applier.cronjob["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"].is_u64(),
        "it is shipped"
    );
    applier.start("hung", |job| job["activeDeadlineSeconds"] = json!(10));
    applier.start("patient", |job| job["activeDeadlineSeconds"] = Value::Null);
    let hung = applier.ended("hung");
    assert_eq!(hung.reason, "DeadlineExceeded", "{hung:?}");
    let patient = applier.kube.get("job/patient")["status"]["conditions"].clone();
    assert!(patient.is_null(), "{patient}");
    shop.release();
    applier.ended("patient").well();
}

/// `startingDeadlineSeconds`: a run whose time, `due`, passed while nobody could start it is dropped.
fn starting_deadline(applier: &Applier, due: jiff::Timestamp) {
    let over = due + Duration::from_secs(11);
    while jiff::Timestamp::now() < over {
        std::thread::sleep(Duration::from_millis(200));
    }
    for name in ["missed", "late"] {
        patch(applier, name, &json!({ "suspend": false }));
    }
    let late =
        eventually("a run without a deadline is made up for", || applier.jobs_of("late").first().cloned());
    applier.ended(&late).well();
    assert_eq!(applier.jobs_of("missed"), [""; 0], "one with a deadline is not");
    patch(applier, "missed", &json!({ "schedule": "@every 1s", "concurrencyPolicy": "Forbid" }));
    eventually("its next time has come", || applier.jobs_of("missed").first().cloned());
}

/// Creates two suspended CronJobs due at the next full minute (20 to 80 s away), `missed` with
/// `startingDeadlineSeconds` and `late` without; returns that minute.
fn suspended_cronjobs(applier: &Applier) -> jiff::Timestamp {
    let begin = (jiff::Timestamp::now().as_second() + 20) / 60 * 60 + 60;
    let due = jiff::Timestamp::from_second(begin).unwrap();
    let time = due.to_zoned(jiff::tz::TimeZone::UTC);
    let schedule = format!("{} {} * * *", time.minute(), time.hour());
    for (name, deadline) in [("missed", json!(10)), ("late", Value::Null)] {
        let mut cronjob = applier.cronjob.clone();
        cronjob["metadata"]["name"] = name.into();
        let spec = &mut cronjob["spec"];
        assert!(spec["startingDeadlineSeconds"].is_u64(), "it is shipped");
        (spec["schedule"], spec["timeZone"]) = (schedule.clone().into(), "Etc/UTC".into());
        (spec["suspend"], spec["startingDeadlineSeconds"]) = (true.into(), deadline);
        applier.kube.apply(&cronjob.to_string());
    }
    due
}

fn patch(applier: &Applier, cronjob: &str, spec: &Value) {
    let patch = json!({ "spec": spec }).to_string();
    applier.kube.run(&["patch", "cronjob", cronjob, "--type=merge", "--patch", &patch]);
}
