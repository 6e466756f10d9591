//! Runs one scenario, prints the result and fails the test on violations.

use crate::points::{Disturbance, Place, Report, Sample, sweep};
use crate::scenario::SCENARIOS;

/// Runs one scenario, prints `name: N of N`, and fails the test if any point failed or if there were fewer than
/// `least`.
#[track_caller]
pub fn run(
    name: &str,
    label: &str,
    disturbance: Disturbance,
    sample: Sample,
    place: &dyn Place,
    least: usize,
) {
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name).expect("a scenario of the table");
    let start = std::time::Instant::now();
    let Report { points, failures, calls, twice } = sweep(scenario, disturbance, sample, place);
    let calls: Vec<String> = calls.iter().map(|(call, times)| format!("{call} {times}")).collect();
    println!(
        "{name}{label}: {} of {points} (every {}; {:.0} s; {twice} killed again; {})",
        points - failures.len(),
        sample.step,
        start.elapsed().as_secs_f32(),
        calls.join(", ")
    );
    let shown: Vec<&String> = failures.values().take(4).collect();
    assert!(failures.is_empty(), "{} failures; the first:\n{shown:#?}", failures.len());
    assert!(!matches!(disturbance, Disturbance::KillTwice(..=4)) || twice > 0, "no recovery was killed");
    assert!(points >= least, "only {points} points: is the tracer looking at the right place?");
}
