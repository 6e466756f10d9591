//! Wires the program together: builds the store, the mirror, the listener, the hooks and the sync loop from valid
//! [`Settings`], in reading order, and runs them until the process ends.
//!
//! [`sync()`] publishes into a root, and applies ConfigMaps too if there are rules; [`follow`] applies ConfigMaps
//! without a root. Both exit with an [`Error`] that has hints for the operator. All decisions are made in the modules
//! that are wired here.

mod allocator;
mod delayed_trigger;
mod delivery_reporter;
mod error;
mod error_file;
mod ledger;
mod listener;
mod memory;
mod opening;
mod root_and_rules;
mod rules_only;
mod signals;
mod startup;
mod startup_warnings;

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::config::{Line, Origin, Personality, Settings};
use crate::generation::Name;
use crate::hooks::{self, Hooks};
use crate::mirror::wire::{Issuance, Issued};
use crate::phase::{HookStatus, Status, millis};
use crate::sandbox::Sandbox;
use crate::sources::{SetOptions, Upstream};
use crate::sync::{End, Sync, TriggerSender};
use crate::telemetry::metrics::Metrics;
use crate::{admin, deliver, detached_io, human, secret, store, telemetry, user};

pub use error::Error;
pub use memory::plan_limit as plan_memory_limit;
pub use rules_only::Rules;
pub use startup_warnings::startup_warnings;

use delivery_reporter::DeliveryReporter;
use error::system;
use memory::Content;
use opening::Opening;
use root_and_rules::RootDelivery;
use startup::Startup;

/// How long an idle thread of tokio's blocking pool is kept. Longer than the default `--period` of ten seconds, so
/// that a poll finds its thread instead of starting one.
const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How long the listener and background tasks may take to end after the sync loop has ended.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// How far the limit of open files is raised. Not without bound: hooks inherit it, and some programs close every
/// descriptor up to the limit when they start.
const OPEN_FILES_MAX: u64 = 16_384;

/// Runs `treeswap sync` with a root. With rules, each published revision is applied to the clusters, too. `lines` is
/// the effective configuration and `warnings` are about it; both are logged at the start.
pub fn sync(
    settings: Settings,
    rules: Option<Rules>,
    lines: &[Line],
    warnings: &[String],
) -> Result<(), Error> {
    let content = if rules.is_some() { Content::Both } else { Content::Root };
    run_process(settings, content, lines, warnings, |runtime, settings| run(runtime, settings, rules))
}

/// Runs `treeswap sync` with rules and without a root. Returns the report of the delivery with `--one-time`, and `None`
/// after a service has drained.
pub fn follow(
    settings: Settings,
    rules: &Rules,
    lines: &[Line],
    warnings: &[String],
) -> Result<Option<deliver::Report>, Error> {
    run_process(settings, Content::Rules, lines, warnings, |runtime, settings| {
        rules_only::run(runtime, settings, rules)
    })
}

/// Sets the process up for `run` (allocator, log, umask, tokio runtime), runs it, and writes the termination log and the
/// error file if it fails.
fn run_process<T>(
    mut settings: Settings,
    content: Content,
    lines: &[Line],
    warnings: &[String],
    run: impl FnOnce(&Runtime, Settings) -> Result<T, Error>,
) -> Result<T, Error> {
    allocator::configure();
    telemetry::start(&settings.telemetry);
    log_start(lines);
    // git-sync has no such ceilings: an installation that replaces it must not be refused what git-sync had room for.
    let bounded = match settings.personality {
        Personality::GitSync => None,
        Personality::Treeswap => memory::lower_ceilings(&mut settings, content),
    };
    let unusable = startup_warnings(&settings);
    for warning in warnings.iter().chain(&settings.warnings).chain(&unusable).chain(&bounded) {
        warn!("{warning}");
    }
    if settings.add_user {
        add_user();
    }
    // The inherited umask differs between container runtimes and shells; the modes of published files must not.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(if settings.store.group_write {
        0o002
    } else {
        0o022
    }));
    let root = settings.store.root.clone();
    let termination_log = settings.termination_log.clone();
    let error_file = settings.sync.error_file.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2) // one for the sync loop, one for the listener; blocking work has its own threads
        .max_blocking_threads(32) // an attempt, a spare, a DNS lookup: far more than ever run at once
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        .enable_all()
        .build()
        .map_err(system("start the runtime"));
    let ended = runtime.and_then(|runtime| {
        let ended = log_sandbox(settings.mirror.sandbox).and_then(|()| run(&runtime, settings));
        runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
        ended
    });
    if let (Err(error), Some(path)) = (&ended, termination_log) {
        write_termination_log(&root, &path, &human::one_line(error), &error.hints());
    }
    if let (Err(error), Some(file)) = (&ended, error_file) {
        error_file::write_end(&file, &root, error);
    }
    ended
}

/// Sets the limits of a process that reads credentials: no core file, which would contain them, and as many open files
/// as it may have, because the open mirror of each source and submodule takes a few. What it starts inherits them.
pub fn set_limits() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(OPEN_FILES_MAX, |maximum| maximum.min(OPEN_FILES_MAX));
    if current.is_some_and(|current| current < wanted) {
        // Without it, mirrors of submodules are closed when few descriptors are left.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
}

/// Logs the version, the process and the flags that were given.
fn log_start(lines: &[Line]) {
    let given: Vec<String> =
        lines.iter().filter(|line| line.origin != Origin::Default).map(ToString::to_string).collect();
    info!(
        name: "start", target: telemetry::GIT_SYNC, version = telemetry::VERSION, pid = std::process::id(),
        uid = rustix::process::geteuid().as_raw(), gid = rustix::process::getegid().as_raw(),
        home = std::env::var("HOME").unwrap_or_default(), flags = serde_json::Value::from(&given[..]).to_string(),
        "starting"
    );
    info!(version = telemetry::VERSION, settings = given.join(" "), "treeswap {}", telemetry::VERSION);
}

/// Logs which parts of the sandbox the process that reads packs runs without. Fails if `--sandbox=require` asks for a
/// part that the kernel does not have.
fn log_sandbox(wanted: Sandbox) -> Result<(), Error> {
    let missing = wanted.check()?.missing();
    if wanted == Sandbox::Off {
        info!("packs are read without Landlock and seccomp (--sandbox=off)");
    } else if !missing.is_empty() {
        info!("packs are read without {}: this kernel does not have it", missing.join(" and "));
    }
    Ok(())
}

/// Adds the current user to `/etc/passwd`. A failure is only logged: hooks may need the entry, treeswap does not.
fn add_user() {
    let home = std::env::var("HOME").unwrap_or_default();
    match user::add(Path::new("/etc/passwd"), &home) {
        Ok(true) => info!("added this user to /etc/passwd"),
        Ok(false) => {}
        Err(error) => warn!(error = %error, "cannot add this user to /etc/passwd"),
    }
}

/// Publishes into a root until the process drains, or once; delivers to clusters beside it if there are rules.
fn run(runtime: &Runtime, settings: Settings, rules: Option<Rules>) -> Result<(), Error> {
    let trigger_sender = Arc::new(OnceLock::<TriggerSender>::new());
    // Webhooks and signals share one sender, so that a webhook and a signal at one moment trigger one attempt. Triggers
    // before the loop runs are dropped: it begins with an attempt anyway.
    let sender = Arc::clone(&trigger_sender);
    let ask = move |trigger| sender.get().into_iter().for_each(|sender| sender.request(trigger));
    let startup = Startup::begin(runtime, &settings, Metrics::default(), "the root is being opened", ask)?;
    if settings.telemetry.is_watched() {
        runtime.spawn(show_first_progress(startup.shown.clone()));
    }
    let Some(store) = open_root(&settings, &startup)? else { return interrupted(settings.sync.one_time) };
    let ended = CancellationToken::new();
    let answers = admin::status_socket::serve(store.socket(), startup.shown.clone(), ended.clone());
    let live = runtime.spawn(answers);
    let result = publish(runtime, settings, rules, startup, &trigger_sender, store);
    ended.cancel();
    runtime.block_on(or_panic(live)); // it removes its socket
    result
}

/// Opens the mirrors, and publishes into the root as [`run`] says.
fn publish(
    runtime: &Runtime,
    mut settings: Settings,
    rules: Option<Rules>,
    startup: Startup,
    trigger_sender: &OnceLock<TriggerSender>,
    store: store::Store,
) -> Result<(), Error> {
    let one_time = settings.sync.one_time;
    let has_rules = rules.is_some();
    let set_options =
        |sources: SetOptions| SetOptions { rules: has_rules, attempt_is_bounded: true, ..sources };
    let opened = open_upstream(&mut settings, &startup, set_options)?;
    let Some(upstream) = opened else { return interrupted(one_time) };
    let Startup { draining, signals, metrics, status, shown, ask, .. } = startup;
    let rules = rules
        .map(|rules| Rules { options: rules.options.with_remote(upstream.repository().as_deref()), ..rules });
    let hooks = start_hooks(runtime, settings.hooks, &draining, &metrics, &status);
    let pace = settings.sync.pace;
    let objects = upstream.objects();
    let ledger = rules.as_ref().map(|_| ledger::LedgerKeeper::with_file(store.ledger()));
    let delivery_status = status.clone();
    let delivery_metrics = metrics.clone();
    let sync =
        Sync::new(settings.sync.clone(), store, upstream, metrics, status).with_hooks(Arc::clone(&hooks));
    let published_before = current(&shown);
    let delivery = rules.map(|rules| {
        let ledger = ledger.unwrap_or_default();
        let reporter =
            DeliveryReporter::with_root(delivery_status, delivery_metrics, ledger, &rules.clusters);
        RootDelivery::new(rules, objects, &sync, pace, reporter)
    });
    runtime.block_on(async {
        trigger_sender.get_or_init(|| sync.trigger_sender());
        signals.on_trigger(move |trigger| ask(trigger, &[]));
        let ending = draining.child_token();
        let delivery = delivery.map(|delivery| delivery.run(ending.clone()));
        let delivery = async {
            if let Some(delivery) = delivery {
                delivery.await;
            }
        };
        let end = run_both(sync.run(draining.clone()), delivery, ending).await;
        end_hooks(&hooks, &end).await?;
        result_of(end, one_time, &shown, published_before)
    })
}

/// The result of a process that was asked to end before its sync ran.
fn interrupted(one_time: bool) -> Result<(), Error> {
    if one_time { Err(Error::Interrupted) } else { Ok(()) }
}

/// Opens the root, logs what was repaired in it, and shows what is published there. `None` means that the process was
/// asked to end.
fn open_root(settings: &Settings, startup: &Startup) -> Result<Option<store::Store>, Error> {
    let Startup { draining, metrics, status, .. } = startup;
    let opening =
        Opening { personality: settings.personality, sync: &settings.sync, draining, status, metrics };
    let opened = opening.retry(|| opening.root(settings.store.clone(), settings.lock_wait))?;
    let Some((store, recovered)) = opened.flatten() else { return Ok(None) };
    recovered.done.iter().for_each(|line| info!("recovered: {line}"));
    recovered.foreign.iter().for_each(|line| warn!("left alone: {line}"));
    recovered.warnings.iter().for_each(|line| warn!("{line}"));
    // As the upstream will call it.
    let remote = match &settings.sources {
        Some(sources) => sources.file.display().to_string(),
        None => secret::redact(&settings.mirror.wire.remote),
    };
    opening.show_root(&store, remote);
    Ok(Some(store))
}

/// Opens the mirrors. If there are several sources, `set_options` first adapts their options. `None` means that the
/// process was asked to end.
fn open_upstream(
    settings: &mut Settings,
    startup: &Startup,
    set_options: impl FnOnce(SetOptions) -> SetOptions,
) -> Result<Option<Upstream>, Error> {
    let Startup { draining, metrics, status, requests, .. } = startup;
    let opening =
        Opening { personality: settings.personality, sync: &settings.sync, draining, status, metrics };
    let counted = metrics.git_sync.clone();
    settings.mirror.wire.issued = match settings.mirror.wire.issuance {
        Some(Issuance::GitHubApp(_)) => Issued::to(move |well| counted.token(well)),
        _ => Issued::to(move |well| counted.askpass(well)),
    };
    let sources = settings.sources.take().map(set_options);
    let open = || Ok(Upstream::open(settings.mirror.clone(), sources.clone())?);
    let Some(mut upstream) = opening.retry(open)? else { return Ok(None) };
    upstream.set_requests(requests.clone());
    Ok(Some(upstream))
}

/// Starts the hooks. Their runs are recorded in the metrics and the status, which list them from now on.
fn start_hooks(
    runtime: &Runtime,
    options: hooks::Options,
    draining: &CancellationToken,
    metrics: &Metrics,
    status: &watch::Sender<Status>,
) -> Arc<Hooks> {
    metrics.expect_hooks(options.kinds().map(hooks::Kind::label));
    status.send_modify(|status| status.expect_hooks(options.kinds().map(hooks::Kind::label)));
    let _inside = runtime.enter();
    Arc::new(Hooks::start(options, draining, &observer(metrics, status)))
}

/// Ends the hooks after the sync. With `--one-time`, waits for them after a success, and returns the first failure.
async fn end_hooks(hooks: &Hooks, end: &End) -> Result<(), hooks::Error> {
    if !matches!(end, End::Done) {
        hooks.stop().await;
        return Ok(());
    }
    let completed = hooks.completed().await;
    info!(name: "once", target: telemetry::GIT_SYNC, status = i32::from(completed.is_err()), "ended");
    completed
}

/// The result of the process after the sync has ended. `published_before` was current when the process began.
fn result_of(
    end: End,
    one_time: bool,
    status: &watch::Receiver<Status>,
    published_before: Option<Name>,
) -> Result<(), Error> {
    match end {
        End::Done => {
            let sources = failing_sources(status);
            if sources.is_empty() {
                Ok(())
            } else if current(status) == published_before {
                Err(Error::Stale { sources })
            } else {
                Err(Error::Sources { sources })
            }
        }
        End::Drained if one_time => Err(Error::Interrupted),
        End::Drained => {
            info!("drained: the sync has ended, and so have its hooks and deliveries");
            Ok(())
        }
        End::GaveUp(last) if one_time && last.is_of_every_source() && published_before.is_some() => {
            Err(Error::Stale { sources: failing_sources(status) })
        }
        End::GaveUp(last) => {
            let failures = status.borrow().consecutive_failures;
            Err(Error::GaveUp { failures, last })
        }
    }
}

/// Runs the sync loop, and the deliveries beside it until `ending`, which the end of the sync cancels. A panic of either
/// ends the process at once: without one of them the other would look as if all was well.
async fn run_both<E: Send + 'static>(
    sync: impl Future<Output = E> + Send + 'static,
    delivery: impl Future<Output = ()> + Send + 'static,
    ending: CancellationToken,
) -> E {
    // Spawned, so that it runs on a worker thread: on the thread of `block_on`, every piece of network data would have
    // to wake this thread through a worker.
    let (sync, delivery) = (tokio::spawn(sync), tokio::spawn(delivery));
    let sync = async {
        let end = or_panic(sync).await;
        ending.cancel();
        end
    };
    tokio::join!(sync, or_panic(delivery)).0
}

/// Waits for a task that is never aborted. Its panic goes on here.
async fn or_panic<T>(task: JoinHandle<T>) -> T {
    task.await.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// The name of the current generation.
fn current(status: &watch::Receiver<Status>) -> Option<Name> {
    status.borrow().current.as_ref().map(|one| one.name.clone())
}

/// The names of the sources that are not at the commit that their ref names.
fn failing_sources(status: &watch::Receiver<Status>) -> Vec<String> {
    let status = status.borrow();
    let failing = status.sources.iter().filter(|source| source.error.is_some());
    failing.map(|source| source.name.clone()).collect()
}

/// Shows the progress of the first attempts on the terminal, until a generation is published or the loop ends.
async fn show_first_progress(mut status: watch::Receiver<Status>) {
    let mut bar = None;
    loop {
        {
            let status = status.borrow_and_update();
            match &status.progress {
                _ if status.ready => return,
                Some(progress) => {
                    let bar = bar.get_or_insert_with(|| telemetry::ProgressLine::show(&progress.what));
                    bar.update(&progress.what, progress.fetched_bytes);
                }
                None => bar = None, // the attempt ended
            }
        }
        if status.changed().await.is_err() {
            return;
        }
    }
}

/// The observer that records each run of a hook in the metrics and the status.
fn observer(metrics: &Metrics, status: &watch::Sender<Status>) -> hooks::Observer {
    let metrics = metrics.clone();
    let status = status.clone();
    Arc::new(move |ran| {
        let hook = ran.kind.label();
        metrics.hook(hook, ran.error.is_none(), ran.took);
        let ended = HookStatus {
            hook: hook.to_owned(),
            revision: Some(ran.revision),
            at: Some(Timestamp::now()),
            duration_ms: millis(ran.took),
            error: ran.error.map(str::to_owned),
            hints: ran.hints.to_vec(),
            ..HookStatus::default()
        };
        status.send_modify(|status| status.hook(ended));
    })
}

/// The status before the loop runs: the liveness deadline is infinite, for there is no loop yet that could hang.
fn starting(what: String) -> Status {
    Status { starting: Some(what), alive_until_ms: u64::MAX, ..Status::default() }
}

/// Writes the error and its hints to `path`, whose content the kubelet shows as the reason why a container ended.
/// Writes only to an existing file, as the kubelet creates it where it reads it, and never inside the root, whatever
/// the configuration says.
pub fn write_termination_log(root: &Path, path: &Path, error: &str, hints: &[String]) {
    let mut text = format!("treeswap: {}\n", secret::redacted(error));
    hints.iter().for_each(|hint| text.push_str(&format!("hint: {}\n", secret::redacted(hint))));
    let root = root.to_owned();
    let written = detached_io::wait_for_io(path, move |path| {
        let mut file = store::open_outside(&root, path)?;
        file.write_all(text.as_bytes())
    });
    match written {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            debug!(%error, "cannot write the termination log");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
