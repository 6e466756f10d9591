//! A remote that is a repository on this machine. Refs are read in place with libgit2, without a process. A pack comes
//! from a `git upload-pack` process if there is a git program, because that reuses existing deltas; otherwise
//! [`local_pack`] builds it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Once;

use git2::{ErrorCode, ObjectType, Repository, RepositoryOpenFlags};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::detached_io;
use crate::mirror::error::Libgit2;
use crate::mirror::odb::{Store, to_object_id};
use crate::revision::Ref;

use super::error::Budget;
use super::refs::{self, FoundRefs};
use super::stream::{self, Opened};
use super::{Error, Options, PackResponse, Request, local_pack};

/// How many chunks of a pack the channel between the packing thread and the sink holds. A chunk is some ten KiB.
const CHUNKS: usize = 16;

/// The longest chain of tags of tags that is followed. A longer one is later rejected, because its target is no commit.
const TAGS_MAX: usize = 16;

/// A local repository.
#[derive(Debug)]
pub(super) struct Local {
    name: String,
    path: PathBuf,
    options: Options,
}

impl Local {
    pub(super) fn new(name: String, path: PathBuf, options: Options) -> Self {
        Self { name, path, options }
    }

    pub(super) async fn resolve(&mut self, wanted: &[Ref]) -> Result<FoundRefs, Error> {
        let path = self.path.clone();
        let owned = wanted.to_vec();
        let found = FoundRefs::none(&self.name);
        let read = move || {
            let found = look_up(&path, &owned, found);
            let denied = if found.is_err() { permission_error(&path) } else { None };
            (found, denied)
        };
        // Every poll comes here. If the file system hangs, only one thread does, and none of the runtime's.
        let (found, denied) = detached_io::run(&self.path, read).await.unwrap_or_else(|| {
            (Err(git2::Error::from_str("the thread that reads it could not be started, or panicked")), None)
        });
        match found {
            Ok(found) => Ok(found),
            Err(source) if source.code() == ErrorCode::NotFound || denied.is_some() => {
                self.failed(source, denied)
            }
            // libgit2 cannot read some formats (reftable, sha256); git can, or reports the problem better.
            Err(source) => match self.upload_pack()? {
                Some(reader) => {
                    let candidates = refs::candidates(wanted);
                    let opened = Opened::new(reader, &self.name, &self.options, &candidates).await?;
                    opened.look_up(&self.name, &self.options, &candidates).await
                }
                None => self.failed(source, None),
            },
        }
    }

    /// The error for what libgit2 reports, or for the permission error that is behind it.
    fn failed<T>(&self, source: git2::Error, denied: Option<std::io::Error>) -> Result<T, Error> {
        let path = self.path.clone();
        Err(match denied {
            Some(source) => Error::LocalDenied { path, source },
            None => Error::Local { path, source: Libgit2(source) },
        })
    }

    fn upload_pack(&self) -> Result<Option<super::framing::PacketReader>, Error> {
        stream::process(&self.name, &self.options.git, &self.path, self.options.timeouts.idle)
    }

    pub(super) async fn fetch(
        &mut self,
        request: &Request,
        sink: &mut (dyn AsyncWrite + Unpin + Send),
    ) -> Result<PackResponse, Error> {
        // upload-pack applies a filter only if it is allowed to; reading in place needs no permission.
        let program = if request.only_filtered { None } else { self.upload_pack()? };
        let opened = match program {
            Some(reader) => Opened::new(reader, &self.name, &self.options, &BTreeSet::new()).await,
            None => return self.fetch_in_place(request, sink).await,
        };
        match opened {
            Ok(opened) => opened.fetch(&self.name, &self.options, request, sink).await,
            // No response at all: git before 2.38 ignores our `safe.directory`, and refuses another user's repository.
            Err(Error::Cut { .. }) => self.fetch_in_place(request, sink).await,
            Err(error) => Err(error),
        }
    }

    async fn fetch_in_place(
        &self,
        request: &Request,
        sink: &mut (dyn AsyncWrite + Unpin + Send),
    ) -> Result<PackResponse, Error> {
        let (sender, mut chunks) = mpsc::channel::<bytes::Bytes>(CHUNKS);
        let path = self.path.clone();
        let request = request.clone();
        let packing = blocking_git(move || local_pack::pack(&Store::of(open(&path)?), &request, &sender));
        let failed = |source| Error::Sink { remote: self.name.clone(), source };
        let copying = async {
            let mut bytes = 0u64;
            while let Some(chunk) = chunks.recv().await {
                bytes += chunk.len() as u64;
                let limit = self.options.max_fetch_bytes;
                if bytes > limit {
                    return Err(Error::TooMuch { remote: self.name.clone(), budget: Budget::Pack, limit });
                }
                sink.write_all(&chunk).await.map_err(failed)?;
            }
            sink.flush().await.map_err(failed)?;
            Ok(bytes)
        };
        // The thread ends when the channel closes: after an error here, or when our future is dropped.
        let packing =
            async { packing.await.or_else(|source| self.failed(source, permission_error(&self.path))) };
        let (answer, bytes) = tokio::try_join!(packing, copying)?;
        Ok(PackResponse { bytes, ..answer })
    }
}

/// Runs `work` on a blocking thread. Unlike `mirror::blocking`, it turns a panic into an error: the repository is not
/// ours.
async fn blocking_git<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, git2::Error> + Send + 'static,
) -> Result<T, git2::Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(git2::Error::from_str(&error.to_string())))
}

/// Opens the repository at a path as git does: the directory itself, its `.git`, or the path with `.git` appended.
fn open(path: &Path) -> Result<Repository, git2::Error> {
    allow_any_owner();
    let exactly =
        |path: &Path| Repository::open_ext(path, RepositoryOpenFlags::NO_SEARCH, std::iter::empty::<&Path>());
    exactly(path).or_else(|error| {
        let mut longer = path.as_os_str().to_owned();
        longer.push(".git");
        match error.code() {
            ErrorCode::NotFound => exactly(Path::new(&longer)).map_err(|_| error),
            _ => Err(error),
        }
    })
}

/// Returns the error if permissions keep this user from reading the repository's HEAD. libgit2 and git only report that
/// there is no repository.
fn permission_error(path: &Path) -> Option<std::io::Error> {
    let mut longer = path.as_os_str().to_owned();
    longer.push(".git");
    let places = [path.to_owned(), path.join(".git"), PathBuf::from(longer)];
    let heads = places.iter().map(|place| std::fs::File::open(place.join("HEAD")));
    heads.filter_map(Result::err).find(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// Allows libgit2 to open repositories that another user owns. It refuses them by default, like git, because their
/// configuration may name programs to run. We run none of them, and a volume is rarely owned by the uid that reads it.
fn allow_any_owner() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        #[expect(
            unsafe_code,
            reason = "a process-wide setting of libgit2, made before our first repository opens"
        )]
        // SAFETY: libgit2 reads it when it opens a repository; a repository opened meanwhile sees either value.
        let _ = unsafe { git2::opts::set_verify_owner_validation(false) };
    });
}

/// Resolves each ref to the first of its candidates that exists.
fn look_up(path: &Path, wanted: &[Ref], mut found: FoundRefs) -> Result<FoundRefs, git2::Error> {
    let store = Store::of(open(path)?);
    for followed in wanted {
        look_up_one(&store, followed, &mut found)?;
    }
    Ok(found)
}

fn look_up_one(store: &Store, followed: &Ref, found: &mut FoundRefs) -> Result<(), git2::Error> {
    for name in followed.candidates() {
        let reference = match store.repository().find_reference(&name) {
            Ok(reference) => reference,
            Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::InvalidSpec) => continue,
            Err(error) => return Err(error),
        };
        let id = match reference.resolve() {
            Ok(direct) => direct.target(),
            // In an empty repository HEAD names a branch that does not exist yet.
            Err(error) if error.code() == ErrorCode::NotFound => None,
            Err(error) => return Err(error),
        };
        let Some(id) = id else { continue };
        // Only object headers are read to learn the kinds, because the objects may be of any size.
        let reader = store.reader()?;
        let object = to_object_id(id);
        let mut peeled = object;
        let mut kind = reader.kind(&peeled).map_err(local_pack::to_git_error)?;
        let is_tag = kind == ObjectType::Tag;
        for _ in 0..TAGS_MAX {
            if kind != ObjectType::Tag {
                break;
            }
            peeled = reader.target(&peeled).map_err(local_pack::to_git_error)?;
            kind = reader.kind(&peeled).map_err(local_pack::to_git_error)?;
        }
        found.insert(&name, object, is_tag.then_some(peeled));
        return Ok(());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn a_repository_that_hangs_takes_no_thread_of_the_runtime() {
        let dir = tempfile::tempdir().unwrap();
        Repository::init_bare(dir.path()).unwrap();
        let fifo = dir.path().join("packed-refs");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().max_blocking_threads(1).build().unwrap();
        let (answered, is_free) = runtime.block_on(async {
            let wanted: [Ref; 1] = ["main".parse().unwrap()];
            let mut answered = Vec::new();
            for _ in 0..2 {
                let options = Options::new(dir.path().to_string_lossy());
                let mut local = Local::new("a test".to_owned(), dir.path().to_owned(), options);
                answered.push(timeout(Duration::from_millis(100), local.resolve(&wanted)).await.is_ok());
            }
            let free = timeout(Duration::from_secs(5), tokio::task::spawn_blocking(|| ())).await;
            (answered, free.is_ok())
        });
        // A thread that waits for a writer goes on, and finds no file the next time.
        let _writer = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        std::fs::remove_file(&fifo).unwrap();
        assert_eq!(answered, [false, false], "a FIFO without a writer was read");
        assert!(is_free, "a thread of the runtime waits for the file");
    }
}
