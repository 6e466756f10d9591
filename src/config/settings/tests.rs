use clap::Parser;

use super::*;
use crate::phase::machine::Timing;

#[derive(Parser)]
struct Bare {
    #[command(flatten)]
    args: Args,
}

fn pace(flags: &[&str]) -> Timing {
    let given = ["treeswap", "--repo=https://git.example.com/x", "--root=/config"].iter().chain(flags);
    let args = Bare::try_parse_from(given).unwrap().args;
    Settings::new(&args, &Origins::default(), &Hidden::default()).unwrap().sync.pace
}

#[test]
fn what_waits_for_a_first_revision_is_asked_again_within_half_a_minute() {
    const S: fn(u64) -> Duration = Duration::from_secs;
    let ceilings = |flags: &[&str]| {
        let pace = pace(flags);
        (pace.init_backoff.ceiling, pace.backoff.ceiling)
    };
    assert_eq!(ceilings(&[]), (S(30), S(100)));
    assert_eq!(ceilings(&["--period=1h"]), (S(30), S(300)));
    assert_eq!(ceilings(&["--period=1s"]), (S(10), S(10)));
    assert_eq!(ceilings(&["--max-backoff=2m"]), (S(120), S(120)), "who says it means it");
}
