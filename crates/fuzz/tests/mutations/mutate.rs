//! Mutations as fuzzers make them, the same for the same number.

/// Numbers that look random and are the same on every machine (xorshift64*).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, most: usize) -> usize {
        (self.roll() >> 16) as usize % most.max(1)
    }

    fn pick<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.below(all.len())]
    }
}

const BYTES: [u8; 12] = [
    0, 1, 0x7f, 0x80, 0xff, b'\n', b'\r', b' ', b':', b'.', b'/', b'%',
];
/// What means something to some reader.
const WORDS: [&[u8]; 24] = [
    b"\r\n",
    b"\r\n\r\n",
    b"Host: other.test\r\n",
    b"Connection: host\r\n",
    b"Connection: content-length\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Content-Length: 3\r\n",
    b"Upgrade: websocket\r\n",
    b"GET http://other.test/ HTTP/1.1\r\n",
    b" HTTP/1.1\r\n",
    b"SSH-2.0-",
    b"\x16\x03\x01",
    b"\xfe\x0d",
    b"\xc0\x0c",
    b"%2e%2e/",
    b"..",
    b"dsec_port_token=",
    b"tokentokentoken",
    b"\xdd\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"18446744073709551615",
    b"\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\0\0\0\0",
    b"GNU.sparse.major=1\n",
];

/// The mutation of that number.
pub fn mutated(seeds: &[Vec<u8>], number: u64) -> Vec<u8> {
    let mut dice = Dice(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut bytes = seeds[dice.below(seeds.len())].clone();
    for _ in 0..=dice.below(5) {
        let at = dice.below(bytes.len() + 1);
        match dice.below(8) {
            0 | 1 if at < bytes.len() => bytes[at] = BYTES[dice.below(BYTES.len())],
            2 if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            3 => drop(bytes.splice(at..at, dice.pick(&WORDS).iter().copied())),
            4 => {
                let end = (at + 1 + dice.below(16)).min(bytes.len());
                bytes.drain(at..end);
            }
            5 => {
                let end = (at + dice.below(64)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            6 => {
                let other = &seeds[dice.below(seeds.len())];
                let from = dice.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
            _ => bytes.insert(at, dice.roll() as u8),
        }
    }
    bytes
}
