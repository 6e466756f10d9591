//! Generates docs/reference/status.schema.json from the types that are serialized, and compares it with the file.

use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use serde_json::{Value, json};

use super::*;
use crate::admin::status_socket::LiveStatus;

const SCHEMA: &str = "docs/reference/status.schema.json";

/// Every value of the field `writer`, each taken from a report. The type alone says only that it is a string.
fn writers() -> Vec<&'static str> {
    let found = inspection();
    // Does not compile with a new variant, which must be added below as well.
    let _: fn(&WriterState) = |writer| match writer {
        WriterState::Answers(_) | WriterState::Silent | WriterState::Absent | WriterState::Unknown(_) => {}
    };
    let answers = |alive| WriterState::Answers(Box::new(LiveStatus { alive, status: Status::default() }));
    [
        answers(true),
        answers(false),
        WriterState::Silent,
        WriterState::Absent,
        WriterState::Unknown(String::new()),
    ]
    .map(|writer| Report::new(&found, writer).writer)
    .to_vec()
}

#[test]
fn the_schema_of_the_status_is_what_is_serialized() {
    // Descriptions are doc comments, with the line breaks of the source.
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
        "{SCHEMA} differs from what is serialized: TREESWAP_TEST_WRITE=1 cargo test --lib the_schema_of writes it anew"
    );
}
