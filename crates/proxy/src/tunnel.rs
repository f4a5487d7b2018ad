//! A WebSocket after its handshake: bytes both ways, counted.

use std::io;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::body::Meter;

const PART: usize = 32 * 1024;

/// Copies until both sides have ended, one has failed, or a meter says no. `out` counts what the first sends.
///
/// # Errors
/// What ended it early.
pub async fn run(first: OnUpgrade, second: OnUpgrade, out: Meter, back: Meter) -> io::Result<()> {
    let (first, second) = tokio::try_join!(first, second).map_err(io::Error::other)?;
    let (first_reads, first_writes) = tokio::io::split(TokioIo::new(first));
    let (second_reads, second_writes) = tokio::io::split(TokioIo::new(second));
    tokio::try_join!(
        copy(first_reads, second_writes, &out),
        copy(second_reads, first_writes, &back)
    )?;
    Ok(())
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    meter: &Meter,
) -> io::Result<()> {
    let mut buffer = vec![0; PART];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return to.shutdown().await;
        }
        if !meter(count as u64) {
            return Err(io::Error::other("the endpoint's bytes are used up"));
        }
        to.write_all(&buffer[..count]).await?;
        to.flush().await?;
    }
}
