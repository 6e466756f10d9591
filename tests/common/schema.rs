//! Holds what is printed against docs/reference/status.schema.json. That allows fields it does not name, as a newer
//! version may have; here each field has to be in it.

use std::path::Path;

use serde_json::Value;

/// The output of `treeswap status --json`.
#[track_caller]
pub fn root_status(text: &str) -> Value {
    checked(text, "RootStatus")
}

/// The answer to `GET /status`, without its head.
#[track_caller]
pub fn writer_status(text: &str) -> Value {
    checked(text, "WriterStatus")
}

#[track_caller]
fn checked(text: &str, name: &str) -> Value {
    let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let faults = faults(&value, name);
    assert!(faults.is_empty(), "docs/reference/status.schema.json: {faults:#?}\n{text}");
    value
}

/// Where a value differs from the definition of this name.
pub fn faults(value: &Value, name: &str) -> Vec<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/status.schema.json");
    let schema: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let mut faults = Vec::new();
    check(&schema, &schema["$defs"][name], value, name, &mut faults);
    faults
}

/// The keywords that the schema uses; of `schema`, which is a part of `all`.
fn check(all: &Value, schema: &Value, value: &Value, at: &str, faults: &mut Vec<String>) {
    let Some(keywords) = schema.as_object() else { return faults.push(format!("{at} is not in it")) };
    for (keyword, of) in keywords {
        let fits = match keyword.as_str() {
            "title" | "description" | "default" => true,
            "$ref" => {
                let part = all.pointer(of.as_str().unwrap().trim_start_matches('#'));
                check(all, part.unwrap_or(&Value::Null), value, at, faults);
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
                    check(all, &of[name], member, &format!("{at}.{name}"), faults);
                }
                true
            }
            // Of an object with any names.
            "additionalProperties" => {
                for (name, member) in value.as_object().into_iter().flatten() {
                    check(all, of, member, &format!("{at}.{name}"), faults);
                }
                !keywords.contains_key("properties")
            }
            "required" => {
                of.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some())
            }
            "items" => {
                for (number, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(all, of, item, &format!("{at}[{number}]"), faults);
                }
                true
            }
            "anyOf" | "oneOf" => {
                let ways = of.as_array().unwrap().iter().map(|way| {
                    let mut faults = Vec::new();
                    check(all, way, value, at, &mut faults);
                    faults
                });
                let ways: Vec<Vec<String>> = ways.collect();
                let fits = ways.iter().any(Vec::is_empty);
                // Why none does, of a way that is not null.
                let why = ways.into_iter().max_by_key(Vec::len).unwrap_or_default();
                faults.extend(why.into_iter().filter(|_| !fits));
                fits
            }
            keyword => panic!("the keyword {keyword} is not known here"),
        };
        if !fits {
            faults.push(format!("{at} is {value}, against {keyword}: {of}"));
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
