use super::*;

const S: fn(u64) -> Duration = Duration::from_secs;

fn time(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// The clocks when the boot clock is at this second.
fn at(second: u64) -> clock::Now {
    clock::Now { wall: time(0), boottime: S(second), boot_id: String::new() }
}

fn answered(second: u64) -> LastAnswer {
    LastAnswer { at: Some(time(0)), boottime: S(second) }
}

fn unanswered_since(second: u64) -> LastAnswer {
    LastAnswer { at: None, boottime: S(second) }
}

fn source(name: &str, last_answer: LastAnswer) -> SourceStatus {
    SourceStatus { name: name.to_owned(), last_answer, ..SourceStatus::default() }
}

#[test]
fn a_trigger_has_the_same_name_in_metrics_as_in_the_status() {
    for trigger in [
        Trigger::StartUp,
        Trigger::Timer,
        Trigger::Signal,
        Trigger::Webhook,
        Trigger::Delivery,
        Trigger::Source,
    ] {
        assert_eq!(serde_json::to_value(trigger).unwrap(), trigger.label());
    }
}

#[test]
fn what_is_followed_is_a_ref_of_a_remote_or_a_file_of_sources() {
    assert_eq!(followed("https://git.example/r", "main"), "https://git.example/r main");
    assert_eq!(followed("/etc/sources.yaml", REF_OF_SOURCES), "the sources in /etc/sources.yaml");
}

#[test]
fn an_unknown_revision_comes_with_the_reason() {
    assert_eq!(unknown_revision(), "unknown: the root has lost its records");
}

#[test]
fn a_remote_is_not_silent_for_longer_than_it_is_followed() {
    let before = clock::now();
    let status = Status { last_answer: LastAnswer::not_yet(), ..Status::default() };
    assert_eq!(status.last_answer.at, None);
    assert_eq!(status.silent_for(Duration::ZERO, &before), None);
    let later = clock::Now { boottime: before.boottime + S(100_000), ..before };
    assert!(status.silent_for(S(1_000), &later).is_some(), "it never answered");
}

#[test]
fn only_a_poll_with_an_answer_changes_the_last_answer() {
    let mut last = answered(0);
    last.update(&[], false);
    assert_eq!(last, answered(0));
    let before = clock::now();
    last.update(&[], true);
    assert!(last.at.is_some() && last.boottime >= before.boottime, "{last:?}");
}

#[test]
fn the_last_answer_of_several_sources_is_the_newest_of_theirs() {
    let newest = |answers: &[LastAnswer]| {
        let sources: Vec<_> = answers.iter().map(|answer| source("a", *answer)).collect();
        let mut last = answered(0);
        last.update(&sources, true);
        last
    };
    assert_eq!(newest(&[answered(20), answered(30), answered(10)]), answered(30));
    assert_eq!(newest(&[answered(20), unanswered_since(40)]), answered(20), "an added source is no answer");
    assert_eq!(newest(&[unanswered_since(50), unanswered_since(40)]), unanswered_since(50));
}

#[test]
fn a_holder_is_shown_by_its_command_on_one_line_or_else_by_its_number() {
    let shown = |command: Option<&str>| Holder { pid: 7, command: command.map(str::to_owned) }.to_string();
    assert_eq!(shown(Some("nginx")), "nginx (7)");
    assert_eq!(shown(Some("a\nb")), "a\u{fffd}b (7)");
    assert_eq!(shown(None), "process 7");
}

fn with_hooks() -> Status {
    let mut status = Status::default();
    status.expect_hooks(["exechook", "webhook"].into_iter());
    status
}

/// A run that ended at this second, as the hooks report it: they count nothing.
fn run(hook: &str, second: i64, error: Option<&str>) -> HookStatus {
    HookStatus {
        hook: hook.to_owned(),
        at: Some(time(second)),
        error: error.map(str::to_owned),
        ..HookStatus::default()
    }
}

#[test]
fn a_configured_hook_is_listed_before_it_has_run() {
    let not_run = |hook: &str| HookStatus { hook: hook.to_owned(), ..HookStatus::default() };
    assert_eq!(with_hooks().hooks, [not_run("exechook"), not_run("webhook")]);
}

#[test]
fn a_run_changes_its_own_hook_and_no_other() {
    let mut status = with_hooks();
    status.hook(run("webhook", 10, None));
    status.hook(run("pre-publish-exechook", 20, None)); // not configured
    let ended: Vec<_> = status.hooks.iter().map(|hook| (hook.hook.as_str(), hook.at)).collect();
    assert_eq!(ended, [("exechook", None), ("webhook", Some(time(10)))]);
}

#[test]
fn failures_of_a_hook_are_counted_from_the_first_one_until_a_success() {
    let mut status = with_hooks();
    let mut after = |second: i64, error: Option<&str>| {
        status.hook(run("exechook", second, error));
        let hook = &status.hooks[0];
        (hook.consecutive_failures, hook.failing_since, hook.last_success)
    };
    assert_eq!(after(10, None), (0, None, Some(time(10))));
    assert_eq!(after(20, Some("exit status 1")), (1, Some(time(20)), Some(time(10))));
    assert_eq!(after(30, Some("exit status 2")), (2, Some(time(20)), Some(time(10))));
    assert_eq!(after(40, None), (0, None, Some(time(40))));
}

#[test]
fn a_remote_is_silent_once_its_last_answer_is_older_than_the_limit() {
    let status = Status { last_answer: answered(100), ..Status::default() };
    assert_eq!(status.silent_for(S(30), &at(110)), None);
    assert_eq!(status.silent_for(S(30), &at(130)), None, "the limit may be reached");
    for second in [131, 1_000] {
        let said = status.silent_for(S(30), &at(second));
        assert_eq!(said.as_deref(), Some("the remote has not answered for longer than --max-stale=30s"));
    }
}

#[test]
fn of_several_sources_the_silent_ones_are_named() {
    let said = |answers: [u64; 3]| {
        let named = ["a", "b", "c"].into_iter().zip(answers);
        let sources = named.map(|(name, second)| source(name, answered(second))).collect();
        Status { sources, ..Status::default() }.silent_for(S(30), &at(130))
    };
    assert_eq!(said([100, 120, 130]), None, "each has answered in time");
    let one = "source b has not answered for longer than --max-stale=30s";
    assert_eq!(said([100, 99, 130]).as_deref(), Some(one));
    let two = "sources a, c have not answered for longer than --max-stale=30s";
    assert_eq!(said([99, 120, 0]).as_deref(), Some(two));
}

#[test]
fn a_loop_hangs_unless_it_has_promised_an_update_that_may_still_come() {
    let mut status = Status::default();
    assert!(!status.is_alive(), "its time was over when the machine had started");
    for within in [Duration::ZERO, S(10), Duration::MAX] {
        status.promise_update(within);
        assert!(status.is_alive(), "{within:?} and the slack");
    }
}
