//! What we answer to a server's own messages: its host key is checked, its disconnect message is recorded, and every
//! channel that it wants to open is refused.

use russh::client::{ChannelOpenHandle, DisconnectReason, Handler, Msg, Session};
use russh::keys::PublicKeyOrCertificate;
use russh::{Channel, Disconnect};

use super::known_hosts::HostKeys;
use super::{DisconnectMessage, Error};

/// Checks the host key, and records the server's disconnect message.
pub(super) struct Verifier {
    pub(super) hosts: Option<HostKeys>,
    pub(super) disconnect: DisconnectMessage,
}

/// Why a session ended: we rejected the host key, or the protocol failed.
#[derive(Debug)]
pub(super) enum SessionError {
    HostKey(Box<Error>),
    Protocol(russh::Error),
}

impl From<russh::Error> for SessionError {
    fn from(error: russh::Error) -> Self {
        Self::Protocol(error)
    }
}

/// By default russh accepts the channels that a server opens, and holds each until the server closes it, so that a
/// server could use up our memory. Dropping the reply refuses the channel.
impl Handler for Verifier {
    type Error = SessionError;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> Result<bool, SessionError> {
        if let Some(hosts) = &self.hosts {
            hosts.check(shown).map_err(|error| SessionError::HostKey(Box::new(error)))?;
        }
        Ok(true)
    }

    async fn disconnected(&mut self, reason: DisconnectReason<SessionError>) -> Result<(), SessionError> {
        match reason {
            DisconnectReason::ReceivedDisconnect(words) => {
                self.disconnect.set(is_refusal(&words.reason_code), &words.message);
            }
            DisconnectReason::Error(SessionError::Protocol(error)) => {
                self.disconnect.set(matches!(error, russh::Error::NoAuthMethod), &error.to_string());
            }
            DisconnectReason::Error(SessionError::HostKey(_)) => {}
        }
        Ok(())
    }

    async fn server_channel_open_session(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        Ok(())
    }

    async fn server_channel_open_direct_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        Ok(())
    }

    async fn server_channel_open_direct_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        Ok(())
    }

    async fn server_channel_open_forwarded_tcpip(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        Ok(())
    }

    async fn server_channel_open_forwarded_streamlocal(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        Ok(())
    }

    async fn server_channel_open_agent_forward(
        &mut self,
        _: Channel<Msg>,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        Ok(())
    }

    async fn server_channel_open_x11(
        &mut self,
        _: Channel<Msg>,
        _: &str,
        _: u32,
        _: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), SessionError> {
        Ok(())
    }
}

/// Returns true if a server disconnects with this reason in order to refuse the client, and not because it is too busy
/// or ends. OpenSSH sends `ProtocolError` after too many rejected keys.
fn is_refusal(reason: &Disconnect) -> bool {
    matches!(
        reason,
        Disconnect::HostNotAllowedToConnect
            | Disconnect::ProtocolError
            | Disconnect::AuthCancelledByUser
            | Disconnect::NoMoreAuthMethodsAvailable
            | Disconnect::IllegalUserName
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use russh::keys::PrivateKey;
    use russh::keys::ssh_key::private::Ed25519Keypair;
    use russh::{ChannelOpenFailure, client, server};

    use super::*;

    /// A server that lets anyone in.
    struct Open;

    impl server::Handler for Open {
        type Error = russh::Error;

        async fn auth_none(&mut self, _: &str) -> Result<server::Auth, russh::Error> {
            Ok(server::Auth::Accept)
        }
    }

    #[tokio::test]
    async fn every_channel_that_a_server_opens_is_refused() {
        let key = PrivateKey::from(Ed25519Keypair::from_seed(&[7; 32]));
        let config = Arc::new(server::Config { keys: vec![key], ..Default::default() });
        let verifier = Verifier { hosts: None, disconnect: DisconnectMessage::default() };
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let (running, connected) = tokio::join!(
            server::run_stream(config, theirs, Open),
            client::connect_stream(Arc::default(), ours, verifier),
        );
        let (running, mut connected) = (running.unwrap(), connected.unwrap());
        assert!(connected.authenticate_none("git").await.unwrap().success());
        let server = running.handle();
        let opened = [
            server.channel_open_session().await.map(drop),
            server.channel_open_direct_tcpip("host", 1, "host", 2).await.map(drop),
            server.channel_open_direct_streamlocal("/socket").await.map(drop),
            server.channel_open_forwarded_tcpip("host", 1, "host", 2).await.map(drop),
            server.channel_open_forwarded_streamlocal("/socket").await.map(drop),
            server.channel_open_agent().await.map(drop),
            server.channel_open_x11("host", 1).await.map(drop),
        ];
        for (at, opened) in opened.into_iter().enumerate() {
            let refused = ChannelOpenFailure::AdministrativelyProhibited;
            assert!(
                matches!(&opened, Err(russh::Error::ChannelOpenFailure(reason)) if *reason == refused),
                "{at}: {opened:?}"
            );
        }
    }
}
