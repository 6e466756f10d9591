//! A failure that lasts is logged when it begins and then at growing intervals: an outage of hours is a few lines, and
//! what else happens meanwhile can still be found between them. Counters and the status hold every attempt.

use std::time::Duration;

use tokio::time::Instant;

/// Until the same is said a second time.
const FIRST: Duration = Duration::from_secs(60);

/// The same is never unsaid for longer.
const CEILING: Duration = Duration::from_secs(600);

/// What was said last, and when it may be said again.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Option<LastLogged>);

#[derive(Debug)]
struct LastLogged {
    text: String,
    again: Instant,
    interval: Duration,
    unsaid: u64,
}

impl Repeats {
    /// Whether to say it now: then, how often it was left unsaid since it was said last.
    pub(crate) fn should_log(&mut self, text: &str) -> Option<u64> {
        let now = Instant::now();
        match &mut self.0 {
            Some(said) if said.text == text && now < said.again => {
                said.unsaid += 1;
                None
            }
            Some(said) if said.text == text => {
                said.interval = (said.interval * 2).min(CEILING);
                said.again = now + said.interval;
                Some(std::mem::take(&mut said.unsaid))
            }
            _ => {
                let text = text.to_owned();
                let again = now + FIRST;
                self.0 = Some(LastLogged { text, again, interval: FIRST, unsaid: 0 });
                Some(0)
            }
        }
    }

    /// It is over: whatever comes next is new.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }
}

/// For the end of a line: how often the same was left unsaid.
pub(crate) fn suppressed(times: u64) -> String {
    if times == 0 { String::new() } else { format!(" (and {times} times since this was last said)") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_day_of_the_same_failure_is_said_ever_less_often_but_never_for_more_than_ten_minutes() {
        let mut repeats = Repeats::default();
        let mut said = Vec::new();
        let mut unsaid = 0;
        for minute in 0..24 * 60 {
            if let Some(times) = repeats.should_log("no route to host") {
                said.push(minute);
                unsaid += times;
            }
            tokio::time::advance(Duration::from_secs(60)).await;
        }
        assert_eq!(said[..6], [0, 1, 3, 7, 15, 25]);
        assert!(said.windows(2).all(|pair| pair[1] - pair[0] <= 10), "{said:?}");
        assert!((unsaid as usize + said.len()).abs_diff(24 * 60) < 10, "each is counted: {unsaid}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_new_is_said_at_once() {
        let mut repeats = Repeats::default();
        assert_eq!(repeats.should_log("one"), Some(0));
        assert_eq!(repeats.should_log("one"), None);
        assert_eq!(repeats.should_log("another"), Some(0));
        assert_eq!(repeats.should_log("one"), Some(0));
        repeats.forget();
        assert_eq!(repeats.should_log("one"), Some(0), "it had ended");
    }
}
