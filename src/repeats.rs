//! Rate limit for log lines about a lasting failure: the failure is logged when it begins and then at growing
//! intervals. An outage of hours is a few lines, between which other events can still be found. Metrics and the status
//! count every attempt.

use std::time::Duration;

use tokio::time::Instant;

/// Interval until the same text is logged a second time.
const FIRST: Duration = Duration::from_secs(60);

/// The longest interval between two lines of the same text.
const CEILING: Duration = Duration::from_secs(600);

/// The text that was logged last, and when it is due again.
#[derive(Debug, Default)]
pub(crate) struct Repeats(Option<LastLogged>);

#[derive(Debug)]
struct LastLogged {
    text: String,
    /// When it is due again.
    due: Instant,
    /// The current interval.
    interval: Duration,
    /// How many times it was suppressed since it was logged last.
    suppressed: u64,
}

impl Repeats {
    /// Returns `Some` if the text should be logged now, with the number of times it was suppressed since it was logged
    /// last.
    pub(crate) fn should_log(&mut self, text: &str) -> Option<u64> {
        let now = Instant::now();
        match &mut self.0 {
            Some(last) if last.text == text && now < last.due => {
                last.suppressed += 1;
                None
            }
            Some(last) if last.text == text => {
                last.interval = (last.interval * 2).min(CEILING);
                last.due = now + last.interval;
                Some(std::mem::take(&mut last.suppressed))
            }
            _ => {
                let text = text.to_owned();
                let due = now + FIRST;
                self.0 = Some(LastLogged { text, due, interval: FIRST, suppressed: 0 });
                Some(0)
            }
        }
    }

    /// The failure is over: the next one is logged at once.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }
}

/// The suffix of a log line that says how many times the same text was suppressed; empty for 0.
pub(crate) fn suppressed(times: u64) -> String {
    if times == 0 { String::new() } else { format!(" (and {times} times since this was last logged)") }
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
