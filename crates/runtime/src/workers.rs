//! Threads for kernel work that blocks. The node's own thread only ever waits for their answers.

use std::sync::{mpsc, Arc, Mutex};

use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

fn work(jobs: &Mutex<mpsc::Receiver<Job>>) {
    loop {
        let job = jobs.lock().ok().and_then(|jobs| jobs.recv().ok());
        let Some(job) = job else { return };
        job();
    }
}

/// A few threads that are alike.
#[derive(Clone)]
pub struct Workers(mpsc::Sender<Job>);

impl Workers {
    /// Starts `count` threads; each runs `begin` first, which may change the thread's namespaces.
    ///
    /// # Errors
    /// When a thread cannot be made or its beginning fails.
    pub fn start(
        name: &str,
        count: usize,
        begin: impl Fn() -> std::io::Result<()> + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = mpsc::channel::<Job>();
        let receiver = Arc::new(Mutex::new(receiver));
        let begin = Arc::new(begin);
        let (told, outcomes) = mpsc::channel();
        for number in 0..count {
            let (receiver, begin, told) = (Arc::clone(&receiver), Arc::clone(&begin), told.clone());
            std::thread::Builder::new()
                .name(format!("{name}-{number}"))
                .spawn(move || {
                    let begun = begin();
                    let good = begun.is_ok();
                    let _ = told.send(begun);
                    if good {
                        work(&receiver);
                    }
                })?;
        }
        outcomes
            .iter()
            .take(count)
            .collect::<std::io::Result<()>>()?;
        Ok(Self(sender))
    }

    /// Runs something on one of them.
    pub async fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (answer, outcome) = oneshot::channel();
        let job = Box::new(move || {
            let _ = answer.send(job());
        });
        // The threads end only with the process, so that neither of the two can fail.
        let sent = self.0.send(job);
        debug_assert!(sent.is_ok());
        match outcome.await {
            Ok(value) => value,
            Err(_) => std::future::pending().await,
        }
    }
}
