//! Receives a pack: the connection's bytes go to the indexing child process, and both results become one.

use std::path::Path;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::mirror::Mirror;
use crate::mirror::error::Error;
use crate::mirror::index_limiter::IndexLimiter;
use crate::mirror::indexer::{Indexer, Job, ObjectTable, Report, Task, within};
use crate::mirror::wire::{self, PackResponse, Request};
use crate::revision::ObjectId;

/// Buffer size in bytes between the connection and the child process.
const CHUNK: usize = 64 << 10;

impl Mirror {
    /// Receives one pack of at most `max_bytes` into the repository `dir`. Returns the remote's answer, the pack's name
    /// and, if it is large, the table of its objects.
    pub(in crate::mirror) async fn receive_into(
        &mut self,
        dir: &Path,
        max_bytes: u64,
        request: &Request,
        task: Task,
    ) -> Result<(PackResponse, String, Option<ObjectTable>), Error> {
        let job = Job {
            dir: dir.to_owned(),
            task,
            memory: self.options.index_memory,
            max_bytes,
            durable: self.options.durable,
            sandbox: self.options.sandbox,
        };
        if let Some(index_limiter) = self.index_limiter.clone() {
            return self.receive_in_turn(&index_limiter, request, job).await;
        }
        // The client gives the remote as long. A child that takes longer to begin or to end is killed.
        let limit = self.options.wire.timeouts.overall;
        let task = job.task.phrase();
        let started = Indexer::start(self.options.indexer.clone(), job, &request.wants);
        let (mut indexer, stdin) = within(limit, task, started).await?;
        let mut stdin = self.options.received.counting(stdin);
        let (answer, (report, table)) = {
            let mut report = Box::pin(indexer.report());
            let mut fetch = Box::pin(self.client.fetch(request, &mut stdin));
            tokio::select! {
                answer = &mut fetch => {
                    drop(fetch);
                    drop(stdin); // signals end of file to the child
                    (Some(answer), within(limit, task, report).await?)
                }
                report = &mut report => (None, report?),
            }
        };
        received_pack(&indexer, request, answer, report, table)
    }

    /// Receives one pack while other mirrors may be fetching: the child process is started only when [`IndexLimiter`]
    /// admits it.
    async fn receive_in_turn(
        &mut self,
        index_limiter: &IndexLimiter,
        request: &Request,
        job: Job,
    ) -> Result<(PackResponse, String, Option<ObjectTable>), Error> {
        // A request without haves asks for the whole repository, which is likely a large pack. Its turn is taken before
        // the request is sent, because otherwise the server would have to wait in the middle of the pack.
        let is_whole = request.haves.is_empty();
        let early_permit = if is_whole { Some(index_limiter.large().await) } else { None };
        let (pack, mut incoming) = tokio::io::duplex(CHUNK);
        let mut pack = self.options.received.counting(pack);
        let client = &mut self.client;
        // Dropping `pack` at the end of the fetch signals end of file to the reader.
        let mut fetch = Box::pin(async move { client.fetch(request, &mut pack).await });
        let mut beginning = Vec::new();
        let mut buffered = (&mut incoming).take(IndexLimiter::BUFFERED as u64);
        let (answer, _) = run_alongside(&mut fetch, buffered.read_to_end(&mut beginning)).await;
        let _turn = match (early_permit, &answer) {
            (_, Some(Err(_))) => None,
            (None, Some(Ok(_))) => Some(index_limiter.small().await),
            (None, None) => Some(index_limiter.large().await),
            (early_permit, _) => early_permit,
        };
        let answer = match answer {
            Some(Err(error)) => return Err(with_wanted(request.wants[0], error)),
            answer => answer,
        };
        let limit = self.options.wire.timeouts.overall;
        let task = job.task.phrase();
        let started = Indexer::start(self.options.indexer.clone(), job, &request.wants);
        let (mut indexer, mut stdin) = within(limit, task, started).await?;
        let (answer, (report, table)) = {
            let mut report = Box::pin(indexer.report());
            let feed = async move {
                // If the child stops reading, its report says why.
                let _ = forward(&beginning, &mut incoming, &mut stdin).await;
            };
            let rest = async {
                match answer {
                    Some(answer) => answer,
                    None => fetch.await,
                }
            };
            tokio::select! {
                (answer, ()) = async { tokio::join!(rest, feed) } => {
                    (Some(answer), within(limit, task, report).await?)
                }
                report = &mut report => (None, report?),
            }
        };
        received_pack(&indexer, request, answer, report, table)
    }
}

/// Combines the results of the stream and of the child process. `answer` is `None` if the child ended first.
fn received_pack(
    indexer: &Indexer,
    request: &Request,
    answer: Option<Result<PackResponse, wire::Error>>,
    report: Report,
    table: Option<ObjectTable>,
) -> Result<(PackResponse, String, Option<ObjectTable>), Error> {
    match (answer, report) {
        (Some(Ok(answer)), Report::Complete { pack, .. }) => Ok((answer, pack, table)),
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
