//! The tables of options are what `--help=all` says.

use std::path::Path;

use super::{document, help};

/// One option as the help prints it: `      --name <VALUE>`, then indented prose, then bracketed facts.
struct Flag {
    name: String,
    default: String,
    meaning: String,
}

/// The options of a command below their headings.
fn sections(command: &str) -> Vec<(String, Vec<Flag>)> {
    let mut sections: Vec<(String, Vec<Flag>)> = Vec::new();
    let mut paragraph_ended = false;
    let help = help(&[command, "--help=all"]);
    for line in help.lines().take_while(|line| *line != "Examples:") {
        let indent = line.len() - line.trim_start().len();
        let text = line.trim();
        match (indent, text) {
            (_, "") => paragraph_ended = true,
            (0, heading) if heading.ends_with(':') => {
                sections.push((heading.trim_end_matches(':').to_owned(), Vec::new()));
            }
            (0, _) => {}
            (2..=6, option) => {
                let flag = Flag { name: option.to_owned(), default: String::new(), meaning: String::new() };
                sections.last_mut().unwrap().1.push(flag);
            }
            (_, text) => {
                let flag = sections.last_mut().unwrap().1.last_mut().unwrap();
                match text.strip_prefix("[default: ").and_then(|rest| rest.strip_suffix(']')) {
                    Some(default) => flag.default = format!("`{default}`"),
                    None if text.starts_with("[env: ") || text.starts_with("[possible values: ") => {}
                    None if value(text).is_some() => {
                        let separator = if flag.meaning.ends_with(':') { " " } else { ", " };
                        flag.meaning = format!("{}{separator}{}", flag.meaning, value(text).unwrap());
                    }
                    None => {
                        let separator = match (flag.meaning.is_empty(), paragraph_ended) {
                            (true, _) => "",
                            (false, true) if !flag.meaning.ends_with('.') => ". ",
                            (false, _) => " ",
                        };
                        flag.meaning = format!("{}{separator}{text}", flag.meaning);
                        paragraph_ended = false;
                    }
                }
            }
        }
    }
    sections.retain(|(heading, _)| heading != "Options");
    assert!(sections.len() >= 5, "the help of {command} lost its headings");
    sections
}

/// A line of the list below `Possible values:`, such as `- table: For people`, as an item of a sentence.
fn value(line: &str) -> Option<String> {
    let (value, meaning) = line.strip_prefix("- ")?.split_once(':')?;
    Some(format!("`{value}` ({})", meaning.trim()))
}

fn table(command: &str) -> String {
    let mut table = String::from("| option | default | meaning |\n| --- | --- | --- |\n");
    for (heading, flags) in sections(command) {
        table += &format!("| **{heading}** | | |\n");
        for Flag { name, default, meaning } in flags {
            let cell = |text: &str| text.replace('|', "\\|").replace('<', "&lt;");
            table += &format!("| `{name}` | {default} | {} |\n", cell(&meaning));
        }
    }
    table
}

#[test]
fn the_tables_of_options_are_the_help() {
    let shown_options = document("docs/reference/options.md");
    for (command, mark) in [("sync", "options"), ("apply", "apply options")] {
        let begin = format!("<!-- {mark}: begin -->\n");
        let (_, rest) = shown_options.split_once(&begin).expect("there is a table of options");
        let (shown, _) = rest.split_once(&format!("<!-- {mark}: end -->")).unwrap();
        let expected = table(command);
        if shown != expected {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.md", mark.replace(' ', "-")));
            std::fs::write(&path, &expected).unwrap();
            panic!(
                "docs/reference/options.md is not what `treeswap {command} --help=all` says; its table should be {}",
                path.display()
            );
        }
    }
}
