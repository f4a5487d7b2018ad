//! The two sides of an exec's descriptors: pipes or a terminal here, what the program is given there.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use dsec_proto::runtime::ExecSpec;

use super::{Exec, Stdin};
use crate::check;
use crate::keeper::Parcel;
use crate::kernel::sys;
use crate::node::Node;
use crate::session;

/// The descriptor at which a script comes that is too long for an argument.
const SCRIPT: i32 = 9;

/// What travels with the plan.
pub struct Ends {
    /// (descriptor, number in the program).
    pub given: Vec<(u16, i32)>,
    /// Those of them that belong to the user.
    pub owned: Vec<u16>,
    /// What the keeper holds for the exec.
    pub held: Vec<u16>,
}

/// Makes the pipes of an exec and packs what the program and the keeper get of them.
///
/// # Errors
/// When one cannot be made.
pub fn pack(
    node: &Node,
    exec: &Exec,
    spec: &ExecSpec,
    parcel: &mut Parcel,
) -> std::io::Result<Ends> {
    let mut ends = Ends {
        given: Vec::new(),
        owned: Vec::new(),
        held: Vec::new(),
    };
    if spec.pty.is_some() {
        relay(exec, parcel, &mut ends)?;
    } else {
        pipes(node, exec, spec, parcel, &mut ends)?;
    }
    if exec.tag.borrow().session {
        for (fd, number) in session::given(node, exec, spec)? {
            let index = parcel.give(fd);
            ends.owned.push(index);
            ends.given.push((index, number));
        }
    }
    let session = exec.session.borrow().clone();
    if let Some(session) = &session {
        ends.held
            .extend(session.held().iter().map(|fd| parcel.lend(fd)));
    }
    if let Some(script) = &spec.script {
        let file = sys::sealed("script", script)?;
        ends.given.push((parcel.give(file), SCRIPT));
    }
    Ok(ends)
}

fn pipes(
    node: &Node,
    exec: &Exec,
    spec: &ExecSpec,
    parcel: &mut Parcel,
    ends: &mut Ends,
) -> std::io::Result<()> {
    let start = node.config.range(exec.sandbox.tag.borrow().slot);
    let (uid, gid) = check::known_user(&spec.user).unwrap_or((0, 0));
    let give = |fd: &OwnedFd| sys::chown(fd, start + uid, start + gid);
    let last = if spec.merge_stderr { 1 } else { 2 };
    for (stream, number) in exec.streams.iter().zip(1..=last) {
        let (reader, writer) = sys::pipe(0)?;
        give(&writer)?;
        sys::nonblocking(&reader)?;
        let reader = Rc::new(reader);
        ends.held.push(parcel.lend(reader.as_ref()));
        stream.pipe.replace(Some(reader));
        let index = parcel.give(writer);
        ends.owned.push(index);
        ends.given.push((index, number));
        if spec.merge_stderr {
            // One open file for both: the order of the writes is the order of the bytes.
            ends.given.push((index, 2));
        }
    }
    if spec.stdin {
        let (reader, writer) = sys::pipe(0)?;
        give(&reader)?;
        sys::nonblocking(&writer)?;
        let record = node.config.output().join(&exec.sandbox.id).join(&exec.id);
        let stdin = Stdin::new(writer, &record)?;
        exec.stdin.replace(Some(Rc::new(stdin)));
        let index = parcel.give(reader);
        ends.owned.push(index);
        ends.given.push((index, 0));
    }
    Ok(())
}

/// A terminal comes later, from inside; its output goes through a pipe that the keeper holds both ends of, so that what has
/// left the terminal is never in this process alone.
fn relay(exec: &Exec, parcel: &mut Parcel, ends: &mut Ends) -> std::io::Result<()> {
    let (reader, writer) = sys::pipe(libc::O_NONBLOCK)?;
    let (reader, writer) = (Rc::new(reader), Rc::new(writer));
    ends.held.push(parcel.lend(reader.as_ref()));
    ends.held.push(parcel.lend(writer.as_ref()));
    exec.streams[0].pipe.replace(Some(reader));
    exec.relay.replace(Some(writer));
    Ok(())
}
