//! Checks printed status documents against docs/reference/status.schema.json. The schema allows unknown fields, as a
//! newer version may have some; this check allows none.

use std::path::Path;

use serde_json::Value;

/// Checks and parses the output of `treeswap status --json`.
#[track_caller]
pub fn root_status(text: &str) -> Value {
    checked(text, "RootStatus")
}

/// Checks and parses the body of the answer to `GET /status`.
#[track_caller]
pub fn writer_status(text: &str) -> Value {
    checked(text, "WriterStatus")
}

#[track_caller]
fn checked(text: &str, name: &str) -> Value {
    let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let violations = violations(&value, name);
    assert!(violations.is_empty(), "docs/reference/status.schema.json: {violations:#?}\n{text}");
    value
}

/// Returns where a value violates the definition `name` of the schema; empty if nowhere.
pub fn violations(value: &Value, name: &str) -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/status.schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut violations = Vec::new();
    check(&schema, &schema["$defs"][name], value, name, &mut violations);
    violations
}

/// Checks `value`, which is at the path `at` of the document, against `schema`, a part of the whole schema `all`. Knows
/// only the keywords and formats that the schema uses, and panics at others.
fn check(all: &Value, schema: &Value, value: &Value, at: &str, violations: &mut Vec<String>) {
    let Some(keywords) = schema.as_object() else {
        return violations.push(format!("{at} is not in the schema"));
    };
    for (keyword, of) in keywords {
        let fits = match keyword.as_str() {
            "title" | "description" | "default" => true,
            "$ref" => {
                let part = all.pointer(of.as_str().unwrap().trim_start_matches('#'));
                check(all, part.unwrap_or(&Value::Null), value, at, violations);
                true
            }
            "type" => match of {
                Value::Array(kinds) => kinds.iter().any(|kind| is_a(kind, value)),
                kind => is_a(kind, value),
            },
            "const" => of == value,
            "enum" => of.as_array().unwrap().contains(value),
            "pattern" => {
                let pattern = regex::Regex::new(of.as_str().unwrap()).unwrap();
                value.as_str().is_none_or(|text| pattern.is_match(text))
            }
            "minimum" => value.as_f64().is_none_or(|number| number >= of.as_f64().unwrap()),
            "format" => match of.as_str().unwrap() {
                "date-time" => value.as_str().is_none_or(|text| text.parse::<jiff::Timestamp>().is_ok()),
                "uint32" => value.as_u64().is_none_or(|number| u32::try_from(number).is_ok()),
                "uint64" => true,
                format => panic!("the format {format} is not known here"),
            },
            "properties" => {
                for (name, member) in value.as_object().into_iter().flatten() {
                    check(all, &of[name], member, &format!("{at}.{name}"), violations);
                }
                true
            }
            // The values of a map with arbitrary keys. Together with `properties`, whose members would have to be left
            // out, it is not supported and fails.
            "additionalProperties" => {
                for (name, member) in value.as_object().into_iter().flatten() {
                    check(all, of, member, &format!("{at}.{name}"), violations);
                }
                !keywords.contains_key("properties")
            }
            "required" => {
                of.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some())
            }
            "items" => {
                for (number, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(all, of, item, &format!("{at}[{number}]"), violations);
                }
                true
            }
            "anyOf" | "oneOf" => {
                let ways = of.as_array().unwrap().iter().map(|way| {
                    let mut violations = Vec::new();
                    check(all, way, value, at, &mut violations);
                    violations
                });
                let ways: Vec<Vec<String>> = ways.collect();
                let fitting = ways.iter().filter(|violations| violations.is_empty()).count();
                let fits = if keyword == "oneOf" { fitting == 1 } else { fitting > 0 };
                // If none fits, report the one with the most violations: usually T of `T | null`.
                let why = ways.into_iter().rev().max_by_key(Vec::len).unwrap_or_default();
                violations.extend(why.into_iter().filter(|_| !fits));
                fits
            }
            keyword => panic!("the keyword {keyword} is not known here"),
        };
        if !fits {
            violations.push(format!("{at} is {value}, against {keyword}: {of}"));
        }
    }
}

fn is_a(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        kind => panic!("the type {kind} is not known here"),
    }
}
