use super::*;

fn encoded(registry: &Registry) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry).unwrap();
    text
}

#[test]
fn counters_start_at_zero_and_gauges_without_a_value_have_no_sample() {
    let metrics = Metrics::default();
    let mut registry = Registry::with_prefix("treeswap");
    metrics.register(&mut registry);
    metrics.expect_hooks(["exechook"].into_iter());
    metrics.expect_targets(["build01"].into_iter(), &["unchanged", "failed"]);
    metrics.succeeded(None);
    let text = encoded(&registry);
    for line in [
        "treeswap_syncs_total{result=\"published\"} 0",
        "treeswap_syncs_total{result=\"failed\"} 0",
        "treeswap_triggers_total{source=\"delivery\"} 0",
        "treeswap_errors_total{stage=\"fetch\",class=\"timeout\"} 0",
        "treeswap_errors_total{stage=\"apply\",class=\"permanent\"} 0",
        "treeswap_sync_duration_seconds_count{stage=\"export\"} 0",
        "treeswap_generations{state=\"pinned\"} 0",
        "treeswap_hooks_total{hook=\"exechook\",result=\"error\"} 0",
        "treeswap_hook_consecutive_failures{hook=\"exechook\"} 0",
        "treeswap_applied_total{cluster=\"build01\",outcome=\"failed\"} 0",
        "treeswap_never_succeeded 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    for name in
        ["timestamp_seconds", "root_free_bytes", "root_used_bytes", "root_limit_bytes", "root_inodes_free"]
    {
        let sample = text.lines().find(|line| !line.starts_with('#') && line.contains(name));
        assert_eq!(sample, None, "{name}: nothing is known yet");
    }
}

#[test]
fn names_are_stable() {
    let metrics = Metrics::default();
    let mut registry = Registry::with_prefix("treeswap");
    metrics.register(&mut registry);
    metrics.syncs.get_or_create(&ResultLabel { result: "published" }).inc();
    metrics.took("fetch", Duration::from_millis(30));
    metrics.error("fetch", "transient");
    metrics.hook("webhook", false, Duration::from_millis(30));
    metrics.triggers.get_or_create(&SourceLabel { source: "timer" }).inc();
    metrics.generations.get_or_create(&[("state", "retired")]).set(2);
    metrics.delivered([("a", "failed"), ("b", "unchanged")].into_iter());
    metrics.delivered([("a", "unchanged"), ("a", "unchanged")].into_iter());
    metrics.name_current(Some(("aa".into(), "..one".into())));
    metrics.name_current(Some(("bb".into(), "..two".into())));
    metrics.last_attempt.set(5.0);
    metrics.succeeded(Some(4.5));
    metrics.last_publish.set(3.0);
    metrics.oldest_pin.set(2.0);
    metrics.attempt_start.set(6.0);
    metrics.sandbox(Parts { landlock: true, seccomp: false });
    metrics.stage(Some("fetch"));
    metrics.room(Room {
        free_bytes: Some(1),
        free_inodes: Some(2),
        used_bytes: Some(3),
        limit_bytes: Some(4),
    });
    let text = encoded(&registry);
    for line in [
        "treeswap_build_info{version=",
        "treeswap_syncs_total{result=\"published\"} 1",
        "treeswap_sync_duration_seconds_count{stage=\"fetch\"} 1",
        "treeswap_sync_consecutive_failures 0",
        "treeswap_last_attempt_timestamp_seconds 5.0",
        "treeswap_last_success_timestamp_seconds 4.5",
        "treeswap_last_publish_timestamp_seconds 3.0",
        "treeswap_never_succeeded 0",
        "treeswap_oldest_pin_timestamp_seconds 2.0",
        "treeswap_attempt_start_timestamp_seconds 6.0",
        "treeswap_attempt_stage{stage=\"fetch\"} 1",
        "treeswap_attempt_stage{stage=\"publish\"} 0",
        "treeswap_hook_consecutive_failures{hook=\"webhook\"} 1",
        "treeswap_current_generation_info{revision=\"bb\",generation=\"..two\"} 1",
        "treeswap_generations{state=\"retired\"} 2",
        "treeswap_generation_bytes 0",
        "treeswap_generation_entries 0",
        "treeswap_root_free_bytes 1",
        "treeswap_root_inodes_free 2",
        "treeswap_root_used_bytes 3",
        "treeswap_root_limit_bytes 4",
        "treeswap_fetched_bytes_total 0",
        "treeswap_reaped_total 0",
        "treeswap_evictions_total 0",
        "treeswap_damaged_generations_total 0",
        "treeswap_triggers_total{source=\"timer\"} 1",
        "treeswap_hooks_total{hook=\"webhook\",result=\"error\"} 1",
        "treeswap_hook_duration_seconds_count{hook=\"webhook\"} 1",
        "treeswap_errors_total{stage=\"fetch\",class=\"transient\"} 1",
        "treeswap_sandbox{part=\"landlock\"} 1",
        "treeswap_sandbox{part=\"seccomp\"} 0",
        "treeswap_apply_targets{cluster=\"a\",outcome=\"unchanged\"} 2",
        "treeswap_delivery_consecutive_failures 0",
        "treeswap_applied_total{cluster=\"a\",outcome=\"failed\"} 1",
        "treeswap_applied_total{cluster=\"b\",outcome=\"unchanged\"} 1",
    ] {
        let is_line = |found: &str| found == line || (line.ends_with('=') && found.starts_with(line));
        assert!(text.lines().any(is_line), "{line} is not in\n{text}");
    }
    let last = text.lines().filter(|line| line.starts_with("treeswap_apply_targets"));
    assert_eq!(last.count(), 1, "series of the last delivery only:\n{text}");
    assert!(!text.contains("\"aa\""), "a series of the current generation only:\n{text}");
    metrics.name_current(None);
    let text = encoded(&registry);
    assert!(!text.contains("\"bb\""), "the generation is gone:\n{text}");
}
