//! Only tests. They generate (with TREESWAP_TEST_WRITE=1) the JSON schema with which the Helm chart validates `options`,
//! so that a typo is refused at install time instead of by a Pod, and check that it accepts what the flags accept. The
//! syntax of a value follows from the type of the flag's parser (`config::patterns`); its bounds are found by trying
//! values.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, FromArgMatches};
use regex::Regex;
use serde_json::{Map, Value, json};

use super::{Cli, Command, flags};
use crate::config::patterns::LowerBound;
use crate::config::{self, patterns};
use crate::deliver::PoolSpec;

const SCHEMA: &str = "deploy/helm/treeswap/values.schema.json";

/// Flags that the chart sets itself, or that only make sense in a manual run. The chart's values.yaml names them.
const SYNC_FLAGS_WITHOUT_SCHEMA: [&str; 4] = ["help", "root", "http-bind", "one-time"];
const APPLY_FLAGS_WITHOUT_SCHEMA: [&str; 5] = ["help", "tree", "revision", "force", "dry-run"];

/// The command line, to try which values it accepts.
struct Parser(clap::Command);

impl Parser {
    fn new() -> Self {
        let mut tree = super::tree(super::Help::All);
        tree.build();
        Self(tree)
    }

    fn flags(&self, command: &str, without: &[&str]) -> Vec<Arg> {
        let command = self.0.find_subcommand(command).unwrap();
        let named = |arg: &&Arg| arg.get_long().is_some_and(|name| !without.contains(&name));
        let flags: Vec<Arg> =
            command.get_arguments().filter(|arg| !arg.is_hide_set()).filter(named).cloned().collect();
        assert!(flags.len() > 25, "{flags:?}");
        flags
    }

    /// Whether the value itself is refused, whatever other flags are given.
    fn refuses(&mut self, command: &str, flag: &str, text: &str) -> bool {
        let others =
            [("repo", "https://h/x"), ("rules-in-tree", "rules.yaml"), ("owner", "team"), ("root", "/r")];
        let others = others.iter().filter(|(other, _)| *other != flag);
        let others = others.filter(|(other, _)| command == "sync" || *other != "root");
        let others = others.map(|(other, text)| format!("--{other}={text}"));
        let words = ["treeswap".to_owned(), command.to_owned()].into_iter().chain(others);
        let matches = self.0.try_get_matches_from_mut(words.chain([format!("--{flag}={text}")]));
        let matches = match matches {
            Ok(matches) => matches,
            Err(error) => {
                return !matches!(
                    error.kind(),
                    ErrorKind::ArgumentConflict | ErrorKind::MissingRequiredArgument
                );
            }
        };
        let given = flags::FlagOrigins::of(&self.0, &matches);
        let valid = match Cli::from_arg_matches(&matches).unwrap().command {
            Command::Sync(args) => args.valid(&given).map(drop),
            Command::Apply(args) => args.valid(&given),
            _ => panic!("{command} has no schema"),
        };
        use config::Error::{HiddenValue, Place, Remote, Value};
        matches!(valid, Err(Value { .. } | HiddenValue { .. } | Remote { .. } | Place { .. }))
    }
}

fn is<T: 'static>(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<T>()
}

/// Whether the flag takes any text. The schema then refuses numbers: YAML reads `ref: 1.10` as 1.1.
fn is_text(arg: &Arg) -> bool {
    is::<String>(arg) || is::<std::path::PathBuf>(arg)
}

/// The schema of one value of a flag, in YAML.
fn value(arg: &Arg, refuses: &mut dyn FnMut(&str) -> bool) -> Value {
    let choices = arg.get_possible_values();
    let choices: Vec<&str> = choices.iter().map(clap::builder::PossibleValue::get_name).collect();
    let choices = patterns::choices(arg.get_long().unwrap()).unwrap_or(choices);
    let named = |name: &str| arg.get_value_names().is_some_and(|names| names[0] == name);
    if is::<bool>(arg) {
        let mut all = vec![json!(true), json!(false), json!(1), json!(0)];
        all.extend(patterns::booleans().into_iter().map(Value::from));
        json!({"enum": all})
    } else if !choices.is_empty() {
        json!({"enum": choices})
    } else if is::<Duration>(arg) {
        // A number without a unit is no duration, but for 0.
        let (least, pattern) = at_least(refuses, patterns::duration);
        match least {
            LowerBound::MoreThanZero => json!({"type": "string", "pattern": pattern}),
            _ => json!({"type": ["string", "integer"], "pattern": pattern, "minimum": 0, "maximum": 0}),
        }
    } else if is::<u64>(arg) {
        let (least, pattern) = at_least(refuses, patterns::bytes);
        let least = u64::from(least == LowerBound::MoreThanZero);
        json!({"type": ["integer", "string"], "minimum": least, "maximum": u64::MAX, "pattern": pattern})
    } else if is::<i64>(arg) {
        integer(refuses)
    } else if is::<u8>(arg) {
        json!({"type": ["integer", "string"], "minimum": 0, "maximum": 100, "pattern": patterns::PERCENT})
    } else if is::<u16>(arg) {
        json!({"type": ["integer", "string"], "minimum": 1, "maximum": u16::MAX, "pattern": patterns::AT_LEAST_ONE})
    } else if is::<f64>(arg) {
        json!({"type": ["number", "string"], "minimum": 0, "maximum": 1, "pattern": patterns::FRACTION})
    } else if is::<PoolSpec>(arg) {
        json!({"type": "string", "pattern": patterns::pool()})
    } else {
        assert!(is_text(arg), "{arg:?} has a parser that the schema does not know");
        if named("SIGNAL") {
            json!({"anyOf": [{"type": "string", "pattern": patterns::signal()}, {"enum": patterns::signals()}]})
        } else if named("URL") && refuses("example.com/x") {
            json!({"type": "string", "pattern": patterns::URL})
        } else {
            json!({"type": "string"})
        }
    }
}

fn at_least(
    refuses: &mut dyn FnMut(&str) -> bool,
    pattern: fn(LowerBound) -> String,
) -> (LowerBound, String) {
    let least = match (refuses("-1"), refuses("0")) {
        (false, _) => LowerBound::Any,
        (true, false) => LowerBound::Zero,
        (true, true) => LowerBound::MoreThanZero,
    };
    (least, pattern(least))
}

fn integer(refuses: &mut dyn FnMut(&str) -> bool) -> Value {
    let (least, pattern) = at_least(refuses, patterns::integer);
    let mut schema = json!({"type": ["integer", "string"], "pattern": pattern});
    if least != LowerBound::Any {
        schema["minimum"] = u64::from(least == LowerBound::MoreThanZero).into();
    }
    // The upper bounds that are tried. --depth has a lower one than the last, so its schema is lenient.
    let is_bound = |most: &u32| refuses(&(u64::from(*most) + 1).to_string());
    if let Some(most) = [1000, u32::MAX].into_iter().find(is_bound) {
        schema["maximum"] = most.into();
    }
    schema
}

/// The schema of an object whose keys are the flags of a command.
fn options(parser: &mut Parser, command: &str, without: &[&str]) -> Value {
    let flags = parser.flags(command, without).into_iter().map(|arg| {
        let name = arg.get_long().unwrap();
        let one = value(&arg, &mut |text| parser.refuses(command, name, text));
        let schema = match arg.get_action() {
            ArgAction::Append => json!({"anyOf": [one, {"type": "array", "items": one}]}),
            _ => one,
        };
        (name.to_owned(), schema)
    });
    let flags: Map<String, Value> = flags.collect();
    json!({"type": "object", "additionalProperties": false, "properties": flags})
}

#[test]
fn the_charts_schema_of_options_is_the_flags() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(SCHEMA);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut schema: Value = serde_json::from_str(&text).unwrap();
    let mut parser = Parser::new();
    schema["$defs"]["sync"] = options(&mut parser, "sync", &SYNC_FLAGS_WITHOUT_SCHEMA);
    let of_root = parser.flags("sync", &SYNC_FLAGS_WITHOUT_SCHEMA).into_iter().filter(|arg| {
        super::sync::is_of_root(arg.get_long().unwrap(), arg.get_help_heading().unwrap_or_default())
    });
    let of_root: Vec<String> = of_root.map(|arg| arg.get_long().unwrap().to_owned()).collect();
    let without_root: Vec<&str> =
        of_root.iter().map(String::as_str).chain(SYNC_FLAGS_WITHOUT_SCHEMA).collect();
    schema["$defs"]["follow"] = options(&mut parser, "sync", &without_root);
    schema["properties"]["configMaps"]["else"]["properties"]["options"]["$ref"] = json!("#/$defs/follow");
    schema["$defs"]["apply"] = options(&mut parser, "apply", &APPLY_FLAGS_WITHOUT_SCHEMA);
    schema["properties"]["configMaps"]["properties"]["leasePool"] =
        json!({"type": "string", "pattern": format!("^$|{}", patterns::pool())});
    let expected = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if text != expected && std::env::var_os("TREESWAP_TEST_WRITE").is_some() {
        return std::fs::write(&path, expected).unwrap();
    }
    assert!(
        text == expected,
        "{SCHEMA} is not made of the flags: TREESWAP_TEST_WRITE=1 cargo test --lib the_charts_schema writes it anew"
    );
}

/// An applier reads the repository of the other Pods, with the credentials that these have.
#[test]
fn the_chart_passes_all_credentials_on() {
    let path = "deploy/helm/treeswap/templates/_applier.tpl";
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let template = std::fs::read_to_string(path).unwrap();
    let flags = Parser::new().flags("apply", &APPLY_FLAGS_WITHOUT_SCHEMA);
    let flags = flags.iter().filter(|arg| arg.get_help_heading() == Some("Credentials"));
    let names: Vec<String> = flags.map(|arg| format!("{:?}", arg.get_long().unwrap())).collect();
    assert!(names.len() > 10, "{names:?}");
    let lacking: Vec<&String> = names.iter().filter(|name| !template.contains(name.as_str())).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
}

/// Whether a schema accepts a value; evaluates the keywords used here as Helm does.
fn accepts(schema: &Value, value: &Value, patterns: &mut BTreeMap<String, Regex>) -> bool {
    let keyword = |(name, of): (&String, &Value)| match name.as_str() {
        "type" => {
            let is_a = |kind: &Value| match kind.as_str().unwrap() {
                "string" => value.is_string(),
                "number" => value.is_number(),
                "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
                "array" => value.is_array(),
                kind => panic!("{kind}"),
            };
            of.as_array().map_or_else(|| is_a(of), |kinds| kinds.iter().any(is_a))
        }
        "enum" => of.as_array().unwrap().contains(value),
        "pattern" => {
            let text = of.as_str().unwrap();
            let pattern = patterns.entry(text.to_owned()).or_insert_with(|| Regex::new(text).unwrap());
            value.as_str().is_none_or(|text| pattern.is_match(text))
        }
        "minimum" => value.as_f64().is_none_or(|number| number >= of.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|number| number <= of.as_f64().unwrap()),
        "items" => value.as_array().is_none_or(|all| all.iter().all(|one| accepts(of, one, patterns))),
        "anyOf" => of.as_array().unwrap().iter().any(|one| accepts(one, value, patterns)),
        name => panic!("{name} is not known here"),
    };
    schema.as_object().unwrap().iter().all(keyword)
}

/// Values of valid syntax that are out of range, which only the parser detects.
const OUT_OF_BOUNDS: [&str; 11] = [
    "65535",
    "65536",
    "4294967295",
    "4294967296",
    "3µs",
    "3μs",
    "1ms",
    "999999999h",
    "99999999999Ti",
    "99999999999999999999",
    "1e9",
];

/// Separated by `|`.
const TEXTS: [&str; 6] = [
    // durations
    "0s|10s|300ms|1.5h|2m30s|+5s|.5s|5.s|1d12h|5min|1h1m1s1ms1us1ns|0.0s|+0|1h0s|0h1s|3sec|1w|-5s|s|5 s|1.2.3s|.s|5sx|1h-5m|1m | 1m|10s\n|soon|1H",
    // bytes
    "512Mi|2Gi|500M|1k|1_000|_1|1_|1__0|+1|1Ki|1Ti|0Mi|0_0k|Mi|1.5Gi|1 Gi|2GB|5K|5KB",
    // whole numbers
    "0|1|7|-1|-0|+0x1f|0x10|0o17|0b11|010|0x_f|-0x0|-0b0|-0x1|0x|09|--1|1.0|65535|100|101|50%|0100|0x00|0b0_1|00",
    // fractions
    "0.1|.1|1.|1.5|1e-3|-.0|NaN|inf|0,1",
    // words
    "true|false|TRUE|True|t|F|yes|on|off|never|| |recursive|shallow|auto|always|keep|safe|HUP|sigusr1|SIGTERM|9",
    "https://h/x|HTTP://h/|h/x|/a/b|ci/places:3|ci/places:0|ci/places:101|CI/places:3",
];

/// The schema never refuses what the parser accepts. It accepts what the parser refuses only if the syntax is valid,
/// or if the flag takes any text.
#[test]
fn the_charts_schema_and_the_flags_take_the_same_values() {
    let mut parser = Parser::new();
    let numbers = [-1.0, 0.0, 0.5, 1.0, 1.5, 10.0, 50.0, 100.0, 101.0, 65_536.0, 4_294_967_296.0, 1e9];
    // Whole numbers are integers, as Helm prints them.
    let number = |number: f64| if number.fract() == 0.0 { json!(number as i64) } else { json!(number) };
    let texts = TEXTS.iter().flat_map(|texts| texts.split('|')).chain(OUT_OF_BOUNDS).map(|text| json!(text));
    let values: Vec<Value> = texts.chain(numbers.map(number)).chain([json!(true), json!(false)]).collect();
    let mut both_accept = 0;
    let mut refused = 0;
    let mut differ = Vec::new();
    let mut patterns = BTreeMap::new();
    for (command, without) in
        [("sync", &SYNC_FLAGS_WITHOUT_SCHEMA[..]), ("apply", &APPLY_FLAGS_WITHOUT_SCHEMA[..])]
    {
        let schema = options(&mut parser, command, without);
        for arg in parser.flags(command, without) {
            let flag = arg.get_long().unwrap();
            let schema = &schema["properties"][flag];
            if !["pattern", "enum"].iter().any(|keyword| schema.to_string().contains(keyword)) {
                continue; // any text
            }
            for value in values.iter().filter(|value| value.is_string() || !is_text(&arg)) {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let schema_accepts = accepts(schema, value, &mut patterns);
                let parser_accepts = !parser.refuses(command, flag, &text);
                let lenient = schema_accepts && OUT_OF_BOUNDS.contains(&text.as_str());
                if schema_accepts != parser_accepts && !lenient {
                    differ.push(format!(
                        "--{flag}={text:?}: schema {schema_accepts}, parser {parser_accepts}: {schema}"
                    ));
                }
                if schema_accepts && parser_accepts {
                    both_accept += 1;
                } else {
                    refused += 1;
                }
            }
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
    assert!(both_accept > 1_000 && refused > 1_000, "{both_accept} {refused}");
}
