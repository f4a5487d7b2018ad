//! Users as `/etc/passwd` and `/etc/group` of an image describe them. The files are hostile input: any bytes
//! are an answer, never a panic.

/// The user found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// User ID inside the sandbox.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Groups, the primary one first.
    pub groups: Vec<u32>,
    /// Home directory; "/" when the file does not say.
    pub home: Vec<u8>,
}

/// Why a user was not found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No such user, or no such group.
    Unknown(String),
    /// A file could not be read.
    Unreadable(String),
}

/// IDs a sandbox has: 0 up to this.
pub const MAX_ID: u32 = 65_535;

struct User<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
    home: &'a [u8],
}

struct Group<'a> {
    name: &'a [u8],
    gid: u32,
    members: &'a [u8],
}

/// Resolve `name`, `uid`, `name:group` or `uid:gid` by Docker's rules: digits are always an ID; an ID needs no
/// entry; supplementary groups are those that list the name, and none when a group is given.
///
/// `group` reads the group file and is called only when it is needed.
///
/// # Errors
/// [`Missing`], with a message for people.
pub fn resolve(
    user: &str,
    passwd: &[u8],
    group: impl FnOnce() -> Result<Vec<u8>, Missing>,
) -> Result<Found, Missing> {
    let (user, wanted_group) = match user.split_once(':') {
        Some((user, wanted)) => (user, Some(wanted).filter(|wanted| !wanted.is_empty())),
        None => (user, None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let (mut found, name) = find_user(user, passwd)?;
    match (wanted_group, name) {
        (Some(wanted), _) => found.gid = find_group(wanted, &group()?)?,
        (None, Some(name)) => add_groups(&mut found.groups, name, &group()?),
        (None, None) => {}
    }
    found.groups.retain(|gid| *gid != found.gid);
    found.groups.insert(0, found.gid);
    Ok(found)
}

fn find_user<'a>(user: &str, passwd: &'a [u8]) -> Result<(Found, Option<&'a [u8]>), Missing> {
    let id = parse_id(user.as_bytes());
    let entry = lines(passwd).filter_map(parse_user).find(|entry| match id {
        Some(id) => entry.uid == id,
        None => entry.name == user.as_bytes(),
    });
    match (entry, id) {
        (Some(entry), _) => {
            let home = if entry.home.is_empty() {
                b"/"
            } else {
                entry.home
            };
            let found = Found {
                uid: allowed(entry.uid, user)?,
                gid: allowed(entry.gid, user)?,
                groups: Vec::new(),
                home: home.to_vec(),
            };
            Ok((found, Some(entry.name)))
        }
        (None, Some(id)) => {
            let found = Found {
                uid: allowed(id, user)?,
                gid: 0,
                groups: Vec::new(),
                home: b"/".to_vec(),
            };
            Ok((found, None))
        }
        (None, None) => Err(Missing::Unknown(format!(
            "there is no user {user:?} in /etc/passwd"
        ))),
    }
}

fn find_group(wanted: &str, file: &[u8]) -> Result<u32, Missing> {
    if let Some(id) = parse_id(wanted.as_bytes()) {
        return allowed(id, wanted);
    }
    let entry = lines(file)
        .filter_map(parse_group)
        .find(|entry| entry.name == wanted.as_bytes());
    match entry {
        Some(entry) => allowed(entry.gid, wanted),
        None => Err(Missing::Unknown(format!(
            "there is no group {wanted:?} in /etc/group"
        ))),
    }
}

fn add_groups(groups: &mut Vec<u32>, name: &[u8], file: &[u8]) {
    /// As many as Linux takes of one process without a word.
    const MOST: usize = 1024;
    for entry in lines(file).filter_map(parse_group) {
        let listed = entry
            .members
            .split(|byte| *byte == b',')
            .any(|member| member == name);
        if listed && entry.gid <= MAX_ID && !groups.contains(&entry.gid) && groups.len() < MOST {
            groups.push(entry.gid);
        }
    }
}

fn allowed(id: u32, whose: &str) -> Result<u32, Missing> {
    if id > MAX_ID {
        let message = format!("{whose:?} has the ID {id}; a sandbox has 0 to {MAX_ID}");
        return Err(Missing::Unknown(message));
    }
    Ok(id)
}

fn lines(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    file.split(|byte| *byte == b'\n')
}

fn parse_user(line: &[u8]) -> Option<User<'_>> {
    let mut fields = line.split(|byte| *byte == b':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    let _password = fields.next()?;
    let uid = parse_id(fields.next()?)?;
    let gid = parse_id(fields.next()?)?;
    let _comment = fields.next();
    let home = fields.next().unwrap_or_default();
    let sound = home.starts_with(b"/") && !home.contains(&0);
    Some(User {
        name,
        uid,
        gid,
        home: if sound { home } else { b"" },
    })
}

fn parse_group(line: &[u8]) -> Option<Group<'_>> {
    let mut fields = line.split(|byte| *byte == b':');
    let name = fields.next().filter(|name| !name.is_empty())?;
    let _password = fields.next()?;
    let gid = parse_id(fields.next()?)?;
    let members = fields.next().unwrap_or_default();
    Some(Group { name, gid, members })
}

/// Digits only; a number too large for an ID is one that no sandbox has.
fn parse_id(field: &[u8]) -> Option<u32> {
    if field.is_empty() || !field.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = field.iter().fold(0_u32, |value, digit| {
        value
            .saturating_mul(10)
            .saturating_add(u32::from(digit - b'0'))
    });
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::{resolve, Found, Missing};

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\n\
        broken line\n\
        \xff\xfe:x:7:7::/x:\n\
        app:x:1000:1001:App,,,:/home/app:/bin/sh\n\
        bare:x:1002:1002\n\
        4711:x:12:12::/digits:/bin/sh\n\
        high:x:70000:0::/:/bin/sh\n\
        odd:x:13:13::relative:/bin/sh";
    const GROUP: &[u8] =
        b"root:x:0:\nstaff:x:50:app,other\naudio:x:29:app\nnobody\nbig:x:99999:app\n";

    fn look_up(user: &str) -> Result<Found, Missing> {
        resolve(user, PASSWD, || Ok(GROUP.to_vec()))
    }

    fn found(uid: u32, groups: &[u32], home: &str) -> Result<Found, Missing> {
        Ok(Found {
            uid,
            gid: groups[0],
            groups: groups.to_vec(),
            home: home.as_bytes().to_vec(),
        })
    }

    /// A name brings its IDs, its home and the groups that list it.
    #[test]
    fn names() {
        assert_eq!(look_up("root"), found(0, &[0], "/root"));
        assert_eq!(look_up("app"), found(1000, &[1001, 50, 29], "/home/app"));
        assert_eq!(look_up("bare"), found(1002, &[1002], "/"));
        assert_eq!(look_up("odd"), found(13, &[13], "/"));
    }

    /// Digits are an ID, whatever is called so, and need no entry.
    #[test]
    fn numbers() {
        assert_eq!(look_up("1000"), found(1000, &[1001, 50, 29], "/home/app"));
        assert_eq!(look_up("4711"), found(4711, &[0], "/"));
        assert_eq!(look_up("4711:20"), found(4711, &[20], "/"));
        assert_eq!(look_up(""), found(0, &[0], "/root"));
    }

    /// A group that is given takes the place of all others.
    #[test]
    fn groups() {
        assert_eq!(look_up("app:audio"), found(1000, &[29], "/home/app"));
        assert_eq!(look_up("app:77"), found(1000, &[77], "/home/app"));
        assert_eq!(look_up("app:"), found(1000, &[1001, 50, 29], "/home/app"));
    }

    /// Unknown names and IDs outside the sandbox are refused by name.
    #[test]
    fn refusals() {
        for user in [
            "nobody",
            "broken line",
            "app:none",
            "high",
            "65536",
            "99999999999",
            "0:65536",
        ] {
            assert!(matches!(look_up(user), Err(Missing::Unknown(_))), "{user}");
        }
    }

    /// The group file is read only when it is needed.
    #[test]
    fn group_file_is_read_when_needed() {
        let unreadable = || Err(Missing::Unreadable("group".to_owned()));
        assert_eq!(resolve("4711", b"", unreadable), found(4711, &[0], "/"));
        assert!(matches!(
            resolve("0:0", b"", unreadable),
            Err(Missing::Unreadable(_))
        ));
    }
}
