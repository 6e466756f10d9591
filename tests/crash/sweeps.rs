//! Runs the scenarios: with `TREESWAP_TESTS=full` every point of each, otherwise every point of the update and a sample
//! of the others.

use crate::common::full;
use crate::decision::run;
use crate::points::{Disturbance, Memory, Sample};

/// All points in a full run, otherwise every `step`-th.
fn sampled(step: usize) -> Sample {
    if full() { Sample::ALL } else { Sample { step, from: 1 + step / 2 } }
}

#[test]
fn an_update_survives_a_kill_before_every_change() {
    run("update", "", Disturbance::Kill, Sample::ALL, &Memory, 40);
}

#[test]
fn a_first_sync_survives_a_kill() {
    run("first", "", Disturbance::Kill, sampled(7), &Memory, 5);
}

#[test]
fn a_start_with_nothing_to_do_survives_a_kill() {
    run("idle", "", Disturbance::Kill, sampled(4), &Memory, 1);
}

#[test]
fn a_reap_survives_a_kill() {
    run("reap", "", Disturbance::Kill, sampled(5), &Memory, 2);
}

#[test]
fn a_rewind_survives_a_kill() {
    run("rewind", "", Disturbance::Kill, sampled(11), &Memory, 3);
}

#[test]
fn healing_a_tampered_generation_survives_a_kill() {
    run("heal", "", Disturbance::Kill, sampled(9), &Memory, 3);
}

#[test]
fn an_update_in_git_syncs_layout_survives_a_kill() {
    run("worktree", "", Disturbance::Kill, sampled(7), &Memory, 5);
}

#[test]
fn an_exchange_survives_a_kill() {
    run("exchange", "", Disturbance::Kill, sampled(7), &Memory, 5);
}

#[test]
fn preparing_a_spare_survives_a_kill() {
    run("spare", "", Disturbance::Kill, sampled(17), &Memory, 3);
}

#[test]
fn recycling_survives_a_kill() {
    run("recycle", "", Disturbance::Kill, sampled(61), &Memory, 3);
    run("recycle-copies", "", Disturbance::Kill, sampled(127), &Memory, 3);
}

#[test]
#[cfg(target_arch = "x86_64")]
fn an_error_while_recycling_ends_in_words_and_heals() {
    // EMLINK: ext4 gives a file 65,000 links at most.
    let errors = [("EXDEV", libc::EXDEV), ("ENOSPC", libc::ENOSPC), ("EMLINK", libc::EMLINK)];
    for (index, (label, errno)) in errors.into_iter().enumerate() {
        let sample = if full() { Sample::ALL } else { Sample { step: 89, from: 41 + 7 * index } };
        run("recycle", &format!(" with one {label}"), Disturbance::Error(errno), sample, &Memory, 2);
    }
}

#[test]
fn sigterm_ends_it_soon_and_leaves_no_more_than_a_kill() {
    run("update", " with SIGTERM", Disturbance::Terminate, sampled(13), &Memory, 3);
    run("spare", " with SIGTERM", Disturbance::Terminate, sampled(23), &Memory, 3);
}

#[test]
fn recovery_itself_survives_a_kill() {
    for second in if full() { 1..=24 } else { 3..=4 } {
        let sample =
            if full() { Sample { step: 3, from: 1 + second % 3 } } else { Sample { step: 37, from: second } };
        run(
            "update",
            &format!(" and again before change {second}"),
            Disturbance::KillTwice(second),
            sample,
            &Memory,
            1,
        );
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn an_error_of_any_change_ends_in_words_and_heals() {
    let errors =
        [("ENOSPC", libc::ENOSPC), ("EIO", libc::EIO), ("EACCES", libc::EACCES), ("EMFILE", libc::EMFILE)];
    for (index, (label, errno)) in errors.into_iter().enumerate() {
        let sample = if full() { Sample::ALL } else { Sample { step: 23, from: 3 + 5 * index } };
        run("update", &format!(" with one {label}"), Disturbance::Error(errno), sample, &Memory, 1);
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_disk_that_is_full_from_some_change_on_ends_in_words_and_heals() {
    run(
        "update",
        " with ENOSPC from there on",
        Disturbance::ErrorsFromNowOn(libc::ENOSPC),
        sampled(19),
        &Memory,
        1,
    );
    run(
        "update",
        " with EROFS from there on",
        Disturbance::ErrorsFromNowOn(libc::EROFS),
        sampled(31),
        &Memory,
        1,
    );
}

#[test]
fn several_sources_survive_a_kill() {
    for (scenario, step) in [
        ("sources", 41),
        ("source-added", 43),
        ("source-removed", 19),
        ("source-moved", 29),
        ("one-to-many", 59),
        ("many-to-one", 37),
    ] {
        run(scenario, "", Disturbance::Kill, sampled(step), &Memory, 2);
    }
}

#[test]
fn a_recovery_of_several_sources_survives_a_kill() {
    for second in if full() { 1..=12 } else { 2..=2 } {
        let sample =
            if full() { Sample { step: 5, from: 1 + second % 5 } } else { Sample { step: 97, from: 11 } };
        let label = format!(" and again before change {second}");
        run("sources", &label, Disturbance::KillTwice(second), sample, &Memory, 1);
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn an_error_of_any_change_of_several_sources_ends_in_words_and_heals() {
    let errors = [("ENOSPC", libc::ENOSPC), ("EIO", libc::EIO)];
    // About the 26th change of `sources` opens the mirror of two of them: the second must not go on without the first.
    for (index, (label, errno)) in errors.into_iter().enumerate() {
        for (scenario, step) in [("sources", 89), ("one-to-many", 113)] {
            let sample = if full() { Sample::ALL } else { Sample { step, from: 26 + 11 * index } };
            run(scenario, &format!(" with one {label}"), Disturbance::Error(errno), sample, &Memory, 1);
        }
    }
    let (label, full_from_then_on) =
        (" with ENOSPC from there on", Disturbance::ErrorsFromNowOn(libc::ENOSPC));
    run("sources", label, full_from_then_on, sampled(101), &Memory, 1);
}
