//! Classic BPF for system calls: a search tree over their numbers, not a chain.
//!
//! The kernel runs a new filter over every number when it is installed, so that most calls need not be filtered later.
//! With a chain of comparisons that took a third of an exec.

use std::collections::BTreeMap;

/// `BPF_LD | BPF_W | BPF_ABS`.
const LOAD: u16 = 0x20;
/// `BPF_JMP | BPF_JA`.
const JUMP: u16 = 0x05;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
const IF_EQUAL: u16 = 0x15;
/// `BPF_JMP | BPF_JGE | BPF_K`.
const IF_NOT_LESS: u16 = 0x35;
/// `BPF_ALU | BPF_AND | BPF_K`.
const AND: u16 = 0x54;
/// `BPF_RET | BPF_K`.
const RETURN: u16 = 0x06;

/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;

pub(super) const ALLOW: u32 = 0x7fff_0000;
pub(super) const ERRNO: u32 = 0x0005_0000;
pub(super) const ASK: u32 = 0x7fc0_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

#[cfg(target_arch = "x86_64")]
pub(super) const OURS: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
pub(super) const OURS: u32 = 0xC000_00B7;

/// How a call that a test decides ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It goes on.
    Allow,
    /// It ends with this errno.
    Errno(i32),
    /// It ends with EPERM and is on record: whoever listens gives that answer. Where nobody ever did, the filter does.
    Note,
}

impl Answer {
    fn code(self, listened: bool) -> u32 {
        match self {
            Answer::Allow => ALLOW,
            Answer::Errno(errno) => ERRNO | errno as u32,
            Answer::Note if listened => ASK,
            Answer::Note => ERRNO | libc::EPERM as u32,
        }
    }
}

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Always the same.
    Always(Answer),
    /// The first test that holds decides, else it goes on.
    Argument(Vec<Test>),
}

/// If the low 32 bits (or, with `high`, the others) of an argument, masked, are `value` (or, with `unless`, are not), the verdict. The kernel takes only
/// those bits of the arguments that are tested here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Test {
    /// Which argument, from 0.
    pub(super) argument: u32,
    /// Its high half instead of its low one.
    pub(super) high: bool,
    /// Bits that count.
    pub(super) mask: u32,
    /// What they must be.
    pub(super) value: u32,
    /// Or must not be.
    pub(super) unless: bool,
    /// Low bits of another argument that must be so as well: (argument, mask, value).
    pub(super) also: Option<(u32, u32, u32)>,
    /// How it ends then.
    pub(super) then: Answer,
}

/// One instruction, as `struct sock_filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    code: u16,
    yes: u8,
    no: u8,
    value: u32,
}

const fn plain(code: u16, value: u32) -> Step {
    Step {
        code,
        yes: 0,
        no: 0,
        value,
    }
}

/// The program: `verdicts` by number, `otherwise` for all other numbers, death for another architecture.
/// `listened`: somebody will have the filter's listener.
pub(super) fn program(
    verdicts: &BTreeMap<u32, Verdict>,
    otherwise: &Verdict,
    listened: bool,
) -> Vec<Step> {
    let mut steps = vec![
        plain(LOAD, ARCHITECTURE),
        Step {
            code: IF_EQUAL,
            yes: 1,
            no: 0,
            value: OURS,
        },
        plain(RETURN, KILL_PROCESS),
        plain(LOAD, NUMBER),
    ];
    steps.extend(tree(&ranges(verdicts, otherwise), listened));
    steps
}

/// As bytes, native order.
pub(super) fn bytes(steps: &[Step]) -> Vec<u8> {
    let words = steps.iter().flat_map(|step| {
        let mut word = [0u8; 8];
        word[..2].copy_from_slice(&step.code.to_ne_bytes());
        word[2] = step.yes;
        word[3] = step.no;
        word[4..].copy_from_slice(&step.value.to_ne_bytes());
        word
    });
    words.collect()
}

/// (first number, verdict) of each run of numbers with the same verdict, from 0 to the last there can be.
fn ranges<'a>(
    verdicts: &'a BTreeMap<u32, Verdict>,
    otherwise: &'a Verdict,
) -> Vec<(u32, &'a Verdict)> {
    let mut found: Vec<(u32, &Verdict)> = Vec::new();
    let mut add = |start, verdict| {
        if found.last().is_none_or(|(_, last)| *last != verdict) {
            found.push((start, verdict));
        }
    };
    let mut next = 0;
    for (number, verdict) in verdicts {
        if *number > next {
            add(next, otherwise);
        }
        add(*number, verdict);
        next = number + 1;
    }
    add(next, otherwise);
    found
}

fn tree(ranges: &[(u32, &Verdict)], listened: bool) -> Vec<Step> {
    let [(_, verdict)] = ranges else {
        let middle = ranges.len() / 2;
        let (low, high) = (
            tree(&ranges[..middle], listened),
            tree(&ranges[middle..], listened),
        );
        let value = ranges[middle].0;
        let mut steps = match u8::try_from(low.len()) {
            Ok(yes) => vec![Step {
                code: IF_NOT_LESS,
                yes,
                no: 0,
                value,
            }],
            Err(_) => vec![
                Step {
                    code: IF_NOT_LESS,
                    yes: 0,
                    no: 1,
                    value,
                },
                plain(JUMP, low.len() as u32),
            ],
        };
        steps.extend(low);
        steps.extend(high);
        return steps;
    };
    match verdict {
        Verdict::Argument(tests) => tests
            .iter()
            .flat_map(|each| test(each, listened))
            .chain([plain(RETURN, ALLOW)])
            .collect(),
        Verdict::Always(answer) => vec![plain(RETURN, answer.code(listened))],
    }
}

fn test(test: &Test, listened: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    if let Some((argument, mask, value)) = test.also {
        steps.extend([
            plain(LOAD, ARGUMENTS + 8 * argument),
            plain(AND, mask),
            Step {
                code: IF_EQUAL,
                yes: 0,
                no: 4,
                value,
            },
        ]);
    }
    steps.extend([
        plain(
            LOAD,
            ARGUMENTS + 8 * test.argument + 4 * u32::from(test.high),
        ),
        plain(AND, test.mask),
        Step {
            code: IF_EQUAL,
            yes: u8::from(test.unless),
            no: u8::from(!test.unless),
            value: test.value,
        },
        plain(RETURN, test.then.code(listened)),
    ]);
    steps
}

/// What the kernel would do with a call; for tests.
#[cfg(test)]
pub(super) fn outcome(steps: &[Step], architecture: u32, number: u32, arguments: [u32; 6]) -> u32 {
    outcome_of_wide(steps, architecture, number, arguments.map(u64::from))
}

/// The same, with all bits of the arguments.
#[cfg(test)]
pub(super) fn outcome_of_wide(
    steps: &[Step],
    architecture: u32,
    number: u32,
    arguments: [u64; 6],
) -> u32 {
    let (mut at, mut register) = (0, 0);
    loop {
        let step = steps[at];
        at += 1;
        let jump = |yes: bool| usize::from(if yes { step.yes } else { step.no });
        match step.code {
            LOAD => {
                register = match step.value {
                    NUMBER => number,
                    ARCHITECTURE => architecture,
                    offset => {
                        let argument = arguments[((offset - ARGUMENTS) / 8) as usize];
                        (argument >> (offset % 8 * 8)) as u32
                    }
                }
            }
            AND => register &= step.value,
            JUMP => at += step.value as usize,
            IF_EQUAL => at += jump(register == step.value),
            IF_NOT_LESS => at += jump(register >= step.value),
            RETURN => return step.value,
            other => panic!("no such step: {other:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(verdict: &Verdict) -> u32 {
        match verdict {
            Verdict::Always(answer) => answer.code(true),
            Verdict::Argument(_) => ALLOW,
        }
    }

    /// Every number gets its own verdict, those in between and beyond get the other, whatever the shape of the tree.
    #[test]
    fn numbers_find_their_verdict() {
        for gap in [1, 2, 3, 7] {
            let verdicts: BTreeMap<u32, Verdict> = (0..400)
                .map(|at| {
                    (
                        at * gap,
                        if at % 3 == 0 {
                            Verdict::Always(Answer::Note)
                        } else {
                            Verdict::Always(Answer::Allow)
                        },
                    )
                })
                .collect();
            let steps = program(&verdicts, &Verdict::Always(Answer::Errno(38)), true);
            for number in (0..3000).chain([0x4000_0001, u32::MAX]) {
                let wanted = verdicts.get(&number).map_or(ERRNO | 38, said);
                assert_eq!(
                    outcome(&steps, OURS, number, [0; 6]),
                    wanted,
                    "{number}, gap {gap}"
                );
            }
        }
    }

    /// Another architecture's numbers mean something else: death.
    #[test]
    fn other_architectures_die() {
        let steps = {
            let allow = Verdict::Always(Answer::Allow);
            program(&BTreeMap::from([(1, allow.clone())]), &allow, true)
        };
        assert_eq!(outcome(&steps, 0x4000_0003, 1, [0; 6]), KILL_PROCESS);
    }

    /// Tests of arguments are made in order, on the masked bits.
    #[test]
    fn arguments_are_tested_in_order() {
        let of = |mask, value, then| Test {
            argument: 1,
            high: false,
            mask,
            value,
            unless: false,
            also: None,
            then,
        };
        let unless = Test {
            unless: true,
            ..of(0xF0, 0, Answer::Errno(2))
        };
        let both = Test {
            also: Some((0, 0xFF, 9)),
            ..of(!0, 0x21, Answer::Note)
        };
        let verdict = Verdict::Argument(vec![
            both,
            of(!0, 7, Answer::Allow),
            of(0xF, 7, Answer::Errno(1)),
            unless,
        ]);
        let steps = program(
            &BTreeMap::from([(5, verdict)]),
            &Verdict::Always(Answer::Errno(38)),
            true,
        );
        let with = |value| outcome(&steps, OURS, 5, [7, value, 7, 7, 7, 7]);
        assert_eq!([with(7), with(0x17), with(8)], [ALLOW, ERRNO | 1, ALLOW]);
        assert_eq!(with(0x18), ERRNO | 2);
        let both = |first| outcome(&steps, OURS, 5, [first, 0x21, 7, 7, 7, 7]);
        assert_eq!([both(9), both(0x109), both(8)], [ASK, ASK, ERRNO | 2]);
    }
}
