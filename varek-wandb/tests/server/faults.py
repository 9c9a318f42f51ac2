"""Faults: what is done wrong, to which requests, and how often.

A rule is written `on=TARGET,do=ACTION[,skip=N][,times=N|times=inf]`. Rules are looked through in the order in which
they were added, and the first one that is for a request is taken; a rule that is used up is passed over, so several
rules for one target follow each other.

TARGET  any | graphql | file_stream | upload | otlp | a root field of GraphQL (upsertBucket ...) | a kind of upload
        (upload.run, upload.artifact, upload.part, upload.manifest)
ACTION  a status (500, 401, 403, 409, 413 ...); CODE:SECONDS and CODE:date:SECONDS add Retry-After, as seconds or as
            an HTTP date
        drop            close without handling
        drop-after      handle, then close without an answer
        drop-midway     close while the body is on its way (uploads)
        truncate        handle, then half an answer
        slow:SECONDS    handle late
        gqlerr:MESSAGE  200 with `errors`
        expire          403, and that upload URL is worth nothing from here on: a new one must be asked for
        redirect        307 to the same path of the server's second port, which is another origin
        ratelimit:REMAINING:RESET[:LIMIT]  handle, with RateLimit-* headers in the answer
        stopped         handle, and say from here on that the user stopped the run
"""
import math
import re
import threading
import time
from dataclasses import dataclass

PLAIN = re.compile(r'\d{3}(:(date:)?[\d.]+)?')
RATE_LIMIT = re.compile(r'ratelimit:[\d.]+:[\d.]+(:[\d.]+)?')
WORDS = {'drop', 'drop-after', 'drop-midway', 'truncate', 'expire', 'redirect', 'stopped'}


def check_action(action: str) -> None:
    known = (action in WORDS or PLAIN.fullmatch(action) or RATE_LIMIT.fullmatch(action)
             or re.fullmatch(r'slow:[\d.]+', action) or action.startswith('gqlerr:'))
    if not known:
        raise ValueError(f'unknown action {action!r}')


@dataclass
class Rule:
    text: str
    on: str
    do: str
    skip: int
    left: float
    # How many requests the rule was for, those skipped and those after it was used up included.
    seen: int = 0
    # How often it was done.
    done: int = 0

    @classmethod
    def parse(cls, text: str) -> 'Rule':
        fields = dict(part.split('=', 1) for part in text.split(','))
        unknown = set(fields) - {'on', 'do', 'skip', 'times'}
        if unknown or 'do' not in fields:
            raise ValueError(f'not a rule: {text!r}')
        check_action(fields['do'])
        times = fields.get('times', '1')
        left = math.inf if times == 'inf' else int(times)
        return cls(text, fields.get('on', 'any'), fields['do'], int(fields.get('skip', 0)), left)

    def shown(self) -> dict:
        left = 'inf' if self.left == math.inf else int(self.left)
        return {'rule': self.text, 'left': left, 'seen': self.seen, 'done': self.done}


class Faults:
    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self.down_until = 0.0
        self.lock = threading.Lock()

    def add(self, text: str) -> None:
        rule = Rule.parse(text)
        with self.lock:
            self.rules.append(rule)

    def clear(self) -> None:
        with self.lock:
            self.rules.clear()
            self.down_until = 0.0

    def down(self, seconds: float) -> None:
        with self.lock:
            self.down_until = time.monotonic() + seconds

    def shown(self) -> list[dict]:
        with self.lock:
            return [rule.shown() for rule in self.rules]

    def take(self, targets: list[str]) -> str | None:
        """What to do to a request that these targets are for."""
        with self.lock:
            if time.monotonic() < self.down_until:
                return 'drop'
            taken = None
            for rule in self.rules:
                if rule.on not in targets:
                    continue
                rule.seen += 1
                if taken is not None or rule.left <= 0:
                    continue
                if rule.skip > 0:
                    rule.skip -= 1
                    continue
                rule.left -= 1
                rule.done += 1
                taken = rule.do
            return taken
