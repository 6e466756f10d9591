//! The touch file and the error file (`--touch-file`, `--error-file`). They may be on a file system that hangs, which
//! must not block the loop: file operations run detached and are waited for at most [`detached_io::DEFAULT_TIMEOUT`].

use super::Options;
use super::error::Error;
use crate::detached_io;
use crate::human::one_line;
use crate::store::OperatorFile;
use crate::telemetry;

/// The consecutive failures, and the limit if they reached it.
#[derive(Clone, Copy, Default)]
pub(super) struct FailureCount {
    pub(super) failures: u32,
    pub(super) given_up_at: Option<u32>,
}

/// Touches the touch file. Returns one line for each failure.
pub(super) async fn touch(file: Option<&OperatorFile>) -> Vec<String> {
    run_detached(file, |file| io_failure("cannot touch", file, file.touch()).into_iter().collect()).await
}

/// Writes the error file after a failure, or removes it after a success. On the first attempt it also removes temporary
/// files of earlier processes next to it. Returns one line for each failure.
pub(super) async fn write(
    options: &Options,
    error: Option<&Error>,
    count: FailureCount,
    is_first: bool,
) -> Vec<String> {
    let error = error.map(|error| error_text(error, options, count));
    let work = move |file: &OperatorFile| {
        let swept = is_first.then(|| io_failure("cannot sweep beside", file, file.sweep()));
        let written = match error {
            Some(error) => io_failure("cannot write", file, file.write(error.as_bytes())),
            None => io_failure("cannot remove", file, file.remove()),
        };
        swept.flatten().into_iter().chain(written).collect()
    };
    run_detached(options.error_file.as_ref(), work).await
}

/// Runs file operations on a detached thread, for at most [`detached_io::DEFAULT_TIMEOUT`].
async fn run_detached(
    file: Option<&OperatorFile>,
    work: impl FnOnce(&OperatorFile) -> Vec<String> + Send + 'static,
) -> Vec<String> {
    let Some(file) = file else { return Vec::new() };
    let own = file.clone();
    let work = detached_io::run(file.path(), move || work(&own));
    match tokio::time::timeout(detached_io::DEFAULT_TIMEOUT, work).await {
        Ok(Some(failures)) => failures,
        Ok(None) | Err(_) => {
            vec![format!("cannot reach {}: {}", file.path().display(), detached_io::timeout_error())]
        }
    }
}

fn io_failure(act: &str, file: &OperatorFile, result: std::io::Result<()>) -> Option<String> {
    result.err().map(|error| format!("{act} {}: {error}", file.path().display()))
}

/// The content of the error file, in git-sync's words, which programs that read the file may compare.
fn error_text(error: &Error, options: &Options, count: FailureCount) -> String {
    let mut arguments = serde_json::Map::new();
    arguments.insert("failCount".to_owned(), count.failures.into());
    if let Some(limit) = count.given_up_at {
        arguments.insert("maxFailures".to_owned(), limit.into());
    }
    arguments.insert("ref".to_owned(), options.ref_name.clone().into());
    arguments.insert("hints".to_owned(), error.hints().into());
    let message = match count.given_up_at {
        Some(_) => "too many failures, aborting",
        None => "error syncing repo, will retry",
    };
    telemetry::error_file(message, &one_line(error), &arguments)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::store::Layout;

    #[tokio::test]
    async fn a_file_that_hangs_is_named_and_keeps_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let file = OperatorFile::new(dir.path(), &Layout::Kubelet, Path::new("..touched")).unwrap();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let hung = run_detached(Some(&file), move |_| {
            let _ = ended.recv();
            Vec::new()
        });
        let said = hung.await;
        assert!(said.len() == 1 && said[0].contains("touched: no answer within 5s"), "{said:?}");
        end.send(()).unwrap();
        assert_eq!(touch(Some(&file)).await, Vec::<String>::new());
        assert!(file.path().exists());
    }
}
