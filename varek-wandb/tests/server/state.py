"""What the server holds, and what it holds against the client: runs, their files, their history.

The same code serves requests and replays a recording, so nothing here reads a clock, a file or a socket: what is not in
the request is in the `Context`.
"""
import base64
import json
from dataclasses import dataclass, field
from typing import Any, Callable
from urllib.parse import quote

from artifacts import Artifact, Artifacts
from content import Blob, loads
from graphql import GraphQlError
from otlp import spans_of
from schema import FEATURES, INPUTS, MAX_LINE, MAX_TITLE, check_input, fields_of_type

STREAMS = {'wandb-history.jsonl': 'history', 'wandb-events.jsonl': 'events', 'output.log': 'console'}


@dataclass
class Context:
    """What a request has beside its content."""
    # Makes an upload URL of a path.
    sign: Callable[[str], str] = lambda path: path
    # Unix time in seconds.
    now: float = 0.0
    # Whether the client was told that the request was done.
    acknowledged: bool = True
    # What was found out while the request was served: written into the recording, and read from there in a replay.
    facts: dict = field(default_factory=dict)
    # Puts the parts of an upload together, in this order; not there in a replay.
    assemble: Callable[[str, list[int]], Blob] | None = None


@dataclass
class Run:
    id: str
    key: tuple[str, str, str]
    display_name: str | None = None
    job_type: str | None = None
    group: str | None = None
    notes: str | None = None
    tags: list[str] = field(default_factory=list)
    host: str | None = None
    program: str | None = None
    commit: str | None = None
    repository: str | None = None
    sweep: str | None = None
    config: dict = field(default_factory=dict)
    summary: str | None = None
    state: str = 'running'
    exit_code: int | None = None
    preempting: bool = False
    stopped: bool = False
    history: dict[int, str] = field(default_factory=dict)
    events: dict[int, str] = field(default_factory=dict)
    console: dict[int, str] = field(default_factory=dict)
    # History lines that the client knows to be here.
    acknowledged: set[int] = field(default_factory=set)
    files: dict[str, Blob] = field(default_factory=dict)
    acknowledged_files: set[str] = field(default_factory=set)
    uploaded: set[str] = field(default_factory=set)
    alerts: list[dict] = field(default_factory=list)
    suppressed: list[dict] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    upserts: int = 0


# Inputs of upsertBucket that are kept as they are.
COPIED = {
    'displayName': 'display_name', 'jobType': 'job_type', 'groupName': 'group', 'notes': 'notes', 'tags': 'tags',
    'host': 'host', 'jobProgram': 'program', 'commit': 'commit', 'jobRepo': 'repository', 'sweep': 'sweep',
}


class State(Artifacts):
    def __init__(self, entity: str = 'fake-team', min_part: int | None = None):
        super().__init__(min_part)
        self.entity = entity
        self.runs: dict[tuple[str, str, str], Run] = {}
        self.spans: list[dict] = []
        # Repeats that do no harm: a content that was acknowledged and came again, history lines likewise.
        self.resent: list[str] = []

    def run(self, entity: str | None, project: str | None, name: str, asked: str) -> Run:
        key = (entity or self.entity, project or 'uncategorized', name)
        if key not in self.runs:
            raise GraphQlError(f'{asked}: run {"/".join(map(str, key))} not found')
        return self.runs[key]

    # Mutations: each takes its evaluated input and gives the payload.

    def mutate(self, root: str, given: dict, context: Context) -> Any:
        check_input(root, given)
        return getattr(self, root)(given, context)

    def upsertBucket(self, given: dict, context: Context) -> dict:
        name = given.get('name') or f'auto{self.numbered}'
        key = (given.get('entityName') or self.entity, given.get('modelName') or 'uncategorized', name)
        run = self.runs.get(key)
        inserted = run is None
        if run is None:
            run = self.runs[key] = Run(self.new_id('Run'), key)
        run.upserts += 1
        for source, target in COPIED.items():
            if given.get(source) is not None:
                setattr(run, target, given[source])
        if given.get('config') is not None:
            try:
                config = loads(given['config'])
            except ValueError as error:
                raise GraphQlError(f'config is not JSON: {error}') from error
            if any(not isinstance(value, dict) or 'value' not in value for value in config.values()):
                self.bad('upsertBucket: config entries must be {"value": ...}')
            run.config = config
        if given.get('summaryMetrics') is not None:
            run.summary = given['summaryMetrics']
        if given.get('state'):
            run.state = given['state']
        if run.display_name is None:
            run.display_name = f'auto-{name}'
        return {'bucket': self.bucket(run), 'inserted': inserted}

    def createRunFiles(self, given: dict, context: Context) -> dict:
        run = self.run(given['entityName'], given['projectName'], given['runName'], 'createRunFiles')
        files = []
        for name in given['files']:
            if name.startswith('/') or '..' in name.split('/'):
                raise GraphQlError(f'createRunFiles: bad name {name!r}')
            path = '/upload/run/' + '/'.join(quote(part, safe='') for part in (*run.key, name))
            files.append({'name': name, 'uploadUrl': context.sign(path)})
        return {'runID': run.id, 'uploadHeaders': ['X-Fake-Storage:1'], 'files': files}

    def notifyScriptableRunAlert(self, given: dict, context: Context) -> dict:
        """An alert with the title of one of the same run within its wait duration is not delivered again."""
        run = self.run(given['entityName'], given['projectName'], given['runName'], 'alert')
        severity = given.get('severity') or 'INFO'
        if severity not in ('INFO', 'WARN', 'ERROR'):
            raise GraphQlError('bad severity')
        if len(given['title']) >= MAX_TITLE:
            self.bad(f'alert: the title has {len(given["title"])} characters, and must have less than {MAX_TITLE}')
        alert = {'title': given['title'], 'text': given['text'], 'severity': severity,
                 'wait': given.get('waitDuration'), 'at': context.now}
        # The service's wait duration is in milliseconds.
        wait = (alert['wait'] or 0) / 1000
        if any(old['title'] == alert['title'] and context.now - old['at'] < wait for old in run.alerts):
            run.suppressed.append(alert)
        else:
            if any((old['title'], old['text']) == (alert['title'], alert['text']) for old in run.alerts):
                self.bad(f'alert: {alert["title"]!r} was delivered twice with the same text')
            run.alerts.append(alert)
        return {'success': True}

    def useArtifact(self, given: dict, context: Context) -> dict:
        artifact = self.artifact(given['artifactID'], 'useArtifact')
        run = self.run(given['entityName'], given['projectName'], given['runName'], 'useArtifact')
        run.used.append(artifact.id)
        return {'artifact': {'id': artifact.id}}

    def createArtifact(self, given: dict, context: Context) -> dict:
        entity = given['entityName'] or self.entity
        if given.get('runName'):
            self.run(entity, given['projectName'], given['runName'], 'createArtifact')
        return self.create_artifact(given, entity)

    # Queries.

    def bucket(self, run: Run) -> dict:
        entity, project, name = run.key
        wandb = run.config.get('_wandb', {}).get('value') or {}
        return {
            'id': run.id, 'name': name, 'displayName': run.display_name, 'description': None,
            'config': json.dumps(run.config), 'sweepName': run.sweep, 'project': self.project(entity, project),
            'historyLineCount': len(run.history), 'logLineCount': len(run.console),
            'eventsLineCount': len(run.events), 'stopped': run.stopped, 'tags': run.tags, 'notes': run.notes,
            'state': run.state, 'summaryMetrics': run.summary or '{}', 'group': run.group, 'jobType': run.job_type,
            'historyTail': json.dumps([run.history[line] for line in sorted(run.history)][-1:]),
            'eventsTail': json.dumps([run.events[line] for line in sorted(run.events)][-1:]),
            'wandbConfig': lambda asked: json.dumps({k: v for k, v in wandb.items() if k in (asked.get('keys') or [])}),
        }

    def project(self, entity: str, project: str) -> dict:
        def one(asked: dict) -> dict | None:
            run = self.runs.get((entity, project, asked.get('name')))
            return self.bucket(run) if run else None
        return {
            'id': base64.b64encode(f'Project:{entity}/{project}'.encode()).decode(), 'name': project, 'bucket': one,
            'run': one, 'artifact': None, 'artifactType': None,
            'entity': {'id': base64.b64encode(f'Entity:{entity}'.encode()).decode(), 'name': entity},
        }

    def queries(self) -> dict[str, Any]:
        def mapped(asked: dict) -> dict | None:
            found = (a for a in self.artifacts.values() if asked['clientID'] in a.client_ids)
            return next(({'serverID': artifact.id} for artifact in found), None)
        def project(asked: dict) -> dict:
            return self.project(asked.get('entityName') or self.entity, asked.get('name'))
        def type_(asked: dict) -> dict:
            fields = [{'name': name} for name in fields_of_type(asked.get('name'))]
            return {'name': asked.get('name'), 'fields': fields, 'inputFields': fields}
        teams = {'edges': [{'node': {'id': 'VGVhbTox', 'name': self.entity}}]}
        return {
            'viewer': {'id': 'VXNlcjox', 'entity': self.entity, 'username': 'fake-user', 'name': 'Fake',
                       'email': 'fake@example.com', 'flags': '{}', 'admin': False, 'teams': teams,
                       'apiKeys': {'edges': []}, 'defaultFramework': None},
            'serverInfo': {'cliVersionInfo': {'max_cli_version': '99.0.0', 'min_cli_version': '0.0.0'},
                           'frontendHost': '', 'latestLocalVersionInfo': None,
                           'features': [{'name': name, 'isEnabled': True} for name in FEATURES]},
            'model': project, 'project': project,
            'entity': lambda asked: {'name': asked.get('name'), 'organization': {
                'name': None, 'orgEntity': None, 'coreWeaveOrganizationId': None}},
            'clientIDMapping': mapped, '__type': type_,
        }

    # The other kinds of request.

    def file_stream(self, entity: str, project: str, name: str, body: dict, context: Context) -> tuple[int, dict]:
        run = self.runs.get((entity, project, name))
        if run is None:
            self.bad(f'file_stream: there is no run {entity}/{project}/{name}')
            return 404, {'error': 'run not found'}
        if run.exit_code is not None and body.get('files'):
            self.bad('file_stream: data after complete')
        for file, chunks in (body.get('files') or {}).items():
            for chunk in chunks if isinstance(chunks, list) else [chunks]:
                refused = self.chunk(run, file, chunk, context)
                if refused:
                    return refused
        run.uploaded.update(body.get('uploaded') or [])
        run.preempting = run.preempting or bool(body.get('preempting'))
        if body.get('complete'):
            run.exit_code = body.get('exitcode', 0)
            run.state = 'finished' if run.exit_code == 0 else 'failed'
        answer: dict[str, Any] = {'exitcode': None, 'limits': {}}
        if run.stopped:
            answer['stopped'] = True
        return 200, answer

    def chunk(self, run: Run, file: str, chunk: dict, context: Context) -> tuple[int, dict] | None:
        if file == 'wandb-summary.json':
            if len(chunk['content']) != 1:
                self.bad('file_stream: a chunk of the summary must have one line')
            run.summary = chunk['content'][-1]
            return None
        if file not in STREAMS:
            self.bad(f'file_stream: unexpected file {file}')
            return None
        lines: dict[int, str] = getattr(run, STREAMS[file])
        again = []
        for number, line in enumerate(chunk['content'], chunk['offset']):
            if len(line) > MAX_LINE:
                return 413, {'error': 'line too long'}
            if file == 'wandb-history.jsonl':
                try:
                    row = loads(line)
                except ValueError:
                    return 400, {'error': 'history line is not JSON'}
                if lines.get(number, line) != line:
                    self.bad(f'history line {number} was overwritten with other content')
                if '_step' not in row:
                    self.bad(f'history line {number} has no _step')
                if number > 0 and number - 1 not in lines:
                    self.bad(f'history gap before line {number}')
                if number in run.acknowledged:
                    again.append(number)
                if context.acknowledged:
                    run.acknowledged.add(number)
            lines[number] = line
        if again:
            self.resent.append(f'{run.key[2]}: history lines {again[0]} to {again[-1]}')
        return None

    def upload(self, kind: str, parts: list[str], blob: Blob, headers: dict, context: Context) -> tuple[int, dict]:
        if headers.get('content-md5', blob.md5) != blob.md5:
            return 400, {'error': 'BadDigest'}
        if kind != 'run':
            return self.upload_of_artifact(kind, parts, blob, context)
        entity, project, name, file = parts
        run = self.runs.get((entity, project, name))
        if run is None:
            return 404, {}
        old = run.files.get(file)
        if old and old.md5 == blob.md5 and file in run.acknowledged_files:
            self.duplicates.append(f'{name}: {file}')
        run.files[file] = blob
        if context.acknowledged:
            run.acknowledged_files.add(file)
        return 200, {}

    def otlp(self, path: str, project_id: str | None, body: bytes) -> tuple[int, Any]:
        try:
            spans = spans_of(body)
        except (ValueError, IndexError) as error:
            return 400, {'error': f'not OTLP protobuf: {error}'}
        for span in spans:
            resource = span.pop('resource')
            named = resource.get('wandb.entity') and resource.get('wandb.project')
            project = f"{resource['wandb.entity']}/{resource['wandb.project']}" if named else project_id
            if not project:
                self.bad(f'otlp: span {span["name"]!r} has no project and is dropped')
                continue
            if span['nanoseconds'] < 0:
                self.bad(f'otlp: span {span["name"]!r} ends before it starts')
            view = 'agents' if path.startswith('/agents') else 'traces'
            self.spans.append(dict(span, project=project, view=view, service=resource.get('service.name')))
        return 200, b''


__all__ = ['Artifact', 'Context', 'INPUTS', 'Run', 'State']
