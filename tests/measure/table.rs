//! The measured values: rows that are printed as a table and written as CSV.

use std::fmt::Write as _;

use crate::subject::OURS;

/// A value of one subject in one row.
struct Value {
    subject: String,
    value: f64,
    /// The machine's load average over the minute before it.
    load: f64,
}

struct Row {
    name: String,
    unit: &'static str,
    values: Vec<Value>,
}

/// The rows, in the order in which they were first measured.
#[derive(Default)]
pub struct Table {
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Table {
    pub fn add(&mut self, row: &str, unit: &'static str, subject: &str, value: f64) {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
        let value = Value { subject: subject.to_owned(), value, load };
        match self.rows.iter_mut().find(|known| known.name == row) {
            Some(known) => known.values.push(value),
            None => self.rows.push(Row { name: row.to_owned(), unit, values: vec![value] }),
        }
    }

    /// Adds a note that says why something is not in the table, once.
    pub fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// The median, minimum and maximum of a subject in a row.
    pub fn spread(&self, row: &str, subject: &str) -> Option<(f64, f64, f64)> {
        let row = self.rows.iter().find(|known| known.name == row)?;
        row.spread(subject)
    }

    /// The names of the rows with this prefix, each with the rest of its name, in order.
    pub fn family(&self, prefix: &str) -> Vec<(&str, &str)> {
        let rows = self.rows.iter().map(|row| row.name.as_str());
        rows.filter_map(|name| Some((name, name.strip_prefix(prefix)?))).collect()
    }

    /// The subjects of all rows: treeswap first, then in order of appearance.
    pub fn subjects(&self) -> Vec<&str> {
        let mut all = vec![OURS];
        for value in self.rows.iter().flat_map(|row| &row.values) {
            if !all.contains(&value.subject.as_str()) {
                all.push(&value.subject);
            }
        }
        all
    }

    pub fn csv(&self) -> String {
        let mut text = String::from("row,unit,subject,value,load\n");
        for row in &self.rows {
            for Value { subject, value, load } in &row.values {
                let _ = writeln!(text, "\"{}\",{},{subject},{value:.6},{load}", row.name, row.unit);
            }
        }
        text
    }

    /// Prints a Markdown table: the median, minimum and maximum of each subject, and the factor by which its median
    /// exceeds treeswap's.
    pub fn print(&self) {
        let subjects = self.subjects();
        print!("| | {} |", subjects.join(" | "));
        println!(" load |\n|{}", " --- |".repeat(subjects.len() + 2));
        for row in &self.rows {
            let comma = if row.unit.is_empty() { "" } else { ", " };
            print!("| {}{comma}{} |", row.name, row.unit);
            let ours = row.spread(OURS).map(|(median, ..)| median);
            for subject in &subjects {
                let Some((median, least, most)) = row.spread(subject) else {
                    print!(" |");
                    continue;
                };
                let mut cell = short(median);
                if least < most {
                    let _ = write!(cell, " ({}-{})", short(least), short(most));
                }
                if let Some(ours) = ours.filter(|ours| *subject != OURS && *ours > 0.0) {
                    let _ = write!(cell, ", x{}", short(median / ours));
                }
                print!(" {cell} |");
            }
            let loads = || row.values.iter().map(|value| value.load);
            println!(" {:.1}-{:.1} |", loads().fold(f64::INFINITY, f64::min), loads().fold(0.0, f64::max));
        }
        for note in &self.notes {
            println!("Not measured: {note}");
        }
    }
}

impl Row {
    fn spread(&self, subject: &str) -> Option<(f64, f64, f64)> {
        let values = self.values.iter().filter(|value| value.subject == subject);
        spread(&values.map(|value| value.value).collect::<Vec<_>>())
    }
}

/// The median, minimum and maximum; `None` if there are no values.
pub fn spread(values: &[f64]) -> Option<(f64, f64, f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some((*sorted.get(sorted.len() / 2)?, *sorted.first()?, *sorted.last()?))
}

/// Formats a value with about three significant digits.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 || value == 0.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}
