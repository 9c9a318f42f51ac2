"""Artifacts: versions, aliases, manifests, files, and files in parts."""
from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from content import Blob, loads
from graphql import GraphQlError
from schema import FILE_FIELDS, MAX_PARTS, MAX_PUT, MIN_PART, PART_FIELDS

if TYPE_CHECKING:
    from state import Context


def manifest_digest(contents: dict) -> str:
    digest = hashlib.md5(b'wandb-artifact-manifest-v1\n')
    for path in sorted(contents):
        digest.update(f"{path}:{contents[path].get('digest')}\n".encode())
    return digest.hexdigest()


@dataclass
class Artifact:
    id: str
    entity: str
    project: str
    name: str
    type: str
    digest: str
    run: str | None = None
    description: str | None = None
    metadata: str | None = None
    ttl: int | None = None
    step: int | None = None
    sequence_id: str | None = None
    state: str = 'PENDING'
    version: int | None = None
    aliases: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    client_ids: set[str] = field(default_factory=set)
    manifest: dict | None = None
    shared_runs: list[str] = field(default_factory=list)

    def collection(self) -> tuple[str, str, str]:
        return (self.entity, self.project, self.name)


@dataclass
class File:
    artifact: str
    name: str
    md5: str
    blob: Blob | None = None
    acknowledged: bool = False


@dataclass
class Manifest:
    id: str
    artifact: str
    name: str
    digest: str
    blob: Blob | None = None
    acknowledged: bool = False


@dataclass
class Multipart:
    """An upload in parts, from the request for its URLs to its completion."""
    id: str
    artifact: str
    name: str
    storage_path: str
    # By number, as the client announced them: MD5 in hexadecimal.
    announced: dict[int, str]
    received: dict[int, Blob] = field(default_factory=dict)
    state: str = 'open'


class Artifacts:
    """The part of the server's state that artifacts are."""

    def __init__(self, min_part: int | None = None) -> None:
        self.min_part = MIN_PART if min_part is None else min_part
        self.artifacts: dict[str, Artifact] = {}
        self.manifests: dict[str, Manifest] = {}
        self.files: dict[tuple[str, str], File] = {}
        self.multiparts: dict[str, Multipart] = {}
        self.numbered = 0
        self.violations: list[str] = []
        self.duplicates: list[str] = []

    def bad(self, message: str) -> None:
        self.violations.append(message)

    def new_id(self, kind: str) -> str:
        self.numbered += 1
        return base64.b64encode(f'{kind}:{self.numbered:06d}'.encode()).decode()

    def artifact(self, id_: str, asked: str) -> Artifact:
        if id_ not in self.artifacts:
            raise GraphQlError(f'{asked}: no artifact {id_}')
        return self.artifacts[id_]

    def create_artifact(self, given: dict, entity: str) -> dict:
        name = self.checked_name(given)
        project = given['projectName']
        same = [old for old in self.artifacts.values() if old.collection() == (entity, project, name)]
        if same and same[0].type != given['artifactTypeName']:
            raise GraphQlError(f'createArtifact: {name} already exists with type {same[0].type}')
        client_id = given.get('clientID')
        artifact = next((old for old in same if client_id and client_id in old.client_ids), None)
        if artifact is None and given.get('enableDigestDeduplication'):
            artifact = next((old for old in same if old.digest == given['digest'] and old.state == 'COMMITTED'), None)
        if artifact is None:
            artifact = Artifact(
                self.new_id('Artifact'), entity, project, name, given['artifactTypeName'], given['digest'],
                run=given.get('runName'), description=given.get('description'), metadata=given.get('metadata'),
                ttl=given.get('ttlDurationSeconds'), step=given.get('historyStep'),
                sequence_id=given.get('sequenceClientID'))
            self.artifacts[artifact.id] = artifact
        elif artifact.digest != given['digest']:
            self.bad('createArtifact: a clientID was reused with another digest')
        if client_id:
            artifact.client_ids.add(client_id)
        if given.get('runName') and given['runName'] != artifact.run:
            artifact.shared_runs.append(given['runName'])
        for alias in given.get('aliases') or []:
            for old in same:
                old.aliases = [kept for kept in old.aliases if kept != alias['alias']]
            if alias['alias'] not in artifact.aliases:
                artifact.aliases.append(alias['alias'])
        for tag in given.get('tags') or []:
            if tag['tagName'] not in artifact.tags:
                artifact.tags.append(tag['tagName'])
        committed = [old for old in same if old.state == 'COMMITTED']
        latest = max(committed, key=lambda old: old.version or 0, default=None)
        return {'artifact': {
            'id': artifact.id, 'state': artifact.state, 'digest': artifact.digest,
            'artifactSequence': {
                'id': base64.b64encode(f'Seq:{entity}/{project}/{name}'.encode()).decode(), 'name': name,
                'latestArtifact': latest and {'id': latest.id, 'versionIndex': latest.version},
            }}}

    def checked_name(self, given: dict) -> str:
        names = given.get('artifactCollectionNames') or []
        if given.get('artifactCollectionName'):
            names = names or [given['artifactCollectionName']]
        if len(names) != 1:
            raise GraphQlError('createArtifact: exactly one collection name is needed')
        if given['digestAlgorithm'] != 'MANIFEST_MD5':
            raise GraphQlError('createArtifact: unknown digestAlgorithm')
        if not re.fullmatch(r'[A-Za-z0-9_.\-]{1,128}', names[0]):
            raise GraphQlError(f'createArtifact: invalid name {names[0]!r}')
        if not re.fullmatch(r'[0-9a-f]{32}', given['digest']):
            self.bad('createArtifact: digest is not 32 hex digits')
        if given.get('metadata') is not None:
            try:
                loads(given['metadata'])
            except ValueError as error:
                raise GraphQlError('createArtifact: metadata is not JSON') from error
        for field_ in ('clientID', 'sequenceClientID'):
            if given.get(field_) and len(given[field_]) != 128:
                self.bad(f'createArtifact: {field_} has {len(given[field_])} characters, the client sends 128')
        return names[0]

    def manifest_payload(self, manifest: Manifest, context: Context) -> dict:
        path = f"/upload/manifest/{quote(manifest.id, safe='')}/{quote(manifest.name)}"
        headers = ['Content-Type:application/json']
        if manifest.digest:
            headers.append(f'Content-MD5:{manifest.digest}')
        return {'artifactManifest': {'id': manifest.id, 'file': {
            'id': manifest.id + 'f', 'name': manifest.name, 'displayName': manifest.name,
            'uploadUrl': context.sign(path), 'uploadHeaders': headers}}}

    def createArtifactManifest(self, given: dict, context: Context) -> dict:
        artifact = self.artifact(given['artifactID'], 'createArtifactManifest')
        if given.get('type', 'FULL') not in ('FULL', 'PATCH', 'INCREMENTAL'):
            raise GraphQlError('bad manifest type')
        manifest = Manifest(self.new_id('Manifest'), artifact.id, given['name'], given['digest'])
        self.manifests[manifest.id] = manifest
        return self.manifest_payload(manifest, context)

    def updateArtifactManifest(self, given: dict, context: Context) -> dict:
        manifest = self.manifests.get(given['artifactManifestID'])
        if manifest is None:
            raise GraphQlError('no such manifest')
        if given.get('digest') is not None:
            manifest.digest = given['digest']
        return self.manifest_payload(manifest, context)

    def createArtifactFiles(self, given: dict, context: Context) -> dict:
        if given.get('storageLayout') not in (None, 'V2'):
            self.bad('createArtifactFiles: storageLayout is not V2')
        return {'files': {'edges': [{'node': self.file_node(spec, context)} for spec in given['artifactFiles']]}}

    def file_node(self, spec: dict, context: Context) -> dict:
        if set(spec) - FILE_FIELDS:
            raise GraphQlError(f'createArtifactFiles: unknown fields {sorted(set(spec) - FILE_FIELDS)}')
        artifact = self.artifact(spec['artifactID'], 'createArtifactFiles')
        name, md5 = spec['name'], spec['md5']
        parts = self.checked_parts(spec.get('uploadPartsInput'))
        storage_path = f'wandb_artifacts/{artifact.id}/{name}'
        birth, url, multipart = artifact, None, None
        known = self.known_file(artifact, name, md5)
        if known:
            birth = self.artifacts[known.artifact]
            self.files.setdefault((artifact.id, name), known)
        else:
            self.files[(artifact.id, name)] = File(artifact.id, name, md5)
            url = context.sign(f"/upload/artifact/{quote(artifact.id, safe='')}/{quote(name, safe='')}")
            if parts:
                upload = Multipart(self.new_id('Upload'), artifact.id, name, storage_path, parts)
                self.multiparts[upload.id] = upload
                part_url = f"/upload/part/{quote(upload.id, safe='')}/"
                multipart = {'uploadID': upload.id, 'uploadUrlParts': [
                    {'partNumber': number, 'uploadUrl': context.sign(part_url + str(number))} for number in parts]}
        return {
            'id': f'{artifact.id}:{name}', 'name': name, 'displayName': name, 'uploadUrl': url,
            'uploadHeaders': [f'Content-MD5:{md5}', f"Content-Type:{spec.get('mimetype') or 'application/octet-stream'}"],
            'storagePath': storage_path, 'uploadMultipartUrls': multipart, 'artifact': {'id': birth.id},
        }

    def known_file(self, artifact: Artifact, name: str, md5: str) -> File | None:
        for (owner, file_name), file in self.files.items():
            if (file.md5, file_name) == (md5, name) and file.blob is not None \
                    and self.artifacts[owner].collection() == artifact.collection():
                return file
        return None

    @staticmethod
    def checked_parts(given: list[dict] | None) -> dict[int, str]:
        parts = {}
        for part in given or []:
            if set(part) != PART_FIELDS:
                raise GraphQlError(f'uploadPartsInput: the fields are {sorted(part)}, not {sorted(PART_FIELDS)}')
            if not re.fullmatch('[0-9a-f]{32}', part['hexMD5']):
                raise GraphQlError('uploadPartsInput: hexMD5 is not 32 hex digits')
            parts[part['partNumber']] = part['hexMD5']
        if list(parts) != list(range(1, len(given or []) + 1)):
            raise GraphQlError('uploadPartsInput: the numbers are not 1, 2, 3 ...')
        if len(parts) > MAX_PARTS:
            raise GraphQlError(f'uploadPartsInput: {len(parts)} parts, and at most {MAX_PARTS} are allowed')
        return parts

    def completeMultipartUploadArtifact(self, given: dict, context: Context) -> dict:
        asked = 'completeMultipartUploadArtifact'
        upload = self.multiparts.get(given['uploadID'])
        if upload is None:
            raise GraphQlError(f'{asked}: no upload {given["uploadID"]}')
        if given['artifactID'] != upload.artifact or given['storagePath'] != upload.storage_path:
            raise GraphQlError(f'{asked}: the upload is of another artifact or path')
        action = given['completeMultipartAction']
        if action not in ('Complete', 'Abort'):
            raise GraphQlError(f'{asked}: unknown action {action!r}')
        file = self.files[(upload.artifact, upload.name)]
        if action == 'Abort':
            upload.state = 'aborted'
            if context.assemble:
                context.assemble(upload.id, [])
            return {'digest': None}
        if upload.state == 'complete' and file.blob:
            # A repeat, as after an answer that was lost.
            return {'digest': file.blob.md5}
        if upload.state == 'aborted':
            raise GraphQlError(f'{asked}: the upload was aborted')
        # The field is named for an MD5 and carries the ETag that the storage answered the part with.
        tags = {part['partNumber']: part['hexMD5'].strip('"') for part in given['completedParts']}
        if list(tags) != list(upload.announced):
            raise GraphQlError(f'{asked}: the parts are not all there, or not in order')
        for number, tag in tags.items():
            blob = upload.received.get(number)
            if blob is None or blob.hex_md5() != tag:
                raise GraphQlError(f'{asked}: InvalidPart {number}')
            if blob.size < self.min_part and number != len(tags):
                raise GraphQlError(f'{asked}: EntityTooSmall: part {number} has {blob.size} bytes')
        known = context.facts.get('whole')
        if context.assemble:
            whole = context.assemble(upload.id, list(tags))
            context.facts['whole'] = whole.recorded()
        elif known:
            whole = Blob.of_record(known)
        else:
            raise GraphQlError(f'{asked}: the recording lacks the whole')
        if whole.md5 != file.md5:
            raise GraphQlError(f'{asked}: the whole has the MD5 {whole.md5}, and {file.md5} was announced')
        file.blob, upload.state = whole, 'complete'
        return {'digest': whole.md5}

    def commitArtifact(self, given: dict, context: Context) -> dict:
        artifact = self.artifact(given['artifactID'], 'commitArtifact')
        if artifact.state != 'COMMITTED':
            uploaded = [m for m in self.manifests.values() if m.artifact == artifact.id and m.blob is not None]
            if not uploaded or uploaded[-1].blob is None or uploaded[-1].blob.body is None:
                raise GraphQlError('commitArtifact: no manifest was uploaded')
            manifest = loads(uploaded[-1].blob.body)
            self.check_manifest(artifact, manifest)
            artifact.manifest, artifact.state = manifest, 'COMMITTED'
            artifact.version = sum(1 for old in self.artifacts.values() if old.state == 'COMMITTED'
                                   and old is not artifact and old.collection() == artifact.collection())
        return {'artifact': {'id': artifact.id, 'digest': artifact.digest}}

    def check_manifest(self, artifact: Artifact, manifest: dict) -> None:
        for path, entry in manifest['contents'].items():
            # The official client also writes local_path and skip_cache: harmless, but a leak.
            if entry.get('ref'):
                continue
            file = self.files.get((artifact.id, path))
            if file is None or file.blob is None:
                raise GraphQlError(f'commitArtifact: content of {path!r} is missing')
            if file.md5 != entry.get('digest'):
                raise GraphQlError(f'commitArtifact: digest of {path!r} differs')
            if entry.get('size') != file.blob.size:
                self.bad(f'commitArtifact: size of {path!r} differs')
            if entry.get('birthArtifactID') not in self.artifacts:
                self.bad(f'manifest entry {path!r} lacks birthArtifactID')
        if (manifest.get('version'), manifest.get('storagePolicy')) != (1, 'wandb-storage-policy-v1'):
            self.bad('manifest version or policy')
        digest = manifest_digest(manifest['contents'])
        if digest != artifact.digest:
            self.bad(f'artifact {artifact.name}: digest {artifact.digest} is not that of its manifest {digest}')

    def upload_of_artifact(self, kind: str, parts: list[str], blob: Blob, context: Context) -> tuple[int, Any]:
        if blob.size > MAX_PUT:
            return 400, {'error': 'EntityTooLarge'}
        if kind == 'part':
            upload, number = self.multiparts.get(parts[0]), int(parts[1])
            if upload is None or upload.state != 'open':
                return 404, {'error': 'NoSuchUpload'}
            if upload.announced.get(number) != blob.hex_md5():
                return 400, {'error': 'BadDigest'}
            upload.received[number] = Blob(blob.size, blob.md5)
            return 200, {}
        target: File | Manifest | None
        if kind == 'artifact':
            target = self.files.get((parts[0], parts[1]))
            expected = target.md5 if target else None
            label = f'{self.artifacts[parts[0]].name}: {parts[1]}' if target else ''
        elif kind == 'manifest':
            target = self.manifests.get(parts[0])
            expected = target.digest if target else None
            label = f'{self.artifacts[target.artifact].name}: {target.name}' if target else ''
        else:
            target, expected, label = None, None, ''
        if target is None:
            return 404, {}
        if expected and expected != blob.md5:
            return 400, {'error': 'BadDigest'}
        if target.acknowledged and target.blob and target.blob.md5 == blob.md5:
            self.duplicates.append(label)
        target.blob = blob
        target.acknowledged = target.acknowledged or context.acknowledged
        return 200, {}
