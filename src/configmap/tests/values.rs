//! Keys, names and values, and the API server's limits on them.

use std::sync::Arc;

use crate::configmap::data::{VALUES_MAX, check_name, check_namespace};
use crate::configmap::{DesiredData, InvalidKey, Value, ValueEncoding, check_key, partition};

fn data(values: impl Iterator<Item = (String, Value)>) -> DesiredData {
    DesiredData::new(values.map(|(key, value)| (key, Arc::new(value))).collect())
}

#[test]
fn keys_are_those_that_the_api_server_accepts() {
    let [longest, too_long] = [253, 254].map(|bytes| "x".repeat(bytes));
    for (key, expected) in [
        ("a.B-c_9", Ok(())),
        (".a", Ok(())),
        ("a..", Ok(())),
        (longest.as_str(), Ok(())),
        (too_long.as_str(), Err(InvalidKey::Long)),
        ("", Err(InvalidKey::Empty)),
        (".", Err(InvalidKey::Dots)),
        ("..", Err(InvalidKey::Dots)),
        ("..a", Err(InvalidKey::Dots)),
        ("a/b", Err(InvalidKey::Characters)),
        ("\u{e9}", Err(InvalidKey::Characters)),
    ] {
        assert_eq!(check_key(key.as_bytes()), expected, "{key:?}");
    }
}

#[test]
fn names_are_those_that_the_api_server_accepts() {
    let [longest, too_long] = [253, 254].map(|bytes| "x".repeat(bytes));
    for name in ["a", "0.a-b.c", longest.as_str()] {
        assert_eq!(check_name(name), Ok(()), "{name}");
    }
    for name in [too_long.as_str(), "", "a..b", ".a", "a.-b", "a-.b", "A", "a_b"] {
        assert!(check_name(name).is_err(), "{name}");
    }
    let [longest, too_long] = [63, 64].map(|bytes| "x".repeat(bytes));
    for name in ["a-0", longest.as_str()] {
        assert_eq!(check_namespace(name), Ok(()), "{name}");
    }
    for (name, why) in [
        ("", "it is empty"),
        (too_long.as_str(), "it is longer than 63 bytes"),
        ("a.b", "it has a `.`"),
        ("-a", "begins and ends with a letter or a digit"),
        ("A", "only lower-case letters"),
    ] {
        assert!(check_namespace(name).unwrap_err().contains(why), "{name}");
    }
}

/// As Prow has it: by the first byte of the key's SHA-256.
#[test]
fn the_hash_of_a_key_chooses_its_partition() {
    let keys = [("flat-a", 3), ("a", 3), ("jobs.yaml", 3), ("a", 203), ("a", 1), ("a", 0)];
    assert_eq!(keys.map(|(key, partitions)| partition(key, partitions)), [0, 1, 2, 202, 0, 0]);
}

#[test]
fn what_was_stored_as_text_is_restored_only_if_it_is_text() {
    for (bytes, form, text) in [
        (&b"text"[..], ValueEncoding::Text, Some("text")),
        (b"text", ValueEncoding::Binary, None),
        (b"\xff", ValueEncoding::Binary, None),
        (b"\xff", ValueEncoding::Gzip, None),
    ] {
        let value = Value::restored(bytes.to_vec(), form, [7; 32]).unwrap();
        assert_eq!((value.bytes(), value.form(), value.text()), (bytes, form, text));
        assert_eq!(*value.digest(), [7; 32]);
    }
    assert_eq!(Value::restored(b"\xff".to_vec(), ValueEncoding::Text, [7; 32]), None);
}

#[test]
fn data_is_equal_if_its_values_are_and_its_largest_keys_come_first() {
    let of = |sizes: &[usize]| {
        let value = |(key, size): (char, &usize)| (key.to_string(), Value::new(vec![b'x'; *size], false));
        data(('a'..).zip(sizes).map(value))
    };
    let some = of(&[1, 3, 2, 3, 5, 4]);
    assert_eq!(some, of(&[1, 3, 2, 3, 5, 4]));
    assert_ne!(some, of(&[1, 3, 2, 3, 5, 5]));
    assert_eq!(some.largest_keys(), "e 5 B, f 4 B, b 3 B, d 3 B, c 2 B");
}

#[test]
fn a_configmap_is_counted_as_etcd_stores_it_and_as_a_request_has_it() {
    let over = |data: &DesiredData| data.over(&[]).map(|over| (over.what, over.bytes, over.limit));
    let value = |key: &str, bytes: Vec<u8>| (key.to_owned(), Value::new(bytes, false));
    // In JSON, a control character has six bytes, but a quote and what has a short escape have two.
    let text = "\u{1}".repeat(480_000) + "\"\\\n\r\t\u{8}\u{c}x ";
    let both = data([value("a", text.into_bytes()), value("b", vec![0xff; 500_000])].into_iter());
    let json = (4 << 10) + 6 * 480_000 + 2 * 7 + 2 + 4 * 166_667 + 2 * 7;
    assert_eq!(over(&both), Some(("of JSON", json, 3 << 20)));
    let controls = data([value("a", vec![1; VALUES_MAX])].into_iter());
    assert_eq!(over(&controls), Some(("of JSON", (4 << 10) + 6 * VALUES_MAX + 7, 3 << 20)));
    let many = data((0..3_000).map(|at| value(&format!("{at:0250}"), vec![b'x'; 300])));
    let object = (4 << 10) + 3_000 * (300 + 250 + 12);
    assert_eq!(over(&many), Some(("as etcd stores it", object, 3 << 19)));
    assert_eq!(over(&data([value("a", vec![b'x'; VALUES_MAX])].into_iter())), None);
}

#[test]
fn bytes_are_kept_up_to_what_one_configmap_holds() {
    for bytes in [VALUES_MAX, VALUES_MAX + 1] {
        assert_eq!(Value::new(vec![b'x'; bytes], false).has_bytes(), bytes == VALUES_MAX);
    }
    let mut state = 1_u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let noise: Vec<u8> = (0..VALUES_MAX + 100).map(|_| byte()).collect();
    let frame = Value::compressed(&noise[..VALUES_MAX]).size() - VALUES_MAX;
    for bytes in VALUES_MAX - frame - 8..VALUES_MAX - frame + 8 {
        let value = Value::compressed(&noise[..bytes]);
        assert_eq!(value.has_bytes(), value.size() <= VALUES_MAX, "{bytes}");
    }
}
