//! Receives a pack: the connection's bytes go to the indexing child process, and both results become one.

use std::path::Path;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufWriter};
use tokio::process::ChildStdin;

use crate::mirror::error::Error;
use crate::mirror::index_limiter::IndexLimiter;
use crate::mirror::indexer::{Indexer, Job, ObjectTable, Report, Task, within};
use crate::mirror::wire::{self, PackResponse, Request};
use crate::mirror::{Mirror, Options};
use crate::revision::ObjectId;

/// Buffer size in bytes between the connection and the child process.
const CHUNK: usize = 64 << 10;

/// The remote's answer, the pack's name and, if it is large, the table of its objects.
type ReceivedPack = (PackResponse, String, Option<ObjectTable>);

impl Mirror {
    /// Receives one pack of at most `max_bytes` into the repository `dir`.
    pub(in crate::mirror) async fn receive_into(
        &mut self,
        dir: &Path,
        max_bytes: u64,
        request: &Request,
        task: Task,
    ) -> Result<ReceivedPack, Error> {
        let job = Job::new(&self.options, dir, task, max_bytes);
        if let Some(index_limiter) = self.index_limiter.clone() {
            return self.receive_in_turn(&index_limiter, request, job).await;
        }
        let options = &self.options;
        let client = &mut self.client;
        let feed = move |stdin: BufWriter<ChildStdin>| async move {
            client.fetch(request, &mut options.received.counting(stdin)).await
        };
        index(options, request, job, feed).await
    }

    /// Receives one pack while other mirrors may be fetching: the child process is started only when [`IndexLimiter`]
    /// admits it.
    async fn receive_in_turn(
        &mut self,
        index_limiter: &IndexLimiter,
        request: &Request,
        job: Job,
    ) -> Result<ReceivedPack, Error> {
        // A request without haves asks for the whole repository, which is likely a large pack. Its turn is taken before
        // the request is sent, because otherwise the server would have to wait in the middle of the pack.
        let is_whole = request.haves.is_empty();
        let early_turn = if is_whole { Some(index_limiter.large().await) } else { None };
        let (pack, mut incoming) = tokio::io::duplex(CHUNK);
        let mut pack = self.options.received.counting(pack);
        let client = &mut self.client;
        // Dropping `pack` at the end of the fetch signals end of file to the reader.
        let mut fetch = Box::pin(async move { client.fetch(request, &mut pack).await });
        let mut beginning = Vec::new();
        let mut buffered = (&mut incoming).take(IndexLimiter::BUFFERED as u64);
        let (answer, _) = run_alongside(&mut fetch, buffered.read_to_end(&mut beginning)).await;
        let answer = answer.transpose().map_err(|error| with_wanted(request.wants[0], error))?;
        let _turn = match (early_turn, &answer) {
            (Some(turn), _) => turn,
            (None, Some(_)) => index_limiter.small().await,
            (None, None) => index_limiter.large().await,
        };
        let feed = move |mut stdin: BufWriter<ChildStdin>| async move {
            let forwarded = async move {
                // If the child stops reading, its report says why.
                let _ = forward(&beginning, &mut incoming, &mut stdin).await;
            };
            let rest = async {
                match answer {
                    Some(answer) => Ok(answer),
                    None => fetch.await,
                }
            };
            tokio::join!(rest, forwarded).0
        };
        index(&self.options, request, job, feed).await
    }
}

/// Starts the child process of a job. `feed` gets its standard input, writes the pack there, and returns the remote's
/// answer.
async fn index<F: Future<Output = Result<PackResponse, wire::Error>>>(
    options: &Options,
    request: &Request,
    job: Job,
    feed: impl FnOnce(BufWriter<ChildStdin>) -> F,
) -> Result<ReceivedPack, Error> {
    // The client gives the remote as long. A child that takes longer to begin or to end is killed.
    let limit = options.wire.timeouts.overall;
    let task = job.task.phrase();
    let started = Indexer::start(options.indexer.clone(), job, &request.wants);
    let (mut indexer, stdin) = within(limit, task, started).await?;
    let (answer, (report, table)) = {
        let mut report = Box::pin(indexer.report());
        let answer = Box::pin(feed(stdin));
        tokio::select! {
            // `select` has dropped the standard input then, which signals end of file to the child.
            answer = answer => (Some(answer), within(limit, task, report).await?),
            report = &mut report => (None, report?), // the child ended first
        }
    };
    match (answer, report) {
        (Some(Ok(answer)), Report::Complete { pack }) => Ok((answer, pack, table)),
        // The stream failed, and the child only saw the end of its input.
        (Some(Err(error)), Report::Cut | Report::Complete { .. }) => {
            Err(with_wanted(request.wants[0], error))
        }
        // The child failed first, so the stream's pipe was closed.
        (_, report) => Err(indexer.failure(report)),
    }
}

/// Writes `beginning`, then everything from `from`. Not `tokio::io::copy`, which flushes whenever it has to wait.
async fn forward(
    beginning: &[u8],
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<()> {
    to.write_all(beginning).await?;
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk).await? {
            0 => return to.flush().await,
            bytes => to.write_all(&chunk[..bytes]).await?,
        }
    }
}

/// Waits for `second` while also polling `first`. Returns the output of `first` if it completed before `second`.
async fn run_alongside<A, B>(
    first: impl Future<Output = A> + Unpin,
    second: impl Future<Output = B>,
) -> (Option<A>, B) {
    let mut second = std::pin::pin!(second);
    tokio::select! {
        biased;
        ended = first => (Some(ended), second.await),
        ended = &mut second => (None, ended),
    }
}

/// Adds the wanted object to an error of the remote: no object of the answer was received that could identify it.
fn with_wanted(wanted: ObjectId, error: wire::Error) -> Error {
    match error {
        wire::Error::Remote { .. } | wire::Error::Cut { .. } | wire::Error::Local { .. } => {
            Error::Unsent { wanted, source: Box::new(error) }
        }
        error => error.into(),
    }
}
