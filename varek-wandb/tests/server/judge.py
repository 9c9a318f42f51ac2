"""The judge: from a recording to what the server now holds, in a form in which two clients can be compared."""
import base64
import difflib
import json
import re
from typing import Any

from content import Blob, canonical, loads
from graphql import GraphQlError
from schema import INPUTS
from state import Artifact, Context, Run, State

# Files that the official client or its sync makes by itself.
GENERATED = {
    'config.yaml', 'wandb-metadata.json', 'wandb-summary.json', 'requirements.txt', 'conda-environment.yaml',
    'diff.patch', 'wandb-history.jsonl', 'wandb-events.jsonl', 'output.log',
}
# Lists of a document that say how a client got there, and not where it got.
MANNERS = ('duplicates', 'resent')


def replay(path: str) -> tuple[State, list[str]]:
    """The state that a recording leads to, and the violations that were seen while requests came in."""
    state: State | None = None
    warnings: list[str] = []
    with open(path, encoding='utf-8') as lines:
        for line in lines:
            event = json.loads(line)
            if event['kind'] == 'start':
                # A server that was started again keeps what it held.
                state = state or State(event['entity'], event.get('min_part'))
                continue
            warnings += event.get('warnings') or []
            if state is None or event['kind'] == 'control':
                if state and event.get('stopped'):
                    stop(state, event['stopped'])
                continue
            if event.get('applied') or event['kind'] == 'file_stream' and event.get('status') == 404:
                apply(state, event)
    return state or State(), warnings


def stop(state: State, name: str) -> None:
    for run in state.runs.values():
        if run.key[2] == name:
            run.stopped = True


def apply(state: State, event: dict) -> None:
    context = Context(now=event['t'], acknowledged=event.get('acknowledged', True), facts=event.get('facts') or {})
    if event.get('fault') == 'stopped' and event['kind'] == 'file_stream':
        stop(state, event['run'][2])
    if event['kind'] == 'graphql':
        for root, given in event['calls']:
            if root in INPUTS:
                try:
                    state.mutate(root, given, context)
                except GraphQlError:
                    continue
    elif event['kind'] == 'file_stream':
        state.file_stream(*event['run'], event['body'], context)
    elif event['kind'] == 'otlp':
        blob = Blob.of_record(event['blob'])
        state.otlp(event['path'], event.get('project_id'), blob.body or b'')
    elif event['kind'] == 'upload':
        blob = Blob.of_record(event['blob'])
        state.upload(event['target'], event['parts'], blob, event['headers'], context)


class Document:
    """Makes the document; `whole` keeps what differs from client to client."""

    def __init__(self, state: State, whole: bool):
        self.state = state
        self.whole = whole
        self.labels: dict[str, str] = {}
        for artifact in state.artifacts.values():
            label = self.label(artifact)
            for client_id in artifact.client_ids:
                self.labels[client_id] = label
            if artifact.sequence_id:
                self.labels[artifact.sequence_id] = f'<{artifact.type}/{artifact.name}>'
            self.labels[loads_id(artifact.id)] = label

    @staticmethod
    def label(artifact: Artifact) -> str:
        version = 'pending' if artifact.version is None else f'v{artifact.version}'
        return f'<{artifact.type}/{artifact.name}:{version}>'

    def named(self, value: Any) -> Any:
        """Ids of artifacts by the artifact that they are of."""
        if isinstance(value, str) and value.startswith(('wandb-client-artifact://', 'wandb-artifact://')):
            for id_, label in self.labels.items():
                value = value.replace(id_, label)
            return value
        if isinstance(value, dict):
            return {key: self.named(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.named(item) for item in value]
        return value

    def row(self, text: str) -> Any:
        row = dict(loads(text))
        if not self.whole:
            for key in ('_timestamp', '_runtime'):
                if isinstance(row.get(key), (int, float)) and not isinstance(row[key], bool):
                    row[key] = '<number>'
            if isinstance(row.get('_wandb'), dict):
                row['_wandb'] = {key: '<number>' if key == 'runtime' else value for key, value in row['_wandb'].items()}
        return canonical(self.named(row))

    def run(self, run: Run) -> dict:
        entity, project, name = run.key
        config = {key: value.get('value') if isinstance(value, dict) else value for key, value in run.config.items()}
        internal = config.pop('_wandb', None) or {}
        document: dict[str, Any] = {
            'entity': entity, 'project': project, 'id': name, 'display_name': run.display_name,
            'job_type': run.job_type, 'group': run.group, 'notes': run.notes, 'tags': run.tags, 'sweep': run.sweep,
            'state': run.state, 'exit_code': run.exit_code, 'config': canonical(config), 'resumable': 't' in internal,
            'history': [self.row(run.history[line]) for line in sorted(run.history)],
            'summary': self.row(run.summary) if run.summary else None,
            'console': console(run),
            'files': {name: blob.shown() for name, blob in sorted(run.files.items()) if name not in GENERATED},
            'alerts': [{key: alert[key] for key in ('title', 'text', 'severity', 'wait')} for alert in run.alerts],
            'used': [self.label(self.state.artifacts[id_]) for id_ in run.used],
        }
        numbers = sorted(run.history)
        if numbers != list(range(len(numbers))):
            document['history_lines'] = numbers
        if self.whole:
            generated = {name: blob.shown() for name, blob in sorted(run.files.items()) if name in GENERATED}
            document.update(
                generated=generated, wandb_config=canonical(internal), host=run.host, program=run.program,
                events=len(run.events), uploaded=sorted(run.uploaded), upserts=run.upserts,
                suppressed_alerts=run.suppressed, stopped=run.stopped,
                console_lines=[run.console[line] for line in sorted(run.console)])
        return document

    def artifact(self, artifact: Artifact) -> dict:
        document: dict[str, Any] = {
            'entity': artifact.entity, 'project': artifact.project, 'type': artifact.type, 'name': artifact.name,
            'version': artifact.version, 'state': artifact.state, 'run': artifact.run,
            'description': artifact.description, 'digest': artifact.digest, 'ttl': artifact.ttl,
            'metadata': canonical(loads(artifact.metadata)) if artifact.metadata else None,
            'aliases': sorted(artifact.aliases), 'tags': sorted(artifact.tags),
        }
        if artifact.manifest:
            manifest = artifact.manifest
            contents = {path: self.entry(entry) for path, entry in sorted(manifest['contents'].items())}
            document['manifest'] = {
                'version': manifest.get('version'), 'storagePolicy': manifest.get('storagePolicy'),
                'storagePolicyConfig': manifest.get('storagePolicyConfig'), 'contents': contents}
        document['files'] = {name: file.blob.shown() if file.blob else None
                             for (owner, name), file in sorted(self.state.files.items()) if owner == artifact.id}
        return document

    def entry(self, entry: dict) -> Any:
        kept = {key: value for key, value in entry.items()
                if key in ('digest', 'size', 'ref') or (key == 'extra' and value)}
        return canonical(self.named(kept))

    def spans(self) -> list[dict]:
        names = {(span['trace'], span['id']): span['name'] for span in self.state.spans}
        documents, seen = [], set()
        for span in self.state.spans:
            key = (span['trace'], span['id'])
            if key in seen:
                continue
            seen.add(key)
            document = {name: canonical(span[name]) for name in (
                'project', 'view', 'service', 'name', 'kind', 'attributes', 'status', 'message', 'events')}
            parent = span['parent']
            document['parent'] = names.get((span['trace'], parent), f'<remote {parent}>') if parent else None
            if self.whole:
                document.update(trace=span['trace'], id=span['id'])
            documents.append(document)
        return sorted(documents, key=lambda document: json.dumps(document, sort_keys=True))


def loads_id(id_: str) -> str:
    """An id of the server as clients write it into a reference: in hexadecimal."""
    return base64.b64decode(id_).hex()


STAMP = re.compile(r'^(ERROR )?\d{4}-\d\d-\d\d[T ][\d:.]+Z? ')


def console(run: Run) -> list[dict]:
    """The lines of the console without the moment of each; clients send them plain or as JSON."""
    lines = []
    chunks = [run.console[number] for number in sorted(run.console)]
    # The official client's old sync sends pieces of a line as they were written.
    for text in chunks:
        if text.startswith('{'):
            try:
                line = json.loads(text)
                error = line.get('level') == 'error'
                lines.append({'stream': 'stderr' if error else 'stdout', 'text': line.get('content', '')})
                continue
            except ValueError:
                pass
        match = STAMP.match(text)
        error = text.startswith('ERROR ')
        plain = text[match.end():] if match else text.removeprefix('ERROR ')
        lines.append({'stream': 'stderr' if error else 'stdout', 'text': plain.rstrip('\n')})
    return lines


def normalize(path: str, whole: bool = False, only: str | None = None) -> dict:
    state, warnings = replay(path)
    document = Document(state, whole)
    runs = [document.run(run) for run in state.runs.values() if only in (None, run.key[2])]
    artifacts = [document.artifact(one) for one in state.artifacts.values() if only in (None, one.run)]
    artifacts.sort(key=lambda one: (one['type'], one['name'], 1 << 30 if one['version'] is None else one['version']))
    found: dict[str, Any] = {
        'runs': runs, 'artifacts': artifacts, 'violations': sorted(set(state.violations + warnings)),
        'duplicates': sorted(state.duplicates), 'resent': state.resent,
    }
    spans = document.spans()
    if spans:
        found['spans'] = spans
    return found


def shown(document: dict) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False)


def difference(first: str, second: str, whole: bool = False) -> str:
    """The lines in which two recordings differ by what the server holds; nothing where they do not."""
    texts = []
    for path in (first, second):
        document = normalize(path, whole)
        if not (document['runs'] or document['artifacts'] or document.get('spans')):
            # Two clients that did nothing are not alike in what they log.
            raise ValueError(f'{path} holds nothing that could be compared')
        for manner in MANNERS:
            document.pop(manner)
        texts.append(shown(document).splitlines())
    return '\n'.join(difflib.unified_diff(*texts, first, second, lineterm='', n=2))


def statistics(path: str) -> dict[tuple, int]:
    counts: dict[tuple, int] = {}
    with open(path, encoding='utf-8') as lines:
        for line in lines:
            event = json.loads(line)
            key = (event['kind'], event.get('op') or event.get('target') or '', event.get('status', ''),
                   event.get('fault') or '')
            counts[key] = counts.get(key, 0) + 1
    return counts
