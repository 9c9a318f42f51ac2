//! A reader of logs of its own, after the description of the format: it shares nothing with the one under test.

const BLOCK: usize = 32 * 1024;
const HEADER: usize = 7;

/// A record, and where it ends in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) end: usize,
    pub(crate) bytes: Vec<u8>,
}

/// A field of a message: a number, or what has a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The whole records at the beginning of a log, and where the last one ends.
pub(crate) fn records(log: &[u8]) -> (Vec<Record>, usize) {
    assert!(log.starts_with(b":W&B\xE1\xBE\x00"));
    records_from(log, HEADER)
}

/// The same from the end of a record on.
pub(crate) fn records_from(log: &[u8], begin: usize) -> (Vec<Record>, usize) {
    let (mut at, mut end) = (begin, begin);
    let mut found = Vec::new();
    let mut open: Vec<u8> = Vec::new();
    loop {
        if BLOCK - at % BLOCK < HEADER {
            at += BLOCK - at % BLOCK;
        }
        let Some(header) = log.get(at..at + HEADER) else {
            break;
        };
        let length = usize::from(u16::from_le_bytes([header[4], header[5]]));
        let kind = header[6];
        let Some(data) = log.get(at + HEADER..at + HEADER + length) else {
            break;
        };
        assert!(matches!(kind, 1..=4), "no chunk begins at {at}");
        let checksum = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        assert_eq!(checksum, crc(kind, data), "checksum at {at}");
        at += HEADER + length;
        if matches!(kind, 1 | 2) {
            assert!(open.is_empty(), "a record begins in another at {at}");
        }
        open.extend_from_slice(data);
        if matches!(kind, 1 | 4) {
            // What fills the block is the record's own.
            let left = BLOCK - at % BLOCK;
            end = if left < HEADER { at + left } else { at };
            if end > log.len() {
                break;
            }
            found.push(Record {
                end,
                bytes: std::mem::take(&mut open),
            });
        }
    }
    let last = found.last().map_or(begin, |record| record.end);
    (found, last.min(end))
}

/// CRC-32 of IEEE 802.3, bit by bit.
fn crc(kind: u8, data: &[u8]) -> u32 {
    let step = |mut crc: u32, byte: &u8| {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & 0_u32.wrapping_sub(crc & 1));
        }
        crc
    };
    !data.iter().fold([kind].iter().fold(u32::MAX, step), step)
}

/// The fields of a message of Protocol Buffers.
pub(crate) fn fields(mut message: &[u8]) -> Vec<(u64, Field<'_>)> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let value = match tag & 7 {
            0 => Field::Number(varint(&mut message)),
            2 => {
                let length = usize::try_from(varint(&mut message)).unwrap();
                let (value, rest) = message.split_at(length);
                message = rest;
                Field::Bytes(value)
            }
            other => panic!("no field of these logs has the wire type {other}"),
        };
        found.push((tag >> 3, value));
    }
    found
}

fn varint(message: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = message.split_first().unwrap();
        *message = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return value;
        }
    }
    unreachable!()
}

/// The texts of a field that may be there several times.
pub(crate) fn texts(message: &[u8], number: u64) -> Vec<String> {
    let texts = fields(message)
        .into_iter()
        .filter_map(|(field, value)| match value {
            Field::Bytes(bytes) if field == number => {
                Some(String::from_utf8(bytes.into()).unwrap())
            }
            _ => None,
        });
    texts.collect()
}

impl Record {
    /// The record's message, where it is of the kind that has this number.
    pub(crate) fn of_kind(&self, kind: u64) -> Option<&[u8]> {
        fields(&self.bytes)
            .into_iter()
            .find_map(|(number, value)| match value {
                Field::Bytes(bytes) if number == kind => Some(bytes),
                _ => None,
            })
    }
}

/// The kinds that tests look for.
pub(crate) const HISTORY: u64 = 2;
pub(crate) const ARTIFACT: u64 = 8;
pub(crate) const RUN: u64 = 17;
pub(crate) const EXIT: u64 = 18;
pub(crate) const FINAL: u64 = 20;

/// How many records of a kind there are.
pub(crate) fn count(records: &[Record], kind: u64) -> usize {
    records
        .iter()
        .filter(|record| record.of_kind(kind).is_some())
        .count()
}
