//! Which files are read, how often, and what becomes of those that no ConfigMap can hold.

use std::time::Duration;

use super::*;
use crate::configmap::{Dialect, Setting, ValueEncoding};

/// Size of a blob that fits into no ConfigMap, unless it is compressed.
const TOO_LARGE: usize = (1 << 20) + 1;

/// Each blob's content is its id, but for those that begin with a zero, which cannot be read, and those that begin
/// with 255, which are too large. Those that begin with 254 claim to be as large as files may be, and those that begin
/// with 253 to be larger. Counts what is read.
#[derive(Default)]
struct Counting(AtomicUsize);

impl BlobSource for Counting {
    fn reader(&self) -> Result<Box<dyn BlobReader + '_>, BlobError> {
        Ok(Box::new(Reader(self)))
    }
}

struct Reader<'c>(&'c Counting);

impl BlobReader for Reader<'_> {
    fn size(&mut self, id: &ObjectId) -> Result<u64, BlobError> {
        Ok(match id.0[0] {
            255 => TOO_LARGE as u64,
            254 => FILE_MAX,
            253 => FILE_MAX + 1,
            _ => 20,
        })
    }

    fn read(
        &mut self,
        id: &ObjectId,
        sink: &mut dyn FnMut(&[u8]) -> std::io::Result<()>,
    ) -> Result<(), BlobError> {
        self.0.0.fetch_add(1, Ordering::Relaxed);
        match id.0[0] {
            0 => Err(BlobError::Unreadable { id: *id, source: "it is damaged".into() }),
            255 => sink(&[b'x'; TOO_LARGE]).map_err(BlobError::Sink),
            _ => sink(&id.0).map_err(BlobError::Sink),
        }
    }
}

fn wanted(ids: &[ObjectId], compress: bool) -> Vec<ValueSource> {
    ids.iter().map(|id| ValueSource { file: (*id).into(), compress }).collect()
}

/// Values of these blobs, and how many were read for them.
fn values(blobs: &[u8], compress: bool, known: &KnownValues) -> (Vec<Arc<Value>>, usize) {
    let counting = Counting::default();
    let wanted = wanted(&blobs.iter().map(|byte| ObjectId([*byte; 20])).collect::<Vec<_>>(), compress);
    let mut contents = Blobs { source: &counting, known, cancel: &CancellationToken::new() };
    let values = contents.values(&wanted, u64::MAX, &|_, _| true).unwrap();
    let bytes = values.iter().map(|value| value.bytes().len() as u64).sum();
    contents.keep(bytes, &mut wanted.iter().copied().zip(values.iter().map(|value| &**value)));
    (values, counting.0.into_inner())
}

#[test]
fn what_the_last_plan_still_holds_is_not_read_again() {
    let known = KnownValues::default();
    let (first, read) = values(&[1, 2, 3, 2], false, &known);
    assert_eq!(read, 3, "and none twice for one plan");
    let (second, read) = values(&[1, 4, 2], false, &known);
    assert_eq!(read, 1);
    assert_eq!([&second[0], &second[2]], [&first[0], &first[1]]);
    assert_eq!(second[1].bytes(), [4; 20]);
    assert_eq!(values(&[1], true, &known).1, 1, "compressed it is another value");
    drop((first, second));
    assert_eq!(values(&[1], false, &known).1, 1, "no plan has it any more");
}

#[test]
fn with_what_the_last_process_kept_no_blob_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let known = || KnownValues::with_file(dir.path().join("values"));
    let (first, read) = values(&[1, 2, 3, 2], true, &known());
    assert_eq!(read, 3);
    assert_eq!(values(&[1, 2, 3, 2], true, &known()), (first, 0));
    assert_eq!(values(&[1, 4], true, &known()).1, 1);
    assert_eq!(values(&[1, 4], false, &known()).1, 2, "uncompressed they are other values");
}

#[test]
fn threads_make_each_value_in_its_place_and_name_the_first_file_that_cannot_be_read() {
    let (counting, known) = (Counting::default(), KnownValues::default());
    let id = |number: usize| {
        let mut id = [1; 20];
        id[1..9].copy_from_slice(&(number as u64).to_be_bytes());
        ObjectId(id)
    };
    let ids: Vec<ObjectId> = (0..2_000).map(id).collect();
    let mut all = wanted(&ids, false);
    let cancel = CancellationToken::new();
    let mut contents = Blobs { source: &counting, known: &known, cancel: &cancel };
    let made = contents.values(&all, 40_000, &|_, _| true).unwrap();
    assert!(made.iter().zip(&ids).all(|(value, id)| value.bytes() == id.0));
    for is_needed in [true, false] {
        assert!(
            matches!(contents.values(&all, 39_999, &|_, _| is_needed), Err(ValueError::OverMemoryLimit)),
            "what is made counts, read again or not, kept or not"
        );
    }
    let odd = contents.values(&all, 40_000, &|at, size| size == 20 && at % 2 == 1).unwrap();
    let is_right = |(at, value): (usize, &Arc<Value>)| value.has_bytes() == (at % 2 == 1);
    assert!(odd.iter().enumerate().all(is_right), "what is not needed is dropped");
    [1_999, 1_300, 700].into_iter().for_each(|at| all[at].file = ObjectId([0; 20]).into());
    let failure = |contents: &mut Blobs<'_>| match contents.values(&all, u64::MAX, &|_, _| true) {
        Err(ValueError::UnreadableFile { at, error }) => (at, error),
        other => panic!("{other:?}"),
    };
    let (at, error) = failure(&mut contents);
    assert_eq!((at, error.source().unwrap().to_string().as_str()), (700, "it is damaged"));
    cancel.cancel();
    let (at, error) = failure(&mut contents);
    let is_cancelled = matches!(error.downcast_ref::<mirror::Error>(), Some(mirror::Error::Cancelled));
    assert!(at == 0 && is_cancelled, "{at}: {error}");
}

#[test]
fn a_file_that_no_configmap_can_hold_is_read_only_where_it_is_compressed() {
    let known = KnownValues::default();
    let (plain, read) = values(&[255], false, &known);
    assert_eq!((plain[0].size(), plain[0].bytes().len(), read), (TOO_LARGE, 0, 0));
    let (compressed, read) = values(&[255], true, &known);
    assert!(compressed[0].has_bytes() && compressed[0].size() < 10_000 && read == 1);
}

#[test]
fn a_file_that_is_not_read_at_all_is_too_large_and_fails_nothing() {
    let known = KnownValues::default();
    for compress in [false, true] {
        let (values, read) = values(&[253, 1], compress, &known);
        let sizes = (values[0].size() as u64, values[0].has_bytes(), values[0].form() == ValueEncoding::Gzip);
        assert_eq!(sizes, (FILE_MAX + 1, false, compress));
        assert!(values[1].has_bytes() && read == 1, "the others are made");
    }
    assert!(values(&[254], true, &known).0[0].has_bytes(), "it may fit if it is compressed");

    let dir = tempfile::tempdir().unwrap();
    std::fs::File::create(dir.path().join("big")).unwrap().set_len(FILE_MAX + 1).unwrap();
    let tree = Directory(dir.path());
    let (listed, mut contents) = tree.list(&|_| true).unwrap();
    let file = listed.resolve(b"big").unwrap();
    assert_eq!(contents.size(file).unwrap(), FILE_MAX + 1);
    for compress in [false, true] {
        let values = contents.values(&[ValueSource { file, compress }], 0, &|_, _| true).unwrap();
        assert_eq!((values[0].size() as u64, values[0].has_bytes()), (FILE_MAX + 1, false));
    }
    assert!(contents.read(file).unwrap_err().is::<TooLarge>());
}

#[test]
fn without_the_time_to_compare_links_with_the_patterns_the_plan_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("docs")).unwrap();
    std::fs::write(dir.path().join("docs/x"), "").unwrap();
    std::os::unix::fs::symlink("docs/x", dir.path().join("top")).unwrap();
    let setting = Setting {
        file: "rules.yaml",
        default_namespace: "default",
        dialect: Dialect::Zglob,
        ignore_unknown: false,
    };
    let rules = RuleSet::read("maps: {jobs/*: {name: jobs}}", &setting, &|_| None).unwrap();
    let tree = Directory(dir.path());
    let listed = |seconds| {
        let limit = TimeLimit { time: Duration::from_secs(seconds), set_by: None };
        reached(&tree, &rules, limit).map(|listed| listed.0.len()).map_err(|error| error.to_string())
    };
    assert_eq!(listed(60), Ok(1));
    let late = "matching the files against 1 rules takes longer than 0ns";
    assert_eq!(listed(0), Err(late.to_owned()));
}
