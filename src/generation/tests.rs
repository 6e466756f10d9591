use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn now(boot_id: &str) -> Now {
    Now { wall: Timestamp::UNIX_EPOCH, boottime: std::time::Duration::ZERO, boot_id: boot_id.to_owned() }
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

fn dated(second: u32) -> Name {
    name(&format!("..2026_11_20_15_04_{second:02}.000000000"))
}

/// The record of a generation of which all is known: 5 entries with 100 bytes, synced in "this boot".
fn record(name: Name) -> GenerationRecord {
    GenerationRecord {
        revision: Revision(ObjectId([1; 20])),
        tree: ObjectId([2; 20]),
        selection_digest: "d".to_owned(),
        boot_id: "this boot".to_owned(),
        synced: true,
        ..GenerationRecord::unknown(name, 5, 100, &now(""))
    }
}

#[test]
fn names_grow_even_when_the_clock_steps_back() {
    let late: Timestamp = "2026-11-20T15:04:05.123456789Z".parse().unwrap();
    let early: Timestamp = "2001-01-01T00:00:00Z".parse().unwrap();
    let first = Name::new(late, []);
    assert_eq!(first.as_str(), "..2026_11_20_15_04_05.123456789");
    let second = Name::new(early, [&first]);
    assert_eq!(second.as_str(), "..2026_11_20_15_04_05.123456790");
    assert_eq!(Name::parse(second.as_str()), Some(second));
}

#[test]
fn a_new_name_follows_every_real_time_and_is_found_at_once_whatever_else_is_there() {
    let clock: Timestamp = "2026-11-20T15:04:05.5Z".parse().unwrap();
    for (there, expected) in [
        ("..2026_11_20_15_04_06.3", "..2026_11_20_15_04_06.300000001"),
        ("..2026_11_20_15_04_05.9876543210", "..2026_11_20_15_04_06.000000000"), // a kubelet's fraction
        ("..2031_12_31_23_59_59.999999999", "..2032_01_01_00_00_00.000000000"),
        // Ignored: not a valid time, or the last one.
        ("..2027_02_30_00_00_00.1", "..2026_11_20_15_04_05.500000000"),
        ("..2027_99_99_99_99_99.1", "..2026_11_20_15_04_05.500000000"),
        ("..9999_12_31_23_59_59.999999999", "..2026_11_20_15_04_05.500000000"),
        ("..9999_12_30_22_00_00.999999999", "..2026_11_20_15_04_05.500000000"),
        ("..9999_99_99_99_99_99.9999999999", "..2026_11_20_15_04_05.500000000"),
    ] {
        let there = Name::parse(there).unwrap();
        let earlier = Name::parse("..2026_11_20_15_04_04.1").unwrap();
        assert_eq!(Name::new(clock, [&there, &earlier]).as_str(), expected, "beside {there}");
    }
}

#[test]
fn only_generation_names_are_recognized() {
    for other in [
        "..data",
        "..data_tmp",
        "..treeswap",
        "2026_11_20_15_04_05.1",
        "..2026_11_20_15_04_05.",
        "..2026_11_20_15_04.1",
    ] {
        assert_eq!(Name::parse(other), None, "{other}");
    }
    assert!(Name::parse("..2019_01_31_00_00_00.0123456789").is_some(), "a kubelet's name");
}

#[test]
fn a_record_keeps_the_field_names_of_state_files() {
    let now =
        Now { wall: Timestamp::UNIX_EPOCH, boottime: std::time::Duration::ZERO, boot_id: String::new() };
    let name = Name::parse("..2026_11_20_15_04_05.1").unwrap();
    let record =
        GenerationRecord { selection_digest: "d".into(), ..GenerationRecord::unknown(name, 1, 2, &now) };
    let json = serde_json::to_value(&record).unwrap();
    let mut fields: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    let expected = "boot_id bytes entries name published retired revision selection synced tree";
    assert_eq!((fields.join(" ").as_str(), json["selection"].as_str()), (expected, Some("d")));
    assert_eq!(serde_json::from_value::<GenerationRecord>(json).unwrap(), record);
}

#[test]
fn the_estimate_is_too_high_by_at_most_a_block_a_file() {
    const BLOCK: u64 = 4096;
    for (size, too_much) in
        [(0_u64, BLOCK), (1, 1), (7, 7), (3000, 3000), (4095, 4095), (4096, 4096), (4097, 1), (10_240, 2048)]
    {
        let blocks = size.div_ceil(BLOCK) * BLOCK;
        let directory = BLOCK;
        assert_eq!(on_disk((size, 1), BLOCK) - directory - blocks, too_much, "{size} bytes");
    }
}

#[test]
fn a_name_says_where_its_directory_is() {
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let name = Name::parse(commit).unwrap();
    assert_eq!(name, Name::from_commit(Revision(commit.parse().unwrap())));
    assert_eq!(name.relative_path(), Path::new(".worktrees").join(commit));
    let again = name.numbered(7).numbered(12);
    assert_eq!(again.relative_path(), Path::new(".worktrees").join(format!("{commit}.12")));
    assert_eq!(again.commit(), name.commit());
    assert_eq!(Name::parse(again.as_str()), Some(again));
    let dated = Name::parse("..2026_11_20_15_04_05.1").unwrap();
    assert_eq!((dated.relative_path(), dated.commit()), (PathBuf::from("..2026_11_20_15_04_05.1"), None));
    for other in [&commit[1..], &commit.to_uppercase(), &format!("{commit}."), &format!("{commit}.x")] {
        assert_eq!(Name::parse(other), None, "{other}");
    }
}

#[test]
fn a_name_is_shown_as_its_directory_is_called() {
    for text in ["..2026_11_20_15_04_05.1", COMMIT] {
        assert_eq!(name(text).to_string(), text);
    }
}

#[test]
fn a_boot_is_another_only_if_both_are_known_and_differ() {
    let is_another = |then: &str, boot: &str| Retired::at(&now(then)).is_of_another_boot(&now(boot));
    assert!(is_another("a", "b"));
    for (then, boot) in [("a", "a"), ("", "b"), ("a", ""), ("", "")] {
        assert!(!is_another(then, boot), "{then:?} and {boot:?}");
    }
}

#[test]
fn generations_of_a_lineage_share_all_but_what_was_replaced_and_their_directories() {
    let first = Lineage::new(dated(0), 4);
    let third = first.clone().replacing(2, 30).replacing(1, 5);
    assert_eq!(unshared(Some(&third), (1_000, 50), Some(&first)), (35, 4 + 3));
    assert_eq!(unshared(Some(&first), (1_000, 50), Some(&third)), (35, 4 + 3), "seen from either");
    assert_eq!(unshared(Some(&third), (20, 6), Some(&first)), (20, 6), "never more than a tree has");
}

#[test]
fn generations_that_are_not_of_one_lineage_share_nothing() {
    let (one, other) = (Lineage::new(dated(0), 4), Lineage::new(dated(1), 4));
    for (lineage, of_other) in
        [(Some(&one), Some(&other)), (Some(&one), None), (None, Some(&one)), (None, None)]
    {
        assert_eq!(unshared(lineage, (1_000, 50), of_other), (1_000, 50), "{lineage:?} and {of_other:?}");
    }
}

#[test]
fn a_record_tells_what_its_generation_has_for_itself() {
    let lineage = Lineage::new(dated(0), 2);
    let record = GenerationRecord { lineage: Some(lineage.clone()), ..record(dated(0)) };
    assert_eq!(record.unshared(Some(&lineage.replacing(1, 20))), (20, 2 + 1));
    assert_eq!(record.unshared(None), (100, 5));
}

#[test]
fn what_an_untrusted_generation_holds_is_not_known_in_any_boot() {
    let known = record(dated(0));
    let untrusted = known.clone().untrusted();
    assert!(!untrusted.is_known());
    assert_eq!(untrusted.selection_digest, "", "no settings have this digest");
    let as_if_known = GenerationRecord { tree: known.tree, ..untrusted.clone() };
    assert!(!as_if_known.is_trusted(&now("this boot")), "neither as synced nor as written in this boot");
    assert_eq!(
        (untrusted.name, untrusted.revision),
        (known.name, known.revision),
        "what it was stays recorded"
    );
}

#[test]
fn the_age_of_generations_is_in_their_names_or_else_in_their_records() {
    let published = |name: Name, second| {
        let published = Timestamp::from_second(second).unwrap();
        GenerationRecord { published, ..record(name) }
    };
    let (older, newer) = (published(dated(1), 20), published(dated(2), 10));
    assert!(older.order() < newer.order(), "the wall clock went back");
    let (older, newer) = (published(name(COMMIT).numbered(1), 10), published(name(COMMIT), 20));
    assert!(older.order() < newer.order(), "an id tells no time");
}

#[test]
fn a_revision_is_known_from_the_record_or_from_the_name() {
    let known = record(dated(0));
    assert!(known.is_known());
    assert_eq!(known.known_revision(), Some(known.revision));
    let dated = GenerationRecord::unknown(dated(0), 5, 100, &now(""));
    assert!(!dated.is_known());
    assert_eq!(dated.known_revision(), None);
    let named = GenerationRecord::unknown(name(COMMIT), 5, 100, &now(""));
    assert_eq!(named.known_revision(), Some(Revision(COMMIT.parse().unwrap())));
}

#[test]
fn a_generation_is_trusted_if_it_was_synced_or_written_in_this_boot() {
    let written =
        |synced, boot: &str| GenerationRecord { synced, boot_id: boot.to_owned(), ..record(dated(0)) };
    let here = now("this boot");
    assert!(written(true, "another boot").is_trusted(&here));
    assert!(written(false, "this boot").is_trusted(&here));
    assert!(!written(false, "another boot").is_trusted(&here));
    assert!(!written(false, "").is_trusted(&now("")), "two boots without an id may differ");
    for synced in [true, false] {
        let lost = GenerationRecord { tree: ObjectId([0; 20]), ..written(synced, "this boot") };
        assert!(!lost.is_trusted(&here), "its tree is not known");
    }
}

#[test]
fn files_that_generations_share_take_their_bytes_once() {
    const BLOCK: u64 = 10;
    let lineage = Lineage::new(dated(0), 2);
    let of = |lineage: Lineage, second| GenerationRecord { lineage: Some(lineage), ..record(dated(second)) };
    let first = of(lineage.clone(), 0);
    let second = of(lineage.replacing(1, 20), 1);
    let other = of(Lineage::new(dated(2), 2), 2);
    let (whole, replaced) = (on_disk((100, 5), BLOCK), on_disk((20, 2 + 1), BLOCK));
    assert_eq!(bytes_on_disk([&first], BLOCK), whole);
    assert_eq!(bytes_on_disk([&first, &second], BLOCK), whole + replaced);
    assert_eq!(bytes_on_disk([&second, &other, &first], BLOCK), 2 * whole + replaced, "in any order");
}
