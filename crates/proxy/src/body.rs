//! Bodies on their way: counted, bounded in time, never held.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};

/// Counts bytes; `false` when they may not pass.
pub type Meter = Rc<dyn Fn(u64) -> bool>;

/// What follows a head.
pub enum Body {
    /// The proxy's own words.
    Text(Option<Bytes>),
    /// The other side's bytes.
    Passing(Passing),
}

/// A body that is passed on as it comes.
pub struct Passing {
    from: Incoming,
    meter: Meter,
    patience: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl Body {
    /// Passes `from` on. An error when nothing comes for `patience`, or when the meter says no.
    #[must_use]
    pub fn passing(from: Incoming, meter: Meter, patience: Duration) -> Self {
        Self::Passing(Passing {
            from,
            meter,
            patience,
            deadline: Box::pin(tokio::time::sleep(patience)),
        })
    }

    /// None at all.
    #[must_use]
    pub fn empty() -> Self {
        Self::Text(None)
    }
}

impl Passing {
    fn next(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match Pin::new(&mut self.from).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                self.deadline.as_mut().reset(Instant::now() + self.patience);
                let Some(data) = frame.data_ref() else {
                    return Poll::Ready(None); // trailers belong to the connection
                };
                if (self.meter)(data.len() as u64) {
                    Poll::Ready(Some(Ok(frame)))
                } else {
                    Poll::Ready(Some(Err(io::Error::other(
                        "the endpoint's bytes are used up",
                    ))))
                }
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(io::Error::other(error)))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => match self.deadline.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Some(Err(io::ErrorKind::TimedOut.into()))),
                Poll::Pending => Poll::Pending,
            },
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Passing(passing) => passing.next(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_none(),
            Self::Passing(passing) => passing.from.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
            Self::Passing(passing) => passing.from.size_hint(),
        }
    }
}
