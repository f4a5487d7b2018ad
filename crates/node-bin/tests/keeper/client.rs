//! A runtime's end of keeper.sock, for tests: one request at a time, events kept.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use dsec_proto::keeper::{Answer, Call, Ended, Message, Refusal, Request, VERSION};
use dsec_session::plan::Plan;
use rustix::event::{poll, PollFd, PollFlags};
use rustix::fs::{fcntl_add_seals, memfd_create, MemfdFlags, SealFlags};
use rustix::net::{
    connect, recvmsg, sendmsg, socket_with, AddressFamily, RecvAncillaryBuffer,
    RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::time::Timespec;

/// Nothing here takes longer, unless something hangs.
const PATIENCE: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};

pub struct Client {
    pub socket: OwnedFd,
    next: u64,
    ended: VecDeque<(String, Ended)>,
    /// Replies to requests whose turn has not come.
    early: BTreeMap<u64, (Answered, Vec<OwnedFd>)>,
}

pub type Answered = Result<Answer, Refusal>;

impl Client {
    /// Connect without saying hello.
    pub fn dial(socket_path: &Path) -> Self {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .expect("a socket");
        connect(
            &socket,
            &SocketAddrUnix::new(socket_path).expect("an address"),
        )
        .expect("the keeper listens");
        Self {
            socket,
            next: 1,
            ended: VecDeque::new(),
            early: BTreeMap::new(),
        }
    }

    pub fn hello(&mut self, role: &str) -> Answered {
        self.call(Call::Hello {
            version: VERSION,
            role: role.to_owned(),
        })
    }

    pub fn send_raw(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(
            &self.socket,
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        )
        .expect("sent");
    }

    /// Send a request and return its number.
    pub fn ask(&mut self, call: Call, fds: &[BorrowedFd<'_>]) -> u64 {
        let id = self.next;
        self.next += 1;
        let bytes = rmp_serde::to_vec_named(&Request { id, call }).expect("encodes");
        self.send_raw(&bytes, fds);
        id
    }

    /// One message; `None` when the keeper has closed.
    pub fn receive(&self) -> Option<(Message, Vec<OwnedFd>)> {
        let ready = poll(
            &mut [PollFd::new(&self.socket, PollFlags::IN)],
            Some(&PATIENCE),
        )
        .expect("polls");
        assert_eq!(ready, 1, "the keeper is silent");
        let mut buffer = vec![0_u8; 64 * 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        let length = message.map_or(0, |message| message.bytes);
        if length == 0 {
            return None;
        }
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                fds.extend(received);
            }
        }
        Some((
            rmp_serde::from_slice(&buffer[..length]).expect("a message"),
            fds,
        ))
    }

    /// The reply to a request, and its descriptors.
    pub fn reply(&mut self, wanted: u64) -> (Answered, Vec<OwnedFd>) {
        loop {
            if let Some(reply) = self.early.remove(&wanted) {
                return reply;
            }
            match self.receive().expect("the keeper lives") {
                (Message::Reply { id, result }, fds) if id == wanted => return (result, fds),
                (Message::Reply { id, result }, fds) => drop(self.early.insert(id, (result, fds))),
                (Message::Ended { object_id, end }, _) => self.ended.push_back((object_id, end)),
            }
        }
    }

    pub fn call(&mut self, call: Call) -> Answered {
        let id = self.ask(call, &[]);
        self.reply(id).0
    }

    pub fn fetch(&mut self, object_id: &str) -> (Answered, Vec<OwnedFd>) {
        let call = Call::Fetch {
            object_id: object_id.to_owned(),
        };
        let id = self.ask(call, &[]);
        self.reply(id)
    }

    /// Spawn; `held` are positions in `fds`.
    pub fn spawn_holding(
        &mut self,
        object_id: &str,
        plan: Plan,
        fds: &[OwnedFd],
        held: &[u16],
    ) -> Answered {
        let id = self.ask_spawn_holding(object_id, plan, fds, held);
        self.reply(id).0
    }

    fn ask_spawn_holding(
        &mut self,
        object_id: &str,
        plan: Plan,
        fds: &[OwnedFd],
        held: &[u16],
    ) -> u64 {
        let call = Call::Spawn {
            object_id: object_id.to_owned(),
            tag: b"tag".to_vec(),
            plan: Some(Box::new(plan)),
            plan_fd: None,
            held: held.to_vec(),
        };
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        self.ask(call, &borrowed)
    }

    /// Ask for a spawn whose answer comes later.
    pub fn ask_spawn(&mut self, object_id: &str, plan: Plan, fds: &[OwnedFd]) -> u64 {
        self.ask_spawn_holding(object_id, plan, fds, &[])
    }

    pub fn spawn(&mut self, object_id: &str, plan: Plan, fds: &[OwnedFd]) -> Answered {
        self.spawn_holding(object_id, plan, fds, &[])
    }

    /// Spawn by a plan in a memfd, sealed or not.
    pub fn spawn_from_memfd(
        &mut self,
        object_id: &str,
        plan: &Plan,
        fds: &[OwnedFd],
        sealed: bool,
    ) -> Answered {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = memfd_create("plan", flags).expect("a memfd");
        let bytes = rmp_serde::to_vec_named(plan).expect("encodes");
        rustix::io::write(&memfd, &bytes).expect("written");
        if sealed {
            let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW;
            fcntl_add_seals(&memfd, seals).expect("sealed");
        }
        let call = Call::Spawn {
            object_id: object_id.to_owned(),
            tag: vec![],
            plan: None,
            plan_fd: Some(u16::try_from(fds.len()).expect("few")),
            held: vec![],
        };
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().chain([&memfd]).map(AsFd::as_fd).collect();
        let id = self.ask(call, &borrowed);
        self.reply(id).0
    }

    /// The end of an object, waited for.
    pub fn ended(&mut self, object_id: &str) -> Ended {
        loop {
            if let Some(at) = self.ended.iter().position(|(name, _)| name == object_id) {
                return self.ended.remove(at).expect("just found").1;
            }
            match self.receive().expect("the keeper lives") {
                (Message::Ended { object_id, end }, _) => self.ended.push_back((object_id, end)),
                (Message::Reply { id, result }, fds) => drop(self.early.insert(id, (result, fds))),
            }
        }
    }

    pub fn ack(&mut self, object_id: &str) -> Answered {
        self.call(Call::Ack {
            object_ids: vec![object_id.to_owned()],
        })
    }

    pub fn signal(&mut self, object_id: &str, signal: i32, group: bool) -> Answered {
        self.call(Call::Signal {
            object_id: object_id.to_owned(),
            signal,
            group,
        })
    }

    /// IDs of all objects.
    pub fn list(&mut self) -> Vec<dsec_proto::keeper::Object> {
        match self.call(Call::List { after: None }) {
            Ok(Answer::Objects {
                objects,
                more: false,
            }) => objects,
            other => panic!("{other:?}"),
        }
    }
}
