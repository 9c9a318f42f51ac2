"""What is known of the hosted service's schema: the inputs of its mutations, and what it says that it can do."""
from graphql import GraphQlError

# Root field: (the fields that its input may have, those that it must have).
INPUTS: dict[str, tuple[str, str]] = {
    'upsertBucket': (
        'id name groupName modelName entityName description displayName notes config commit host debug jobProgram '
        'jobRepo jobType state sweep tags summaryMetrics clientMutationId', ''),
    'createArtifact': (
        'aliases artifactCollectionName artifactCollectionNames artifactTypeName clientID clientMutationId description '
        'digest digestAlgorithm distributedID enableDigestDeduplication entityName historyStep labels metadata '
        'projectName runName sequenceClientID storageRegion tags ttlDurationSeconds',
        'artifactTypeName digest digestAlgorithm entityName projectName'),
    'createArtifactManifest': (
        'artifactID baseArtifactID name digest entityName projectName runName type clientMutationId',
        'artifactID name digest entityName projectName runName'),
    'updateArtifactManifest': (
        'artifactManifestID digest baseArtifactID clientMutationId', 'artifactManifestID'),
    'createArtifactFiles': ('artifactFiles storageLayout clientMutationId', 'artifactFiles'),
    'completeMultipartUploadArtifact': (
        'completeMultipartAction completedParts artifactID storagePath uploadID clientMutationId',
        'completeMultipartAction completedParts artifactID storagePath uploadID'),
    'commitArtifact': ('artifactID clientMutationId', 'artifactID'),
    'useArtifact': (
        'artifactEntityName artifactID artifactProjectName clientMutationId entityName projectName runName usedAs',
        'artifactID entityName projectName runName'),
    'createRunFiles': (
        'entityName projectName runName files clientMutationId', 'entityName projectName runName files'),
    'notifyScriptableRunAlert': (
        'entityName projectName runName title text severity waitDuration clientMutationId',
        'entityName projectName runName title text'),
}

# One file of `createArtifactFiles`, and one part of it.
FILE_FIELDS = set('artifactID artifactManifestID md5 mimetype name uploadPartsInput'.split())
PART_FIELDS = {'partNumber', 'hexMD5'}

FEATURES = [
    'LARGE_FILENAMES', 'ARTIFACT_TAGS', 'CLIENT_IDS', 'USE_ARTIFACT_WITH_ENTITY_AND_PROJECT_INFORMATION',
    'EXPAND_DEFINED_METRIC_GLOBS', 'TOTAL_COUNT_IN_FILE_CONNECTION',
]

QUERIES = ['viewer', 'serverInfo', 'model', 'project', 'entity', 'clientIDMapping']

MAX_LINE = 10 << 20
MAX_REQUEST = 32 << 20
# Limits of the storage behind upload URLs (the documentation of Amazon S3).
MAX_PARTS = 10_000
MAX_PUT = 5 << 30
MIN_PART = 5 << 20
MAX_TITLE = 64


def check_input(root: str, given: dict) -> None:
    """Refuses what the service's type would not take."""
    allowed, required = (set(names.split()) for names in INPUTS[root])
    for name in sorted(set(given) - allowed):
        raise GraphQlError(f'Field "{name}" is not defined by type {root[:1].upper()}{root[1:]}Input.')
    for name in sorted(required):
        if given.get(name) is None:
            raise GraphQlError(f'Field {root}.{name} of required type was not provided.')


def fields_of_type(name: str | None) -> list[str]:
    """The answer to an introspection query."""
    if name == 'Mutation':
        return list(INPUTS)
    if name == 'Query':
        return QUERIES
    if name == 'ServerInfo':
        return ['features', 'cliVersionInfo', 'latestLocalVersionInfo']
    if name == 'CreateArtifactFileSpecInput':
        return sorted(FILE_FIELDS)
    root = (name or '').removesuffix('Input')
    root = root[:1].lower() + root[1:]
    return INPUTS[root][0].split() if root in INPUTS else []
