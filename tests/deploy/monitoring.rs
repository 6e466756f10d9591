//! Alerts and the dashboard name only metrics that the binary serves, with labels that those have.

use std::collections::{BTreeMap, BTreeSet};

use super::common::{Files, Sidecar, World, eventually};
use super::{deploy, list};

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
    let text = sidecar.ask("/metrics").unwrap() + &applying.ask("/metrics").unwrap();
    let mut series: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
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
