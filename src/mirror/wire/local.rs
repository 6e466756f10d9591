//! A repository on this machine. References are always read in place, without a process. A pack comes from a `git
//! upload-pack` process where there is a git program, for it reuses the deltas that exist; else it is made here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Once;

use git2::{ErrorCode, ObjectType, Repository, RepositoryOpenFlags};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::mirror::error::Libgit2;
use crate::mirror::odb::{Store, to_object_id};
use crate::revision::Ref;

use super::error::Budget;
use super::refs::{self, FoundRefs};
use super::stream::{self, Opened};
use super::{Error, Options, PackResponse, Request, local_pack};

/// Pieces of pack between the thread that makes them and the sink. Each is some ten KiB.
const PIECES: usize = 16;

/// Tags of tags are followed this far; what such a tag names is then seen to be no commit.
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

    pub(super) async fn resolve(&mut self, asked: &[Ref]) -> Result<FoundRefs, Error> {
        let (path, wanted, none) = (self.path.clone(), asked.to_vec(), FoundRefs::none(&self.name));
        match blocking(move || look_up(&path, &wanted, none)).await {
            Ok(found) => Ok(found),
            Err(source) if source.code() == ErrorCode::NotFound || denied(&self.path).is_some() => {
                self.failed(source)
            }
            // A format that libgit2 does not read (reftable, sha256): git does, or says better what is wrong.
            Err(source) => match self.upload_pack()? {
                Some(reader) => {
                    let candidates = refs::candidates(asked);
                    let opened = Opened::new(reader, &self.name, &self.options, &candidates).await?;
                    opened.look_up(&self.name, &self.options, &candidates).await
                }
                None => self.failed(source),
            },
        }
    }

    fn failed<T>(&self, source: git2::Error) -> Result<T, Error> {
        let path = self.path.clone();
        Err(match denied(&path) {
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
        // A repository has to allow its program a filter; we need no leave.
        let program = if request.only_filtered { None } else { self.upload_pack()? };
        let opened = match program {
            Some(reader) => Opened::new(reader, &self.name, &self.options, &BTreeSet::new()).await,
            None => return self.fetch_in_place(request, sink).await,
        };
        match opened {
            Ok(opened) => opened.fetch(&self.name, &self.options, request, sink).await,
            // It said nothing at all: git before 2.38 takes no leave from us to read what another user owns.
            Err(Error::Cut { .. }) => self.fetch_in_place(request, sink).await,
            Err(error) => Err(error),
        }
    }

    async fn fetch_in_place(
        &self,
        request: &Request,
        sink: &mut (dyn AsyncWrite + Unpin + Send),
    ) -> Result<PackResponse, Error> {
        let (sender, mut pieces) = mpsc::channel(PIECES);
        let path = self.path.clone();
        let request = request.clone();
        let making = blocking(move || local_pack::pack(&Store::of(open(&path)?), &request, &sender));
        let handing_on = async {
            let mut bytes = 0u64;
            while let Some(piece) = pieces.recv().await {
                let piece: bytes::Bytes = piece;
                bytes += piece.len() as u64;
                let limit = self.options.max_fetch_bytes;
                if bytes > limit {
                    return Err(Error::TooMuch { remote: self.name.clone(), budget: Budget::Pack, limit });
                }
                let written = sink.write_all(&piece).await;
                written.map_err(|source| Error::Sink { remote: self.name.clone(), source })?;
            }
            let flushed = sink.flush().await;
            flushed.map_err(|source| Error::Sink { remote: self.name.clone(), source })?;
            Ok(bytes)
        };
        // The thread ends by itself when the channel closes, be it by an error here or by our future being dropped.
        let making = async { making.await.or_else(|source| self.failed(source)) };
        let (answer, bytes) = tokio::try_join!(making, handing_on)?;
        Ok(PackResponse { bytes, ..answer })
    }
}

/// Runs it on a thread that may block. A panic there becomes an error here.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, git2::Error> + Send + 'static,
) -> Result<T, git2::Error> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(git2::Error::from_str(&error.to_string())))
}

/// Opens the repository that the path names as git would: the directory itself, its `.git`, or with `.git` appended.
fn open(path: &Path) -> Result<Repository, git2::Error> {
    any_owner();
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

/// That this user may not read what is there, where that is so: libgit2 finds no repository then, and git says the same.
fn denied(path: &Path) -> Option<std::io::Error> {
    let mut longer = path.as_os_str().to_owned();
    longer.push(".git");
    let places = [path.to_owned(), path.join(".git"), PathBuf::from(longer)];
    let heads = places.iter().map(|place| std::fs::File::open(place.join("HEAD")));
    heads.filter_map(Result::err).find(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// libgit2 refuses repositories that another user owns, as git does before it runs what their configuration names. We
/// run nothing of them, and a volume is rarely owned by the uid that reads it.
fn any_owner() {
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

/// Of each ref the best candidate alone is looked at.
fn look_up(path: &Path, asked: &[Ref], mut found: FoundRefs) -> Result<FoundRefs, git2::Error> {
    let store = Store::of(open(path)?);
    for asked in asked {
        look_up_one(&store, asked, &mut found)?;
    }
    Ok(found)
}

fn look_up_one(store: &Store, asked: &Ref, found: &mut FoundRefs) -> Result<(), git2::Error> {
    for name in asked.candidates() {
        let reference = match store.repository().find_reference(&name) {
            Ok(reference) => reference,
            Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::InvalidSpec) => continue,
            Err(error) => return Err(error),
        };
        let id = match reference.resolve() {
            Ok(direct) => direct.target(),
            // HEAD of an empty repository names a branch that does not exist yet.
            Err(error) if error.code() == ErrorCode::NotFound => None,
            Err(error) => return Err(error),
        };
        let Some(id) = id else { continue };
        // Kinds come from headers: authors chose how large the objects are.
        let reader = store.reader()?;
        let object = to_object_id(id);
        let mut peeled = object;
        let mut kind = reader.kind(&peeled).map_err(local_pack::lack)?;
        let is_tag = kind == ObjectType::Tag;
        for _ in 0..TAGS_MAX {
            if kind != ObjectType::Tag {
                break;
            }
            peeled = reader.target(&peeled).map_err(local_pack::lack)?;
            kind = reader.kind(&peeled).map_err(local_pack::lack)?;
        }
        found.insert(&name, object, is_tag.then_some(peeled));
        return Ok(());
    }
    Ok(())
}
