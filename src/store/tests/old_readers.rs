//! What a reader without a pin still sees after its generation was deleted or recycled: the table of
//! docs/guides/reading.md.

use std::io::Read as _;
use std::os::fd::AsRawFd as _;

use super::recycle::{carry_forward, open, publish_next, reap};
use super::*;

/// More entries than one getdents call lists.
const WIDE: usize = 3_000;

/// The same with a wide directory in which one file changes.
fn some(content: &str) -> Tree {
    let mut tree = super::recycle::some(content);
    let names =
        (0..WIDE).map(|number| format!("wide/a-file-with-a-name-of-some-length-{number:04}").into_bytes());
    tree.extend(names.map(|name| (name, (Kind::File, Vec::new()))));
    tree.insert(b"wide/changed".to_vec(), (Kind::File, content.into()));
    tree
}

/// The files and directories that a reader has open in a generation.
struct Reader {
    top: OwnedFd,
    changed: OwnedFd,
    kept: OwnedFd,
    listing: rustix::fs::Dir,
    file: std::fs::File,
    watches: Vec<(&'static str, Watch)>,
}

/// A word for what the reader sees, by role.
type Seen = Vec<(&'static str, String)>;

impl Reader {
    fn start(world: &World) -> Self {
        let at = world.at("..data").canonicalize().unwrap();
        let top = fsx::open_dir_at_path(&at).unwrap();
        let open = |name: &str| fsx::open_beneath(&top, name).unwrap();
        let mut listing = rustix::fs::Dir::read_from(open("wide")).unwrap();
        listing.next().unwrap().unwrap();
        let watched = [
            ("watch: file that changes", "changed/a"),
            ("watch: file beside one that changes", "changed/same"),
            ("watch: file in a directory without a change", "kept/y"),
            ("watch: directory with a change", "changed"),
            ("watch: directory without a change", "kept"),
        ];
        Self {
            changed: open("changed"),
            kept: open("kept"),
            listing,
            file: std::fs::File::open(at.join("changed/a")).unwrap(),
            watches: watched.map(|(role, path)| (role, Watch::on(&at.join(path)))).into(),
            top,
        }
    }

    /// Reads through `..` of the directory without a change: the content of the file that differs in each revision.
    fn above_kept(&self) -> String {
        let path = std::path::PathBuf::from(format!("/proc/self/fd/{}/../changed/a", self.kept.as_raw_fd()));
        fs_err::read_to_string(path).unwrap_or_else(|_| "nothing".to_owned())
    }

    fn sees(mut self) -> Seen {
        let entries = |dir: &OwnedFd| format!("{} entries", fsx::list(dir).unwrap().len());
        let cwd = fs_err::read_link(format!("/proc/self/fd/{}", self.kept.as_raw_fd())).unwrap();
        let is_gone = cwd.to_string_lossy().ends_with(" (deleted)");
        let mut content = String::new();
        let rest = self.listing.by_ref().map(Result::unwrap).count(); // no error either
        self.file.read_to_string(&mut content).unwrap();
        let mut seen = vec![
            ("open file", content),
            ("top", entries(&self.top)),
            ("directory with a change", entries(&self.changed)),
            ("directory without a change", entries(&self.kept)),
            ("`..` of it", self.above_kept()),
            ("it as working directory", if is_gone { "deleted" } else { "another name" }.to_owned()),
            ("listing in progress", if rest < WIDE { "ends early" } else { "whole" }.to_owned()),
        ];
        // inotify reports a deletion only once nobody has the file open.
        let Self { top, changed, kept, listing, file, watches } = self;
        drop((top, changed, kept, listing, file));
        let said = |watch: &Watch| {
            let events = watch.events();
            let is_own =
                |event: &&String| ["DELETE_SELF", "MOVE_SELF"].iter().any(|own| event.starts_with(own));
            events
                .iter()
                .find(is_own)
                .map_or("nothing", |event| event.split([' ', '|']).next().unwrap())
                .to_owned()
        };
        seen.extend(watches.iter().map(|(role, watch)| (*role, said(watch))));
        seen
    }
}

fn assert_table(seen: &Seen, expected: [&str; 12]) {
    let table: Vec<_> = seen.iter().map(|(role, word)| (*role, word.as_str())).collect();
    let expected: Vec<_> = seen.iter().map(|(role, _)| *role).zip(expected).collect();
    assert_eq!(table, expected);
}

#[test]
fn readers_of_a_deleted_generation_see_the_end_of_it() {
    let world = World::new();
    let mut store = world.open();
    publish(&mut store, &some("1"));
    let reader = Reader::start(&world);
    publish(&mut store, &some("2"));
    assert_eq!(reap(&mut store), 1);
    store.wait_for_deletions(&go());
    let gone = "DELETE_SELF";
    assert_table(
        &reader.sees(),
        [
            "1",
            "0 entries",
            "0 entries",
            "0 entries",
            "nothing",
            "deleted",
            "ends early",
            gone,
            gone,
            gone,
            gone,
            gone,
        ],
    );
}

#[test]
fn readers_of_a_generation_that_is_used_again_see_the_end_of_what_changes() {
    let world = World::new();
    let mut store = open(&world);
    publish(&mut store, &some("1"));
    let reader = Reader::start(&world);
    publish(&mut store, &some("2"));
    reap(&mut store);
    assert!(carry_forward(&store, &some("1"), &some("2")));
    assert_eq!(reader.above_kept(), "2", "already while nobody publishes it");
    assert!(publish_next(&mut store, &some("2"), &some("3")));
    store.wait_for_deletions(&go());
    assert_table(
        &reader.sees(),
        [
            "1",
            "0 entries",
            "0 entries",
            "2 entries",
            "3",
            "another name",
            "ends early",
            "DELETE_SELF",
            "MOVE_SELF",
            "nothing",
            "DELETE_SELF",
            "MOVE_SELF",
        ],
    );
}

/// The table, and what is said below it: hard links reach watchers of files that nothing happens to.
#[test]
fn a_watch_on_a_file_tells_of_hard_links_and_of_nothing_without_them() {
    let told = |spare| {
        let world = World::new();
        let mut store = Store::open(Options { spare, ..world.options() }).unwrap().0;
        publish(&mut store, &some("1"));
        let pinned = Consumer::of(&world);
        let watch = Watch::on(&world.at("..data/kept/y"));
        let task = store.spare_task().unwrap();
        if !task.link(&go()).unwrap() {
            task.copy(&of(&some("1")), &Blobs::of(&[&some("1")]), &go()).unwrap();
        }
        let made = watch.events();
        assert!(publish_next(&mut store, &some("1"), &some("2")));
        drop(pinned);
        (made, watch.events())
    };
    assert_eq!(told(Spare::Link).0, ["ATTRIB ."]);
    for spare in [Spare::Recycle, Spare::Copy] {
        assert_eq!(told(spare), (vec![], vec![]), "{spare:?}");
    }
}
