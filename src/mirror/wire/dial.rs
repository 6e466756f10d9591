//! Connects over TCP, for the transports without a library that does: ssh and git://.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum DialError {
    /// The time is up.
    Late,
    /// The name has no address, or the last address did not accept.
    Failed(io::Error),
}

/// Connects to the first address that accepts. Each address gets an equal share of the remaining time, so that one that
/// drops packets does not use up all of it.
pub(super) async fn dial(host: &str, port: u16, within: Duration) -> Result<TcpStream, DialError> {
    let deadline = Instant::now() + within;
    let addresses = timeout_at(deadline, tokio::net::lookup_host((host, port))).await;
    let addresses = addresses.map_err(|_| DialError::Late)?.map_err(DialError::Failed)?;
    connect_first(&addresses.collect::<Vec<_>>(), deadline).await
}

async fn connect_first(addresses: &[SocketAddr], deadline: Instant) -> Result<TcpStream, DialError> {
    let mut last = DialError::Failed(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    for (tried, address) in addresses.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let share = left / u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
        match timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(source)) => last = DialError::Failed(source),
            Err(_) => last = DialError::Late,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Socket, Type};

    use super::*;

    #[tokio::test]
    async fn an_address_that_drops_packets_leaves_time_for_the_next_one() {
        let silent = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        silent.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        silent.listen(0).unwrap();
        let silent_at = silent.local_addr().unwrap().as_socket().unwrap();
        let mut queue = Vec::new();
        while let Ok(connected) = timeout(Duration::from_millis(500), TcpStream::connect(silent_at)).await {
            queue.push(connected.unwrap()); // until it is full
        }
        let good = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good_at = good.local_addr().unwrap();
        let connected = connect_first(&[silent_at, good_at], Instant::now() + Duration::from_secs(2)).await;
        assert_eq!(connected.unwrap().peer_addr().unwrap(), good_at);
        let late = connect_first(&[silent_at], Instant::now() + Duration::from_millis(50)).await;
        assert!(matches!(late, Err(DialError::Late)), "{late:?}");
    }
}
