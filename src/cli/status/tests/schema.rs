//! docs/reference/status.schema.json is made of what is serialised.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Value, json};

use super::*;
use crate::admin::live::LiveStatus;

const SCHEMA: &str = "docs/reference/status.schema.json";

/// The words that `writer` can be, each taken from a report.
fn writers() -> Vec<&'static str> {
    let found = inspection();
    let answers = |alive| Writer::Answers(Box::new(LiveStatus { alive, status: Status::default() }));
    [answers(true), answers(false), Writer::Silent, Writer::Absent, Writer::Unknown(String::new())]
        .map(|writer| Report::new(&found, writer).writer)
        .to_vec()
}

#[test]
fn the_schema_of_the_status_is_what_is_serialised() {
    // Descriptions are doc comments, broken where the source breaks them.
    let on_one_line = RecursiveTransform(|part: &mut Schema| {
        if let Some(Value::String(text)) = part.get_mut("description") {
            *text = text.replace('\n', " ");
        }
    });
    let settings = SchemaSettings::draft2020_12().for_serialize().with_transform(on_one_line);
    let mut generator = settings.into_generator();
    let both = [generator.subschema_for::<Report<'_>>(), generator.subschema_for::<Status>()];
    let mut parts = generator.take_definitions(true);
    parts["RootStatus"]["properties"]["writer"]["enum"] = json!(writers());
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The status of treeswap",
        "description": "`treeswap status --json` prints RootStatus, `GET /status` answers with WriterStatus.",
        "anyOf": both,
        "$defs": parts,
    });
    let expected = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    // A consumer that validates with this schema must accept the fields that a newer version adds.
    assert!(!expected.contains("\"additionalProperties\": false"));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(SCHEMA);
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    if text != expected && std::env::var_os("TREESWAP_TEST_WRITE").is_some() {
        return std::fs::write(&path, expected).unwrap();
    }
    assert!(
        text == expected,
        "{SCHEMA} differs from what is serialised: TREESWAP_TEST_WRITE=1 cargo test --lib the_schema_of writes it anew"
    );
}
