"""Reads the spans of an OTLP/HTTP request (opentelemetry-proto, trace/v1/trace.proto) by their wire format."""
import base64
import struct
from typing import Any


def fields(data: bytes) -> list[tuple[int, Any]]:
    """The fields of one message: (number, value)."""
    found: list[tuple[int, Any]] = []
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(data):
        key = varint()
        number, wire = key >> 3, key & 7
        value: Any
        if wire == 0:
            value = varint()
        elif wire in (1, 2, 5):
            length = varint() if wire == 2 else 8 if wire == 1 else 4
            value = data[place:place + length]
            if len(value) != length:
                raise ValueError('truncated protobuf')
            place += length
        else:
            raise ValueError(f'wire type {wire}')
        found.append((number, value))
    return found


def value_of(data: bytes) -> Any:
    """An `AnyValue`."""
    for number, value in fields(data):
        if number == 1:
            return value.decode()
        if number == 2:
            return bool(value)
        if number == 3:
            return value - (1 << 64) if value >> 63 else value
        if number == 4:
            return struct.unpack('<d', value)[0]
        if number == 5:
            return [value_of(item) for _, item in fields(value)]
        if number == 6:
            return attributes([(9, item) for _, item in fields(value)], 9)
        if number == 7:
            return base64.b64encode(value).decode()
    return None


def attributes(message: list[tuple[int, Any]], wanted: int) -> dict[str, Any]:
    found = {}
    for number, value in message:
        if number == wanted:
            pair = dict(fields(value))
            found[pair.get(1, b'').decode()] = value_of(pair.get(2, b''))
    return found


def spans_of(body: bytes) -> list[dict]:
    spans = []
    for number, resource_spans in fields(body):
        if number != 1:
            continue
        of_resource = fields(resource_spans)
        resource: dict = {}
        for inner, value in of_resource:
            if inner == 1:
                resource = attributes(fields(value), 1)
        for inner, scope_spans in of_resource:
            if inner == 2:
                spans += [span(message, resource) for kind, message in fields(scope_spans) if kind == 2]
    return spans


def span(data: bytes, resource: dict) -> dict:
    message = fields(data)
    one = dict(message)
    status = dict(fields(one.get(15, b'')))
    begin, end = (int.from_bytes(one.get(number, b''), 'little') for number in (7, 8))
    return {
        'resource': resource, 'trace': one.get(1, b'').hex(), 'id': one.get(2, b'').hex(),
        'parent': one.get(4, b'').hex(), 'name': one.get(5, b'').decode(), 'kind': one.get(6, 0),
        'nanoseconds': end - begin, 'attributes': attributes(message, 9), 'status': status.get(3, 0),
        'message': status.get(2, b'').decode(), 'events': sum(1 for number, _ in message if number == 11),
    }
