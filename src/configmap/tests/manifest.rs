//! Manifests, byte by byte.

use std::sync::Arc;

use crate::configmap::{ClusterNamespace, DesiredData, Value, manifest};

/// The manifest of a ConfigMap with the key `k`, after its labels.
fn fields(value: Value) -> String {
    let place = ClusterNamespace { cluster: "c".into(), namespace: "n".into() };
    let text = manifest("m", &place, &DesiredData::new([("k".to_owned(), Arc::new(value))].into()));
    let head = "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: \"m\"\n  namespace: \"n\"\n  \
                labels:\n    app.kubernetes.io/managed-by: treeswap\n";
    text.strip_prefix(head).unwrap().to_owned()
}

#[test]
fn a_text_is_a_block_if_that_preserves_it_and_else_quoted() {
    for (text, scalar) in [
        ("one\n\n two\n", "|\n    one\n\n     two"),
        ("x", "|-\n    x"),
        ("x\n\n", "|+\n    x\n"),
        ("a: \"\u{e9}\\", "|-\n    a: \"\u{e9}\\"),
        ("", "\"\""),
        (" x", "\" x\""),
        ("\nx", "\"\\nx\""),
        ("a\n \nb", "\"a\\n \\nb\""),
        ("\t\"\\\r", "\"\\t\\\"\\\\\\r\""),
        ("\u{85}\u{ffff}\u{1f600}", "\"\\u0085\\uffff\\U0001f600\""),
    ] {
        let expected = format!("data:\n  \"k\": {scalar}\n");
        assert_eq!(fields(Value::new(text.into(), false)), expected, "{text:?}");
    }
}

#[test]
fn other_bytes_are_base64_also_if_there_are_none() {
    assert_eq!(fields(Value::new(vec![0xff, 0], false)), "binaryData:\n  \"k\": /wA=\n");
    let dropped = Value::unread(2 << 20, false).unwrap();
    assert_eq!(fields(dropped), "binaryData:\n  \"k\": \"\"\n");
}
