//! A command that runs on the server, as a byte stream.

use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use russh::client::Msg;
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{DisconnectMessage, Error, clean_message};

/// The first so many bytes of the command's standard error are kept for the error message.
const MAX_STDERR: usize = 4096;

/// A running command's standard input and output. Dropping it closes the channel, which ends the command; the session
/// stays open.
pub struct Channel {
    read: ChannelReadHalf,
    write: Option<ChannelWriteHalf<Msg>>,
    writer: Pin<Box<dyn AsyncWrite + Send>>,
    /// Data that was received and not read yet.
    pending: Bytes,
    closed: bool,
    end: End,
}

/// How a command ended, as far as it is known. It outlives the channel.
#[derive(Clone, Debug)]
pub struct End {
    server: String,
    command: String,
    disconnect: DisconnectMessage,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// The server refused to start the command.
    refused: bool,
    /// The session ended before the command did.
    lost: bool,
    /// `Err` describes a non-zero exit status or a signal; `None` until the server reports it.
    status: Option<Result<(), String>>,
    stderr: Vec<u8>,
}

impl Channel {
    pub(super) fn new(
        channel: russh::Channel<Msg>,
        server: String,
        command: String,
        disconnect: DisconnectMessage,
    ) -> Self {
        let (read, write) = channel.split();
        let writer = Box::pin(write.make_writer());
        let end = End { server, command, disconnect, state: Arc::default() };
        Self { read, write: Some(write), writer, pending: Bytes::new(), closed: false, end }
    }

    /// A handle for the command's exit status.
    pub fn end(&self) -> End {
        self.end.clone()
    }

    /// Handles a message of the server; `None` means that the session ended.
    fn handle(&mut self, message: Option<ChannelMsg>) {
        let mut state = self.end.lock();
        match message {
            Some(ChannelMsg::Data { data }) => self.pending = data,
            Some(ChannelMsg::ExtendedData { data, .. }) => {
                let room = MAX_STDERR.saturating_sub(state.stderr.len());
                state.stderr.extend_from_slice(&data[..data.len().min(room)]);
            }
            Some(ChannelMsg::ExitStatus { exit_status: 0 }) => state.status = Some(Ok(())),
            Some(ChannelMsg::ExitStatus { exit_status }) => {
                state.status = Some(Err(format!("exit status {exit_status}")));
            }
            Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                state.status = Some(Err(format!("signal {signal_name:?}")));
            }
            Some(ChannelMsg::Failure) => {
                state.refused = true;
                self.closed = true;
            }
            // The exit status comes between the end of the data and this message.
            Some(ChannelMsg::Close) => self.closed = true,
            None => {
                state.lost = true;
                self.closed = true;
            }
            Some(_) => {}
        }
    }
}

impl AsyncRead for Channel {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.pending.is_empty() && !self.closed {
            // Receiving is cancel-safe, so the future need not live until the next poll.
            let message = ready!(pin!(self.read.wait()).poll(context));
            self.handle(message);
        }
        let part = self.pending.len().min(into.remaining());
        into.put_slice(&self.pending.split_to(part));
        if self.pending.is_empty() && part == 0 && self.end.lock().lost {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, self.end.lost())));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Channel {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.writer.as_mut().poll_write(context, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.as_mut().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.as_mut().poll_shutdown(context)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        let Some(write) = self.write.take().filter(|_| !self.closed) else { return };
        // Without a runtime the session has ended, too.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { write.close().await });
        }
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("end", &self.end).finish_non_exhaustive()
    }
}

impl End {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why the command or the connection failed. `None` if no failure is known; ask after reading to the end.
    pub fn failure(&self) -> Option<Error> {
        let state = self.lock();
        let server = self.server.clone();
        let command = self.command.clone();
        if state.refused {
            return Some(Error::NotRun { server, command });
        }
        match &state.status {
            Some(Ok(())) => None,
            Some(Err(status)) => Some(Error::Command {
                server,
                command,
                status: status.clone(),
                stderr: clean_message(&String::from_utf8_lossy(&state.stderr)),
            }),
            None if state.lost => {
                Some(Error::Broken { step: "the session", server, source: self.disconnect.text().into() })
            }
            None => None,
        }
    }

    fn lost(&self) -> String {
        format!("the ssh connection to {} ended: {}", self.server, self.disconnect.text())
    }
}
