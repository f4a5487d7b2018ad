//! Members of an archive that comes through a pipe.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::fields::{check_map, checksum, decimal, number, positive, records, seconds, text};
use super::{malformed, padding, Kind, Member, BLOCK, MOST_NAME, MOST_PARTS};
use crate::draft::PERMISSIONS;
use crate::failing::Fault;
use crate::file_calls::plain;
use crate::pipe_io::read_some;

const BUFFER: usize = 512 * 1024;
const MOST_EXTENDED: u64 = 1 << 20;

/// Reads one archive. After each member all of its data must have been taken.
pub(crate) struct Reader<'a> {
    input: BorrowedFd<'a>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Data of the present member that is still to come, and the padding after it.
    left: u64,
    padding: usize,
}

/// What extended headers say of the next member.
#[derive(Default)]
struct Extended {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<i64>,
    sparse_major: Option<u64>,
    sparse_name: Option<Vec<u8>>,
    real_size: Option<u64>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(input: &'a impl AsFd) -> Self {
        Self {
            input: input.as_fd(),
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            left: 0,
            padding: 0,
        }
    }

    /// The next member; `None` at the archive's end mark. An archive without one is cut short.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, Fault> {
        while self.left > 0 {
            self.data()?;
        }
        self.take(self.padding)?;
        self.padding = 0;
        let mut extended = Extended::default();
        loop {
            let header = self.block()?;
            if header.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            if positive(&header[148..156])? != u64::from(checksum(&header)) {
                return Err(malformed("a header is damaged"));
            }
            let stored = positive(&header[124..136])?;
            match header[156] {
                b'x' => extended.take(&self.extended(stored)?)?,
                b'g' => drop(self.extended(stored)?),
                b'L' => extended.name = Some(text(&self.extended(stored)?).to_vec()),
                b'K' => extended.link = Some(text(&self.extended(stored)?).to_vec()),
                kind => return self.member(&header, kind, extended).map(Some),
            }
        }
    }

    /// Some of the present member's data, at most all that is left of it; empty at its end.
    pub(crate) fn data(&mut self) -> Result<&[u8], Fault> {
        if self.left == 0 {
            return Ok(&[]);
        }
        if self.start == self.end {
            self.fill()?;
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let length = most.min(self.end - self.start);
        let part = &self.buffer[self.start..self.start + length];
        self.start += length;
        self.left -= length as u64;
        Ok(part)
    }

    /// At most `most` bytes of it.
    pub(crate) fn data_up_to(&mut self, most: u64) -> Result<&[u8], Fault> {
        let rest = self.left.saturating_sub(most);
        self.left -= rest;
        let outcome = self.data().map(<[u8]>::len);
        self.left += rest;
        let length = outcome?;
        Ok(&self.buffer[self.start - length..self.start])
    }

    /// Take what comes after the end mark, so that the sender is not cut off.
    pub(crate) fn drain(&mut self) -> Result<(), Fault> {
        self.start = self.end;
        while read_some(self.input, &mut self.buffer).map_err(plain)? > 0 {}
        Ok(())
    }

    fn fill(&mut self) -> Result<(), Fault> {
        self.start = 0;
        self.end = read_some(self.input, &mut self.buffer).map_err(plain)?;
        if self.end == 0 {
            return Err(Fault::with(Errno::NODATA, "the archive is cut short"));
        }
        Ok(())
    }

    fn take(&mut self, count: usize) -> Result<Vec<u8>, Fault> {
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            if self.start == self.end {
                self.fill()?;
            }
            let length = (count - taken.len()).min(self.end - self.start);
            taken.extend(&self.buffer[self.start..self.start + length]);
            self.start += length;
        }
        Ok(taken)
    }

    fn block(&mut self) -> Result<[u8; BLOCK], Fault> {
        let taken = self.take(BLOCK)?;
        taken.try_into().map_err(|_| malformed("a header"))
    }

    fn extended(&mut self, stored: u64) -> Result<Vec<u8>, Fault> {
        if stored > MOST_EXTENDED {
            return Err(malformed("an extended header is longer than 1 MiB"));
        }
        let body = self.take(stored as usize)?;
        self.take(padding(stored))?;
        Ok(body)
    }

    fn member(
        &mut self,
        header: &[u8; BLOCK],
        kind: u8,
        extended: Extended,
    ) -> Result<Member, Fault> {
        let mut stored = match extended.size {
            Some(size) => size,
            None => positive(&header[124..136])?,
        };
        let mut member = plain_member(header, kind, &extended)?;
        if member.kind != Kind::File {
            // No data follows links, directories and devices, whatever their size field says.
            stored = 0;
        }
        self.padding = padding(stored);
        if member.kind == Kind::File && extended.sparse_major.is_some() {
            if extended.sparse_major != Some(1) {
                return Err(malformed("an old form of sparse files: use --format=pax"));
            }
            let (map, taken) = self.map()?;
            stored = stored
                .checked_sub(taken)
                .ok_or_else(|| malformed("a sparse map"))?;
            member.size = extended
                .real_size
                .ok_or_else(|| malformed("a sparse file"))?;
            check_map(&map, stored, member.size)?;
            member.sparse = Some(map);
        } else {
            member.size = stored;
        }
        self.left = stored;
        Ok(member)
    }

    /// The map at the beginning of a sparse member's data, and how long it is there.
    fn map(&mut self) -> Result<(Vec<(u64, u64)>, u64), Fault> {
        let mut numbers: Vec<u64> = Vec::new();
        let mut digits: Vec<u8> = Vec::new();
        let mut taken = 0;
        loop {
            let block = self.block()?;
            taken += BLOCK as u64;
            for byte in block {
                if byte != b'\n' {
                    digits.push(byte);
                    if digits.len() > 20 {
                        return Err(malformed("a sparse map"));
                    }
                    continue;
                }
                numbers.push(decimal(&digits)?);
                digits.clear();
                if numbers[0] > MOST_PARTS as u64 {
                    return Err(malformed("a sparse map of too many parts"));
                }
                if numbers.len() as u64 == 1 + 2 * numbers[0] {
                    let pairs = numbers[1..].chunks_exact(2).map(|pair| (pair[0], pair[1]));
                    return Ok((pairs.collect(), taken));
                }
            }
        }
    }
}

impl Extended {
    fn take(&mut self, body: &[u8]) -> Result<(), Fault> {
        for (key, value) in records(body)? {
            match key {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(decimal(value)?),
                b"uid" => self.uid = Some(decimal(value)?),
                b"gid" => self.gid = Some(decimal(value)?),
                b"mtime" => self.mtime = Some(seconds(value)?),
                b"GNU.sparse.major" => self.sparse_major = Some(decimal(value)?),
                b"GNU.sparse.name" => self.sparse_name = Some(value.to_vec()),
                b"GNU.sparse.realsize" => self.real_size = Some(decimal(value)?),
                b"GNU.sparse.map" | b"GNU.sparse.offset" => self.sparse_major = Some(0),
                _ => {}
            }
        }
        Ok(())
    }
}

fn plain_member(header: &[u8; BLOCK], kind: u8, extended: &Extended) -> Result<Member, Fault> {
    let mut name = text(&header[..100]).to_vec();
    if &header[257..263] == b"ustar\0" && header[345] != 0 {
        name = [text(&header[345..500]), b"/", &name].concat();
    }
    let given = extended.sparse_name.as_ref().or(extended.name.as_ref());
    let name = given.cloned().unwrap_or(name);
    let link = extended.link.clone();
    let link = link.unwrap_or_else(|| text(&header[157..257]).to_vec());
    let bad = |text: &[u8]| text.len() > MOST_NAME || text.contains(&0);
    if name.is_empty() || bad(&name) || bad(&link) {
        return Err(malformed("a name"));
    }
    let id = |given: Option<u64>, field: &[u8]| {
        let value = given.map_or_else(|| positive(field), Ok)?;
        u32::try_from(value).map_err(|_| malformed("an owner"))
    };
    let kind = match kind {
        b'0' | b'\0' | b'7' if name.ends_with(b"/") => Kind::Directory,
        b'0' | b'\0' | b'7' => Kind::File,
        b'1' => Kind::HardLink,
        b'2' => Kind::Link,
        b'3' | b'4' => Kind::Device,
        b'5' => Kind::Directory,
        b'6' => Kind::Fifo,
        b'S' => return Err(malformed("an old form of sparse files: use --format=pax")),
        _ => return Err(malformed("a member of unknown kind")),
    };
    Ok(Member {
        kind,
        name,
        link,
        mode: positive(&header[100..108])? as u32 & PERMISSIONS,
        uid: id(extended.uid, &header[108..116])?,
        gid: id(extended.gid, &header[116..124])?,
        mtime: match extended.mtime {
            Some(mtime) => mtime,
            None => number(&header[136..148])?,
        },
        size: 0,
        sparse: None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{end_mark, header, Kind, Member};
    use super::Reader;
    use std::io::Write;

    fn member(name: &[u8]) -> Member {
        Member {
            kind: Kind::File,
            name: name.to_vec(),
            link: Vec::new(),
            mode: 0o4755,
            uid: 7,
            gid: 0x4000_0000,
            mtime: -3,
            size: 5,
            sparse: None,
        }
    }

    fn archive(members: &[Member], content: &[u8]) -> std::fs::File {
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let mut bytes = Vec::new();
        for member in members {
            bytes.extend(header(member));
            if member.kind == Kind::File {
                bytes.extend(content);
                bytes.resize(bytes.len().div_ceil(512) * 512, 0);
            }
        }
        bytes.extend(end_mark());
        std::thread::spawn(move || std::fs::File::from(writer).write_all(&bytes));
        std::fs::File::from(reader)
    }

    /// What is written is read again: long names, holes, owners and times beyond the fields.
    #[test]
    fn reads_what_is_written() {
        let long = vec![b'n'; 300];
        let mut link = member(b"l");
        (link.kind, link.link, link.size) = (Kind::Link, long.clone(), 0);
        let mut holes = member(&long);
        (holes.size, holes.sparse) = (1 << 40, Some(vec![(4096, 3), (1 << 39, 2)]));
        let mut empty = member(b"d");
        (empty.kind, empty.size) = (Kind::Directory, 0);
        let members = [member(b"a"), link, holes, empty, member(&long)];
        let input = archive(&members, b"hello");
        let mut reader = Reader::new(&input);
        for expected in &members {
            let found = reader.next().expect("well-formed").expect("a member");
            assert_eq!(&found, expected);
            if found.kind == Kind::File {
                assert_eq!(reader.data_up_to(2).expect("data"), b"he");
                assert_eq!(reader.data().expect("data"), b"llo");
            }
            assert!(reader.data().expect("no data").is_empty());
        }
        assert!(reader.next().expect("the end").is_none());
        reader.drain().expect("the rest");
    }

    /// A damaged header and a missing end are errors, not an end.
    #[test]
    fn refuses_damage() {
        for (at, length) in [(0, 1024), (512, 513), (512, 512)] {
            let mut bytes = header(&member(b"a"))[..].to_vec();
            bytes.resize(1024, b'x');
            bytes[at / 2] ^= u8::from(at == 0);
            let (input, writer) = rustix::pipe::pipe().expect("a pipe");
            std::fs::File::from(writer)
                .write_all(&bytes[..length])
                .expect("written");
            let mut reader = Reader::new(&input);
            let outcome = reader.next().and_then(|_| reader.next());
            assert!(outcome.is_err(), "{at} {length}");
        }
    }
}
