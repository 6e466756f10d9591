use super::*;

fn exec(command: &str) -> Exec {
    Exec { command: command.into(), timeout: Duration::from_secs(60), backoff: Duration::from_secs(1) }
}

fn event(dir: &Path) -> HookEvent {
    let revision = Revision(crate::revision::ObjectId([0xab; 20]));
    let selection = String::new();
    HookEvent { revision, sources: None, selection, generation: None, dir: dir.to_owned() }
}

#[tokio::test]
async fn a_panic_in_the_task_of_a_hook_is_no_success() {
    let dir = tempfile::tempdir().unwrap();
    for once in [true, false] {
        let options = Options { exec: Some(exec("/bin/true")), once, ..Options::default() };
        let observer: Observer = Arc::new(|_| panic!("a defect"));
        let hooks = Hooks::start(options, &CancellationToken::new(), &observer);
        hooks.published(&event(dir.path()));
        let ended = tokio::spawn(async move { hooks.completed().await }).await;
        assert!(ended.is_err_and(|error| error.is_panic()), "once: {once}");
    }
}

#[tokio::test]
async fn a_generation_that_comes_after_the_stop_is_a_hook_that_did_not_run_with_once() {
    let dir = tempfile::tempdir().unwrap();
    for (once, comes, fails) in [(true, true, true), (true, false, false), (false, true, false)] {
        let options = Options { exec: Some(exec("/bin/true")), once, ..Options::default() };
        let draining = CancellationToken::new();
        let observer: Observer = Arc::new(|_| panic!("it runs"));
        let hooks = Hooks::start(options, &draining, &observer);
        tokio::task::yield_now().await; // the task is idle
        draining.cancel();
        tokio::task::yield_now().await; // it finds out
        if comes {
            hooks.published(&event(dir.path()));
        }
        let completed = hooks.completed().await;
        let did_not_run = completed.is_err_and(|error| matches!(error.why, Failure::ShutDown));
        assert_eq!(did_not_run, fails, "once: {once}, comes: {comes}");
    }
}

/// Sends both events, the second after the first run. Returns the revisions that the hook ran for, and that of the
/// failure.
async fn run_once(command: &str, [first, second]: [HookEvent; 2]) -> (Vec<Revision>, Result<(), Revision>) {
    let options = Options { pre_publish: Some(exec(command)), once: true, ..Options::default() };
    let ran = Arc::<std::sync::Mutex<Vec<Revision>>>::default();
    let seen = Arc::clone(&ran);
    let observer: Observer = Arc::new(move |run| seen.lock().unwrap().push(run.revision));
    let hooks = Hooks::start(options, &CancellationToken::new(), &observer);
    hooks.publishing(&first);
    while ran.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    hooks.publishing(&second);
    let completed = hooks.completed().await.map_err(|error| error.revision);
    let ran = ran.lock().unwrap().clone();
    (ran, completed)
}

#[tokio::test]
async fn with_once_a_hook_is_tried_for_each_generation_and_what_failed_for_a_revision_counts() {
    let dir = tempfile::tempdir().unwrap();
    let first = event(dir.path());
    let second = HookEvent { revision: Revision(crate::revision::ObjectId([1; 20])), ..first.clone() };
    let both = [first.revision, second.revision];
    for (command, result) in [("/bin/true", Ok(())), ("/bin/false", Err(first.revision))] {
        let (ran, completed) = run_once(command, [first.clone(), second.clone()]).await;
        assert_eq!((ran.as_slice(), completed), (&both[..], result), "{command}");
    }
    let withdrawn = event(&dir.path().join("withdrawn"));
    let (ran, completed) = run_once("/bin/true", [withdrawn.clone(), first.clone()]).await;
    assert_eq!((ran.len(), completed), (2, Ok(())), "it ran for the same revision");
    let (_, completed) = run_once("/bin/true", [withdrawn, second]).await;
    assert_eq!(completed, Err(first.revision), "it ran for another revision");
}

#[test]
fn a_hook_event_pins_its_generation_unless_the_reaper_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let reaper = fsx::open_dir_at_path(dir.path()).unwrap();
    let pinned = PinnedGeneration::new(event(dir.path()));
    assert_eq!(fsx::try_lock(&reaper).unwrap(), fsx::Lock::Contended);
    drop(pinned);
    assert_eq!(fsx::try_lock(&reaper).unwrap(), fsx::Lock::Taken);
    assert!(take_pin(dir.path()).is_none());
}

#[test]
fn a_hook_event_pins_its_generation_though_somebody_looks_for_pins_just_then() {
    let dir = tempfile::tempdir().unwrap();
    let looking = fsx::open_dir_at_path(dir.path()).unwrap();
    let is_pinned = || {
        assert_eq!(fsx::try_lock(&looking).unwrap(), fsx::Lock::Taken);
        let pin = std::thread::scope(|scope| {
            let taking = scope.spawn(|| take_pin(dir.path()));
            std::thread::sleep(2 * LOCK_PAUSE);
            fsx::unlock(&looking).unwrap();
            taking.join().unwrap()
        });
        pin.is_some()
    };
    assert!((0..20).any(|_| is_pinned()), "on a busy machine one round may take longer than all tries");
}

#[tokio::test]
async fn a_pin_is_asked_for_only_where_a_hook_runs_after_a_publication() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let subscriber = tracing_subscriber::fmt().with_writer(std::fs::File::create(&log).unwrap()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let keeping = fsx::open_dir_at_path(dir.path()).unwrap();
    assert_eq!(fsx::try_lock(&keeping).unwrap(), fsx::Lock::Taken);
    let observer: Observer = Arc::new(|_| {});
    for (exec, warnings) in [(None, 0), (Some(exec("/bin/true")), 1)] {
        let options = Options { exec, once: true, ..Options::default() };
        let hooks = Hooks::start(options, &CancellationToken::new(), &observer);
        hooks.published(&event(dir.path()));
        let text = std::fs::read_to_string(&log).unwrap();
        assert_eq!(text.matches("gets no pin").count(), warnings, "{text}");
        hooks.stop().await;
    }
}

#[test]
fn no_secret_of_a_webhooks_url_is_in_its_debug_output() {
    let web = Webhook {
        url: "https://me:s3cret@hooks.example/services/s3cret?token=s3cret".parse().unwrap(),
        method: reqwest::Method::POST,
        success: Some(200),
        timeout: Duration::from_secs(1),
        backoff: Duration::from_secs(1),
        ca_file: None,
    };
    let shown = format!("{:?}", Options { web: Some(web), ..Options::default() });
    assert!(shown.contains("hooks.example") && !shown.contains("s3cret"), "{shown}");
}
