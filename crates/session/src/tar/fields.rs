//! Fields of headers: numbers, texts, PAX records.

use super::{malformed, BLOCK, MOST_PARTS};
use crate::failing::Fault;

/// The field up to its first NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// An octal number, or GNU's base-256 form. Negative ones are refused, but for times.
pub(super) fn number(field: &[u8]) -> Result<i64, Fault> {
    let bad = || malformed("a number");
    if field[0] & 0x80 != 0 {
        let negative = field[0] & 0x40 != 0;
        let mut value: i64 = if negative { -1 } else { 0 };
        for (at, byte) in field.iter().enumerate() {
            let byte = if at == 0 && !negative {
                byte & 0x7f
            } else {
                *byte
            };
            if !(i64::MIN >> 8..=i64::MAX >> 8).contains(&value) {
                return Err(bad());
            }
            value = value << 8 | i64::from(byte);
        }
        return Ok(value);
    }
    let digits = text(field).trim_ascii();
    if digits.is_empty() {
        return Ok(0);
    }
    let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
    if digits.starts_with('+') || digits.starts_with('-') {
        return Err(bad());
    }
    i64::from_str_radix(digits, 8).map_err(|_| bad())
}

pub(super) fn positive(field: &[u8]) -> Result<u64, Fault> {
    u64::try_from(number(field)?).map_err(|_| malformed("a negative number"))
}

/// A decimal number of a PAX record.
pub(super) fn decimal(value: &[u8]) -> Result<u64, Fault> {
    let bad = || malformed("a number of an extended header");
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(bad());
    }
    let text = std::str::from_utf8(value).map_err(|_| bad())?;
    let number: u64 = text.parse().map_err(|_| bad())?;
    i64::try_from(number).map_err(|_| bad())?;
    Ok(number)
}

/// Whole seconds of a PAX time.
pub(super) fn seconds(value: &[u8]) -> Result<i64, Fault> {
    let whole = value.split(|byte| *byte == b'.').next().unwrap_or_default();
    let (negative, digits) = match whole.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, whole),
    };
    let number = i64::try_from(decimal(digits)?).map_err(|_| malformed("a time"))?;
    Ok(if negative { -number } else { number })
}

/// A key and its value.
pub(super) type Record<'a> = (&'a [u8], &'a [u8]);

/// Records `LENGTH KEY=VALUE\n`; a value may hold any byte.
pub(super) fn records(mut body: &[u8]) -> Result<Vec<Record<'_>>, Fault> {
    let bad = || malformed("an extended header");
    let mut found = Vec::new();
    while body.first().is_some_and(|byte| *byte != 0) {
        let space = body
            .iter()
            .take(20)
            .position(|byte| *byte == b' ')
            .ok_or_else(bad)?;
        let length = usize::try_from(decimal(&body[..space])?).map_err(|_| bad())?;
        if length <= space + 2 || length > body.len() || body[length - 1] != b'\n' {
            return Err(bad());
        }
        let record = &body[space + 1..length - 1];
        let equals = record
            .iter()
            .position(|byte| *byte == b'=')
            .ok_or_else(bad)?;
        found.push((&record[..equals], &record[equals + 1..]));
        body = &body[length..];
    }
    Ok(found)
}

/// Refuse a map whose parts overlap, pass the end, or differ from the bytes stored.
pub(super) fn check_map(parts: &[(u64, u64)], stored: u64, size: u64) -> Result<(), Fault> {
    let bad = || malformed("a sparse map");
    if parts.len() > MOST_PARTS {
        return Err(bad());
    }
    let (mut at, mut total) = (0_u64, 0_u64);
    for (offset, length) in parts {
        let end = offset.checked_add(*length).ok_or_else(bad)?;
        if *offset < at || end > size {
            return Err(bad());
        }
        at = end;
        total += length;
    }
    if total == stored {
        Ok(())
    } else {
        Err(bad())
    }
}

/// Sum of a header's bytes, its own field counted as blanks.
pub(super) fn checksum(header: &[u8; BLOCK]) -> u32 {
    let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    sum(&header[..148]) + 8 * 32 + sum(&header[156..])
}

#[cfg(test)]
mod tests {
    use super::{check_map, number, records, seconds};

    /// Octal, base 256 of both signs, blanks; nothing else.
    #[test]
    fn reads_numbers() {
        assert_eq!(number(b"0000644\0").ok(), Some(0o644));
        assert_eq!(number(b" 17 \0\0\0\0").ok(), Some(0o17));
        assert_eq!(number(b"\0\0\0").ok(), Some(0));
        assert_eq!(number(b"\x80\0\0\0\0\0\0\0\0\0\x02\0").ok(), Some(512));
        assert_eq!(number(&[0xff; 12]).ok(), Some(-1));
        for bad in [&b"99"[..], b"-1", b"1 1", &[0xbf; 12], b"x"] {
            assert!(number(bad).is_err(), "{bad:?}");
        }
    }

    /// Records give their values back whole, line ends included; what does not fit its length is refused.
    #[test]
    fn reads_records() {
        let found = records(b"8 a=b\nc\n12 path=x=y\n\0\0").expect("records");
        assert_eq!(found, [(&b"a"[..], &b"b\nc"[..]), (b"path", b"x=y")]);
        for bad in [
            &b"9 a=b\n"[..],
            b"5 ab\n",
            b"x a=b\n",
            b"6 a=bc",
            b"1 a=b\n",
        ] {
            assert!(records(bad).is_err(), "{bad:?}");
        }
    }

    /// Fractions are dropped, times before 1970 are times.
    #[test]
    fn reads_times() {
        assert_eq!(seconds(b"1500000000.25").ok(), Some(1_500_000_000));
        assert_eq!(seconds(b"-5.5").ok(), Some(-5));
        assert!(seconds(b"").is_err() && seconds(b"1e9").is_err());
    }

    /// Parts lie in order within the file and hold what is stored.
    #[test]
    fn checks_maps() {
        assert!(check_map(&[(0, 5), (10, 5)], 10, 20).is_ok());
        for (parts, stored) in [
            (&[(0, 5), (4, 5)][..], 10),
            (&[(18, 5)], 5),
            (&[(0, 5)], 4),
            (&[(u64::MAX, 2)], 2),
        ] {
            assert!(check_map(parts, stored, 20).is_err(), "{parts:?}");
        }
    }
}
