//! The image tools that may be run, each as the one form of its command line. Pure.
//!
//! The edge builds the words; nothing but what a template allows is ever executed with the runtime's rights.

use std::path::{Component, Path};

use dsec_session::plan::Step;
use serde_bytes::ByteBuf;

/// What one or more words of a command line may be.
enum Word {
    /// This word.
    Is(&'static str),
    /// This word, or nothing.
    May(&'static str),
    /// These words in this order, or nothing; the last is any absolute path.
    MayFile(&'static str),
    /// Any number of words of this form.
    Any(&'static str, Value),
    /// A word that begins so and goes on as the value says.
    Has(&'static str, Value),
    /// The rest of the words.
    Rest(Value),
}

/// What stands after a word's beginning.
#[derive(Clone, Copy)]
enum Value {
    /// Letters, digits and `_.,/:@*+-`, never `..`.
    Plain,
    /// A path below the data directory.
    Own,
    /// The interpreter that dsec itself runs in.
    Python,
    /// Such a path and `:image`.
    Layout,
    /// Where an image comes from.
    Source,
    /// An apt option: `NAME "VALUE"` without anything that could end it early.
    AptOption,
    /// One of the changes that are made to the default image.
    Hook,
}

use Value::{AptOption, Hook, Layout, Own, Plain, Python, Source};
use Word::{Any, Has, Is, May, MayFile, Rest};

/// Whose changes become a layer.
pub const SNAPSHOT: &str = "--snapshot";

const HOOKS: [&str; 3] = [
    r#"rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap""#,
    r#"sed -i -E 's/^([^:]*:[^:]*:)[0-9]+:/\1DAY:/' "$1/etc/shadow""#,
    r#"rm -f "$1"/etc/*- "$1"/var/log/*.log "$1/var/log/apt/"*"#,
];

const TEMPLATES: [&[Word]; 5] = [
    &[
        Is("skopeo"),
        Is("--debug"),
        Is("--tmpdir"),
        Has("", Own),
        May("--insecure-policy"),
        Is("copy"),
        Is("--quiet"),
        Is("--remove-signatures"),
        Is("--dest-oci-accept-uncompressed-layers"),
        MayFile("--src-authfile"),
        May("--src-tls-verify=false"),
        Has("", Source),
        Has("oci:", Layout),
    ],
    &[
        Has("", Python),
        Is("-P"),
        Is("-m"),
        Is("dsec.layering"),
        Has("", Own),
    ],
    &[
        Has("", Python),
        Is("-P"),
        Is("-m"),
        Is("dsec.layering.packing"),
        Has("", Own),
        Is(SNAPSHOT),
        Has("sn-", Plain),
    ],
    &[Is("apt-config"), Is("dump")],
    &[
        Is("env"),
        Is("LC_ALL=C.UTF-8"),
        Is("mmdebstrap"),
        Is("--variant=minbase"),
        Is("--format=tar"),
        Has("--include=", Plain),
        Any("--dpkgopt=path-exclude=/usr/share/", Plain),
        Any("--dpkgopt=path-include=/usr/share/", Plain),
        Any("--aptopt=", AptOption),
        Any("--customize-hook=", Hook),
        Has("", Plain),
        Has("", Own),
        Rest(Own),
    ],
];

/// What a node allows its tools.
pub struct Bounds<'a> {
    /// Below it lies all that they read and write.
    pub data: &'a Path,
    /// The interpreter of dsec's own tool.
    pub python: Option<&'a str>,
}

const CAP_DAC_READ_SEARCH: u64 = 1 << 2;
/// They make a whole Debian, with its own programs, in a root of its own.
const PRIVILEGED: [&[u8]; 2] = [b"env", b"apt-config"];

/// What a tool gives up before it is executed: what reads archives and registries has root's files and nothing else of it.
#[must_use]
pub fn privileges(argv: &[ByteBuf]) -> Vec<Step> {
    if argv
        .first()
        .is_some_and(|word| PRIVILEGED.contains(&word.as_slice()))
    {
        return Vec::new();
    }
    // Credentials of a registry may lie in another user's home.
    let keep = CAP_DAC_READ_SEARCH;
    vec![Step::Caps { keep }, Step::NoNewPrivs]
}

/// Whether a command line is one of the tools with paths below the data directory only.
#[must_use]
pub fn allows(argv: &[&str], bounds: &Bounds) -> bool {
    TEMPLATES
        .iter()
        .any(|template| fits(template, argv, bounds).is_some())
}

fn fits(template: &[Word], argv: &[&str], bounds: &Bounds) -> Option<()> {
    let mut left = argv;
    for word in template {
        left = take(word, left, bounds)?;
    }
    left.is_empty().then_some(())
}

/// What is left of the words after those that this one stands for.
fn take<'a, 'b>(word: &Word, argv: &'a [&'b str], bounds: &Bounds) -> Option<&'a [&'b str]> {
    let first = argv.first().copied();
    match word {
        Is(text) => (first? == *text).then(|| &argv[1..]),
        May(text) => Some(if first? == *text { &argv[1..] } else { argv }),
        MayFile(text) => {
            if first? != *text {
                return Some(argv);
            }
            plain_path(argv.get(1)?).then(|| &argv[2..])
        }
        Has(start, value) => good(first?.strip_prefix(start)?, *value, bounds).then(|| &argv[1..]),
        Any(start, value) => {
            let fitting = |text: &&&str| {
                text.strip_prefix(start)
                    .is_some_and(|rest| good(rest, *value, bounds))
            };
            Some(&argv[argv.iter().take_while(fitting).count()..])
        }
        Rest(value) => argv
            .iter()
            .all(|text| good(text, *value, bounds))
            .then_some(&[]),
    }
}

fn good(text: &str, value: Value, bounds: &Bounds) -> bool {
    match value {
        Plain => plain(text),
        Own => own(text, bounds.data),
        Python => bounds.python == Some(text),
        Layout => text
            .strip_suffix(":image")
            .is_some_and(|path| own(path, bounds.data)),
        Source => source(text, bounds.data),
        AptOption => !text.contains(['\n', ';', '{', '}', '\\']) && text.matches('"').count() == 2,
        Hook => HOOKS.iter().any(|hook| hook_is(hook, text)),
    }
}

fn number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn plain(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.,/:@*+-".contains(&byte);
    !text.is_empty() && !text.starts_with('-') && !text.contains("..") && text.bytes().all(allowed)
}

fn plain_path(text: &str) -> bool {
    let parts = |part| matches!(part, Component::RootDir | Component::Normal(_));
    text.starts_with('/') && Path::new(text).components().all(parts)
}

fn own(text: &str, data: &Path) -> bool {
    plain_path(text) && Path::new(text).starts_with(data) && !text.contains(':')
}

fn source(text: &str, data: &Path) -> bool {
    if let Some(name) = text.strip_prefix("docker://") {
        return plain(name);
    }
    let Some(archive) = text.strip_prefix("docker-archive:") else {
        return false;
    };
    let (path, selector) = archive.split_once(':').unwrap_or((archive, ""));
    own(path, data) && (selector.is_empty() || plain(selector))
}

/// Whether the text is this hook, `DAY` standing for a number.
fn hook_is(hook: &str, text: &str) -> bool {
    let Some((before, after)) = hook.split_once("DAY") else {
        return hook == text;
    };
    text.strip_prefix(before)
        .and_then(|rest| rest.strip_suffix(after))
        .is_some_and(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(line: &str) -> bool {
        let argv: Vec<&str> = line.split(' ').collect();
        allows(&argv, &bounds())
    }

    fn bounds() -> Bounds<'static> {
        Bounds {
            data: Path::new("/data"),
            python: Some("/opt/dsec/bin/python3"),
        }
    }

    /// What reads others' bytes keeps one capability, and gets none by executing something; who makes a Debian keeps all.
    #[test]
    fn what_they_give_up() {
        let given_up = |program: &str| privileges(&[ByteBuf::from(program.as_bytes().to_vec())]);
        for program in ["skopeo", "/opt/dsec/bin/python3"] {
            let steps = given_up(program);
            assert!(
                matches!(steps[..], [Step::Caps { keep: 4 }, Step::NoNewPrivs]),
                "{program}"
            );
        }
        assert!(given_up("env").is_empty() && given_up("apt-config").is_empty());
    }

    /// Each tool's own form passes, with and without its optional words.
    #[test]
    fn the_tools_are_allowed() {
        let copy = "--quiet --remove-signatures --dest-oci-accept-uncompressed-layers";
        for line in [
            &format!("skopeo --debug --tmpdir /data/s copy {copy} docker://r.io/a/b:1 oci:/data/s/l:image"),
            &format!("skopeo --debug --tmpdir /data/s --insecure-policy copy {copy} --src-authfile /etc/auth --src-tls-verify=false docker-archive:/data/x.tar:a/b:1 oci:/data/s/l:image"),
            "/opt/dsec/bin/python3 -P -m dsec.layering /data/layers/.new-1",
            "/opt/dsec/bin/python3 -P -m dsec.layering.packing /data/layers/.new-1 --snapshot sn-local-abc",
            "apt-config dump",
            "env LC_ALL=C.UTF-8 mmdebstrap --variant=minbase --format=tar --include=git,gcc bookworm /data/root.tar",
        ] {
            assert!(allowed(line), "{line}");
        }
    }

    /// Other programs, other options, paths elsewhere and sources of other kinds are not.
    #[test]
    fn nothing_else_is() {
        for line in [
            "sh -c id",
            "apt-config",
            "apt-config dump more",
            "/opt/dsec/bin/python3 -P -m dsec.layering /etc",
            "/opt/dsec/bin/python3 -P -m dsec.layering /data/../etc",
            "/opt/dsec/bin/python3 -P -m dsec.layering /data/l more",
            "/opt/dsec/bin/python3 -P -m dsec.layering.packing /data/l --snapshot",
            "/opt/dsec/bin/python3 -P -m dsec.layering.packing /data/l --snapshot sb-local-abc",
            "/opt/dsec/bin/python3 -P -m dsec.layering.packing /data/l --snapshot sn-local-abc more",
            "/opt/dsec/bin/python3 -P -m dsec.layering /data/l --snapshot sn-local-abc",
            "/opt/dsec/bin/python3 -P -m dsec.edge /data/l",
            "/opt/dsec/bin/python3 -m dsec.layering /data/l",
            "/tmp/python3 -P -m dsec.layering /data/l",
            "prlimit --fsize=9 zstd -d -q --memory=256MB -o /data/a /data/b",
            "skopeo --debug --tmpdir /data/s copy --quiet --remove-signatures --dest-oci-accept-uncompressed-layers dir:/etc oci:/data/l:image",
            "env LC_ALL=C.UTF-8 mmdebstrap --variant=minbase --format=tar --include=a --customize-hook=id bookworm /data/r",
        ] {
            assert!(!allowed(line), "{line}");
        }
    }

    /// Hooks are known word for word; an apt option cannot begin another.
    #[test]
    fn hooks_and_options_are_whole_words() {
        assert!(good(&HOOKS[1].replace("DAY", "19723"), Hook, &bounds()));
        assert!(!good(&HOOKS[1].replace("DAY", "1; id"), Hook, &bounds()));
        assert!(good("Acquire::Retries \"3\"", AptOption, &bounds()));
        assert!(!good("Acquire::Retries \"3\"; X \"y", AptOption, &bounds()));
    }
}
