//! Alerts and the dashboard name only metrics that the binary serves, with labels that those have; the alerts fire when
//! they should, by Prometheus's own promtool.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use super::common::{Files, Sidecar, World, eventually, run};
use super::{built, deploy, list};

/// Series as they are served: name, and the names of its labels.
fn served() -> BTreeMap<String, BTreeSet<String>> {
    let world = World::new();
    world.remote.commit(&Files::new().file("a", "1"));
    let sidecar = Sidecar::start(&world, &["--exechook-command=true"]);
    // What has never been counted is not shown.
    eventually(20, "a hook", || (sidecar.metric("treeswap_hooks_total")? > 0.0).then_some(()));
    let _away = world.remote.away();
    eventually(20, "a failure", || (sidecar.metric("treeswap_errors_total")? > 0.0).then_some(()));
    let other = World::new();
    other.remote.commit(&Files::new().file("key", "1"));
    let (applying, _held) = Sidecar::applying(&other);
    eventually(60, "a target", || (applying.metric("treeswap_applied_total")? > 0.0).then_some(()));
    let third = World::new();
    third.remote.commit(&Files::new().file("a", "1"));
    let several = Sidecar::of_sources(&third);
    let text = [&sidecar, &applying, &several].map(|one| one.ask("/metrics").unwrap()).concat();
    let mut series: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    // What is not known, or has not come yet, has no sample.
    for family in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" gauge")) {
        series.entry(family.to_owned()).or_default();
    }
    for line in text.lines().filter(|line| line.starts_with("treeswap_")) {
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let labels =
            rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(labels, _)| labels);
        let names =
            labels.split("\",").filter_map(|label| label.split_once('=')).map(|(name, _)| name.to_owned());
        series.entry(name.to_owned()).or_default().extend(names);
    }
    series
}

/// The metrics in an expression, each with the labels that it is selected or grouped by.
fn named(expression: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut found = Vec::new();
    for (at, _) in expression.match_indices("treeswap_") {
        let rest = &expression[at..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let mut labels = BTreeSet::new();
        if let Some((selector, _)) = rest[end..].strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            let matchers = selector.split(',').filter_map(|one| one.split_once(['=', '~', '!']));
            labels.extend(matchers.map(|(name, _)| name.trim().to_owned()));
        }
        let grouped = expression.split("by (").skip(1).filter_map(|part| part.split_once(')'));
        labels.extend(grouped.flat_map(|(names, _)| names.split(',')).map(|name| name.trim().to_owned()));
        // What Prometheus adds to every series of a Pod.
        for added in ["namespace", "pod", "container"] {
            labels.remove(added);
        }
        found.push((rest[..end].to_owned(), labels));
    }
    found
}

/// Every expression of the alerts and of the dashboard.
fn expressions() -> Vec<String> {
    let read = |name: &str| std::fs::read_to_string(deploy().join("monitoring").join(name)).unwrap();
    let alerts: serde_yaml::Value = serde_yaml::from_str(&read("alerts.yaml")).unwrap();
    let rules = list(&alerts["spec"], "groups").iter().flat_map(|group| list(group, "rules"));
    let mut all: Vec<String> = rules.map(|rule| rule["expr"].as_str().unwrap().to_owned()).collect();
    assert!(all.len() >= 6, "the alerts were lost: {all:?}");
    let dashboard: serde_yaml::Value = serde_yaml::from_str(&read("dashboard.json")).unwrap();
    let panels = list(&dashboard, "panels").iter().flat_map(|panel| list(panel, "targets"));
    all.extend(panels.map(|target| target["expr"].as_str().unwrap().to_owned()));
    let variables = list(&dashboard["templating"], "list").iter();
    all.extend(
        variables
            .filter_map(|one| one["query"].as_str().filter(|query| query.contains('(')).map(str::to_owned)),
    );
    assert!(all.len() >= 20, "the dashboard was lost: {all:?}");
    all
}

#[test]
fn alerts_and_dashboard_name_only_metrics_that_are_served() {
    let served = served();
    for expression in expressions() {
        let named = named(&expression);
        assert!(!named.is_empty(), "{expression}");
        for (metric, labels) in named {
            let has = served.get(&metric).unwrap_or_else(|| panic!("{metric} is not served: {expression}"));
            for label in labels {
                assert!(has.contains(&label), "{metric} has no label {label}: {expression}");
            }
        }
    }
}

#[test]
fn a_metric_that_is_not_served_would_be_noticed() {
    let found = named("sum by (stage) (rate(treeswap_x_total{state=\"a\", pod=~\"$p\"}[5m])) / treeswap_y");
    let expected = [("treeswap_x_total", vec!["stage", "state"]), ("treeswap_y", vec!["stage"])];
    let expected =
        expected.map(|(name, labels)| (name.to_owned(), labels.into_iter().map(str::to_owned).collect()));
    assert_eq!(found, expected);
}

fn alerts() -> serde_yaml::Value {
    let file = deploy().join("monitoring/alerts.yaml");
    let rules: serde_yaml::Value = serde_yaml::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    rules["spec"].clone()
}

#[test]
fn the_alerts_fire_when_they_should() {
    let promtool = built("promtool", include_str!("promtool/go.mod"), "github.com/prometheus/prometheus v");
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules.yaml"), serde_yaml::to_string(&alerts()).unwrap()).unwrap();
    let tests = include_str!("alerts.yaml");
    std::fs::write(dir.path().join("alerts.yaml"), tests).unwrap();
    run::to_end(Command::new(promtool).args(["test", "rules", "alerts.yaml"]).current_dir(dir.path()))
        .expect_ok("promtool test rules");
    for rule in list(&alerts()["groups"][0], "rules") {
        let name = rule["alert"].as_str().unwrap();
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "no test fires {name}");
    }
}

#[test]
fn every_alert_says_where_to_read_on() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/observability.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let groups = alerts()["groups"].clone();
    let rules = list(&groups[0], "rules");
    assert!(rules.len() > 10, "the alerts were lost: {rules:?}");
    for rule in rules {
        let name = rule["alert"].as_str().unwrap();
        let runbook = rule["annotations"]["runbook"].as_str();
        assert_eq!(runbook, Some(format!("docs/guides/observability.md, {name}").as_str()));
        assert!(guide.contains(&format!("\n### {name}\n")), "{name} is not in docs/guides/observability.md");
        for text in ["summary", "description"] {
            assert!(rule["annotations"][text].is_string(), "{name} has no {text}");
        }
    }
}
