"""Bodies, kept where they are small, and JSON as clients write it."""
import base64
import hashlib
import json
import math
from dataclasses import dataclass
from typing import Any, BinaryIO, Iterator

# A body over this is hashed as it comes, and neither kept nor recorded.
KEPT = 1 << 20
CHUNK = 1 << 18


def base64_md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()


@dataclass
class Blob:
    """A body that was received: its size, its MD5 in base64, and the bytes of a small one."""
    size: int
    md5: str
    body: bytes | None = None

    @classmethod
    def of(cls, data: bytes) -> 'Blob':
        return cls(len(data), base64_md5(data), data)

    def hex_md5(self) -> str:
        return base64.b64decode(self.md5).hex()

    def recorded(self) -> dict:
        facts: dict[str, Any] = {'size': self.size, 'md5': self.md5}
        if self.body is not None:
            facts['body'] = base64.b64encode(self.body).decode()
        return facts

    @classmethod
    def of_record(cls, facts: dict) -> 'Blob':
        body = base64.b64decode(facts['body']) if 'body' in facts else None
        return cls(facts['size'], facts['md5'], body)

    def shown(self) -> dict:
        """As it is compared: with the text, where it is a short one."""
        facts: dict[str, Any] = {'size': self.size, 'md5': self.md5}
        if self.body is not None and len(self.body) <= 20_000:
            try:
                facts['text'] = self.body.decode()
            except UnicodeDecodeError:
                pass
        return facts


def pieces(source: BinaryIO, headers: Any) -> Iterator[bytes]:
    """The body of a request, piece by piece. Raises `ConnectionError` where it ends too early."""
    if 'chunked' in (headers.get('Transfer-Encoding') or '').lower():
        while True:
            line = source.readline()
            if not line:
                raise ConnectionError('the body ends within a chunk')
            left = int(line.split(b';')[0], 16)
            if left == 0:
                while source.readline().strip():
                    pass
                return
            yield from exactly(source, left)
            source.readline()
    else:
        yield from exactly(source, int(headers.get('Content-Length') or 0))


def exactly(source: BinaryIO, left: int) -> Iterator[bytes]:
    while left > 0:
        piece = source.read(min(left, CHUNK))
        if not piece:
            raise ConnectionError(f'the body ends {left} bytes early')
        left -= len(piece)
        yield piece


class Search:
    """Looks for secrets in a body that comes in pieces."""

    def __init__(self, needles: list[bytes]):
        self.needles = [needle for needle in needles if needle]
        self.overlap = max((len(needle) for needle in self.needles), default=1) - 1
        self.tail = b''
        self.found = False

    def feed(self, piece: bytes) -> None:
        if self.found or not self.needles:
            return
        window = self.tail + piece
        self.found = any(needle in window for needle in self.needles)
        self.tail = window[-self.overlap:] if self.overlap else b''


def receive(source: Iterator[bytes], search: Search, spool: BinaryIO | None = None, keep: int = KEPT) -> Blob:
    """Takes a body in. What is over `keep` bytes is hashed alone, and written to `spool` where there is one."""
    digest = hashlib.md5()
    size = 0
    kept: bytearray | None = bytearray()
    for piece in source:
        digest.update(piece)
        size += len(piece)
        search.feed(piece)
        if spool is not None:
            spool.write(piece)
        if kept is not None:
            kept += piece
            if len(kept) > keep:
                kept = None
    md5 = base64.b64encode(digest.digest()).decode()
    return Blob(size, md5, None if kept is None else bytes(kept))


# JSON, in which clients also write NaN and infinities.

def loads(text: str | bytes) -> Any:
    return json.loads(text)


def canonical(value: Any) -> Any:
    """One spelling for each value: 1.0 is 1, keys are in order, and NaN equals NaN."""
    if isinstance(value, float):
        if math.isnan(value):
            return {'$float': 'NaN'}
        if math.isinf(value):
            return {'$float': 'Infinity' if value > 0 else '-Infinity'}
        return int(value) if value == int(value) and abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {key: canonical(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [canonical(item) for item in value]
    return value
