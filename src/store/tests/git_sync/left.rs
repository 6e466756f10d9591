//! Roots made by git-sync versions 3 and 4.

use super::*;

#[test]
fn a_root_of_git_sync_4_goes_on_serving_and_is_compared_before_it_is_trusted() {
    let root = Root::new();
    let old = files("a", "0");
    let one = files("ab", "1");
    let commit = root.make_worktree(&one);
    let retired = root.make_worktree(&old);
    symlink(format!(".worktrees/{commit}"), &root.link).unwrap();
    symlink(format!(".worktrees/{retired}"), root.at("tmp-link")).unwrap();
    let before = inode(&root.link);
    let mut store = root.open();
    assert_eq!(inode(&root.link), before);
    assert!(!root.at("tmp-link").is_symlink());
    let current = store.current().unwrap();
    assert!(!current.is_known() && current.revision == commit && !store.is_trusted(&clock::now()));
    assert_eq!(store.verify(&of(&one), &go()).unwrap(), [""; 0]);
    store.adopt(&of(&one), "all", &clock::now()).unwrap();
    assert!(store.is_trusted(&clock::now()));
    let old = store.generations().iter().find(|record| record.revision == retired).unwrap();
    assert!(old.retired.is_some());
    drop(store);
    let (store, found) = root.try_open().unwrap();
    assert!(found.done.is_empty() && store.is_trusted(&clock::now()), "{found:?}");
}

#[test]
fn what_git_sync_left_is_as_old_as_its_modification_time() {
    let root = Root::new();
    let old = files("a", "0");
    let commit = root.make_worktree(&old);
    let current = root.make_worktree(&files("a", "1"));
    symlink(format!(".worktrees/{current}"), &root.link).unwrap();
    let then = std::time::SystemTime::now() - Duration::from_secs(3600);
    fs_err::File::open(root.at(Name::from_commit(commit).relative_path()))
        .unwrap()
        .file()
        .set_modified(then)
        .unwrap();
    let store = root.open();
    let record = store.generations().iter().find(|record| record.revision == commit).unwrap();
    let age = clock::now().wall.duration_since(record.published);
    assert!((3595..3700).contains(&age.as_secs()), "{age:?}");
    // Never older than this boot, whatever the wall clock says.
    let counted = retention::age(record.retired.as_ref().unwrap(), &clock::now());
    assert!(counted >= Duration::from_secs(3500).min(clock::now().boottime / 2), "{counted:?}");
}

/// Readers may still be in it: it was current until the link was lost, or still is under another link.
#[test]
fn a_generation_has_its_grace_period_if_neither_link_nor_record_says_when_it_was_retired() {
    let root = Root::new();
    let mut store = root.open();
    publish(&mut store, &files("a", "0"));
    drop(store);
    let tree = root.link.canonicalize().unwrap();
    let then = std::time::SystemTime::now() - Duration::from_secs(3600);
    fs_err::File::open(&tree).unwrap().file().set_modified(then).unwrap();
    fs_err::remove_file(&root.link).unwrap();
    fs_err::remove_file(root.at("..treeswap/state")).unwrap();
    let mut store = root.open();
    let now = clock::now();
    let counted = retention::age(store.generations()[0].retired.as_ref().unwrap(), &now);
    assert!(counted < Duration::from_secs(30), "{counted:?}");
    let plan = store.plan(&now);
    assert!(store.reap(&plan).is_empty() && tree.exists());
}

#[test]
fn a_root_of_git_sync_3_serves_until_the_first_publication_and_its_tree_goes_after_its_grace_period() {
    let root = Root::new();
    let one = files("a", "1");
    let commit = of(&one).revision;
    let tree = root.at(commit.to_string());
    root.make_tree(&tree, &one, commit);
    fs_err::write(tree.join(".git"), format!("gitdir: /git/.git/worktrees/{commit}\n")).unwrap();
    let clone = root.at("0123456789abcdef0123456789abcdef01234567");
    fs_err::create_dir_all(clone.join(".git")).unwrap(); // somebody's own repository
    symlink(commit.to_string(), &root.link).unwrap();
    let mut store = root.open();
    assert_eq!(fs_err::read_to_string(root.link.join("a")).unwrap(), "1");
    publish(&mut store, &one);
    root.assert_serves(&one);
    repair(&mut store);
    assert!(!tree.exists() && clone.exists());
    let retired = store.generations().iter().find(|record| record.retired.is_some()).unwrap();
    assert_eq!((retired.name.commit(), root.worktrees().len()), (Some(commit), 2));
}

#[test]
fn a_generation_that_git_sync_published_in_between_is_not_turned_back() {
    let root = Root::new();
    let one = files("a", "1");
    let two = files("a", "2");
    let mut store = root.open();
    publish(&mut store, &one);
    drop(store);
    let commit = root.make_worktree(&two);
    fs_err::remove_file(&root.link).unwrap();
    symlink(format!(".worktrees/{commit}"), &root.link).unwrap();
    let store = root.open();
    assert_eq!(store.current().unwrap().revision, commit);
    root.assert_serves(&two);
}
