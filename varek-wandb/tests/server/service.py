"""The HTTP side: reads requests, applies faults, watches for secrets, answers, and records."""
import base64
import email.utils
import gzip
import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import sys
import tempfile
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from content import Blob, Search, pieces, receive
from faults import Faults
from graphql import Document, GraphQlError
from judge import normalize, replay, stop
from schema import INPUTS, MAX_REQUEST
from state import Context, State

OTLP_PATHS = ('/otel/v1/traces', '/traces/otel/v1/traces', '/agents/otel/v1/traces')
# Manifests are read by the server, so they are kept whole.
MANIFEST_KEPT = 256 << 20


class Service:
    """What the two ports of a server share."""

    def __init__(self, options: Any):
        self.options = options
        self.lock = threading.Lock()
        self.record_lock = threading.Lock()
        self.sequence = 0
        self.faults = Faults()
        self.keys: set[str] = {options.api_key} if options.api_key else set()
        self.expired: set[str] = set()
        # (path, digest of the body) -> when it may come again, after an answer with Retry-After.
        self.not_before: dict[tuple[str, str], float] = {}
        self.scheme = 'https' if options.cert else 'http'
        self.other_origin = ''
        self.spools = tempfile.mkdtemp(prefix='parts-', dir=os.path.dirname(os.path.abspath(options.record)))
        if options.keep and os.path.exists(options.record):
            self.state = replay(options.record)[0]
        else:
            self.state = State(options.entity, options.min_part)
            if os.path.exists(options.record):
                os.remove(options.record)
        self.record = open(options.record, 'a', encoding='utf-8')
        for rule in options.fault:
            self.faults.add(rule)

    def log(self, event: dict) -> None:
        with self.record_lock:
            self.sequence += 1
            self.record.write(json.dumps({'n': self.sequence, **event}) + '\n')
            self.record.flush()

    def close(self) -> None:
        self.record.close()
        shutil.rmtree(self.spools, ignore_errors=True)

    # Upload URLs are signed, and may end.

    def sign(self, origin: str, path: str) -> str:
        until = f'{time.time() + self.options.url_lifetime:.3f}' if self.options.url_lifetime else '0'
        nonce = os.urandom(6).hex()
        return f'{origin}{path}?until={until}&nonce={nonce}&sig={self.signature(path, until, nonce)}'

    @staticmethod
    def signature(path: str, until: str, nonce: str) -> str:
        return f'{zlib.crc32(f"{path} {until} {nonce}".encode()):08x}'

    def refusal_of_url(self, target: str) -> str | None:
        """Why an upload URL is not taken; none where it is."""
        parsed = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parsed.query).items()}
        until, nonce = query.get('until', ''), query.get('nonce', '')
        if query.get('sig') != self.signature(parsed.path, until, nonce):
            return 'SignatureDoesNotMatch'
        if nonce in self.expired or (until != '0' and time.time() > float(until)):
            return 'AccessDenied: Request has expired'
        return None

    def expire(self, target: str) -> None:
        self.expired.update(parse_qs(urlsplit(target).query).get('nonce', []))

    def needles(self) -> list[bytes]:
        """The API keys that are known, as they are and as Basic authentication carries them."""
        found = []
        for key in self.keys:
            found += [key.encode(), base64.b64encode(f'api:{key}'.encode())]
        return found

    # Parts of an upload are on the disk until they are put together.

    def spool(self, upload: str, number: int) -> str:
        name = hashlib.md5(upload.encode()).hexdigest()
        return os.path.join(self.spools, f'{name}-{number}')

    def assemble(self, upload: str, numbers: list[int]) -> Blob:
        def every_piece() -> Any:
            for number in numbers:
                with open(self.spool(upload, number), 'rb') as part:
                    while piece := part.read(1 << 20):
                        yield piece
        whole = receive(every_piece(), Search([]), keep=0)
        prefix = os.path.basename(self.spool(upload, 0))[:-1]
        for name in os.listdir(self.spools):
            if name.startswith(prefix):
                os.remove(os.path.join(self.spools, name))
        return whole


class Server(ThreadingHTTPServer):
    daemon_threads, allow_reuse_address, request_queue_size = True, True, 128

    def __init__(self, address: tuple[str, int], service: Service, other: bool = False, plain: bool = False):
        super().__init__(address, Handler)
        self.service = service
        # Whether this is the port that redirects lead to.
        self.other = other
        if service.options.cert and not plain:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(service.options.cert, service.options.key)
            # The handshake is made by the thread of the connection, with its first read.
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    server_version = 'fake-wandb/2'
    server: Server

    def log_message(self, *_: Any) -> None:
        """Nothing: the recording has it."""

    def answer(self, status: int, body: Any, headers: dict | None = None, cut: bool = False) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data[:len(data) // 2] if cut else data)
        self.wfile.flush()
        if cut:
            self.hang_up()

    def hang_up(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    # The verbs.

    def do_GET(self) -> None:
        if self.path.startswith('/__'):
            self.control({})
        else:
            self.serve()

    def do_POST(self) -> None:
        if self.path.startswith('/__'):
            body = b''.join(pieces(self.rfile, self.headers))
            self.control(json.loads(body or b'{}'))
        else:
            self.serve()

    def do_PUT(self) -> None:
        self.serve()

    do_DELETE = do_PUT

    def control(self, body: dict) -> None:
        """Paths that a test steers the server by."""
        service = self.server.service
        answer: Any = {'ok': True}
        try:
            if self.path == '/__state':
                answer = normalize(service.options.record)
            elif self.path == '/__faults':
                answer = service.faults.shown()
            elif self.path == '/__fault':
                service.faults.add(body['rule'])
            elif self.path == '/__clear':
                service.faults.clear()
            elif self.path == '/__down':
                service.faults.down(body['seconds'])
            elif self.path == '/__stop':
                with service.lock:
                    stop(service.state, body['run'])
                    service.log({'t': time.time(), 'kind': 'control', 'stopped': body['run']})
            elif self.path != '/__ready':
                return self.answer(404, {'error': 'no such control'})
        except (ValueError, KeyError) as error:
            return self.answer(400, {'error': repr(error)})
        return self.answer(200, answer)

    def serve(self) -> None:
        Exchange(self).run()


class Exchange:
    """One request, from its first line to its answer."""

    def __init__(self, handler: Handler):
        self.handler = handler
        self.service = handler.server.service
        self.url = urlsplit(handler.path)
        self.parts = [part for part in self.url.path.split('/') if part]
        self.warnings: list[str] = []
        self.targets = ['any']
        self.key: str | None = None
        self.blob = Blob.of(b'')
        self.document: Document | None = None
        self.operation: dict = {}
        self.variables: dict | None = None
        self.refused: str | None = None
        self.event: dict[str, Any] = {
            't': round(time.time(), 4), 'method': handler.command, 'path': handler.path, 'kind': 'other',
            'agent': handler.headers.get('User-Agent'), 'warnings': self.warnings}
        if handler.server.other:
            self.event['port'] = 'other'

    def run(self) -> None:
        self.authentication()
        self.kind()
        early = self.service.faults.take(self.targets) if self.event['kind'] == 'upload' else None
        if early in ('drop', 'drop-midway'):
            if early == 'drop-midway':
                half = int(self.handler.headers.get('Content-Length') or 0) // 2
                self.handler.rfile.read(min(half, 1 << 20))
            self.event.update(status=0, fault=early)
            self.service.log(self.event)
            return self.handler.hang_up()
        self.read()
        action = self.refused or early
        if self.event['kind'] != 'upload' and action is None:
            action = self.service.faults.take(self.targets)
        action = action or self.unauthorized()
        self.event['fault'] = action
        self.secrets()
        self.too_early()
        if self.done_without_handling(action):
            return None
        return self.handle(action)

    def authentication(self) -> None:
        headers = self.handler.headers
        given = headers.get('Authorization') or ''
        if given.startswith('Basic '):
            try:
                self.key = base64.b64decode(given[6:]).decode().split(':', 1)[1]
            except (ValueError, IndexError):
                self.key = None
        elif given.startswith('Bearer '):
            self.key = given[7:]
        self.key = headers.get('wandb-api-key') or self.key
        self.event['auth'] = 'key' if self.key else ('bad' if given else '')

    def kind(self) -> None:
        parts = [unquote(part) for part in self.parts]
        event = self.event
        if self.url.path == '/graphql':
            event['kind'] = 'graphql'
        elif len(parts) == 5 and parts[0] == 'files' and parts[4] == 'file_stream':
            event['kind'], event['run'] = 'file_stream', parts[1:4]
        elif self.url.path in OTLP_PATHS:
            event['kind'], event['project_id'] = 'otlp', self.handler.headers.get('project_id')
            if self.handler.headers.get('Content-Type') != 'application/x-protobuf':
                self.warnings.append('otlp: Content-Type is not application/x-protobuf')
        elif len(parts) >= 3 and parts[0] == 'upload':
            event['kind'], event['target'], event['parts'] = 'upload', parts[1], parts[2:]
            self.targets.append(f'upload.{parts[1]}')
            wanted = ('content-md5', 'content-type', 'x-fake-storage')
            event['headers'] = {k.lower(): v for k, v in self.handler.headers.items() if k.lower() in wanted}
            if self.handler.command != 'PUT':
                self.warnings.append('upload: not a PUT')
            if parts[1] == 'run' and 'x-fake-storage' not in event['headers']:
                self.warnings.append('upload: uploadHeaders were not applied')
        self.targets.append(event['kind'])

    def read(self) -> None:
        """Takes the body in."""
        source = pieces(self.handler.rfile, self.handler.headers)
        search = Search(self.service.needles())
        kind = self.event['kind']
        if kind == 'upload':
            is_part = self.event['target'] == 'part'
            keep = {'part': 0, 'manifest': MANIFEST_KEPT}.get(self.event['target'], 1 << 20)
            if is_part:
                # Under a name of its own until it is whole, since two connections may send one part.
                path = self.service.spool(self.event['parts'][0], int(self.event['parts'][1]))
                coming = f'{path}-{threading.get_ident()}'
                with open(coming, 'wb') as spool:
                    self.blob = receive(source, search, spool, keep)
                os.replace(coming, path)
            else:
                self.blob = receive(source, search, keep=keep)
            self.event['blob'] = self.blob.recorded()
        else:
            data = b''.join(source)
            encoding = self.handler.headers.get('Content-Encoding') or ''
            try:
                if encoding == 'gzip':
                    data = gzip.decompress(data)
                elif encoding == 'deflate':
                    data = zlib.decompress(data)
                self.parse(data)
            except (ValueError, KeyError, OSError, zlib.error, GraphQlError) as error:
                self.event['error'] = repr(error)
                self.refused = '400'
            search.feed(data)
        if search.found:
            self.warnings.append(f'{kind}: the API key is in the body')

    def parse(self, data: bytes) -> None:
        kind = self.event['kind']
        self.blob = Blob.of(data)
        if kind == 'graphql':
            request = json.loads(data)
            self.document = Document(request['query'])
            self.operation = self.document.pick(request.get('operationName'))
            self.variables = request.get('variables')
            self.event['op'] = self.operation['name']
            self.targets += self.document.roots(self.operation)
        elif kind == 'file_stream':
            self.event['body'] = json.loads(data)
            if len(data) > MAX_REQUEST:
                self.refused = '413'
        elif kind == 'otlp':
            self.event['blob'] = self.blob.recorded()

    def unauthorized(self) -> str | None:
        if self.event['kind'] not in ('graphql', 'file_stream', 'otlp'):
            return None
        wanted = self.service.options.api_key
        if not self.key or (wanted and self.key != wanted):
            return '401'
        if not self.handler.server.other:
            self.service.keys.add(self.key)
        return None

    def secrets(self) -> None:
        """The key goes to the API alone: not to the storage, not to where a redirect leads, not into a URL."""
        needles = self.service.needles()
        def holds(text: str) -> bool:
            return any(needle in text.encode('utf-8', 'replace') for needle in needles)
        in_headers = any(holds(value) for value in self.handler.headers.values())
        if self.event['kind'] == 'upload' and (in_headers or self.event['auth']):
            self.warnings.append('upload: the API key was sent to the storage host')
        if self.handler.server.other and (in_headers or self.event['auth']):
            self.warnings.append('redirect: the API key was sent to another origin')
        if holds(unquote(self.handler.path)):
            self.warnings.append('the API key is in a URL')
            self.event['path'] = self.url.path

    def too_early(self) -> None:
        identity = (self.handler.path, self.blob.md5)
        with self.service.lock:
            until = self.service.not_before.pop(identity, 0.0)
        if time.monotonic() < until:
            self.warnings.append(f'{self.event["kind"]}: tried again before Retry-After had passed')

    def done_without_handling(self, action: str | None) -> bool:
        """Faults after which the request has had no effect."""
        if action is None:
            return False
        if action.startswith('slow:'):
            time.sleep(float(action[5:]))
            return False
        if action == 'drop':
            self.event['status'] = 0
            self.service.log(self.event)
            self.handler.hang_up()
            return True
        headers: dict[str, str] = {}
        status, body = 0, {}
        if action == 'expire':
            self.service.expire(self.handler.path)
            status, body = 403, {'error': 'AccessDenied: Request has expired'}
        elif action == 'redirect':
            if self.handler.server.other:
                return False
            status, headers = 307, {'Location': self.service.other_origin + self.handler.path}
        elif action.startswith('gqlerr:'):
            status, body = 200, {'data': None, 'errors': [{'message': action[7:]}]}
        elif re.fullmatch(r'\d{3}(:(date:)?[\d.]+)?', action):
            code, _, after = action.partition(':')
            status = int(code)
            body = {'error': f'injected {code}', 'errors': [{'message': f'injected {code}'}]}
            if after:
                headers['Retry-After'] = self.retry_after(after)
        else:
            return False
        self.event['status'] = status
        self.service.log(self.event)
        self.handler.answer(status, body, headers)
        return True

    def retry_after(self, after: str) -> str:
        """The header. A client that does not wait is noted; a date has whole seconds, so a second less is asked."""
        seconds = float(after.removeprefix('date:'))
        dated = after.startswith('date:')
        with self.service.lock:
            tolerance = 1.0 if dated else 0.05
            identity = (self.handler.path, self.blob.md5)
            self.service.not_before[identity] = time.monotonic() + seconds - tolerance
        return email.utils.formatdate(time.time() + seconds, usegmt=True) if dated else after

    def handle(self, action: str | None) -> None:
        self.event['acknowledged'] = action not in ('drop-after', 'truncate')
        headers: dict[str, str] = {}
        if action and action.startswith('ratelimit:'):
            remaining, reset, *limit = action.split(':')[1:]
            headers = {'RateLimit-Remaining': remaining, 'RateLimit-Reset': reset, 'RateLimit-Limit': (limit or ['100'])[0]}
        with self.service.lock:
            if action == 'stopped' and self.event['kind'] == 'file_stream':
                stop(self.service.state, self.event['run'][2])
            status, body = self.apply()
            self.event.update(status=status, applied=status < 300)
            self.service.log(self.event)
        if self.event.get('target') == 'part' and status == 200:
            headers['ETag'] = f'"{self.blob.hex_md5()}"'
        if action == 'drop-after':
            return self.handler.hang_up()
        try:
            self.handler.answer(status, body, headers, cut=action == 'truncate')
        except OSError:
            pass
        return None

    def apply(self) -> tuple[int, Any]:
        service, event = self.service, self.event
        host = self.handler.headers.get('Host') or '%s:%d' % self.handler.server.server_address[:2]
        facts: dict[str, Any] = {}
        event['facts'] = facts
        context = Context(
            sign=lambda path: service.sign(f'{service.scheme}://{host}', path), now=event['t'],
            acknowledged=event['acknowledged'], facts=facts, assemble=service.assemble)
        if event['kind'] == 'graphql':
            return self.apply_graphql(context)
        if event['kind'] == 'file_stream':
            return service.state.file_stream(*event['run'], event['body'], context)
        if event['kind'] == 'otlp':
            return service.state.otlp(self.url.path, event['project_id'], self.blob.body or b'')
        if event['kind'] == 'upload':
            refusal = service.refusal_of_url(self.handler.path)
            if refusal:
                return 403, {'error': refusal}
            return service.state.upload(event['target'], event['parts'], self.blob, event['headers'], context)
        return (200, {}) if self.url.path == '/' else (404, {'error': 'not found'})

    def apply_graphql(self, context: Context) -> tuple[int, Any]:
        service, event, document = self.service, self.event, self.document
        calls: list = []
        unknown: list[str] = []
        event['calls'] = calls

        def mutation(name: str) -> Any:
            def call(arguments: dict) -> Any:
                given = {key: value for key, value in (arguments.get('input') or {}).items() if value is not None}
                calls.append([name, given])
                return service.state.mutate(name, given, context)
            return call

        try:
            if document is None:
                raise GraphQlError('no document')
            document.bind(self.operation, self.variables)
            resolvers = service.state.queries() | {name: mutation(name) for name in INPUTS}
            data = document.run(self.operation['selection'], resolvers, unknown)
        except GraphQlError as error:
            event['error'] = str(error)
            self.warnings.append(f"{event.get('op')}: {error}")
            return 400, {'data': None, 'errors': [{'message': str(error)}]}
        if unknown:
            event['unknown'] = unknown
        event['answer'] = data
        return 200, {'data': data}


def serve(options: Any) -> None:
    service = Service(options)
    main = Server((options.host, options.port), service)
    other = Server((options.host, 0), service, other=True)
    # For the paths that a test steers by, without TLS.
    control = Server((options.host, 0), service, plain=True)
    service.other_origin = f'{service.scheme}://{options.host}:{other.server_address[1]}'
    service.log({'kind': 'start', 'entity': options.entity, 'min_part': options.min_part})
    for server in (other, control):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    if options.port_file:
        # Renamed into place, so that whoever waits for the file finds all of it.
        with open(options.port_file + '.new', 'w', encoding='utf-8') as file:
            file.write(''.join(f'{server.server_address[1]}\n' for server in (main, control, other)))
        os.replace(options.port_file + '.new', options.port_file)
    print(f'{service.scheme}://{options.host}:{main.server_address[1]} recording to {options.record}', flush=True)
    try:
        main.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        service.close()
